/*
 * The lowest load per weight (what all workers have in flight there, plus what others than this router
 * have put on it); ties by round robin, so that equals are not all asked first.
 */
#include "worker/policy.h"

struct best {
	struct candidate c;
	int i;
};

static void
look_at(const struct policy_view *v, uint32_t from, uint32_t to, struct best *best)
{
	struct candidate c;

	for (uint32_t i = from; i < to; i++) {
		if (!policy_look(v, i, &c) || (best->i >= 0 && !policy_lighter(&c, &best->c)))
			continue;
		*best = (struct best){c, (int)i};
	}
}

int
policy_least_loaded(struct policy_view *view)
{
	struct best best = {.i = -1};
	uint32_t first;

	if (view->n == 0)
		return -1;
	first = view->cursor % view->n;
	look_at(view, first, view->n, &best);
	look_at(view, 0, first, &best);
	view->cursor = (uint32_t)best.i + 1;
	return best.i;
}
