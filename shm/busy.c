/*
 * Busy endpoints.  Every change is one compare-and-swap of one word, so a process may die anywhere
 * and leaves the word consistent.  half_open.c has the trials.
 */
#include "shm/busy.h"

/* busy.h draws the word. */
#define LEVEL_AT 56
#define LEVEL_MAX 31u

static uint64_t *
word_of(const struct seg *seg, uint32_t ep)
{
	return &seg->eps[ep].busy;
}

static uint32_t
level_of(uint64_t word)
{
	return (uint32_t)(word >> LEVEL_AT & LEVEL_MAX);
}

uint64_t
busy_left(const struct seg *seg, uint32_t ep, uint64_t now_ms)
{
	const uint64_t word = shm_load(word_of(seg, ep));

	return half_open_shut(word, now_ms) ? half_open_ms(word) - now_ms : 0;
}

uint64_t
busy_count(const struct seg *seg, uint32_t ep)
{
	return shm_load(&seg->eps[ep].busy_answers);
}

bool
busy_try(
	struct seg *seg, uint32_t me, uint32_t ep, uint64_t now_ms, bool anyway, uint64_t *ret_mark)
{
	if (half_open_try(word_of(seg, ep), me, now_ms, BUSY_TRIAL_MS, ret_mark))
		return true;
	if (!anyway)
		return false;
	*ret_mark = shm_load(word_of(seg, ep));
	/* A running trial belongs to another request: this request is no part of it. */
	if (half_open_worker(*ret_mark) != 0)
		*ret_mark = 0;
	return true;
}

static uint64_t
time_of(uint32_t level, uint64_t retry_after_ms)
{
	const uint64_t ms = (uint64_t)BUSY_FIRST_MS << level;

	if (retry_after_ms != 0)
		return retry_after_ms < BUSY_RETRY_MOST_MS ? retry_after_ms : BUSY_RETRY_MOST_MS;
	return ms < BUSY_LONGEST_MS ? ms : BUSY_LONGEST_MS;
}

static void
count_answer(struct seg *seg, uint32_t ep)
{
	uint64_t *n = &seg->eps[ep].busy_answers, seen = shm_load(n), old;

	do {
		old = seen;
		seen = shm_cas(n, old, old + 1);
	} while (seen != old);
}

uint64_t
busy_said(struct seg *seg, uint32_t ep, uint64_t mark, uint64_t now_ms, uint64_t retry_after_ms)
{
	uint32_t level = level_of(mark);
	uint64_t ms, busy;

	if (mark != 0 && level < LEVEL_MAX)
		level++;
	ms = time_of(level, retry_after_ms);
	busy = half_open_make(HALF_OPEN_OUT | (uint64_t)level << LEVEL_AT, 0, now_ms + ms);
	count_answer(seg, ep);
	/* A request that was sent before the word changed has no news. */
	return shm_cas(word_of(seg, ep), mark, busy) == mark ? ms : 0;
}

bool
busy_over(struct seg *seg, uint32_t ep)
{
	/* Whether its own trial has expired does not matter: a prompt may take longer than a
	 * trial lasts. */
	return busy_is(seg, ep) && half_open_out(shm_xchg(word_of(seg, ep), 0));
}

bool
busy_none(struct seg *seg, uint32_t ep, uint64_t mark)
{
	return half_open_worker(mark) != 0 && half_open_none(word_of(seg, ep), mark);
}

/* --- master ------------------------------------------------------------------------------- */

void
busy_begin(struct seg *seg, uint32_t ep)
{
	(void)shm_xchg(word_of(seg, ep), 0);
	(void)shm_xchg(&seg->eps[ep].busy_answers, 0);
}
