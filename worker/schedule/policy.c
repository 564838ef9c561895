#include "worker/schedule/policy.h"

#include <math.h>

static policy_fn *const policies[POLICY_N] = {
	[POLICY_ROUND_ROBIN] = policy_round_robin,
	[POLICY_LEAST_LOADED] = policy_least_loaded,
	[POLICY_POWER_OF_TWO] = policy_power_of_two,
	[POLICY_RANDOM] = policy_random,
	[POLICY_SESSION] = policy_session,
	[POLICY_PREFIX] = policy_prefix,
	[POLICY_CACHE_AWARE] = policy_cache_aware,
};

policy_fn *
policy_find(enum policy_kind kind)
{
	return policies[kind];
}

/* looks at a slow endpoint that gets too few requests to be seen fast again */
#define PROBE_ONE_IN 64

/* Of a slow endpoint: the part of its weight that the master leaves it (shm/pace.h).  Now and then a look takes it for
 * a fast one, if it is starved: a policy that compares loads would leave it without any request. */
static uint32_t
weight_left(const struct policy_view *v, uint32_t weight, uint64_t share)
{
	if ((share & SHARE_STARVED) != 0 && policy_rnd_below(v, PROBE_ONE_IN) == 0)
		return weight;
	weight = weight * share_part(share) / SHARE_WHOLE;
	return weight > 0 ? weight : 1;
}

uint32_t
policy_lowered(const struct policy_view *v, uint32_t weight, uint64_t share, uint64_t ramp_from_ms)
{
	const uint32_t full = share != 0 ? weight_left(v, weight, share) : weight;
	uint64_t part;

	if (ramp_from_ms == 0 || v->slow_start_ms == 0 ||
		v->now_ms >= ramp_from_ms + v->slow_start_ms)
		return full;
	part = v->now_ms > ramp_from_ms ? (v->now_ms - ramp_from_ms) * full / v->slow_start_ms : 0;
	return part > 0 ? (uint32_t)part : 1;
}

/* Spreads every bit of x over the result (the finalizer of splitmix64). */
static uint64_t
mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/*
 * A key's draw for an endpoint: any number below 2^DRAW_BITS.  With u = 1 - draw / 2^DRAW_BITS its rank is
 * weight / -log(u): of uniform u, each is the highest for its weight's share.
 */
#define DRAW_BITS 52 /* a double holds it exactly, and times a weight it still fits a word */

static uint64_t
draw(uint64_t key, const struct table_pick *p)
{
	return mix(key ^ p->hash) >> (64 - DRAW_BITS);
}

double
policy_rank(const struct policy_view *v, uint32_t i, uint32_t weight)
{
	return weight / -log1p(-((double)draw(v->key, &v->picks[i]) + 0.5) * 0x1p-52);
}

struct top {
	double rank;
	uint64_t within; /* no draw from this on, per weight, ranks higher */
	int i;
};

/* Takes endpoint i if it is the highest so far.  Not inlined: the loop below stays in registers. */
static __attribute__((noinline)) void
consider(const struct policy_view *v, uint32_t i, double most, struct top *top)
{
	const uint32_t full = v->picks[i].weight * WEIGHT_ONE;
	double r = policy_rank(v, i, full);
	struct candidate c;

	if (r <= top->rank || !policy_look(v, i, &c) || (double)(c.load - v->own) > most * c.weight)
		return;
	if (c.weight < full)
		r = policy_rank(v, i, c.weight);
	if (r <= top->rank)
		return;
	top->rank = r;
	/* -log(u) > 1 - u, so a rank is below weight / (1 - u) */
	if (r > WEIGHT_ONE)
		top->within = (uint64_t)(WEIGHT_ONE / r * 0x1p52) + 1;
	top->i = (int)i;
}

int
policy_highest(const struct policy_view *v, double most)
{
	const struct table_pick *const picks = v->picks;
	const uint64_t key = v->key;
	struct top top = {.within = UINT64_C(1) << DRAW_BITS, .i = -1};

	for (uint32_t i = 0, n = v->n; i < n; i++)
		if (draw(key, &picks[i]) < top.within * picks[i].weight) /* some ln(n) of them */
			consider(v, i, most, &top);
	return top.i;
}
