/*
 * The lowest score (requests of all workers in flight there, plus what others than this router have put
 * on it); ties by round robin, so that equals are not all asked first.
 */
#include "worker/policy.h"

#include "shm/load.h"

int
policy_least_loaded(const struct policy_view *view)
{
	uint64_t best_score = UINT64_MAX;
	int best = -1;

	for (uint32_t k = 0; k < view->n; k++) {
		uint32_t i = (view->cursor + k) % view->n;
		uint32_t slot = view->table->endpoints[view->eps[i]].slot;
		uint64_t score;

		if (!policy_eligible(view, i))
			continue;
		score = load_score(view->seg, slot, view->now_ms, view->foreign_max_age_ms);
		if (score < best_score) {
			best_score = score;
			best = (int)i;
		}
	}
	return best;
}
