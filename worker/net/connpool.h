/*
 * Engine endpoints as this worker knows them, and its idle keep-alive connections to each.
 *
 * Process: worker.  Each worker owns its connpool; nothing here is shared.
 * Ownership: connpool_endpoint() returns a reference, which connpool_unref() gives back.  The
 * copy stays valid while a reference is held, even when the table changes.  connpool_get()
 * returns a connection for use; its use ends with exactly one of connpool_put() (reusable)
 * and connpool_drop() (closed).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/tls/client.h"
#include "shm/table.h"
#include "worker/net/sock.h"

struct connpool;
struct worker;

TAILQ_HEAD(upconn_list, upconn);
TAILQ_HEAD(leg_list, leg);

/* A private copy of one table_endpoint: it may outlive the table that it was copied from. */
struct endpoint {
	uint32_t slot, tag;
	uint32_t refs; /* legs, connections, and the connpool's own */
	/* the connpool's own copy for this slot; false: only finishing requests hold the copy */
	bool current;
	uint32_t nidle, nconns;
	/* how often the last connection was closed: an engine that restarts closes all of them */
	uint32_t disconnects;
	struct ep_addr addr;
	bool https;               /* property: its URL begins so */
	struct tls_memory memory; /* of its latest session */
	char *url, *authority, *host, *prefix;
	uint64_t life; /* of its engine, when the endpoint was last chosen: shm/restart.h */
	struct upconn_list idle; /* most recently used first */
	/* the first of them that was idle when the turn `polled_turn` began, and those behind it; NULL: none */
	struct upconn *polled;
	uint64_t polled_turn;

	/* the table's values at `table_version`; connectors copy what they keep */
	uint64_t table_version;
	/* active legs to the engine; when the tick tells them that the engine is gone, clock_ms(), 0: it is not down */
	struct leg_list legs;
	uint64_t gone_ms;
	TAILQ_ENTRY(endpoint) link; /* in worker.busy, while there are legs */
	uint64_t down_grace_ms;     /* timeouts.down_grace of its pool */
	uint64_t tcp_user_ms;       /* timeouts.tcp_user of its pool */
	/* with https: that of its pool, in the configuration that this worker has inherited; NULL: it has none */
	const struct tls_client *tls;
	uint64_t tls_keys;                            /* which keys these are: conf_engine_tls.id */
	uint32_t pool;                                /* id */
	char *bootstrap_host, *kv_addr, *disagg_spec; /* never NULL; "": unknown */
	uint32_t bootstrap_port, dp_ranks;
	uint8_t notices;
	/* the header line that it is sent in place of the client's key, "": none; NULL: the client's */
	char *key_line;
	/* what this worker has learned of the engine: forgotten when a leg to it fails, and when the
	 * engine begins a new life */
	char *learned; /* NixlPush: its identity; Mooncake: its engine ids; raw JSON, or NULL */
	uint32_t learned_ranks;       /* Mooncake: number of engine ids in `learned` */
	uint32_t learned_disconnects; /* value of `disconnects` at that time */
	uint32_t learned_port;        /* SGLang: port of the bootstrap server; 0: unknown */
	bool lookup_runs;             /* fact: a lookup of an attempt of this worker is running */
	/* clock_ms() of the last failure that was recorded because of learn_timeout */
	uint64_t unlearned_ms;
	uint32_t next_rank; /* data-parallel rank of the next request */
};

/* Events of a connection in use, reported to its user (a leg). */
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
	/* bytes written for earlier requests: all acknowledged, since the engine answered them; over TLS 0 if TCP still
	 * waits for an acknowledgement */
	uint64_t sent_before;
	uint64_t sent;    /* bytes written in all */
	uint64_t sent_us; /* clock_us of the last request on it */
	bool reused;
	TAILQ_ENTRY(upconn) link;   /* in endpoint.idle, or in the connpool's list of ended ones */
	TAILQ_ENTRY(upconn) by_age; /* while idle: in the connpool's list of all idle ones */
};

struct connpool *connpool_new(struct worker *w);
void connpool_free(struct connpool **);

/* Returns the worker's copy of `te`, with a reference for the caller.  Call it inside the read
 * section. */
struct endpoint *connpool_endpoint(
	struct connpool *p, const struct table *t, const struct table_endpoint *te);
void connpool_unref(struct connpool *p, struct endpoint **ep);
struct endpoint *connpool_ref(struct endpoint *ep);
/* Returns a reference to a new endpoint: another port of the same host, without idle
 * connections. */
struct endpoint *connpool_aside(const struct endpoint *ep, uint16_t port);

/* Returns the keys of tls that this worker has inherited for the pool of that name.  NULL: none, since the worker is older
 * than the pool's first URL that begins with https://. */
const struct tls_client *connpool_tls(const struct worker *w, const char *pool);
/* Returns true if the endpoint speaks TLS, and the configuration in force has other keys for its pool than this worker has
 * inherited: that a session fails says nothing about the engine. */
bool connpool_keys_are_old(const struct connpool *p, const struct endpoint *ep);

/* Returns an idle connection, or, if there is none or `fresh` is set, a new one, which may still be
 * connecting.  Returns NULL and sets *ret_err (errno) if the connect failed at once; ENOKEY: the engine speaks TLS, and
 * this worker is of a configuration in which the pool does not. */
struct upconn *connpool_get(struct connpool *p, struct endpoint *ep, bool fresh, int *ret_err);
void connpool_put(struct connpool *p, struct upconn **uc);
void connpool_drop(struct connpool *p, struct upconn **uc);

/* Returns true if the peer's TCP has acknowledged no byte written since the use began.  This is
 * certain if the peer ended the connection, and only likely if the connection was reset. */
bool connpool_nothing_acked(const struct upconn *uc);
/* Closes all idle connections to this endpoint. */
void connpool_drop_idle(struct connpool *p, struct endpoint *ep);

/* Returns true if probes have found the engine down. */
bool connpool_is_down(const struct connpool *p, const struct endpoint *ep);
/* Closes connections idle for too long.  Returns true while any is idle. */
bool connpool_sweep(struct connpool *p, uint64_t now_ms);
/* Frees ended connections: after the loop turn, when no late callback can reach them. */
void connpool_reap(struct connpool *p);
