/*
 * A model whose last finish is not after the virtual time needs no memory: its next waiter starts at the virtual
 * time anyway.  So an entry of `finish` is free once the virtual time has reached it, and few entries are enough.  Each
 * word is changed by one CAS, and only upward in its meaning: a worker that is killed between two of them has at most
 * not charged one request.
 */
#include "shm/fair.h"

#include <stdbool.h>
#include <stddef.h>

#include "shm/core/atomic.h"
#include "shm/core/layout.h"

#define MODEL_BITS 16

static uint64_t
word_make(uint64_t model, uint64_t finish)
{
	return finish << MODEL_BITS | (model & ((UINT64_C(1) << MODEL_BITS) - 1));
}

static bool
word_is_of(uint64_t word, uint64_t model)
{
	return word_make(word, 0) == word_make(model, 0);
}

static uint64_t
word_finish(uint64_t word)
{
	return word >> MODEL_BITS;
}

uint64_t
fair_start(const struct queue_head *q, uint64_t model, uint64_t waiting)
{
	uint64_t start = shm_load(&q->vtime);

	if (start < waiting)
		start = waiting;
	for (size_t i = 0; i < QUEUE_MODELS; i++) {
		const uint64_t word = shm_load(&q->finish[i]);

		if (word_is_of(word, model) && word_finish(word) > start)
			start = word_finish(word);
	}
	return start;
}

/* The model's entry, else a free one, else NULL. */
static uint64_t *
find(struct queue_head *q, uint64_t model, uint64_t *ret_word)
{
	const uint64_t vtime = shm_load(&q->vtime);
	uint64_t *found = NULL;

	for (size_t i = 0; i < QUEUE_MODELS; i++) {
		const uint64_t word = shm_load(&q->finish[i]);
		const bool own = word_is_of(word, model);

		if (!own && (found != NULL || word_finish(word) > vtime))
			continue;
		found = &q->finish[i];
		*ret_word = word;
		if (own)
			break;
	}
	return found;
}

/* False: there is no entry for it. */
static bool
remember(struct queue_head *q, uint64_t model, uint64_t finish)
{
	uint64_t *entry, word;

	while ((entry = find(q, model, &word)) != NULL)
		if ((word_is_of(word, model) && word_finish(word) >= finish) ||
			shm_cas(entry, word, word_make(model, finish)) == word)
			return true;
	return false;
}

void
fair_served(struct queue_head *q, uint64_t model, uint64_t start, uint64_t finish)
{
	/* The virtual time before the finish.  Pairs with fair_sound(). */
	shm_raise(&q->vtime, start);
	/* Without an entry no model may start before this one does again. */
	if (!remember(q, model, finish))
		shm_raise(&q->vtime, finish);
}

void
fair_idle(struct queue_head *q)
{
	for (size_t i = 0; i < QUEUE_MODELS; i++)
		shm_raise(&q->vtime, word_finish(shm_load(&q->finish[i])));
}

/* Tokens that no queue will ever have served. */
#define TOO_FAR (UINT64_C(1) << 47)

bool
fair_possible(uint64_t time)
{
	return time < TOO_FAR;
}

bool
fair_sound(const struct queue_head *q)
{
	uint64_t finish = 0, vtime;

	/* The finishes before the virtual time, which was raised to a start before its finish was stored.  Pairs with
	 * fair_served(). */
	for (size_t i = 0; i < QUEUE_MODELS; i++) {
		const uint64_t word = shm_load_acquire(&q->finish[i]);

		if (word_finish(word) > finish)
			finish = word_finish(word);
	}
	vtime = shm_load(&q->vtime);
	return fair_possible(vtime) &&
	       finish <= vtime + UINT32_MAX; /* the most tokens of a request */
}

void
fair_begin_anew(struct queue_head *q)
{
	for (size_t i = 0; i < QUEUE_MODELS; i++)
		(void)shm_xchg(&q->finish[i], 0);
	(void)shm_xchg(&q->vtime, 0);
}
