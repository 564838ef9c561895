/*
 * What a selection reads of an endpoint: one cache line, a few plain loads, inlined because it is done
 * for each endpoint of a role.
 *
 * Process: worker (and whoever only wants to know).  The values are of slightly different moments; what
 * must be exact is decided by load_reserve().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/atomic.h"
#include "shm/eject.h"
#include "shm/core/seg.h"

struct ep_look {
	enum ep_state state;
	uint32_t tag;
	bool passed_by; /* ejected: only who gets its trial may go there */
	uint32_t count, tokens, foreign;
	uint64_t ramp_from_ms; /* 0: at full weight */
};

static inline struct ep_look
ep_look(const struct seg *seg, uint32_t ep, uint64_t now_ms, uint64_t foreign_max_age_ms)
{
	const struct ep_word *e = &seg->eps[ep];
	const uint64_t state = shm_load(&e->state), foreign = shm_load(&e->foreign);
	const uint64_t eject = shm_load(&e->eject);
	const uint64_t up_ms = ep_word_ramp(state), back_ms = eject_word_back_ms(eject);

	return (struct ep_look){
		.state = ep_word_state(state),
		.tag = (uint32_t)shm_load(&e->tag),
		.count = word_count(shm_load(&e->count)),
		.tokens = word_count(shm_load(&e->tokens)),
		.foreign = ep_word_foreign(foreign, now_ms, foreign_max_age_ms),
		.passed_by = eject_word_passed_by(eject, now_ms),
		.ramp_from_ms = up_ms > back_ms ? up_ms : back_ms,
	};
}

/* The one figure of these that decides most often, for all endpoints: requests or tokens by ep_load(). */
static inline const uint64_t *
ep_loads(const struct seg *seg, bool tokens)
{
	return tokens ? &seg->eps->tokens : &seg->eps->count;
}

static inline uint32_t
ep_load(const uint64_t *loads, uint32_t ep)
{
	return word_count(shm_load(loads + ep * (sizeof(struct ep_word) / sizeof(*loads))));
}

/* Changes with every reservation and release there, since a name stands in it: the same value within
 * seconds means that none of this router's requests has begun or ended in between. */
static inline uint64_t
ep_turnover(const struct seg *seg, uint32_t ep)
{
	return shm_load(&seg->eps[ep].count);
}
