/*
 * Policies: pure choice among the endpoints of one role of one pool.  One file per policy.
 *
 * Process: worker, inside the read section.  Nothing here blocks, allocates or changes shared memory; a
 * choice costs under a microsecond at 64 endpoints, under three at 1,024 (tests/bench/README.md).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "shm/prefix.h"
#include "shm/view.h"
#include "shm/table.h"

struct policy_view {
	const struct seg *seg;
	const struct table_pick *picks;
	uint32_t n;
	uint32_t max_weight; /* of the picks */

	uint64_t holder;       /* hash of the URL of the one endpoint that may be chosen; 0: any */
	uint64_t groups;       /* bit per group number that may be chosen */
	const uint32_t *avoid; /* endpoint slots that may not, navoid of them */
	uint32_t navoid;
	uint32_t model;     /* number of the one asked for in the pool, or TABLE_ANY_MODEL */
	enum ep_away reach; /* endpoints that are away for this reason at most may be chosen */
	bool plain_only;    /* endpoints that speak TLS may not be chosen */

	enum load_kind load;
	uint64_t own;          /* what the request adds to an endpoint's load, in its unit */
	uint64_t foreign_unit; /* what a request of another router counts for in that unit */

	uint64_t now_ms, slow_start_ms;
	uint64_t foreign_max_age_ms; /* older figures of other routers' load do not count */

	/* cache_aware alone */
	uint32_t tokens;                  /* of the prompt */
	uint32_t unit_tokens;             /* a unit of load counts for so many */
	const struct prefix_found *found; /* who has which beginning of it; NULL: not known */
	uint32_t
		others; /* the share of the requests that are other routers', of POLICY_ALL_OTHERS */

	bool keyed;   /* session and prefix: `key` is known; without one they are least_loaded */
	uint64_t key; /* hash of the session's name or the prompt's start */

	uint32_t cursor; /* where the round stands; a policy leaves where the next one begins */
	uint64_t *rnd;   /* state of policy_random() */
};

/* Index into view->picks, or -1 if none may be chosen. */
typedef int policy_fn(struct policy_view *view);

policy_fn policy_round_robin, policy_least_loaded, policy_power_of_two, policy_random,
	policy_session, policy_prefix, policy_cache_aware;

policy_fn *policy_find(enum policy_kind kind);

#define POLICY_ALL_OTHERS 256

/* The share of requests that are other routers', of POLICY_ALL_OTHERS. */
static inline uint32_t
policy_others(double own, double others)
{
	return others > 0 ? (uint32_t)(POLICY_ALL_OTHERS * others / (own + others)) : 0;
}

/* What cache_aware compares, of each pick: tokens by weight.  INFINITY: it may not be chosen.  For who explains a choice. */
void policy_cache_aware_costs(const struct policy_view *view, double ret[]);

/* One endpoint as a policy weighs it: loads are compared per weight. */
struct candidate {
	uint64_t load; /* in flight there, this request included, in the view's unit */
	uint32_t weight;
	uint32_t requests; /* those of this router and of others that say so, without this one */
};

/* WEIGHT_ONE is weight 1 of the configuration: an endpoint that has just recovered has a part of it. */
#define WEIGHT_ONE 256u

/* A random number below n, n > 0 (xorshift: for choosing, not for secrets). */
static inline uint32_t
policy_below(uint64_t *rnd, uint32_t n)
{
	uint64_t x = *rnd;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	*rnd = x;
	return (uint32_t)((x >> 32) * n >> 32);
}

static inline uint32_t
policy_rnd_below(const struct policy_view *v, uint32_t n)
{
	return policy_below(v->rnd, n);
}

/* Weight of an endpoint that is slow, or that ramps up.  Not inlined: few are. */
uint32_t policy_lowered(
	const struct policy_view *v, uint32_t weight, uint64_t share, uint64_t ramp_from_ms);

/* Weight under slow start: rises from almost nothing, in a straight line.  Less if its engine is slow. */
static inline uint32_t
policy_weight(const struct policy_view *v, const struct table_pick *p, const struct ep_view *e)
{
	const uint32_t full = p->weight * WEIGHT_ONE;

	return (e->share | e->ramp_from_ms) == 0
		       ? full
		       : policy_lowered(v, full, e->share, e->ramp_from_ms);
}

static inline bool
policy_avoids(const struct policy_view *v, uint32_t slot)
{
	for (uint32_t i = 0; i < v->navoid; i++)
		if (v->avoid[i] == slot)
			return true;
	return false;
}

/* What of policy_serves() the table alone says, for the most part. */
static inline bool
policy_suits(const struct policy_view *v, const struct table_pick *p)
{
	return p->resolved && (v->groups >> p->group & 1) != 0 && table_serves(p, v->model);
}

/* Up, resolved, the holder if there is one, of an allowed group, of a protocol that the worker speaks, not to be avoided and
 * serving the model, and not ejected unless the view reaches so far; but perhaps full or busy. */
static inline bool
policy_serves(const struct policy_view *v, const struct table_pick *p, const struct ep_view *e)
{
	return e->state == EP_UP && (e->away != EP_AWAY_EJECTED || v->reach == EP_AWAY_EJECTED) &&
	       e->tag == p->tag && policy_suits(v, p) && !policy_avoids(v, p->slot) &&
	       (v->holder == 0 || v->holder == p->hash) && !(v->plain_only && p->tls);
}

/* All that, not busy unless the view reaches so far, and below its max_inflight as far as can be seen without
 * reserving: then *ret is how it stands. */
static inline bool
policy_look(const struct policy_view *v, uint32_t i, struct candidate *ret)
{
	const struct table_pick *p = &v->picks[i];
	const struct ep_view e = ep_view(v->seg, p->slot, v->now_ms, v->foreign_max_age_ms);

	if ((p->max_inflight != 0 && e.count >= p->max_inflight) || e.away > v->reach ||
		!policy_serves(v, p, &e))
		return false;
	ret->requests = e.count + e.siblings.requests;
	ret->load = (uint64_t)e.foreign * v->foreign_unit + v->own;
	ret->load +=
		v->load == LOAD_TOKENS ? (uint64_t)e.tokens + e.siblings.tokens : ret->requests;
	ret->weight = policy_weight(v, p, &e);
	return true;
}

/* Whether a carries less per weight than b. */
static inline bool
policy_lighter(const struct candidate *a, const struct candidate *b)
{
	return a->load * b->weight < b->load * a->weight;
}

/*
 * The order in which the view's key prefers endpoints (rendezvous hashing): the highest rank comes first.
 * Each endpoint comes first for its weight's share of all keys, and adding one moves only its share.
 */
double policy_rank(const struct policy_view *v, uint32_t i, uint32_t weight);

/* The endpoint that ranks highest of those that may be chosen and whose load, without this request, is
 * at most `most` per weight; or -1. */
int policy_highest(const struct policy_view *v, double most);
