/*
 * The lines of one whole event of a stream (sse_next()): what its data says, and the same lines with other data.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct membuf;
struct splice_seg;

/*
 * How many lines of data an event has; their values, joined in one line, in *ret, which lies in the event or in
 * `joined`, whose text is overwritten; and whether the event has lines of another kind.
 */
size_t event_data(const char *event, size_t n, struct membuf *joined, struct splice_seg *ret,
	bool *ret_other);

/* Appends the event's lines to out, with `data` in place of its own. */
void event_put(const char *event, size_t n, const struct membuf *data, struct membuf *out);
