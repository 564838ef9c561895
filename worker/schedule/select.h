/*
 * One selection: the policy of a pool's role chooses among its endpoints, and the chosen one is reserved.
 *
 * Process: worker, inside the read section.  Knows neither requests nor the clock: choose.c brings both, and
 * tests/bench/sched.c brings simulated ones.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "shm/prefix.h"
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

	/* asked for */
	uint32_t model;        /* the number of the model in the pool, or TABLE_ANY_MODEL */
	uint64_t holder;       /* hash of the URL of the one endpoint that will do; 0: any */
	uint64_t groups;       /* bit per group number that will do */
	const uint32_t *avoid; /* endpoint slots that will not do, navoid of them */
	uint32_t navoid;
	/* Endpoints that are away (shm/view.h) for this reason at most will do.  EP_AWAY_NOT at first;
	 * select_reach_further() raises it where no endpoint within reach could serve. */
	enum ep_away reach;
	bool plain_only; /* endpoints that speak TLS will not do: the worker has no keys of tls for the pool */
	uint32_t tokens; /* of the prompt */
	bool keyed;      /* session and prefix policy: `key` is known */
	uint64_t key;    /* hash of the session's name or the prompt's start */
	/* cache_aware policy: the endpoints that have a beginning of the prompt (worker/schedule/cached.h); NULL: not
	 * known */
	const struct prefix_found *found;
	bool computes; /* with those: what the engine does not have is its work, else the whole prompt is */
	uint32_t
		others; /* with those: the share of the requests that are other routers', of POLICY_ALL_OTHERS */

	uint32_t mean_tokens; /* a request of another router is counted with so many */
	uint64_t now_ms;
	uint64_t foreign_max_age_ms; /* older figures of other routers' load do not count */

	/* a retry, which takes no turn of first choices: `cursor` points to `retry_at` */
	bool again;
	uint32_t retry_at;

	/* the worker's own, changed here */
	uint32_t *cursor; /* of this pool, role and cursor partition: where the round is */
	uint64_t *rnd;    /* policy_rnd()'s state */
};

/* What a selection has taken at the endpoint it chose.  The caller gives it back. */
struct selected {
	uint32_t tokens; /* by load_tokens_sub(), before load_release() */
	uint64_t trial;  /* the half-open trial of an ejected endpoint; 0: none.  shm/eject.h */
	uint64_t busy;   /* the mark of a busy endpoint; 0: not busy.  shm/busy.h */
	struct prefix_guess guess; /* what its engine is expected to have in its cache */
};

/* Reserves one slot and *ret at the endpoint that the policy chooses, and returns its pick.  NULL: no endpoint can be
 * chosen. */
const struct table_pick *select_reserve(const struct selection *s, struct selected *ret);
/* Returns the pick of endpoint `slot`, where the caller holds a slot already: ret->trial is set, no slot is taken.
 * NULL: the endpoint cannot be chosen any more. */
const struct table_pick *select_again(
	const struct selection *s, uint32_t slot, struct selected *ret);
/* Moves the cursor past the endpoint that would be chosen: a turn passes unused. */
void select_pass(const struct selection *s);
/* Slots of the endpoints that could serve this, and how many of them seem to be free; UINT64_MAX: there is no limit. */
struct select_room {
	uint64_t slots, free;
};
struct select_room select_room(const struct selection *s);
/* For both engines: slots of one role as far as the other role has as many, in each group where the pool requires
 * that. */
struct select_room select_room_of_both(const struct selection s[ROLE_N]);
/*
 * After a selection that found no endpoint: raises `reach`, to `most` at most, of those roles (a bit each) where no
 * endpoint within reach could serve, even if it were not full.  With both roles, of a pool that requires one group, the
 * two are looked at together.  True: more endpoints will do than before, so select again.
 */
bool select_reach_further(struct selection s[ROLE_N], uint32_t roles, enum ep_away most);
/* The number of endpoints that could serve, full or not, tried before or not. */
uint32_t select_engines(const struct selection *s);
/* Returns true if any endpoint could serve this now; after a failed select_reserve() such endpoints are full. */
bool select_served(const struct selection *s);

/* What a worker has learned about one role of a pool, for policy cache_aware. */
struct select_means {
	uint32_t work;      /* tokens of a prompt that an engine has to compute; 0: not known */
	double own, others; /* requests at an endpoint, of this router and of others */
};

/* Before a selection whose `found` and `computes` are set: sets what the means are for, and looks at one endpoint more. */
void select_means_use(struct select_means *m, struct selection *s);
/* After it: so many tokens were reserved. */
void select_means_add(struct select_means *m, const struct selection *s, uint32_t tokens);

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
 * Where a worker's round begins.  Workers begin spread over the endpoints, not one beside the other, so that they do not
 * move in step: 64 workers that began side by side over 1,024 endpoints would go round as a pack for an hour.  The factor
 * is a prime: never a multiple of the number of endpoints.
 */
static inline uint32_t
select_cursor(uint32_t slot)
{
	return slot * 2654435761u;
}
