/*
 * Requests whose prompts have beginnings in common, as ids of blocks: Mooncake's conversation trace, replayed, and a
 * synthetic load of agents.
 */
#pragma once
#include <stdint.h>

#include "tests/bench/sched_trace.h"

#define REPLAY_BLOCK 512 /* tokens, as the trace has them */

enum replay_kind { REPLAY_CONVERSATION, REPLAY_AGENTS };

struct replay_plan {
	enum replay_kind kind;
	uint32_t
		requests; /* conversation: so many first ones of the trace, all if more; agents: all copies together */
	uint32_t copies;           /* of the trace at once, each with conversations of its own */
	uint32_t routers, workers; /* of each router */
	uint64_t draw;             /* of which of them gets a request */
	uint32_t n;                /* engines */
	double load;               /* share of their time that is asked for if they had no caches */
};

struct replay {
	struct trace trace;
	uint32_t *blocks;  /* of all demands */
	uint32_t ids;      /* the blocks' ids are below */
	uint32_t distinct; /* blocks: the working set */
};

/* All plans of the same kind, requests, copies, load and engines have the same requests at the same times. */
void replay_init(struct replay *r, const struct replay_plan *plan);
void replay_fini(struct replay *r);

/* The bytes of a prompt, four for each token.  *buf grows. */
struct membuf;
void replay_text(const struct demand *d, struct membuf *buf);
