/*
 * A fleet of engines as a discrete-event simulation, its requests placed by the router's own code
 * (worker/schedule/select.h on a real segment and table for each router) or by a reference to hold it against.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "tests/bench/sched_trace.h"

/* Who places the requests. */
enum placer {
	BY_ROUTER,   /* the policy, by what the router knows */
	BY_SCRAPE,   /* the fewest running and waiting by the last scrape, and nothing else */
	BY_ALL,      /* omniscient: least loaded, one decision maker, exact, without delay */
	BY_WORKLEFT, /* prefill: the least work left to the microsecond; decode as BY_ALL */
	BY_RIVAL     /* prefill: a model of another router, or the oracle of caches */
};

/* The requests of an engine that were sent and are not answered. */
struct sim_front {
	uint32_t requests;
	uint64_t blocks;   /* of their prompts */
	uint64_t uncached; /* tokens to compute */
};

/* What a rival sees of the prefill engines: exact, without delay, all routers' requests. */
struct sim_sight {
	double now_s;
	uint32_t n;
	const double *free_s;    /* [n] when the engine is through with what it has */
	const struct lru *cache; /* [n] as they will be when the engine comes to this prompt */
	const struct sim_front *front; /* [n] */
};
struct demand;
struct rival;
typedef uint32_t rival_fn(
	struct rival *rival, const struct sim_sight *sight, const struct demand *d);

struct sim_plan {
	const struct trace *trace;
	uint32_t routers, workers;
	double talk_s; /* after so long a router knows what another one has chosen; 0: it is not told */
	uint32_t n;              /* engines of each role */
	const uint32_t *weights; /* [n]; an engine of weight 2 is twice as fast */
	uint32_t cached;         /* prefixes an engine keeps: half of such a prompt costs nothing */
	uint32_t blocks; /* of an engine's cache; above 0: a replay, without decode engines */
	enum placer placer;
	rival_fn *place; /* BY_RIVAL */
	struct rival *rival;
	enum policy_kind policy;
	enum load_kind load; /* of both roles */
};

#define SIM_SERIES 300    /* points of a series, */
#define SIM_SERIES_S 0.1  /* one every so often, */
#define SIM_SERIES_AT 20. /* from then on */

/* Of the routers' requests after the first tenth, by role. */
struct sim_result {
	double mean_s[ROLE_N], p99_s[ROLE_N]; /* waits: what an idle engine would not have taken */
	uint32_t longest[ROLE_N];             /* most requests inside one engine, per speed */
	double cache_hits;                    /* share of prompts */
	/* replays: */
	double ttft_s, ttft_p99_s;
	double hit_rate;             /* share of prompt tokens */
	double imbalance;            /* busy time of the busiest prefill engine over the mean */
	double share[3];             /* of requests that engines of weight 1, 2, 4 got */
	uint16_t series[SIM_SERIES]; /* most requests inside one decode engine meanwhile */
};

void sim_run(const struct sim_plan *plan, struct sim_result *ret);
