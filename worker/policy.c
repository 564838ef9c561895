#include "worker/policy.h"

static policy_fn *const policies[POLICY_N] = {
	[POLICY_ROUND_ROBIN] = policy_round_robin,
	[POLICY_LEAST_LOADED] = policy_least_loaded,
	[POLICY_POWER_OF_TWO] = policy_power_of_two,
	[POLICY_RANDOM] = policy_random,
	[POLICY_SESSION] = policy_session,
	[POLICY_PREFIX] = policy_prefix,
};

policy_fn *
policy_find(enum policy_kind kind)
{
	return policies[kind];
}

/* Spreads every bit of x over the result (the finalizer of splitmix64). */
static uint64_t
mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* log2 of a number above 0, good to 0.008: exponent, and a parabola through the mantissa's ends. */
static double
log2_about(uint64_t x)
{
	const int exponent = 63 - __builtin_clzll(x);
	const double m = (double)(x << (63 - exponent)) / 0x1p63 - 1;

	return exponent + m + 0.3437 * m * (1 - m);
}

double
policy_rank(const struct policy_view *v, uint32_t i, uint32_t weight)
{
	const uint64_t hash = mix(v->key ^ v->picks[i].hash);

	if (!v->weighted && v->slow_start_ms == 0)
		return (double)hash;
	/* of weight / -log(u), u uniform in (0, 1), each is the highest for its weight's share */
	return weight / (64 - log2_about(hash | 1) + 1e-12);
}

int
policy_highest(const struct policy_view *v, double most)
{
	double best_rank = -1;
	int best = -1;

	for (uint32_t i = 0; i < v->n; i++) {
		const uint32_t full = v->picks[i].weight * WEIGHT_ONE;
		double rank = policy_rank(v, i, full);
		struct candidate c;

		/* the endpoint's own line is looked at only if it would win: some ln(n) times */
		if (rank <= best_rank || !policy_look(v, i, &c) ||
			(double)(c.load - v->own) > most * c.weight)
			continue;
		if (c.weight < full)
			rank = policy_rank(v, i, c.weight);
		if (rank <= best_rank)
			continue;
		best_rank = rank;
		best = (int)i;
	}
	return best;
}
