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
	BY_ROUTER,  /* the policy, by what the router knows */
	BY_SCRAPE,  /* the fewest running and waiting by the last scrape, and nothing else */
	BY_ALL,     /* omniscient: least loaded, one decision maker, exact, without delay */
	BY_WORKLEFT /* prefill: the least work left to the microsecond; decode as BY_ALL */
};

struct sim_plan {
	const struct trace *trace;
	uint32_t routers, workers;
	uint32_t n;              /* engines of each role */
	const uint32_t *weights; /* [n]; an engine of weight 2 is twice as fast */
	uint32_t cached;         /* prefixes an engine keeps: half of such a prompt costs nothing */
	enum placer placer;
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
	double share[3];                      /* of requests that engines of weight 1, 2, 4 got */
	uint16_t series[SIM_SERIES];          /* most requests inside one decode engine meanwhile */
};

void sim_run(const struct sim_plan *plan, struct sim_result *ret);
