/*
 * One selection: the policy of a pool's role chooses among its endpoints, and the chosen one is reserved.
 *
 * Process: worker, inside the read section.  Knows neither requests nor the clock: plan.c brings both, and
 * tests/bench/sched.c brings simulated ones.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "shm/view.h"

struct seg;
struct table;
struct table_pick;
struct table_pool;

struct selection {
	struct seg *seg;
	uint32_t slot; /* of the worker */
	const struct table *table;
	const struct table_pool *pool;
	enum role role;

	/* what is asked for */
	uint32_t model;        /* number of the one asked for in the pool, or TABLE_ANY_MODEL */
	uint64_t groups;       /* bit per group number that will do */
	const uint32_t *avoid; /* endpoint slots that will not do, navoid of them */
	uint32_t navoid;
	/* Endpoints that are away (shm/view.h) for this reason at most will do.  EP_AWAY_NOT at first;
	 * select_reach_further() raises it where nobody else could serve. */
	enum ep_away reach;
	uint32_t tokens; /* of the prompt */
	bool keyed;      /* session and prefix policy: `key` is known */
	uint64_t key;    /* hash of the session's name or the prompt's start */

	uint32_t mean_tokens; /* what a request of another router is taken for */
	uint64_t now_ms;
	uint64_t foreign_max_age_ms; /* older figures of other routers' load do not count */

	bool again; /* a retry, which takes no turn of first choices: `cursor` points to `retry_at` */
	uint32_t retry_at;

	/* the worker's own, changed here */
	uint32_t *cursor; /* of this pool and role: where its round stands */
	uint64_t *rnd;    /* policy_rnd()'s state */
};

/* What a selection holds of the endpoint it chose, for the caller to give back. */
struct selected {
	uint32_t tokens; /* by load_tokens_sub(), before load_release() */
	uint64_t trial;  /* the half-open trial of an ejected endpoint; 0: none.  shm/eject.h */
	uint64_t busy;   /* what it found at a busy endpoint; 0: not busy.  shm/busy.h */
};

/* The endpoint's pick, one place and *ret reserved there; or NULL: nobody is up, in and below its limit. */
const struct table_pick *select_reserve(const struct selection *s, struct selected *ret);
/* The pick of an endpoint slot where a place is held already; ret->trial is set, no place is taken.  NULL: it is no
 * choice any more. */
const struct table_pick *select_again(
	const struct selection *s, uint32_t slot, struct selected *ret);
/* Moves the cursor past whoever would be chosen: a turn passes unused. */
void select_pass(const struct selection *s);
/* Places of those who could serve this, and how many are free as far as can be seen; UINT64_MAX: there is no limit. */
struct select_room {
	uint64_t slots, free;
};
struct select_room select_room(const struct selection *s);
/* Of pairs: places of one role as far as the other has as many, in each group where the pool requires that. */
struct select_room select_room_of_both(const struct selection s[ROLE_N]);
/*
 * Nobody was found: raises `reach`, to `most` at most, of those roles (a bit each) where nobody within reach could
 * serve, even if it were not full.  With both roles, of a pool that requires one group, the two are looked at together.
 * True: more will do than before, so select again.
 */
bool select_reach_further(struct selection s[ROLE_N], uint32_t roles, enum ep_away most);
/* Whether anybody could serve this at all, now; where select_reserve() found nobody, those are full. */
bool select_served(const struct selection *s);

#define SELECT_ALL_GROUPS UINT64_MAX
#define SELECT_BOTH_ROLES ((1u << ROLE_N) - 1)
#define SELECT_MEAN_SHARE 32 /* the mean prompt follows the last 32 or so */

/* The mean of recent prompts with one more; 0: none yet.  Each step is rounded away from 0, or means of
 * a few tokens would never rise. */
static inline uint32_t
select_mean(uint32_t mean, uint32_t tokens)
{
	if (mean == 0)
		return tokens;
	if (tokens < mean)
		return mean - (mean - tokens + SELECT_MEAN_SHARE - 1) / SELECT_MEAN_SHARE;
	return mean + (tokens - mean + SELECT_MEAN_SHARE - 1) / SELECT_MEAN_SHARE;
}

/*
 * Where a worker's round begins, so that workers do not move in step: apart by a share of the endpoints,
 * not one after the other.  64 that began side by side over 1,024 endpoints would go round as a pack for an
 * hour.  The factor is a prime: never a multiple of how many endpoints there are.
 */
static inline uint32_t
select_cursor(uint32_t slot)
{
	return slot * 2654435761u;
}
