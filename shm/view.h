/*
 * What a selection reads of an endpoint: two cache lines, a few plain loads, inlined because it is
 * done for each endpoint of a role.
 *
 * Process: worker; others for status pages.  The values are of slightly different moments;
 * load_reserve() decides what must be exact.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/atomic.h"
#include "shm/eject.h"
#include "shm/sibling_load.h"
#include "shm/pace.h"
#include "shm/core/seg.h"

/* Why requests avoid an endpoint that is up; a higher value is a stronger reason.  A selection's
 * reach includes it or not. */
enum ep_away { EP_AWAY_NOT, EP_AWAY_BUSY, EP_AWAY_EJECTED };

struct ep_view {
	enum ep_state state;
	enum ep_away away;
	uint32_t tag;
	uint32_t count, tokens, foreign;
	struct sibling_load siblings; /* of other routers; `foreign` has none of it */
	uint64_t ramp_from_ms;        /* 0: at full weight */
	uint64_t share;               /* 0: it has its whole weight; shm/pace.h */
};

/* Of both words; most endpoints are neither. */
static inline enum ep_away
ep_away(uint64_t eject, uint64_t busy, uint64_t now_ms)
{
	if (!half_open_out(eject | busy))
		return EP_AWAY_NOT;
	if (half_open_shut(eject, now_ms))
		return EP_AWAY_EJECTED;
	return half_open_shut(busy, now_ms) ? EP_AWAY_BUSY : EP_AWAY_NOT;
}

/* The endpoint is ejected or busy: a reservation there calls eject_try() and busy_try(). */
static inline bool
ep_is_out(const struct seg *seg, uint32_t ep)
{
	return half_open_out(shm_load(&seg->eps[ep].eject) | shm_load(&seg->eps[ep].busy));
}

static inline struct ep_view
ep_view(const struct seg *seg, uint32_t ep, uint64_t now_ms, uint64_t foreign_max_age_ms)
{
	const struct ep_word *e = &seg->eps[ep];
	const struct ep_record *known = &seg->ep_records[ep];
	const uint64_t state = shm_load(&known->state), foreign = shm_load(&known->foreign);
	const uint64_t eject = shm_load(&e->eject);
	const uint64_t up_ms = ep_word_ramp(state), back_ms = eject_word_back_ms(eject);

	return (struct ep_view){
		.state = ep_word_state(state),
		.tag = (uint32_t)shm_load(&known->tag),
		.count = word_count(shm_load(&e->count)),
		.tokens = word_count(shm_load(&e->tokens)),
		.foreign = ep_word_foreign(foreign, now_ms, foreign_max_age_ms),
		.siblings = sibling_load_get(seg, ep, now_ms),
		.away = ep_away(eject, shm_load(&e->busy), now_ms),
		.ramp_from_ms = up_ms > back_ms ? up_ms : back_ms,
		.share = share_word(seg, ep),
	};
}

/* The figure that decides most selections: requests or tokens by ep_load(). */
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

/*
 * Changes with every reservation and release there, because it contains the name of the operation.
 * The same value within seconds means that none of this router's requests has begun or ended in
 * between.
 */
static inline uint64_t
ep_turnover(const struct seg *seg, uint32_t ep)
{
	return shm_load(&seg->eps[ep].count);
}
