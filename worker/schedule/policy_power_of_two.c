/*
 * The lighter of two endpoints drawn at random: nearly as good as the lightest of all, and does not follow
 * one stale figure in a herd.  Drawn as often as their weights say: a heavy one that was in few draws
 * could not get its share however light it is.
 */
#include "worker/schedule/policy.h"

#define DRAWS 16 /* before least_loaded decides: most endpoints are down or full then */

int
policy_power_of_two(struct policy_view *view)
{
	const uint32_t max = view->max_weight * WEIGHT_ONE;
	struct candidate first = {0}, c;
	int drawn = -1;

	for (int k = 0; view->n > 1 && k < DRAWS; k++) {
		const int i = (int)policy_rnd_below(view, view->n);

		if (i == drawn || !policy_look(view, (uint32_t)i, &c) ||
			(c.weight < max && policy_rnd_below(view, max) >= c.weight))
			continue;
		if (drawn >= 0)
			return policy_lighter(&c, &first) ? i : drawn;
		drawn = i;
		first = c;
	}
	return policy_least_loaded(view);
}
