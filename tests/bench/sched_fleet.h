/*
 * A router's shared memory for the scheduler's benchmark: a segment of its own, and in it the table of one
 * pool, published as the master does it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"

struct rcu_writer;
struct seg;

struct fleet {
	struct seg *seg;
	struct rcu_writer *writer;
	uint32_t n; /* endpoints of each role: those of table.pools[0], in order */
};

struct fleet_plan {
	uint32_t workers;             /* slots 0 .. workers - 1 are theirs */
	uint32_t n;                   /* endpoints of each role */
	const uint32_t *weights;      /* [n], for both roles */
	enum policy_kind policy;      /* of both roles */
	enum load_kind loads[ROLE_N]; /* what they compare */
	uint32_t prefix_buckets;      /* of the prefix index; 0: there is none */
	bool talks;                   /* what other routers say counts (shm/sibling_load.h) */
	uint64_t
		capacity; /* tokens that each engine says that its cache holds; 0: it does not say */
};

/* All endpoints up, in endpoint words of no order: after many reloads that is how they lie. */
void fleet_init(struct fleet *f, const struct fleet_plan *plan);
void fleet_fini(struct fleet *f);
