/*
 * Policies: pure choice among the endpoints of one role of one pool.  One file per policy.
 *
 * Process: worker, inside the read section.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "shm/table.h"

struct seg;

struct policy_view {
	const struct seg *seg;
	const struct table *table;
	const uint32_t *eps; /* indices into table->endpoints */
	uint32_t n;
	uint32_t cursor; /* where the round starts */
	uint64_t now_ms;
	uint64_t foreign_max_age_ms; /* older figures of other routers' load do not count */
};

/* Index into view->eps, or -1 if no endpoint is up and below its limit. */
typedef int policy_fn(const struct policy_view *view);

policy_fn policy_round_robin, policy_least_loaded;

policy_fn *policy_find(enum policy_kind kind);

/* Up, resolved, and below its max_inflight as far as can be seen without reserving. */
bool policy_eligible(const struct policy_view *view, uint32_t i);
