/*
 * The lowest load per weight: requests of all workers in flight there, plus the load from outside this router.
 * Ties by round robin, so that no one of equals always comes first.
 */
#include "worker/schedule/policy.h"

struct best {
	struct candidate c;
	int i;
};

/* heavier than any endpoint, and still no product of policy_lighter() overflows */
static const struct best none = {{.load = UINT64_C(1) << 49, .weight = 1}, -1};

/* Takes endpoint i if it is as light as it seems.  Not inlined: the loop below stays in registers. */
static __attribute__((noinline)) void
consider(const struct policy_view *v, uint32_t i, struct best *best)
{
	struct candidate c;

	if (policy_look(v, i, &c) && policy_lighter(&c, &best->c))
		*best = (struct best){c, (int)i};
}

static void
look_at(const struct policy_view *v, uint32_t from, uint32_t to, struct best *best)
{
	const struct table_pick *const picks = v->picks;
	const uint64_t *const loads = ep_loads(v->seg, v->load == LOAD_TOKENS);
	const uint64_t own = v->own;

	for (uint32_t i = from; i < to; i++) {
		/* the least it can be; for all but some ln(n) that is too much */
		const struct candidate c = {
			ep_load(loads, picks[i].slot) + own, picks[i].weight * WEIGHT_ONE};

		if (policy_lighter(&c, &best->c))
			consider(v, i, best);
	}
}

int
policy_least_loaded(struct policy_view *view)
{
	struct best best = none;
	uint32_t first;

	if (view->n == 0)
		return -1;
	first = view->cursor % view->n;
	look_at(view, first, view->n, &best);
	look_at(view, 0, first, &best);
	view->cursor = (uint32_t)best.i + 1;
	return best.i;
}
