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

	if (!view->keyed)
		return policy_least_loaded(view);
	for (uint32_t i = 0; i < view->n; i++)
		if (policy_look(view, i, &c)) {
			load += c.load - view->own;
			weight += c.weight;
		}
	if (weight == 0)
		return -1;
	/* the lightest has at most load / weight, so somebody is always below this */
	return policy_highest(view, BOUND * (double)(load + view->own) / (double)weight);
}
