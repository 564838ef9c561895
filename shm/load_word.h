/*
 * The packed words of reservations; load.c writes them, check.c checks them:
 *
 *	word     count:32 | last worker+1:8 | seq:24	of the endpoint: requests, prompt tokens; of the
 *							client: its life and requests (quota_word.h)
 *	journal  which word:2 | number:16 | seq:24	of the worker; 0 = no operation open
 *	change   row before:32 | signed change:32	of that operation
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/seg.h"

#define BITS(n) ((UINT64_C(1) << (n)) - 1)

#define SEQ_BITS 24
#define SEQ_MASK BITS(SEQ_BITS)
#define SEQ_HALF (UINT64_C(1) << (SEQ_BITS - 1))
/* An eighth of SEQ_HALF: after so many operations a worker removes its name from every word, so
 * that no name grows old. */
#define SCRUB_EVERY (UINT64_C(1) << 20)

enum which { NEITHER, REQUESTS, TOKENS, QUOTA };

static inline uint64_t *
word_of(const struct seg *seg, uint32_t ep, enum which which)
{
	if (which == QUOTA)
		return &seg->quotas[ep / QUOTA_WAYS].held[ep % QUOTA_WAYS];
	return which == TOKENS ? &seg->eps[ep].tokens : &seg->eps[ep].count;
}

static inline uint32_t *
share_of(const struct seg *seg, uint32_t worker, uint32_t ep, enum which which)
{
	struct row *row;

	if (which == QUOTA)
		return &seg->quota_rows[(size_t)worker * seg->hdr->max_quotas + ep];
	row = seg_row(seg, worker, ep);
	return which == TOKENS ? &row->tokens : &row->held;
}

static inline uint64_t
word_make(uint32_t count, uint64_t name)
{
	return (uint64_t)count << 32 | name;
}

/* The worker that changed the word last, and the number of its operation; 0: no operation that
 * still matters. */
static inline uint64_t
name_make(uint32_t worker, uint64_t seq)
{
	return ((uint64_t)worker + 1) << SEQ_BITS | (seq & SEQ_MASK);
}

static inline uint64_t
word_name(uint64_t word)
{
	return word & BITS(32);
}

static inline uint64_t
name_worker(uint64_t name) /* + 1 */
{
	return name >> SEQ_BITS;
}

static inline uint64_t
journal_make(enum which which, uint32_t ep, uint64_t seq)
{
	return (uint64_t)which << 62 | (uint64_t)ep << SEQ_BITS | (seq & SEQ_MASK);
}

static inline enum which
journal_which(uint64_t journal)
{
	return (enum which)(journal >> 62);
}

static inline uint32_t
journal_ep(uint64_t journal)
{
	return (uint32_t)(journal >> SEQ_BITS & BITS(16));
}

/* Of an operation on a word that there is. */
static inline bool
journal_possible(const struct seg *seg, uint64_t journal)
{
	const uint32_t n =
		journal_which(journal) == QUOTA ? seg->hdr->max_quotas : seg->hdr->max_endpoints;

	return journal_which(journal) != NEITHER && journal_ep(journal) < n;
}

/*
 * One operation of worker `me` (load.c): the upper half of that word += delta, and its row with it.  An
 * increase is refused, and leaves no trace, unless the upper half is `min` or more before it and `max` or
 * less after it.
 */
bool word_operate(struct seg *seg, uint32_t me, uint32_t ep, enum which which, int64_t delta,
	uint32_t min, uint32_t max);
/* Changes a word whose upper half counts nothing, by CAS; false if the word is not `old` any
 * more. */
bool word_swap(struct seg *seg, uint64_t *word, uint64_t old, uint64_t to);
