/* Any endpoint, as often as its weight says. */
#include "worker/schedule/policy.h"

#define DRAWS 32 /* before the round robin decides: most endpoints are down or full then */

int
policy_random(struct policy_view *view)
{
	const uint32_t max = view->max_weight * WEIGHT_ONE;
	struct candidate c;

	for (int k = 0; view->n > 0 && k < DRAWS; k++) {
		const uint32_t i = policy_rnd_below(view, view->n);

		if (policy_look(view, i, &c) && policy_rnd_below(view, max) < c.weight)
			return (int)i;
	}
	return policy_round_robin(view);
}
