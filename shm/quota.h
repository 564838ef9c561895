/*
 * The limits of each client: how many requests it has in flight, and when its next request may
 * come, for all workers, in a fixed table (shm/README.md, "Quotas").
 *
 * The table knows a client only by a hash, seeded anew at each start.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct seg;

/* Keyed by the seed of this start; `kind` separates keys from addresses. */
uint64_t quota_hash(const struct seg *seg, unsigned char kind, const void *name, size_t n);

struct quota_terms {
	uint32_t max_inflight; /* 0: no limit; more than 65,535 counts as that */
	uint32_t rate;         /* requests per per_s; 0: no limit */
	uint32_t burst;        /* requests at once, the token-bucket size; at least 1 with a rate */
	uint32_t per_s;        /* seconds; 0: one */
	uint32_t tokens_per_minute; /* that quota_charge() counts; 0: no limit */
};

enum quota_outcome {
	QUOTA_ADMITTED, /* ret->entry is held until quota_leave() */
	/* the client's set is full of other busy clients: the request passes, nothing is held */
	QUOTA_UNCOUNTED,
	QUOTA_RATE,     /* refused: ret->wait_ns is the time until it would pass */
	QUOTA_TOKENS,   /* the same: until the tokens of its former requests are paid for */
	QUOTA_INFLIGHT, /* refused: the client has max_inflight requests already */
};

struct quota_pass {
	uint32_t entry;
	uint64_t wait_ns;
	uint32_t evicted; /* idle clients that were removed for this one */
};

/*
 * A request of the client with this hash begins at worker `me`.  Never blocks.  Exact across
 * workers: never more than max_inflight, and within any t seconds burst + rate x t requests are
 * admitted, no more, and no fewer if they come (an interval is per_s/rate rounded down to
 * nanoseconds).  A refused request does not count.
 */
enum quota_outcome quota_enter(struct seg *seg, uint32_t me, uint64_t hash,
	const struct quota_terms *terms, uint64_t now_ns, struct quota_pass *ret);
/*
 * A request that quota_enter() admitted has used so many tokens: call it before quota_leave().  Exact across workers:
 * the client has a minute's tokens at first, and gets as many in each minute.  Requests are refused while it has used
 * more than that.  A dead worker's requests are not charged.
 */
void quota_charge(struct seg *seg, uint32_t entry, uint64_t tokens, uint32_t tokens_per_minute,
	uint64_t now_ns);
/* The request has ended.  load_reap() gives back the requests of a dead worker. */
void quota_leave(struct seg *seg, uint32_t me, uint32_t entry);
