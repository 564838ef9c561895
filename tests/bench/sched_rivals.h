/*
 * Models of how other routers choose a prefill engine by its prefix cache, and an oracle.
 *
 * Written after the rules of their sources (November 2026), to their favour: each is one process, sees the load exactly
 * and at once, and those that keep a copy of the engines' caches have the caches themselves.
 */
#pragma once
#include <stdint.h>

#include "tests/bench/sched_sim.h"

struct rival {
	/* sglang */
	double threshold;     /* share of a prompt from which on the engine that has it gets it */
	uint32_t balance_abs; /* requests that the engines may differ by, */
	double balance_rel;   /* and how many times as many */
	uint32_t *tenant;     /* [ndistinct] engine that had the block last, plus 1; 0: none */
	/* dynamo */
	double overlap_weight;
	bool prefill_only; /* blocks in use do not count */
	/* llm-d */
	double prefix_weight, queue_weight;

	uint64_t dice; /* ties */
};

/* Knows caches and queues: the engine that would be through with this prompt first. */
rival_fn rival_oracle;
/* sglang's cache_aware: one tree of all prompts sent, never evicted from here, unless the load is out of balance. */
rival_fn rival_sglang;
/* Dynamo's KV router: blocks to compute, times a weight, plus blocks in use. */
rival_fn rival_dynamo;
/* llm-d: the share of the prompt's blocks that an engine has, and its place between the shortest and longest queue. */
rival_fn rival_llmd;
