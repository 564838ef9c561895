/*
 * One endpoint of the fleet, and the data that the files of this room share (struct fleet).  Only
 * master/fleet includes this header, and its unit tests.
 *
 * Process: master.
 * Ownership: the fleet owns its endpoints; each is in exactly one of its two lists.  An endpoint is
 * freed from fleet_apply(), fleet_found() or publish_poll() alone, never from within a callback of
 * its own probes.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "master/probe/engine.h"
#include "shm/base/conf.h"
#include "shm/core/layout.h"
#include "shm/pace.h"

struct announced_engines;
struct event;
struct discover;
struct discover_event;
struct dns;
struct formers;
struct keep;
struct outlier;
struct publish;
struct rcu_writer;
struct slots;
struct waiters;

#define FOREIGN_SCRAPES 3 /* a figure older than so many scrape intervals does not count */

struct endpoint {
	TAILQ_ENTRY(endpoint) link;
	struct fleet *fleet;
	/* Its address, and what probes learn.  The key of an endpoint is (url, role, pool_name). */
	struct engine engine;

	/* W: fleet.c */
	const char *source;              /* "config", or who found it; NULL while it drains */
	char kv_addr[ANNOUNCED_ADDRESS]; /* of an announced one, else "" */

	/* W: state.c */
	enum ep_state state; /* the state in its word, or the state without the drain */
	bool drained;        /* by the operator (drain.c) */

	/* W: weight.c, keep.c, endpoint.c */
	uint32_t weight;            /* the operator's; 0: the configured one */
	uint32_t weight_configured; /* when the operator said so */

	/* W: publish.c */
	bool up_wanted;            /* is up; workers may see that only when all_see_row() */
	bool was_up;               /* fact: workers have seen it UP, so its next start ramps up */
	bool no_room;              /* left out of the current table, which is full of long texts */
	bool in_table;             /* has a row in the current table */
	struct ep_addr table_addr; /* of that row */
	uint64_t table_models;     /* engine.models_number of that row */
	uint64_t cookie;           /* of the last table without it; valid if dropped */
	bool dropped;              /* draining, and the current table no longer has it */

	/* W: outlier.c */
	struct pace pace; /* its estimate at the last comparison */
	bool pace_fresh;  /* fact: samples have come since the comparison before */
	uint64_t
		changes_ms; /* since when comparisons contradict whether it is slow; 0: they do not */
	/* of the last seconds: the mean of all requests, the most of others */
	double load, foreign;
};
TAILQ_HEAD(endpoint_list, endpoint);

struct fleet {
	struct event_base *base;
	struct seg *seg;
	struct metrics_slab *slab; /* the master's */
	struct rcu_writer *writer; /* of the endpoint tables */
	const struct conf *conf;   /* in force; NULL before the first fleet_apply() */
	uint64_t config_number;
	struct prober prober;
	struct discover *discover;
	struct dns *dns;
	struct formers *formers;
	struct announced_engines *announced; /* NULL before fleet_hear(), as `wake` */
	struct event *wake;                  /* the master's eventfd: on_wake() */
	struct slots *slots;
	struct publish *publish;
	struct keep *keep;
	struct outlier *outlier;
	struct waiters *waiters; /* NULL before fleet_waiters() */
	uint32_t *pool_ids;      /* [conf->npools] pool_id.h */

	/* W: fleet.c and endpoint.c */
	struct endpoint_list live;     /* configured, with a slot or waiting for one */
	struct endpoint_list draining; /* no longer configured, slot not free yet */
	void *draining_by_key;         /* the same, in a tree of tsearch(3) */
	struct endpoint **order;       /* the live ones as configured, found ones last */
	size_t norder;
	uint64_t made; /* endpoints ever made */
};

struct endpoint *endpoint_new(
	struct fleet *f, const struct conf_pool *pool, const struct conf_endpoint *conf);
/* Stops its probes.  The endpoint must be in no list. */
void endpoint_free(struct endpoint **);
struct endpoint *endpoint_of_engine(struct engine *e);

/* The weight that is in force, 1 to 100: the operator's, or the configured one.  The endpoint is live. */
uint32_t endpoint_weight(const struct endpoint *ep);
/* It has its configuration: ends the operator's weight if that has another one than when he set his. */
void endpoint_check_weight(struct endpoint *ep);
void endpoint_log_weight(const struct endpoint *ep, const char *msg);

/* Into the list of draining endpoints; no other one of its key may be there. */
void endpoint_draining_add(struct endpoint *ep);
/* Out of that list; the caller owns it then. */
void endpoint_draining_remove(struct endpoint *ep);
/* The draining endpoint with the url, role and pool_name of `key`, or NULL. */
struct endpoint *endpoint_draining_find(const struct fleet *f, const struct endpoint *key);
