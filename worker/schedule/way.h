/*
 * The way a request is served: its pool, its connector or the decode engine alone, and in how many branches.
 *
 * Process: worker, inside the read section.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "shm/queue.h"
#include "worker/base/end_list.h"
#include "worker/base/facts.h"

struct connector;
struct table;
struct table_pool;
struct worker;

/* What the client asks for by X-PD-Route, where the pool allows it. */
enum route_override { OVERRIDE_NONE, OVERRIDE_DIRECT, OVERRIDE_DISAGGREGATED, OVERRIDE_UNKNOWN };

struct way {
	/* asked for */
	enum route_override override;
	/* fact of the last look: no prefill engine is up, so the decode engine serves the request alone */
	bool alone;

	/* chosen */
	const struct connector *connector;
	/* why the decode engine serves the request alone, for the log; NULL: it does not */
	const char *direct;
	uint32_t nbranches;
};

/* Finds the pool that serves the model; without a model the only pool there is; of a path that names a response the
 * pool whose engine has it.  NULL: there is none. */
const struct table_pool *way_pool(
	const struct facts *facts, const struct table *t, uint32_t *ret_model);
/* Returns true if the pool has the one engine that can serve the request (facts->holder). */
bool way_holds(const struct facts *facts, const struct table_pool *tp);
/* Estimates the prompt's tokens, once. */
void way_estimate(struct worker *w, const struct demand *d);
/* Chooses the way in the pool facts->pool.  A request that waits in the queue (`waits`) keeps its way.  Returns END_OK,
 * or why the pool cannot serve it, with *ret_detail. */
enum req_end way_choose(struct way *way, struct worker *w, const struct demand *d, bool waits,
	const char **ret_detail);
/* Returns true if the prompt is below the routing threshold. */
bool way_is_short(const struct way *way);
/* The bit of a queue key that says that engines which speak TLS will not do (choose_plain_only()). */
#define WAY_PLAIN_ONLY (UINT64_C(1) << QUEUE_KIND_BITS)
/* Hash of model and way (shm/queue.h), without WAY_PLAIN_ONLY: requests for one engine have a key of their own, and are of
 * their model; never 0. */
uint64_t way_queue_key(const struct way *way, const struct facts *facts);
/* The role whose engine serves an attempt of a connector with one engine. */
enum role way_role_alone(const struct connector *c, const struct facts *facts);
