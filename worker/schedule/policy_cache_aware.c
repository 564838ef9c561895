/*
 * The least work before the first token: the prompt tokens in front of the request, and those of its own prompt that
 * the engine does not have in its cache.  Both are in one unit, so an engine that has the beginning of the prompt is
 * left exactly when waiting there would take longer than computing the beginning elsewhere.  Where nothing is cached
 * this is least_loaded in tokens.
 *
 * Where something is cached, half of the request that an engine is computing counts as done, as it is on average.
 *
 * What many engines have (a system prompt), many requests ask for.  An engine that does not have it would get none of
 * them until all others have a queue as long as that.  So what m engines have is priced at an m-th to those that do not:
 * who computes it does so for the requests to come, too.  What one engine has alone (a conversation) keeps its price.
 *
 * Another router may have sent the beginning of this conversation to some engine.  What no engine is known to have is
 * expected at its home, if other routers have a share of the requests.  The home follows from the bytes behind what is
 * known, so all routers send the beginning to the same engine, and find it there.  What one engine alone has is the rest
 * of a conversation, which needs no home.
 *
 * A role whose load counts requests (prefill_load, decode_load) counts each as a mean prompt.
 */
#include <math.h>

#include "worker/schedule/policy.h"
#include "worker/schedule/select.h"

#define MOST (UINT64_C(1) << 48) /* no product of a comparison overflows */

#define RUNNING 8 /* from so many requests on half of one is too little to count */
#define SHARE_BITS 12
#define SHARE(part) ((uint32_t)((part) * (1 << SHARE_BITS)))

/* What is left of the load of so many requests, one of them half done. */
static const uint32_t left_of[RUNNING] = {SHARE(1.), SHARE(1. / 2), SHARE(3. / 4), SHARE(5. / 6),
	SHARE(7. / 8), SHARE(9. / 10), SHARE(11. / 12), SHARE(13. / 14)};

/*
 * So much of what is not known is taken for cached at the home, times the share of other routers: a quarter with two
 * routers.  More makes requests wait there, less makes them miss it (tests/bench/README.md, "Two routers").
 */
#define AT_HOME(tokens) ((tokens) / 2)

/* The price of what is behind a cut of the prompt, in tokens. */
struct prices {
	int home;                         /* index of the pick; -1: none */
	uint64_t at_home;                 /* tokens less there */
	bool cached;                      /* by any engine; if not, there is cut 0 alone: */
	uint64_t behind[PREFIX_CUTS + 1]; /* the whole prompt */
};

struct best {
	uint64_t cost;
	uint32_t weight;
	int i;
};

/* How many cuts of the prompt the endpoint has. */
static inline uint32_t
cuts_at(const struct prefix_found *found, uint32_t slot)
{
	const struct prefix_hit *hit = &found->of[slot];

	return hit->round == found->round ? hit->cuts : 0;
}

static inline uint64_t
tokens_of(const struct prefix_found *found, uint32_t bytes)
{
	return found->part * bytes >> PREFIX_PART_BITS;
}

static void
set_home(const struct policy_view *v, struct prices *prices, uint32_t deepest)
{
	const struct prefix_key *key = v->found->key;
	struct policy_view of;

	if (deepest == key->n)
		return;
	of = *v;
	of.key = prefix_between(key, deepest);
	prices->home = policy_highest(&of, INFINITY);
	prices->at_home = AT_HOME(prices->behind[deepest]) * v->others / POLICY_ALL_OTHERS;
}

static void
set_prices(const struct policy_view *v, struct prices *ret)
{
	const struct prefix_found *found = v->found;
	uint32_t have[PREFIX_CUTS + 1] = {0}, m = 0, n, deepest = 0;
	const uint32_t *end;
	uint64_t price;

	ret->home = -1;
	ret->at_home = 0;
	ret->behind[0] = v->tokens;
	for (uint32_t i = 0; found != NULL && i < v->n; i++)
		have[cuts_at(found, v->picks[i].slot)]++;
	ret->cached = found != NULL && have[0] < v->n;
	n = found != NULL ? found->key->n : 0;
	if (ret->cached) {
		end = found->key->end;
		price = found->tokens - tokens_of(found, end[n - 1]);
		ret->behind[n] = price;
		for (uint32_t c = n; c > 0; c--) {
			const uint64_t tokens =
				tokens_of(found, end[c - 1] - (c > 1 ? end[c - 2] : 0));

			deepest = deepest == 0 && have[c] > 0 ? c : deepest;
			m += have[c];
			price += m > 1 ? tokens / m : tokens;
			ret->behind[c - 1] = price;
		}
	}
	if (n > 0 && v->others > 0 && (deepest == 0 || have[deepest] > 1))
		set_home(v, ret, deepest);
}

/* What the engine would have to compute, as the policy prices it.  Of its hit a part may be lost. */
static inline uint64_t
price_at(const struct policy_view *v, const struct prices *prices, uint32_t slot)
{
	const uint32_t cuts = prices->cached ? cuts_at(v->found, slot) : 0;
	struct prefix_guess guess;

	if (cuts == 0)
		return prices->behind[0];
	guess = prefix_expect(v->seg, v->found, slot);
	return prices->behind[cuts] + guess.hit - guess.expected;
}

/* A load of n requests without this request's part, in tokens, and the price. */
static inline uint64_t
cost_of(const struct policy_view *v, const struct prices *prices, uint32_t i, uint64_t load,
	uint32_t n)
{
	const uint32_t slot = v->picks[i].slot;
	const uint64_t all = load * v->unit_tokens; /* below 2^57: only requests have a unit */
	const uint64_t before = all < MOST ? all : MOST;

	return (prices->cached && n < RUNNING ? before * left_of[n] >> SHARE_BITS : before) +
	       price_at(v, prices, slot) - ((int)i == prices->home ? prices->at_home : 0);
}

static bool
lighter(uint64_t cost, uint32_t weight, const struct best *than)
{
	return cost * than->weight < than->cost * weight;
}

static __attribute__((noinline)) void
consider(const struct policy_view *v, const struct prices *prices, uint32_t i, struct best *best)
{
	struct candidate c;
	uint64_t cost;

	if (!policy_look(v, i, &c))
		return;
	cost = cost_of(v, prices, i, c.load - v->own, c.requests);
	if (lighter(cost, c.weight, best))
		*best = (struct best){cost, c.weight, (int)i};
}

static void
look_at(const struct policy_view *v, const struct prices *prices, uint32_t from, uint32_t to,
	struct best *best)
{
	const struct table_pick *const picks = v->picks;
	const uint64_t *const loads = ep_loads(v->seg, v->load == LOAD_TOKENS);
	const uint64_t *const counts = ep_loads(v->seg, false);

	for (uint32_t i = from; i < to; i++)
		/* the least it can be, as in policy_least_loaded.c */
		if (lighter(cost_of(v, prices, i, ep_load(loads, picks[i].slot),
				    ep_load(counts, picks[i].slot)),
			    picks[i].weight * WEIGHT_ONE, best))
			consider(v, prices, i, best);
}

int
policy_cache_aware(struct policy_view *view)
{
	struct best best = {.cost = 2 * MOST, .weight = 1, .i = -1};
	struct prices prices;
	uint32_t first;

	if (view->n == 0)
		return -1;
	first = view->cursor % view->n;
	set_prices(view, &prices);
	look_at(view, &prices, first, view->n, &best);
	look_at(view, &prices, 0, first, &best);
	view->cursor = (uint32_t)best.i + 1;
	return best.i;
}

void
policy_cache_aware_costs(const struct policy_view *view, double ret[])
{
	struct prices prices;
	struct candidate c;

	set_prices(view, &prices);
	for (uint32_t i = 0; i < view->n; i++) {
		ret[i] = INFINITY;
		if (policy_look(view, i, &c) && c.weight > 0)
			ret[i] = (double)cost_of(view, &prices, i, c.load - view->own, c.requests) *
				 WEIGHT_ONE / c.weight;
	}
}
