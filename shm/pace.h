/*
 * How long an endpoint's engine takes, as all workers measure it, and what the master makes of it.  Two words per
 * endpoint:
 *
 *	pace    samples:16 | time:24 | time per token:24	W: CAS by all
 *	share   times:32 | 0:21 | starved:1 | slow:1 | withheld:9	W: master
 *
 * A sample is one prefill leg (its time, its prompt tokens and PACE_PROMPT_TOKENS), one second of a decode stream (the time of one event), or
 * one whole decode answer (its time, its completion tokens).  Both times are means of logarithms to base 2.  The mean
 * of logarithms follows a change by a factor at once, and one answer that takes a hundred times as long moves the mean
 * of 32 samples by a seventh.
 *
 * `samples` is the weight of the mean: at most PACE_MOST samples, and less with time (pace_age()).  So a new sample
 * counts more, the older the others are.
 *
 * `share` is what policies do with it: the endpoint has (256 - withheld) / 256 of its weight.  A word of 0 is an
 * endpoint with its whole weight.
 *
 * Process: workers record; the functions under "master" are the master's.  Every change is one CAS of one word.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/atomic.h"
#include "shm/core/seg.h"

#define PACE_SAMPLE 256u /* one sample, in `samples` */
#define PACE_MOST                                                                                  \
	32u /* samples that the mean is of; outlier.min_samples is below: the oldest fade */
#define PACE_FRACTION_BITS 18
#define PACE_DOUBLE (1u << PACE_FRACTION_BITS) /* a doubling of a time */
#define PACE_WHOLE (PACE_MOST * PACE_SAMPLE)
#define PACE_TOKEN_SHIFT 20u      /* `token` is the time of 2^20 tokens, so that it is above 0 */
#define PACE_PREFILL_LEAST 20000u /* us: a shorter prefill counts as this, the rest is noise */
#define PACE_PROMPT_TOKENS 256u   /* what a prompt costs beside its tokens: as much as so many */
#define PACE_EVENT_LEAST 5000u    /* us: the same of the time between two events of a stream */

struct pace {
	uint32_t samples; /* in PACE_SAMPLE */
	uint32_t time;    /* log2 of microseconds, in PACE_DOUBLE */
	uint32_t token;   /* the same per 2^PACE_TOKEN_SHIFT tokens */
};

struct pace pace_unpack(uint64_t word);
/* The word with one more sample: `us` microseconds for so many tokens; 0 counts as 1. */
uint64_t pace_with(uint64_t word, uint64_t us, uint64_t tokens);
/* The word after a second, in which the weight of its samples falls to at most `most`, and by 1 / 2^shift. */
uint64_t pace_older(uint64_t word, uint32_t shift, uint32_t most);

static inline uint64_t
pace_word(const struct seg *seg, uint32_t ep)
{
	return shm_load(&seg->tallies[ep].pace);
}

/* --- workers */

void pace_record(struct seg *seg, uint32_t ep, uint64_t us, uint64_t tokens);

/* --- share */

#define SHARE_WHOLE 256u
#define SHARE_WITHHELD_BITS 9
#define SHARE_SLOW (1u << SHARE_WITHHELD_BITS)
#define SHARE_STARVED (1u << (SHARE_WITHHELD_BITS + 1)) /* too few requests go there */

static inline uint64_t
share_word(const struct seg *seg, uint32_t ep)
{
	return shm_load(&seg->ep_records[ep].share);
}

/* Of SHARE_WHOLE; at least 1. */
static inline uint32_t
share_part(uint64_t word)
{
	return SHARE_WHOLE - (uint32_t)(word & (SHARE_SLOW - 1));
}

/* The master says that its engine is slower than its peers. */
static inline bool
share_slow(uint64_t word)
{
	return (word & SHARE_SLOW) != 0;
}

#define SHARE_TIMES_ONE 256.0
/* How many times the time of its peers its engine takes, in 1 / SHARE_TIMES_ONE. */
static inline uint32_t
share_times(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

/* --- master */

/* pace_older() of its word. */
void pace_age(struct seg *seg, uint32_t ep, uint32_t shift, uint32_t most);
/* Of an endpoint that is slow. */
void share_lower(struct seg *seg, uint32_t ep, uint32_t part, bool starved, uint32_t times);
void share_restore(struct seg *seg, uint32_t ep);
/* Its slot or its engine begins a new life. */
void pace_begin(struct seg *seg, uint32_t ep);
