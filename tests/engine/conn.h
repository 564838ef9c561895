/*
 * One client connection: HTTP/1.1 in (http-parser), bytes out exactly as told.
 *
 * Ownership: a connection belongs to the loop.  conn_kill() and a client that leaves close it at
 * once and put it on sim->dead; conn_reap() frees it after the loop's turn, so nobody on the stack
 * holds a freed one.  A request is answered by exactly one of conn_reply(), a stream that ends in
 * conn_finish(), conn_kill() or conn_park().
 */
#pragma once
#include <event2/event.h>
#include <event2/event_struct.h>
#include <http_parser.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "tests/engine/buf.h"

struct fault;
struct gen;
struct sim;

#define MAX_HDRS 128

enum conn_state {
	CONN_READ,  /* between requests or inside one */
	CONN_BUSY,  /* a whole request is here and not yet answered */
	CONN_FLUSH, /* answered; the socket has not taken all of it */
	CONN_DEAD
};

struct span {
	uint32_t at, len; /* inside conn->head */
};

struct conn {
	struct sim *sim;
	TAILQ_ENTRY(conn) all, idle;
	uint64_t id, served, idle_since_us;
	int fd;
	enum conn_state state;
	bool is_idle, begun, feeding, in_value, keep_alive, chunked, broken, too_big, paused;
	int refuse; /* status to refuse the request with, found while reading */
	struct event rd, wr, tmr;
	void (*on_timer)(struct conn *c);

	http_parser parser;
	struct buf url, head, body, in, out;
	struct {
		struct span name, value;
	} hdr[MAX_HDRS];
	unsigned nhdr;
	int route;         /* row of the route table, for requests_total */
	uint64_t last_seq; /* this request in sim->last */
	bool is_gen;

	struct fault *fault; /* a reference, or NULL */
	unsigned fault_step; /* how far fault.c has come with it */
	bool fault_waited;
	struct gen *gen; /* owned by gen.c */
};

void conn_new(struct sim *sim, int fd);
void conn_kill(struct conn *c, bool reset); /* RST or FIN, now */
void conn_reap(struct sim *sim);
void conn_idle_start(struct sim *sim);

const char *conn_header(struct conn *c, const char *name, size_t *ret_len); /* the first; NULL */
int64_t conn_header_int(struct conn *c, const char *name); /* -1: absent, or not 1 to 9 digits */

/* A whole answer, with content-length; `extra` are header lines ending in CRLF, or NULL. */
void conn_reply(struct conn *c, int status, const char *type, const char *extra, const char *body,
	size_t len);
void conn_error(struct conn *c, int status, const char *type, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void conn_error_json(
	struct conn *c, struct buf *out, int status, const char *type, const char *msg);
void conn_stream_head(struct conn *c);
/* One event as one write: p[-CHUNK_ROOM..n+2) must be writable.  False: do not go on for now (the
 * socket is full, gen_go_on() follows when it has drained; or the client is gone). */
#define CHUNK_ROOM 16
bool conn_chunk(struct conn *c, char *p, size_t n);
void conn_write(struct conn *c, const char *p, size_t n);
bool conn_can_write(const struct conn *c);
/* Its client has shut down its sending side, or closed, and nothing else has come. */
bool conn_left(const struct conn *c);
void conn_finish(struct conn *c);
void conn_park(struct conn *c);        /* this request is never answered, until the client leaves */
void conn_close_after(struct conn *c); /* ends the request by closing, once all is written */
void conn_after(struct conn *c, double ms, void (*fn)(struct conn *)); /* one timer each */
void conn_status(struct conn *c, int status); /* notes it in counters and sim->last */
