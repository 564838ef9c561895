/*
 * Prompts that begin alike go to the same engine, whose prefix cache then holds the beginning; but no
 * engine takes more than BOUND times its share of the load, the next in rank takes the rest
 * (rendezvous hashing with bounded load).
 */
#include "worker/policy.h"

#define BOUND 1.25

int
policy_prefix(struct policy_view *view)
{
	uint64_t load = 0, weight = 0;
	struct candidate c;
	int i;

	if (!view->keyed)
		return policy_least_loaded(view);
	for (uint32_t k = 0; k < view->n; k++)
		if (policy_look(view, k, &c)) {
			load += c.load - view->own;
			weight += c.weight;
		}
	if (weight == 0)
		return -1;
	/* the lightest has at most load / weight, so somebody is below this, unless other workers have
	 * just put more on all of them */
	i = policy_highest(view, BOUND * (double)(load + view->own) / (double)weight);
	return i >= 0 ? i : policy_least_loaded(view);
}
