/*
 * Budgets: how many tries of requests, and how many requests that release KV, a pool's fleet may cost.  A fault of all
 * engines would otherwise be multiplied by them, and keep the engines from coming back.  All workers share the budgets
 * of a pool: each counts what it does, second by second, and each further use asks for the sum of all.  (What falls
 * back to decode engines is counted in prompt tokens: shm/fallback.h.)
 *
 * The counts of a worker that died leave the window by themselves.  Two workers that ask at the same
 * moment may both get the last use.
 *
 * Process: worker.  Times are clock_ms().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct seg;

/* uses within a window that cost nothing: a quiet pool's few must not fail, and KV of a busy time is still to be released
 * when no more requests come */
#define BUDGET_FREE 10
#define BUDGET_FREE_RELEASES 100

enum budget_use {
	BUDGET_RETRY,   /* another attempt: a retry, or a stream that is continued */
	BUDGET_RELEASE, /* a request that names KV to an engine */
	BUDGET_USES
};

/* Worker `me`: a request has been planned for the first time. */
void budget_request(struct seg *seg, uint32_t me, uint32_t pool, uint64_t now_ms);
/* Returns true if one more use is within `percent` of the requests of the last BUDGET_SECONDS. */
bool budget_left(const struct seg *seg, uint32_t pool, enum budget_use use, uint32_t percent,
	uint64_t now_ms);
/* Worker `me`: it was used. */
void budget_take(struct seg *seg, uint32_t me, uint32_t pool, enum budget_use use, uint64_t now_ms);

/* How many requests got engines, and within which time: at least a second, at most BUDGET_SECONDS. */
struct budget_pace {
	uint64_t requests, ms;
};
struct budget_pace budget_pace(const struct seg *seg, uint32_t pool, uint64_t now_ms);
