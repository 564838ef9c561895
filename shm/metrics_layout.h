/*
 * What lies in a metrics slab.  seg.c lays the segment out with it; other files include metrics.h.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "shm/core/layout.h"
#include "shm/metrics_list.h"

#define METRIC_ENUM(id, name, help) M_##id,
enum metric_counter { METRIC_COUNTERS(METRIC_ENUM) M_N };
#undef METRIC_ENUM
#define METRIC_ENUM(id, name, help) G_##id,
enum metric_gauge { METRIC_GAUGES(METRIC_ENUM) G_N };
#undef METRIC_ENUM
#define METRIC_ENUM(id, name, help) H_##id,
enum metric_histogram { METRIC_HISTOGRAMS(METRIC_ENUM) H_N };
#undef METRIC_ENUM
#define METRIC_ENUM(id, name, help) T_##id,
enum metric_tokens { METRIC_TOKENS(METRIC_ENUM) T_N };
#undef METRIC_ENUM

/* The last bucket is +Inf. */
#define METRIC_BUCKETS 25

struct metric_hist {
	uint64_t bucket[METRIC_BUCKETS + 1]; /* not cumulative */
	uint64_t sum_us;
};

/* The last request with a sampled trace in a bucket (shm/exemplar.h), of METRIC_EXEMPLARS histograms of a pool.
 * W: exchange by all */
#define METRIC_EXEMPLARS 2
struct exemplar_words {
	uint64_t trace[2];
	uint64_t us, at_ms;
	uint64_t check; /* of the words before */
};

#define METRIC_EXEMPLAR_BYTES                                                                      \
	(METRIC_EXEMPLARS * (METRIC_BUCKETS + 1) * sizeof(struct exemplar_words)) /* of a pool */

struct metric_pool {
	struct metric_hist hist[H_N];
	uint64_t tokens[T_N];
};

/* Requests by pool, path, status and end reason: a bounded open-addressed set of cells. */
/* distinct combinations a process counts apart; further ones count in `other` */
#define METRIC_CELLS 512
struct metric_cell {
	uint64_t key; /* 0 = free; metric_key() */
	uint64_t count;
};

struct metrics_slab {
	_Alignas(SHM_LINE) uint64_t counters[M_N];
	int64_t gauges[G_N];
	uint64_t other; /* requests beyond METRIC_CELLS combinations */
	struct metric_cell cells[METRIC_CELLS];
	struct metric_pool pools[]; /* [max_pools] */
};

/* Bytes of one slab for so many pools, rounded to SHM_LINE. */
static inline size_t
metrics_slab_bytes(uint32_t max_pools)
{
	const size_t bytes =
		sizeof(struct metrics_slab) + (size_t)max_pools * sizeof(struct metric_pool);

	return (bytes + SHM_LINE - 1) / SHM_LINE * SHM_LINE;
}
