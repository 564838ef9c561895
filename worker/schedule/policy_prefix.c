/*
 * Prompts that begin alike go to the same engine, whose prefix cache then holds the beginning; but no
 * engine takes more than BOUND times its share of the load, the next in rank takes the rest
 * (rendezvous hashing with bounded load).
 */
#include "worker/schedule/policy.h"

#define BOUND 1.25
#define SAMPLE 48 /* so many have the mean load of all, to a seventh of their deviation */
#define FEW 16    /* that could be chosen among them: all are looked at */

struct sum {
	uint64_t load, weight;
	uint32_t n;
};

/* Adds up every step-th endpoint, those that may be chosen. */
static struct sum
add_up(const struct policy_view *v, uint32_t step)
{
	struct sum sum = {0};
	struct candidate c;

	for (uint32_t i = (uint32_t)(v->key % step); i < v->n; i += step)
		if (policy_look(v, i, &c)) {
			sum.load += c.load - v->own;
			sum.weight += c.weight;
			sum.n++;
		}
	return sum;
}

int
policy_prefix(struct policy_view *view)
{
	const uint32_t step = (view->n + SAMPLE - 1) / SAMPLE; /* each look may miss the cache */
	struct sum sum;
	int i;

	if (!view->keyed || view->n == 0)
		return policy_least_loaded(view);
	sum = add_up(view, step);
	if (step > 1 && sum.n < FEW) /* one group, one adapter's engines, an outage */
		sum = add_up(view, 1);
	if (sum.n == 0)
		return policy_least_loaded(view);
	/* the lightest has at most load / weight, so an endpoint is below this, unless other workers have just put
	 * more on all of them, or the endpoints not looked at are heavier */
	i = policy_highest(view, BOUND * (double)(sum.load + view->own) / (double)sum.weight);
	return i >= 0 ? i : policy_least_loaded(view);
}
