/*
 * Busy endpoints: an engine that answered 429, or 503 with Retry-After, has no room.  All workers choose
 * others for a while, and then let one request try it (half_open.h).  One word per endpoint:
 *
 *	busy:1 | 0:2 | level:5 | 0:8 | trial's worker+1:8 | ms:40
 *
 *	0 --busy answer--> busy --ms has passed--> due --busy_try()--> trial --it has room--> 0
 *	                    ^                                           |
 *	                    '--busy answer: twice as long, or as Retry-After says
 *
 * A busy endpoint is not ejected: it works, and it is chosen where no other endpoint can serve.
 *
 * Process: workers; busy_begin() is the master's.  half_open_reap() ends the trials of a dead worker.
 * Times are clock_ms().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/atomic.h"
#include "shm/core/seg.h"
#include "shm/half_open.h"

#define BUSY_FIRST_MS 100u        /* without Retry-After; doubled after each refused trial */
#define BUSY_LONGEST_MS 2000u     /* the highest value that BUSY_FIRST_MS is doubled to */
#define BUSY_RETRY_MOST_MS 60000u /* longer values of Retry-After count as this */
#define BUSY_TRIAL_MS 2000u       /* after this another request may try: a prompt may take longer */

/* Its engine answered busy, and has admitted no request since. */
static inline bool
busy_is(const struct seg *seg, uint32_t ep)
{
	return half_open_out(shm_load(&seg->eps[ep].busy));
}

/* For how long requests avoid the endpoint, in ms; 0: it is not busy, or a trial is due. */
uint64_t busy_left(const struct seg *seg, uint32_t ep, uint64_t now_ms);
/* Number of its busy answers since its slot began this life. */
uint64_t busy_count(const struct seg *seg, uint32_t ep);

/*
 * For a reservation of worker `me` at `ep`: may the request go there?  `anyway`: also to a busy
 * endpoint, because no other can serve.  *ret_mark is 0 if the endpoint is not busy.  Otherwise it
 * identifies the word that the request found, and the caller passes it with the outcome to
 * busy_said(), busy_over() or busy_none().
 */
bool busy_try(struct seg *seg, uint32_t me, uint32_t ep, uint64_t now_ms, bool anyway,
	uint64_t *ret_mark);
/*
 * A request was answered busy.  `mark`: from its busy_try().  retry_after_ms: from the answer, or
 * 0.  Returns for how long requests avoid the endpoint because of this answer, in ms; 0: other
 * requests reported it before.
 */
uint64_t busy_said(
	struct seg *seg, uint32_t ep, uint64_t mark, uint64_t now_ms, uint64_t retry_after_ms);
/* The engine admitted a request that had found the endpoint busy: it has room.  False: that was
 * known. */
bool busy_over(struct seg *seg, uint32_t ep);
/* A request with that mark ended without an outcome: if it was the trial, the next trial is due.
 * False: it was not. */
bool busy_none(struct seg *seg, uint32_t ep, uint64_t mark);

/* Master: its slot begins a new life. */
void busy_begin(struct seg *seg, uint32_t ep);

/* Bits that are never set, for check.c. */
#define BUSY_NEVER (UINT64_C(0x60ff) << HALF_OPEN_OWN_BITS)
