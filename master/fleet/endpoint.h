/*
 * One engine as the master knows it, and the fleet they make: what fleet.c, health.c, load.c and
 * publish.c share.  Nobody else includes this.
 *
 * Process: master.
 * Ownership: the fleet owns its endpoints; each is in exactly one of its two lists.  An endpoint is
 * freed from fleet_apply() or publish_poll() alone, never from within a callback of its own.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "master/probe/models.h"
#include "proto/http/http.h"
#include "shm/base/conf.h"
#include "shm/core/layout.h"
#include "shm/table.h"

struct announced_engines;
struct discover;
struct dns;
struct event_base;
struct fleet;
struct health;
struct metrics_slab;
struct probe_env;
struct publish;
struct resolver;
struct scrape;
struct seg;
struct waiters;

#define ENDPOINT_NO_SLOT UINT32_MAX
#define FOREIGN_SCRAPES 3 /* a figure older than so many scrape intervals does not count */

/* What an engine says of itself; "" and 0: it has not. */
struct runtime {
	char version[48];
	char mode[16]; /* SGLang's disaggregation_mode */
	uint32_t bootstrap_port;
	uint32_t max_context; /* tokens */
};

struct endpoint {
	TAILQ_ENTRY(endpoint) link;
	struct fleet *fleet;
	char *url, *pool_name; /* with the role: its key.  Own copies: it may outlive its
				  configuration */
	char *authority;       /* host:port for the Host header */
	enum role role;
	struct http_url at;
	uint64_t number;                 /* counts endpoints made: spreads their probes over time */
	char kv_addr[ANNOUNCED_ADDRESS]; /* of an announced one, else "" */

	/* W: fleet.c; all NULL while it drains */
	const struct conf_pool *pool;
	const struct conf_endpoint *conf; /* or a source's (master/fleet/discover.h) */
	const char *source;               /* "config", or who found it */
	bool found;                       /* stands in no list of the configuration */

	/* W: publish.c */
	uint32_t slot; /* of its endpoint word, or ENDPOINT_NO_SLOT: not probed, not in the table */
	enum ep_state state; /* what its word says, or would say if it were not drained */
	bool drained;        /* by the operator (drain.c) */
	bool up_wanted;      /* is up, but workers may see that only with the next table */
	bool no_room;        /* left out of the current table, which is full of long texts */
	bool in_table;
	struct ep_addr table_addr; /* of its row in the current table */
	uint64_t table_models;     /* models_number of that row */
	bool dropped;              /* draining, and the current table no longer has it */
	uint64_t cookie;           /* of the last table that had it; valid if dropped */

	/* W: health.c */
	struct ep_addr addr; /* proven by a probe, or given as a literal; family 0: none yet */
	struct model_set models;
	uint64_t models_number; /* counts changes of `models` and `runtime` */
	struct runtime runtime;
	struct health *health;

	/* W: load.c */
	struct scrape *scrape;
};
TAILQ_HEAD(endpoint_list, endpoint);

struct fleet {
	struct event_base *base;
	struct seg *seg;
	struct metrics_slab *slab; /* the master's */
	const struct conf *conf;   /* in force; NULL before the first fleet_apply() */
	uint64_t config_number;
	struct probe_env *probes;
	struct resolver *resolver;
	struct discover *discover;
	struct dns *dns;
	struct announced_engines *announced; /* NULL before fleet_hear() */
	struct publish *publish;
	struct waiters *waiters;       /* NULL before fleet_waiters() */
	struct endpoint_list live;     /* configured, with a slot or waiting for one */
	struct endpoint_list draining; /* no longer configured, slot not free yet */
	void *draining_by_key;         /* the same, in a tree of tsearch(3) */
	struct endpoint *
		*order; /* the live ones in the order of the configuration, found ones last */
	size_t norder;
	uint64_t made;        /* endpoints ever made */
	uint64_t shortage_ms; /* when a shortage of our own was last logged */
};

/* fleet.c */
struct endpoint *endpoint_new(
	struct fleet *f, const struct conf_pool *pool, const struct conf_endpoint *conf);
void endpoint_free(struct endpoint **);
/* From the list of those that drain, and from its tree; the caller owns it then. */
void fleet_draining_remove(struct fleet *f, struct endpoint *ep);
/* Slots have become free: gives them to endpoints that wait for one.  True if there were such. */
bool fleet_fill_slots(struct fleet *f);
/* A probe failed for want of something on this machine (descriptors, memory): logged at most every
 * 10 s. */
void fleet_shortage(struct fleet *f, const char *why);

/*
 * Milliseconds until this endpoint's next turn in a grid of `interval_ms`: all endpoints have
 * different phases, so a fleet is asked evenly over the interval and stays so.  At least half an
 * interval away.
 */
uint64_t endpoint_wait_ms(const struct endpoint *ep, uint64_t now_ms, uint64_t interval_ms);
