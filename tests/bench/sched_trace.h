/*
 * The requests of a simulation, drawn before it runs: every policy gets the same ones.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* What engines are like.  Seconds; an H100 host with a model of 70 G parameters is about like that. */
#define PREFILL_FIXED_S 0.020
#define PREFILL_TOKEN_S 0.0001
#define DECODE_BATCH 32 /* at most so many sequences at once, the others wait */
#define DECODE_STEP_S 0.010
#define DECODE_STEP_EACH_S 0.0003 /* a step takes so much longer for each sequence */

#define PROMPT_MAX 100000 /* tokens */
#define OUTPUT_MAX 4096
#define OUTPUT_SIGMA 0.95
#define GUESS_SIGMA 0.15 /* four characters a token is right to some 15% */

#define STRANGER UINT32_MAX

struct demand {
	double at_s;
	uint32_t prompt, guess;   /* tokens; what the router takes them for */
	uint32_t output;          /* tokens */
	uint32_t router, worker;  /* router STRANGER: of none, straight to an engine */
	uint64_t session, prefix; /* keys */
	const uint32_t *blocks;   /* [nblocks] of replays (sched_replay.h) */
	uint32_t nblocks;
};

struct trace_plan {
	uint64_t seed;
	uint32_t requests;
	uint32_t routers, workers; /* of each router */
	uint32_t n;                /* engines of each role */
	double speed;              /* of all engines of a role together, in engines of speed 1 */
	double load;               /* share of the prefill engines' time that is asked for */
	bool bursty;               /* else Poisson */
	double strangers;          /* share of requests that pass no router */
};

struct trace {
	struct demand *demands;
	uint32_t n;
	double prefill_load, decode_load; /* asked for */
};

void trace_init(struct trace *t, const struct trace_plan *plan);
void trace_fini(struct trace *t);

static inline double
prefill_s(uint32_t tokens)
{
	return PREFILL_FIXED_S + PREFILL_TOKEN_S * tokens;
}

/* How long each of `running` sequences takes for a token. */
static inline double
decode_step_s(uint32_t running)
{
	return DECODE_STEP_S + DECODE_STEP_EACH_S * running;
}

/* splitmix64: also what hashes a number. */
uint64_t dice_mix(uint64_t x);
uint64_t dice_next(uint64_t *state);
double dice_unit(uint64_t *state); /* above 0, at most 1 */
/* lognormal, from 1 to max */
uint32_t dice_tokens(uint64_t *state, double median, double sigma, uint32_t max);
