/*
 * How many tries a fleet may cost: a fault of all engines would otherwise be multiplied by `retries`, and
 * keep them from coming back.  One per worker and pool.
 *
 * Process: worker.  Pure: the clock is the caller's.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define BUDGET_BUCKETS 10 /* of a second each: the sliding window */
#define BUDGET_FREE                                                                                \
	10 /* tries within a window that cost nothing: a quiet pool's few must not fail */

struct budget {
	uint64_t second; /* of the newest bucket */
	struct {
		uint32_t requests, tries;
	} bucket[BUDGET_BUCKETS];
};

/* A request has been planned for the first time. */
void budget_request(struct budget *b, uint64_t now_ms);
/* Whether one more try is within `percent` of the window's requests. */
bool budget_left(struct budget *b, uint32_t percent, uint64_t now_ms);
/* A try was made. */
void budget_take(struct budget *b, uint64_t now_ms);
