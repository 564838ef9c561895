/*
 * Each endpoint in turn, as often as its weight says: of the heaviest one's `max` turns, one of weight w
 * takes w, evenly spaced.
 */
#include "worker/schedule/policy.h"

/* Whether an endpoint of that weight takes its turn in this round. */
static bool
has_turn(uint64_t round, uint32_t weight, uint32_t max)
{
	return (round + 1) * weight / max != round * weight / max;
}

static uint32_t
heaviest(const struct policy_view *v)
{
	struct candidate c;
	uint32_t max = 0;

	for (uint32_t i = 0; i < v->n; i++)
		if (policy_look(v, i, &c) && c.weight > max)
			max = c.weight;
	return max;
}

int
policy_round_robin(struct policy_view *view)
{
	const uint32_t most = view->max_weight * WEIGHT_ONE;
	uint32_t i, round, max = 0; /* the heaviest's weight; 0: no lighter one has been met */
	struct candidate c;
	int usable = -1;

	if (view->n == 0)
		return -1;
	i = view->cursor % view->n;
	round = view->cursor / view->n;
	/* the heaviest has a turn in every round: two are enough to meet it, unless it went meanwhile */
	for (uint32_t k = 0; k < 2 * view->n; k++) {
		if (policy_look(view, i, &c)) {
			usable = (int)i;
			if (c.weight < most && max == 0)
				max = heaviest(view);
			if (max == 0 || has_turn(round, c.weight, max))
				break;
		}
		if (++i == view->n) {
			i = 0;
			round++;
		}
	}
	if (usable >= 0)
		view->cursor = round * view->n + (uint32_t)usable + 1;
	return usable;
}
