/*
 * Engine endpoints as this worker knows them, and its idle keep-alive connections to each.
 *
 * Process: worker.  Each worker owns its connpool; nothing here is shared.
 * Ownership: connpool_endpoint() returns a reference, which connpool_unref() gives back.  The copy
 * stays valid while a reference is held, whatever happens to the table.  connpool_get() lends a
 * connection; its use ends with exactly one of connpool_put() (reusable) and connpool_drop() (closed).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "shm/table.h"
#include "worker/net/sock.h"

struct connpool;
struct worker;

TAILQ_HEAD(upconn_list, upconn);

/* A private copy of one table_endpoint: outlives the table it was read from. */
struct endpoint {
	uint32_t slot, tag;
	uint32_t refs; /* legs, connections, and the connpool's own */
	/* the connpool's own copy for this slot; else only finishing requests hold it */
	bool current;
	uint32_t nidle, nconns;
	/* how often its last connection was gone: an engine that starts again closes them all */
	uint32_t disconnects;
	struct ep_addr addr;
	char *url, *authority, *host, *prefix;
	struct upconn_list idle; /* most recently used first */

	/* what the table knew of it, `version` of it; for connectors, which copy what they keep */
	uint64_t table_version;
	char *bootstrap_host, *kv_addr, *disagg_spec; /* never NULL; "": unknown */
	uint32_t bootstrap_port, dp_ranks;
	uint8_t notices;
	/* what this worker has learned of it: forgotten when a leg there fails */
	char *learned; /* NixlPush: its identity; Mooncake: its engine ids; raw JSON, or NULL */
	uint32_t learned_ranks;       /* Mooncake: how many of them */
	uint32_t learned_disconnects; /* `disconnects` then */
	uint32_t learned_port;        /* SGLang: of its bootstrap server; 0: unknown */
	bool lookup_runs;             /* an attempt of this worker has sent its lookup */
	uint32_t next_rank;           /* data-parallel rank of the next request */
};

/* What happens to a connection in use, told to its user (a leg). */
struct upconn_ops {
	void (*readable)(void *user);
	void (*drained)(void *user);
	void (*broken)(void *user);
};

struct upconn {
	struct sock sock;
	struct endpoint *ep;
	const struct upconn_ops *ops; /* NULL while idle */
	void *user;
	uint64_t idle_since_ms;
	/* bytes written for earlier requests: all acknowledged, they were answered */
	uint64_t sent_before;
	uint64_t sent;    /* bytes written in all */
	uint64_t sent_us; /* clock_us of the last request on it */
	bool reused;
	TAILQ_ENTRY(upconn) link; /* in endpoint.idle, or in the connpool's list of ended ones */
};

struct connpool *connpool_new(struct worker *w);
void connpool_free(struct connpool **);

/* The worker's copy of `te`, with a reference for the caller.  Call inside the read section. */
struct endpoint *connpool_endpoint(
	struct connpool *p, const struct table *t, const struct table_endpoint *te);
void connpool_unref(struct connpool *p, struct endpoint **ep);
struct endpoint *connpool_ref(struct endpoint *ep);
/* Another port of the same machine, to which no idle connection is kept.  Returns a reference. */
struct endpoint *connpool_aside(const struct endpoint *ep, uint16_t port);

/* An idle connection if there is one and `fresh` is not asked for, else a new one, still connecting.
 * NULL with *ret_err when the connect failed at once. */
struct upconn *connpool_get(struct connpool *p, struct endpoint *ep, bool fresh, int *ret_err);
void connpool_put(struct connpool *p, struct upconn **uc);
void connpool_drop(struct connpool *p, struct upconn **uc);

/* True if the peer's TCP acknowledged nothing of what was written since its use began.  This is certain
 * if the peer ended the connection, and likely if it was reset. */
bool connpool_nothing_acked(const struct upconn *uc);
/* Closes all idle connections to this endpoint. */
void connpool_drop_idle(struct connpool *p, struct endpoint *ep);

/* Closes connections idle for too long.  Returns true while any is idle. */
bool connpool_sweep(struct connpool *p, uint64_t now_ms);
/* Frees ended connections: after the loop turn, when no late callback can meet them. */
void connpool_reap(struct connpool *p);
