/*
 * The client side: accepts connections, reads heads and bodies, watches for the client's leaving.
 *
 * Process: worker.
 * Ownership: the worker owns its connections; client_end() is the one end, the loop frees after the turn.
 * A connection has at most one request at a time; what a client sends ahead waits (bounded) in `in`.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/uio.h>

#include "worker/net/sock.h"

struct evbuffer;
struct req;
struct worker;

struct client {
	struct sock sock;
	struct worker *w;
	struct req *req;      /* being read, worked on or answered; NULL between requests */
	struct evbuffer *in;  /* read and not consumed yet; NULL when empty */
	size_t scanned;       /* of `in`: looked at for a head's end */
	uint64_t deadline_ms; /* idle, or closing */
	bool closing;         /* no further request; closes once everything has been written */
	bool unread;          /* answered before its request had been read to the end */
	/* answered early: what still comes is thrown away until the client closes */
	bool lingering;
	bool full;      /* its socket would not take all of the answer */
	bool consuming; /* a loop further up is handing bytes out */
	bool ended;
	size_t stalled_at; /* bytes queued at the last tick; 0: none */
	uint64_t stall_ms; /* when a client that takes none of them is given up */
	uint64_t walked;   /* the latest walk that has visited it */
	TAILQ_ENTRY(client) link;
};

/* Takes an accepted, non-blocking fd over. */
void client_new(struct worker *w, int fd);
/* Closes it and tells its request, if any, that the client is gone. */
void client_end(struct client *c);
void client_free(struct client *c); /* after the turn */

/* Writes to the client, queues what does not fit; c may be NULL (gone). */
void client_write(struct client *c, const struct iovec *iov, int n);
bool client_full(const struct client *c);
/* The request has been answered or given up: the connection goes on to the next one, or closes. */
void client_done(struct client *c, bool keep_alive);
void client_tick(struct client *c, uint64_t now_ms);
/*
 * Draining: the next answer is the last.  An idle connection is not closed at once, since a request may
 * be on its way that would be lost: it has a moment to arrive and be answered.
 */
void client_drain(struct client *c);
