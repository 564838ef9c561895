/*
 * A connection of a client: reads heads and bodies, writes answers, notices that the client has left.
 *
 * Process: worker.
 * Ownership: the worker owns its clients.  client_end() is the one end; the loop frees after the turn.
 * A client has at most one request at a time.  Bytes of its next request wait in `in`, which is bounded.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/uio.h>

#include "shm/base/conf.h"
#include "worker/base/address.h"
#include "worker/base/rounds.h"
#include "worker/net/sock.h"
#include "worker/request/silent.h"

struct evbuffer;
struct client;
struct key_seen;
struct req;
struct worker;

/* What a client reports to the request that it has, or begins. */
struct client_ops {
	/* Bytes of the request; makes c->req if there is none.  Returns how many bytes were
	 * used; 0: more bytes are needed. */
	size_t (*bytes)(struct client *c, const char *p, size_t n);
	/* Returns where the next bytes of the request belong; no length: anywhere. */
	struct iovec (*room)(const struct req *req);
	/* Returns true while the request's head or body is being read. */
	bool (*wants_bytes)(const struct req *req);
	/* The socket took all queued bytes. */
	void (*drained)(struct req *req);
	/* The connection is closed.  `stalled`: the client took no byte of its answer for
	 * client.write_timeout. */
	void (*gone)(struct req *req, bool stalled);
};

/* Where a connection comes from. */
struct client_origin {
	enum door door;
	enum transport transport;
	struct address address; /* of the peer; after a header of the PROXY protocol the client's */
};

/* What the next bytes of a connection are. */
enum client_first {
	FIRST_REQUEST,
	FIRST_PROXY,      /* a header of the PROXY protocol, which says whom the proxy speaks for */
	FIRST_PROXY_REST, /* the rest of one, within client.head_timeout */
};

struct client {
	struct sock sock;
	struct worker *w;
	const struct client_ops *ops;
	struct client_origin from;
	enum client_first first;
	struct silence silence;    /* until its first head */
	struct req *req;           /* being read, worked on or answered; NULL between requests */
	struct evbuffer *in;       /* bytes read and not consumed yet; NULL when empty */
	struct key_seen *key_seen; /* key_seen.h */
	size_t scanned;            /* bytes of `in` that were searched for a head's end */
	uint64_t deadline_ms;      /* idle, or closing */
	bool closing;              /* no further request; closes once everything has been written */
	bool unread;               /* answered before its request had been read to the end */
	/* answered before its request's end: bytes that still come are dropped until the client
	 * closes */
	bool lingering;
	bool full;      /* the socket did not take all bytes of the answer */
	bool consuming; /* a caller's loop is handing bytes out */
	bool ended;
	size_t queued_before;       /* bytes queued at the last tick; 0: none */
	uint64_t write_deadline_ms; /* when a client that takes no byte is closed */
	uint64_t look_ms;           /* when the tick looks whether its host has vanished */
	uint64_t silent_ms;         /* since which look its host has been silent; 0: it is not */
	bool acked; /* at that look its host had acknowledged all bytes; none were written since */
	struct visit visit; /* by the tick */
	TAILQ_ENTRY(client) link;
};

/* Takes over an accepted, non-blocking fd. */
void client_new(
	struct worker *w, int fd, const struct client_origin *from, const struct client_ops *ops);
/* Closes the connection, and reports it to the request if there is one.  Idempotent. */
void client_end(struct client *c);
void client_free(struct client *c); /* after the turn */

/* Writes to the client, and queues the bytes that the socket does not take.  c may be NULL: the
 * client has left. */
size_t client_write(struct client *c, const struct iovec *iov, int n);
/* Returns true if bytes are queued: the engine should not be read. */
bool client_full(const struct client *c);
/* The answer has broken off, and the end of the connection shows it.  c may be NULL. */
void client_cut(struct client *c);
/* The request has been answered or given up: the connection waits for the next request, or
 * closes.  `unread`: the request had not been read to its end. */
void client_done(struct client *c, bool keep_alive, bool unread);
/* Checks the deadlines: idle, write, linger. */
void client_tick(struct visit *v, uint64_t now_ms);
/*
 * The worker drains: the client's next answer is its last one.  An idle connection stays open
 * for a moment, so that a request that has been sent already is answered and not lost.
 */
void client_drain(struct client *c);
