/*
 * Metric slabs: one per process slot, written by its process with plain adds.  The worker that
 * answers /metrics adds them up.  A dead process's counters stay: they are monotonic, and the next
 * process in the slot continues with them.  The master zeroes its gauges.
 */
#pragma once
#include <stdint.h>

#include "shm/core/seg.h"
#include "shm/metrics_layout.h"

/* Upper bounds in microseconds; the last bucket is +Inf. */
extern const uint64_t metric_bucket_us[METRIC_BUCKETS];

/* No count of anything comes so far: 285 years of a million a second. */
#define METRIC_TOO_MANY (UINT64_C(1) << 53)

static inline void
metric_add(struct metrics_slab *s, enum metric_counter m, uint64_t n)
{
	s->counters[m] += n;
}

static inline void
metric_gauge_add(struct metrics_slab *s, enum metric_gauge g, int64_t n)
{
	s->gauges[g] += n;
}

/* The gauges of the slab are what its process knows; a gauge that differs is suspect, and written again. */
void metric_gauges_restore(struct metrics_slab *s, const int64_t known[G_N], uint32_t slot);

/* Tokens of a pool's request. */
void metric_tokens_add(struct metrics_slab *s, uint32_t pool, enum metric_tokens t, uint64_t n);

/* The bucket of a time; METRIC_BUCKETS: +Inf. */
unsigned metric_bucket(uint64_t us);
void metric_observe(struct metrics_slab *s, uint32_t pool, enum metric_histogram h, uint64_t us);

/* pool METRIC_NO_POOL: the request never came to a pool. `path` and `reason` are small numbers of the
 * caller's own tables. */
#define METRIC_NO_POOL 0xffffu
struct metric_request {
	uint16_t pool;
	uint8_t path;
	uint8_t reason;
	uint16_t status;
};
uint64_t metric_key(struct metric_request r); /* never 0 */
struct metric_request metric_unkey(uint64_t key);
void metric_request_count(struct metrics_slab *s, struct metric_request r);

/* Reading: sums over all slots. */
uint64_t metric_sum(const struct seg *seg, enum metric_counter m);
int64_t metric_gauge_sum(const struct seg *seg, enum metric_gauge g);
/* The same for a bound: of two processes that have just raised their gauges, at least one sees both. */
int64_t metric_gauge_settled(const struct seg *seg, enum metric_gauge g);
void metric_hist_sum(
	const struct seg *seg, uint32_t pool, enum metric_histogram h, struct metric_hist *ret);
uint64_t metric_tokens_sum(const struct seg *seg, uint32_t pool, enum metric_tokens t);
/* Merges the cells of all slots into ret[max]; returns how many, *ret_other the uncounted rest. */
size_t metric_cells_sum(
	const struct seg *seg, struct metric_cell *ret, size_t max, uint64_t *ret_other);
/* Master: counts of a slab that cannot be begin at 0 again, those of the pools with ids below `pools_end` included;
 * returns how many. */
uint32_t metric_mend(struct seg *seg, uint32_t slot, uint32_t pools_end);
/* Master, after waitpid. */
void metric_reap(struct seg *seg, uint32_t slot);

extern const char *const metric_counter_name[M_N], *const metric_counter_help[M_N];
extern const char *const metric_gauge_name[G_N], *const metric_gauge_help[G_N];
extern const char *const metric_tokens_name[T_N], *const metric_tokens_help[T_N];
extern const char *const metric_hist_name[H_N], *const metric_hist_help[H_N];
