/*
 * Half-open words: a word keeps requests away from an endpoint until a time.  Then exactly one request of all
 * workers is let through, the half-open trial, and its outcome decides.  Ejection (eject.h) and busy
 * endpoints (busy.h) share this part of their words:
 *
 *	out:1 | the word's own bits:15 | trial's worker+1:8 | ms:40
 *
 *	out, no worker    ms: until when requests stay away; then the trial is due
 *	out, a worker     ms: until when its trial lasts at most; then the next trial is due
 *	not out           the word's own
 *
 * A trial is known by the whole word that its worker wrote.  The next trial has a later end, so a worker that
 * was stopped for longer than its trial lasted finds another word, and its compare-and-swap changes nothing.
 *
 * Process: workers; half_open_reap() is the master's.  Times are clock_ms().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct seg;

#define HALF_OPEN_OUT (UINT64_C(1) << 63) /* top bit: one comparison with 0 in a selection */
#define HALF_OPEN_MS_BITS 40              /* 34 years of uptime */
#define HALF_OPEN_OWN_BITS 48             /* the word's own bits begin here */

static inline bool
half_open_out(uint64_t word)
{
	return (word & HALF_OPEN_OUT) != 0;
}

static inline uint64_t
half_open_ms(uint64_t word)
{
	return word & ((UINT64_C(1) << HALF_OPEN_MS_BITS) - 1);
}

/* Worker + 1 whose trial it is; 0: no trial is on. */
static inline uint32_t
half_open_worker(uint64_t word)
{
	return (uint32_t)(word >> HALF_OPEN_MS_BITS & 0xff);
}

/* Requests stay away: no trial is due yet, or a trial is on. */
static inline bool
half_open_shut(uint64_t word, uint64_t now_ms)
{
	return half_open_out(word) && now_ms < half_open_ms(word);
}

/* The word's own bits of `own`, and these. */
static inline uint64_t
half_open_make(uint64_t own, uint32_t worker, uint64_t ms)
{
	return (own >> HALF_OPEN_OWN_BITS << HALF_OPEN_OWN_BITS) |
	       (uint64_t)worker << HALF_OPEN_MS_BITS | half_open_ms(ms);
}

/*
 * May a request of worker `me` pass?  True with *ret_trial 0: the endpoint is not out.  True with *ret_trial
 * not 0: the request is the trial, which ends by itself after most_ms.  False: requests stay away.
 */
bool half_open_try(
	uint64_t *word, uint32_t me, uint64_t now_ms, uint64_t most_ms, uint64_t *ret_trial);
/* The trial ends without an outcome, and the next one is due.  False: it was over already. */
bool half_open_none(uint64_t *word, uint64_t trial);
/* Master, after waitpid: ends all trials of the dead worker, of ejected and of busy endpoints, so that the next
 * trials are due.  Returns how many trials it ended. */
uint32_t half_open_reap(struct seg *seg, uint32_t dead);
