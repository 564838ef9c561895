/*
 * The budget of fallbacks: how fast decode engines may be given prompts that no prefill engine serves.  The budget is
 * counted in prompt tokens a second, since these are what the decode engines pay.  One word of each pool says until when
 * the prompts so far have spent it.
 *
 * A prompt of any length may go while the word is less than FALLBACK_AHEAD_US ahead, and is charged afterwards.  So
 * a prompt that is longer than a second's budget goes, too, and the requests after it wait.
 *
 * Process: worker.  Times are clock_us().
 */
#pragma once
#include <stdint.h>

struct seg;

#define FALLBACK_AHEAD_US UINT64_C(1000000)
#define FALLBACK_MOST_US UINT64_C(60000000) /* what one prompt costs at most */

/* The time until one more prompt may go; 0: now. */
uint64_t fallback_wait_us(const struct seg *seg, uint32_t pool, uint64_t now_us);
/* A prompt goes.  each_s: tokens that all decode engines of the pool may get in a second, not 0. */
void fallback_take(
	struct seg *seg, uint32_t pool, uint32_t tokens, uint64_t each_s, uint64_t now_us);
