/*
 * Engine endpoints as this worker knows them, and its idle keep-alive connections to each.
 *
 * Process: worker.  Each worker owns its pool; nothing here is shared.
 * Ownership: pool_endpoint() lends a reference that pool_unref() gives back; the copy stays valid while
 * anybody holds one, whatever the table does meanwhile.  pool_get() lends a connection; the loan ends
 * with exactly one of pool_put() (reusable) or pool_drop() (closed).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "shm/table.h"
#include "worker/net/sock.h"

struct leg;
struct pool;
struct worker;

TAILQ_HEAD(upconn_list, upconn);

/* A private copy of one table_endpoint: outlives the table it was read from. */
struct upstream {
	uint32_t slot, tag;
	uint32_t refs; /* legs, connections, and the pool's own */
	/* the pool's own copy for this slot; else only finishing requests hold it */
	bool current;
	uint32_t nidle, nconns;
	/* how often its last connection was gone: an engine that starts again closes them all */
	uint32_t lulls;
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
	uint32_t learned_ranks; /* Mooncake: how many of them */
	uint32_t learned_lull;  /* `lulls` then */
	uint32_t learned_port;  /* SGLang: of its bootstrap server; 0: unknown */
	bool asked_by_us;       /* a question is under way */
	uint32_t next_rank;     /* data-parallel rank of the next request */
};

struct upconn {
	struct sock sock;
	struct upstream *up;
	struct leg *leg; /* NULL while idle */
	uint64_t idle_since_ms;
	/* bytes written for earlier requests: all acknowledged, they were answered */
	uint64_t sent_before;
	uint64_t sent;    /* bytes written in all */
	uint64_t sent_us; /* clock_us of the last request on it */
	bool reused;
	TAILQ_ENTRY(upconn) link; /* in upstream.idle, or in the pool's list of ended ones */
};

struct pool *pool_new(struct worker *w);
void pool_free(struct pool **);

/* The worker's copy of `te`, with a reference for the caller.  Call inside the read section. */
struct upstream *pool_endpoint(
	struct pool *p, const struct table *t, const struct table_endpoint *te);
void pool_unref(struct pool *p, struct upstream **up);
struct upstream *pool_ref(struct upstream *up);
/* Another port of the same machine, asked now and then: no connection to it is kept.  A reference. */
struct upstream *pool_aside(const struct upstream *up, uint16_t port);

/* An idle connection if there is one and `fresh` is not asked for, else a new one, still connecting.
 * NULL with *ret_err when the connect failed at once. */
struct upconn *pool_get(struct pool *p, struct upstream *up, bool fresh, int *ret_err);
void pool_put(struct pool *p, struct upconn **uc);
void pool_drop(struct pool *p, struct upconn **uc);

/* True if the peer's TCP acknowledged nothing of what was written since the loan began: certain where the peer ended the
 * connection, likely where it was reset. */
bool pool_nothing_acked(const struct upconn *uc);
/* Closes all that are idle there. */
void pool_drop_idle(struct pool *p, struct upstream *up);

/* Closes connections idle for too long.  Returns true while any is idle. */
bool pool_sweep(struct pool *p, uint64_t now_ms);
/* Frees ended connections: after the loop turn, when no late callback can meet them. */
void pool_reap(struct pool *p);
