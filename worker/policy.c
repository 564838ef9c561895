#include "worker/policy.h"

#include "shm/load.h"

static policy_fn *const policies[POLICY_N] = {
	[POLICY_ROUND_ROBIN] = policy_round_robin,
	[POLICY_LEAST_LOADED] = policy_least_loaded,
};

policy_fn *
policy_find(enum policy_kind kind)
{
	return policies[kind];
}

bool
policy_eligible(const struct policy_view *view, uint32_t i)
{
	const struct table_endpoint *ep = &view->table->endpoints[view->eps[i]];

	return ep_state_get(view->seg, ep->slot) == EP_UP && ep->addr.family != 0 &&
	       ep_tag(view->seg, ep->slot) == ep->tag &&
	       (ep->max_inflight == 0 || load_count(view->seg, ep->slot) < ep->max_inflight);
}
