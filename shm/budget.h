/*
 * The retry budget: how many tries a pool's fleet may cost.  A fault of all engines would otherwise be
 * multiplied by `retries`, and keep them from coming back.  All workers share the budget of a pool:
 * each counts its own requests and tries, second by second, and a try asks for the sum of all.
 *
 * The counts of a worker that died leave the window by themselves.  Two workers that ask at the same
 * moment may both get the last try.
 *
 * Process: worker.  Times are clock_ms().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct seg;

/* tries within a window that cost nothing: a quiet pool's few must not fail */
#define BUDGET_FREE 10

/* Worker `me`: a request has been planned for the first time. */
void budget_request(struct seg *seg, uint32_t me, uint32_t pool, uint64_t now_ms);
/* Returns true if one more try is within `percent` of the requests of the last BUDGET_SECONDS. */
bool budget_left(const struct seg *seg, uint32_t pool, uint32_t percent, uint64_t now_ms);
/* Worker `me`: a try was made. */
void budget_take(struct seg *seg, uint32_t me, uint32_t pool, uint64_t now_ms);
