/*
 * The least work before the first token: the prompt tokens in front of the request, and those of its own prompt that
 * the engine does not have in its cache.  Both are in one unit, so an engine that has the beginning of the prompt is
 * left exactly when waiting there would take longer than computing the beginning elsewhere.  Where nothing is cached
 * this is least_loaded in tokens.
 *
 * A role whose load counts requests (prefill_load, decode_load) counts each as a mean prompt.
 */
#include "worker/schedule/policy.h"

#define MOST (UINT64_C(1) << 48) /* no product of a comparison overflows */

struct best {
	uint64_t cost;
	uint32_t weight;
	int i;
};

/* A load without this request's part, in tokens, and what the engine would have to compute. */
static uint64_t
cost_of(const struct policy_view *v, uint32_t slot, uint64_t load)
{
	const uint64_t before = load * v->unit_tokens; /* below 2^57: only requests have a unit */

	return (before < MOST ? before : MOST) + policy_uncached(v, slot);
}

static bool
lighter(uint64_t cost, uint32_t weight, const struct best *than)
{
	return cost * than->weight < than->cost * weight;
}

static __attribute__((noinline)) void
consider(const struct policy_view *v, uint32_t i, struct best *best)
{
	struct candidate c;
	uint64_t cost;

	if (!policy_look(v, i, &c))
		return;
	cost = cost_of(v, v->picks[i].slot, c.load - v->own);
	if (lighter(cost, c.weight, best))
		*best = (struct best){cost, c.weight, (int)i};
}

static void
look_at(const struct policy_view *v, uint32_t from, uint32_t to, struct best *best)
{
	const struct table_pick *const picks = v->picks;
	const uint64_t *const loads = ep_loads(v->seg, v->load == LOAD_TOKENS);

	for (uint32_t i = from; i < to; i++)
		/* the least it can be, as in policy_least_loaded.c */
		if (lighter(cost_of(v, picks[i].slot, ep_load(loads, picks[i].slot)),
			    picks[i].weight * WEIGHT_ONE, best))
			consider(v, i, best);
}

int
policy_cache_aware(struct policy_view *view)
{
	struct best best = {.cost = 2 * MOST, .weight = 1, .i = -1};
	uint32_t first;

	if (view->n == 0)
		return -1;
	first = view->cursor % view->n;
	look_at(view, first, view->n, &best);
	look_at(view, 0, first, &best);
	view->cursor = (uint32_t)best.i + 1;
	return best.i;
}
