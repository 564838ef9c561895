/* The next eligible endpoint after the one chosen last. */
#include "worker/policy.h"

int
policy_round_robin(const struct policy_view *view)
{
	for (uint32_t k = 0; k < view->n; k++) {
		uint32_t i = (view->cursor + k) % view->n;

		if (policy_eligible(view, i))
			return (int)i;
	}
	return -1;
}
