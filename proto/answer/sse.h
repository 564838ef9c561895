/*
 * Server-sent events: finds where events end in a stream that is passed through, and what the last
 * ones said.  Knows "\n\n", "\r\n\r\n" and "\r\r", comments, several events per read, and events cut anywhere.
 *
 * Nothing is allocated and nothing is kept but a few bytes of state.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sse {
	uint64_t events; /* events with at least one data line */
	bool done;       /* an event whose data is exactly [DONE] has ended */
	/* an event whose data starts with {"error", {"object":"error" or {"type":"error" (blanks
	 * allowed) has ended */
	bool error;
	/* private to sse.c */
	uint8_t state;
	uint8_t matched;
	uint8_t flags;
	uint8_t probe_len;
	char probe[32];
};

void sse_init(struct sse *s);

/*
 * Takes the next n payload bytes.  Returns the offset in p just behind the last event (or comment
 * block) that ended in this piece, or 0 if none did: p[0..ret) completes events, p[ret..n) is the
 * start of one.
 */
size_t sse_feed(struct sse *s, const char *p, size_t n);

/* True when the bytes fed so far end at an event boundary (nothing half-said). */
bool sse_at_boundary(const struct sse *s);

/* Length of the first line at p without its end; *ret_end bytes end it, 0 if p[0..n) stops before. */
size_t sse_line(const char *p, size_t n, size_t *ret_end);

/*
 * Length of the first whole event (or comment block) at p, its blank line included; 0 if none is
 * whole yet.  A LF that comes later than the CR of a blank line is then a blank line by itself: an
 * event that says nothing.
 */
size_t sse_next(const char *p, size_t n);
