/*
 * Prompts that begin alike go to the same engine, whose prefix cache then holds the beginning; but no
 * engine takes more than BOUND times its share of the load, the next in rank takes the rest
 * (rendezvous hashing with bounded load).
 */
#include "worker/policy.h"

#define BOUND 1.25
#define SAMPLE 128 /* so many have the mean load of all, to a tenth of their deviation */

int
policy_prefix(struct policy_view *view)
{
	const uint32_t step = view->n / SAMPLE + 1;
	uint64_t load = 0, weight = 0;
	struct candidate c;
	int i;

	if (!view->keyed)
		return policy_least_loaded(view);
	for (uint32_t k = (uint32_t)(view->key % step); k < view->n; k += step)
		if (policy_look(view, k, &c)) {
			load += c.load - view->own;
			weight += c.weight;
		}
	if (weight == 0)
		return policy_least_loaded(view);
	/* the lightest has at most load / weight, so somebody is below this, unless others have just put
	 * more on all of them, or those not looked at are heavier */
	i = policy_highest(view, BOUND * (double)(load + view->own) / (double)weight);
	return i >= 0 ? i : policy_least_loaded(view);
}
