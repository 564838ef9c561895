/*
 * Straight to a decode engine, or through a prefill engine first?  A fleet as a discrete-event simulation: what a
 * routing threshold costs until the first token, and whether the router's own code (worker/schedule/threshold.h) finds a good one.
 */
#pragma once
#include <stdint.h>

struct routes_plan {
	uint32_t requests, workers;   /* each worker learns alone */
	uint32_t prefills, decodes;   /* engines */
	double prompt, prompt_spread; /* tokens: median and sigma of a lognormal */
	double output;                /* median */
	double kv_s, kv_token_s;      /* to move a prompt's cache: fixed, and of each token */
	double turn_kv_token_s;       /* the same in the second half of the run; 0: no change */
	double load;                  /* of the busier role while all are disaggregated */
	uint64_t seed;
};

#define ROUTES_ALL_DIRECT UINT32_MAX
#define ROUTES_AUTO (UINT32_MAX - 1)

/* Of the requests after the first tenth. */
struct routes_result {
	double mean_s; /* until the first token */
	double direct; /* share of requests */
};

/* Requests below `threshold` go direct: 0 none, ROUTES_ALL_DIRECT all, ROUTES_AUTO as it is learned. */
void routes_run(const struct routes_plan *plan, uint32_t threshold, struct routes_result *ret);
