/*
 * The lowest load per weight: requests of all workers in flight there, plus the load from outside this router.
 * Ties by round robin, so that no one of equals always comes first.
 *
 * Of many endpoints a choice looks at ENOUGH in a row, from where the round stands: the lightest of 256 is as good as
 * the lightest of 2,000, if there are idle ones or all have many requests. While the lightest so far has one request, all
 * are looked at: an idle one, if only a few are left, spares the request most of its wait (0.95 of the capacity of 1,000
 * prefill engines: a mean wait of 14 ms without this rule, 3 with it). Not where tokens are counted: long prompts would get
 * all idle engines, and short ones wait (32 and 37 ms). Endpoints that never suit the request do not count. An idle endpoint
 * of the greatest weight ends the search, since none is lighter.
 */
#include "worker/schedule/policy.h"

#define ENOUGH 256

struct best {
	struct candidate c;
	int i;
	int64_t looks;  /* at endpoints, that are left; below 0 only while the best one is light */
	uint64_t light; /* load up to which a better one is worth further looks */
};

static inline bool
is_over(const struct best *best)
{
	return best->looks <= 0 && best->c.load > best->light;
}

/* Takes endpoint i if it is as light as it seems.  Not inlined: the loop below stays in registers. */
static __attribute__((noinline)) void
consider(const struct policy_view *v, uint32_t i, struct best *best)
{
	struct candidate c;

	if (!policy_look(v, i, &c))
		return;
	best->looks--;
	if (!policy_lighter(&c, &best->c))
		return;
	best->c = c;
	best->i = (int)i;
	if (c.load == v->own && c.weight == v->max_weight * WEIGHT_ONE)
		best->looks = best->light = 0;
}

static void
look_at(const struct policy_view *v, uint32_t from, uint32_t to, struct best *best)
{
	const struct table_pick *const picks = v->picks;
	const uint64_t *const loads = ep_loads(v->seg, v->load == LOAD_TOKENS);
	const uint64_t own = v->own;

	for (uint32_t i = from; i < to && !is_over(best); i++) {
		/* the least it can be; for all but some ln(n) that is too much */
		const struct candidate c = {.load = ep_load(loads, picks[i].slot) + own,
			.weight = picks[i].weight * WEIGHT_ONE};

		if (policy_lighter(&c, &best->c))
			consider(v, i, best);
		else if (policy_suits(v, &picks[i]))
			best->looks--;
	}
}

/* How many endpoints a choice looks at.  One of great weight would be among ENOUGH of many too seldom to get its share,
 * which is at most max_weight of n: where that could be, all are looked at. */
static uint32_t
enough(const struct policy_view *v)
{
	return v->max_weight <= ENOUGH / 4 && v->n > ENOUGH ? ENOUGH : v->n;
}

int
policy_least_loaded(struct policy_view *view)
{
	/* heavier than any endpoint, and still no product of policy_lighter() overflows */
	struct best best = {{.load = UINT64_C(1) << 49, .weight = 1}, -1, enough(view),
		view->load == LOAD_TOKENS ? 0 : 2 * view->own};
	uint32_t first;

	if (view->n == 0)
		return -1;
	first = view->cursor % view->n;
	look_at(view, first, view->n, &best);
	look_at(view, 0, first, &best);
	view->cursor = (uint32_t)best.i + 1;
	return best.i;
}
