/*
 * The endpoint table: what workers choose from.  Immutable once published, replaced whole.
 *
 * Writer: master/fleet/publish.c builds a version in a free arena (table_builder), then rcu_publish()es it.
 * Readers: workers, between rcu_enter() and rcu_leave(); they copy out what they keep.
 * What changes often (state, load) is not here but in the endpoint words (shm/core/layout.h), by slot.
 */
#pragma once
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "shm/core/arena.h"

/* A resolved address; family 0: not resolved yet. */
struct ep_addr {
	uint16_t family; /* AF_INET, AF_INET6 */
	uint16_t port;   /* host byte order */
	uint32_t scope;
	uint8_t ip[16];
};
/* Fills a sockaddr; returns its length, 0 if family is 0. */
socklen_t ep_addr_sockaddr(const struct ep_addr *a, struct sockaddr_storage *ret);
bool ep_addr_equal(const struct ep_addr *a, const struct ep_addr *b);
/* "10.0.0.1:8100", "[fd00::1]:80"; "-" if family is 0.  Returns buf. */
#define EP_ADDR_TEXT 64
const char *ep_addr_text(const struct ep_addr *a, char buf[EP_ADDR_TEXT]);

struct table_endpoint {
	uint32_t slot; /* of its endpoint word */
	uint32_t tag;  /* of that slot when the table was built */
	uint32_t pool; /* index into table.pools */
	enum role role;
	uint32_t max_inflight; /* 0 = no limit */
	struct ep_addr addr;
	const char *url;       /* as configured; for log and metrics */
	const char *authority; /* for the Host header: host:port, brackets round IPv6 */
	const char *host;      /* without port and brackets: remote_host */
	const char *prefix;    /* path prefix, "" if none */
	uint32_t nmodels;      /* learned from /v1/models; 0 = not learned */
	const char *const *models;
	uint32_t weight; /* 1 .. 100 */
	uint32_t group;  /* number of its group's name within the pool, 1 .. 63; 0: none */
	/* reported by the engine or configured; "" and 0: unknown */
	/* SGLang prefill: for the decode engine, never ""; IPv6 in brackets */
	const char *bootstrap_host;
	uint32_t bootstrap_port;
	uint32_t max_context; /* tokens */
	const char *version;
	const char *kv_addr; /* P2pNccl: host:port of its KV transfers */
	/* lmcache decode: "receiver_host":"h","receiver_init_port":[7300],"receiver_alloc_port":[7400],
	 * the members without braces; "" if it has no ports */
	const char *disagg_spec;
	uint32_t dp_ranks; /* 0: none */
	/* number of notices that say that the KV has arrived; 0: the prefill answer says it */
	uint8_t notices;
	bool tls; /* its URL begins with https:// */
	/* what the engine is sent in place of the client's key, "": none at all; NULL: the client's key */
	const char *key;
};

/* What a selection reads of an endpoint, side by side. */
struct table_pick {
	uint32_t endpoint; /* index into table.endpoints */
	uint32_t slot, tag, max_inflight;
	uint64_t hash; /* of its URL: the same in every table and router */
	uint8_t weight, group;
	bool resolved, tls;
	/* a bit for each of the pool's models it serves, by their numbers; NULL: all of them */
	const uint64_t *models;
};
#define TABLE_CARD_MAX 1000        /* bytes of a card with its NUL */
#define TABLE_ANY_MODEL UINT32_MAX /* in place of a model's number: no model is requested */
#define TABLE_GROUPS 64            /* group numbers, 0 for "none" included: bits of a word */

struct table_pool {
	const char *name;
	uint32_t id; /* number of the name in metrics slabs: stays for the life of the segment */
	uint32_t nmodels;
	const char *const *models; /* configured, else the union of what its endpoints serve */
	/* [nmodels] what the engines report of each in /v1/models: JSON members without braces, "" if
	 * none has told.  NULL: there was no room. */
	const char *const *cards;
	enum connector_kind connector;
	enum policy_kind policy[ROLE_N];
	enum load_kind load[ROLE_N];
	enum pairing_kind pairing;
	const char *const *groups;                   /* name of group number n at n - 1 */
	const char *session_header, *session_member; /* "": none */
	uint64_t prefix_bytes;
	uint64_t slow_start_ms;
	struct conf_handshake shake;
	struct conf_timeouts timeouts;
	struct conf_rescue rescue;
	struct conf_ejection ejection;
	struct conf_queue queue;
	const char *priority_header; /* "": none */
	const char *key;             /* of its engines (table_endpoint.key); NULL: none has one */
	/* tokens: the most that a decode engine reports; 0: not every one has reported */
	uint32_t max_context;
	bool tls; /* of one of its endpoints at least */
	/* which keys of tls the configuration in force gives the pool (conf_engine_tls.id); 0: none */
	uint64_t tls_keys;
	uint32_t n[ROLE_N];
	const struct table_pick *picks[ROLE_N]; /* its endpoints, in the table's order */
	uint32_t max_weight[ROLE_N];            /* of those */
	/* [group]: sum of weights: after so many choices a round robin is at its start again */
	uint32_t turns[ROLE_N][TABLE_GROUPS];
};

/* One entry of the hash index of all models' names. */
struct table_model {
	uint32_t pool;   /* index into table.pools + 1; 0: the entry is free */
	uint32_t number; /* of the model in that pool */
};

struct table {
	uint64_t version; /* counts publications */
	uint64_t config;  /* number of the configuration it was built from */
	/* wall-clock seconds of the first publication: "created" of /v1/models */
	uint64_t created_s;
	/* figures of other routers' load older than this do not count */
	uint64_t foreign_max_age_ms;
	uint64_t plan_wait_ms; /* the most a request waits for engines that are starting */
	uint32_t npools;
	uint32_t nendpoints;
	const struct table_pool *pools;
	const struct table_endpoint *endpoints;
	/* open addressing with linear probing; a power of two of entries, at most half of them in use */
	const struct table_model *by_model;
	uint64_t nby_model;
	uint64_t checksum; /* of the arena's used bytes, checked in debug builds and tests */
	uint64_t used;     /* bytes of the arena in use */
};

/* Building: every call returns NULL / -ENOSPC when the arena is full. */
struct table_builder {
	struct arena arena;
};

/* The table sits at the start of the arena, zeroed, with room for that many pools and endpoints. */
struct table *table_begin(
	struct table_builder *b, void *arena, size_t size, uint32_t npools, uint32_t nendpoints);
struct table_pool *table_pool_at(struct table_builder *b, uint32_t i);
struct table_endpoint *table_endpoint_at(struct table_builder *b, uint32_t i);
const char *table_str(struct table_builder *b, const char *s);
const char *const *table_strv(struct table_builder *b, const char *const *v, size_t n);
/* Computes each pool's picks[] from endpoint.role/pool and the index of models, then the
 * checksum.  0, or -ENOSPC if anything did not fit. */
int table_end(struct table_builder *b);
uint64_t table_checksum(const struct table *t);
/* False if the table's bytes differ from those that table_end() left: poisoned, overwritten or
 * half built. */
bool table_intact(const struct table *t, size_t arena_bytes);
/* Bytes of an arena for so many pools and endpoints: the structs and a share of text for each
 * (shm/README). */
size_t table_arena_bytes(uint32_t max_pools, uint32_t max_endpoints);

/* The hash of an endpoint's URL, as table_pick.hash has it. */
uint64_t table_url_hash(const char *url);
/* The pool that serves a model, or NULL, and the model's number in it.  Exact match of the whole name. */
const struct table_pool *table_pool_by_model(
	const struct table *t, const char *model, uint32_t *ret_number);
const struct table_pool *table_pool_by_name(const struct table *t, const char *name);
/* Whether an endpoint serves the model of that number. */
static inline bool
table_serves(const struct table_pick *p, uint32_t model)
{
	return p->models == NULL || model == TABLE_ANY_MODEL ||
	       (p->models[model / 64] >> model % 64 & 1) != 0;
}
