/*
 * What is kept of each client whose requests are limited: how many it has in flight and when its next one
 * may come, for all workers, in a fixed table (shm/README.md, "Quotas").
 *
 * A client is known here by a hash alone, seeded anew at each start.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct seg;

/* Keyed by what only this start knows; `kind` keeps keys and addresses apart. */
uint64_t quota_hash(const struct seg *seg, unsigned char kind, const void *name, size_t n);

struct quota_terms {
	uint32_t max_inflight; /* 0: no limit; more than 65,535 counts as that */
	uint32_t rate;         /* requests per per_s; 0: no limit */
	uint32_t burst;        /* of them at once; at least 1 with a rate */
	uint32_t per_s;        /* seconds; 0: one */
};

enum quota_outcome {
	QUOTA_ADMITTED, /* ret->entry is held until quota_leave() */
	QUOTA_UNCOUNTED, /* the client's set is full of others that are busy: let through, nothing is held */
	QUOTA_RATE,     /* refused: ret->wait_ns says how long it would be */
	QUOTA_INFLIGHT, /* refused: it has max_inflight already */
};

struct quota_pass {
	uint32_t entry;
	uint64_t wait_ns;
	uint32_t evicted; /* idle clients that were forgotten for it */
};

/*
 * A request of the client with this hash begins at worker `me`.  Never blocks.  Exact across workers:
 * never more than max_inflight, and within any t seconds burst + rate x t are admitted, no more, and no
 * fewer if they come (an interval is per_s/rate rounded down to nanoseconds).  What was refused counts nowhere.
 */
enum quota_outcome quota_enter(struct seg *seg, uint32_t me, uint64_t hash,
	const struct quota_terms *terms, uint64_t now_ns, struct quota_pass *ret);
/* It has ended.  A dead worker's are given back by load_reap(). */
void quota_leave(struct seg *seg, uint32_t me, uint32_t entry);
