/*
 * Metric slabs.  A slab has one writer (its process), so counting is a plain add; readers elsewhere
 * see each word whole, and a page made while others count is off by what was counted meanwhile.
 */
#include "shm/metrics.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shm/core/atomic.h"
#include "shm/core/suspect.h"

#define MS 1000u
#define S 1000000u
/*
 * From the gap between tokens on a fast engine to the longest prefill.  Buckets from 5 to 200 ms, where gaps are
 * compared, differ by 1.7 x or less; buckets above a second are coarser, since only "too slow" matters there.
 */
// clang-format off
const uint64_t metric_bucket_us[METRIC_BUCKETS] = {
	1 * MS, 2500, 5 * MS, 7500, 10 * MS, 15 * MS, 20 * MS, 30 * MS, 50 * MS, 75 * MS, 100 * MS, 150 * MS, 200 * MS,
	300 * MS, 500 * MS, 1 * S, 2 * S, 5 * S, 10 * S, 20 * S, 30 * S, 60 * S, 120 * S, 300 * S, 600 * S,
};
// clang-format on
#undef MS
#undef S

static_assert(M_REPAIRED_METRICS - M_REPAIRED_READERS == SUSPECT_METRICS, "one counter per part");
static_assert(SUSPECT_METRICS == SUSPECT_N - 1, "one counter per part");

#define METRIC_NAME(id, name, help) name,
#define METRIC_HELP(id, name, help) help,
const char *const metric_counter_name[M_N] = {METRIC_COUNTERS(METRIC_NAME)};
const char *const metric_counter_help[M_N] = {METRIC_COUNTERS(METRIC_HELP)};
const char *const metric_gauge_name[G_N] = {METRIC_GAUGES(METRIC_NAME)};
const char *const metric_gauge_help[G_N] = {METRIC_GAUGES(METRIC_HELP)};
const char *const metric_tokens_name[T_N] = {METRIC_TOKENS(METRIC_NAME)};
const char *const metric_tokens_help[T_N] = {METRIC_TOKENS(METRIC_HELP)};
const char *const metric_hist_name[H_N] = {METRIC_HISTOGRAMS(METRIC_NAME)};
const char *const metric_hist_help[H_N] = {METRIC_HISTOGRAMS(METRIC_HELP)};

unsigned
metric_bucket(uint64_t us)
{
	unsigned i = 0;

	while (i < METRIC_BUCKETS && us > metric_bucket_us[i])
		i++;
	return i;
}

void
metric_observe(struct metrics_slab *s, uint32_t pool, enum metric_histogram h, uint64_t us)
{
	struct metric_hist *hist;

	if (pool == METRIC_NO_POOL)
		return;
	hist = &s->pools[pool].hist[h];
	hist->bucket[metric_bucket(us)]++;
	hist->sum_us += us;
}

void
metric_tokens_add(struct metrics_slab *s, uint32_t pool, enum metric_tokens t, uint64_t n)
{
	if (pool != METRIC_NO_POOL)
		s->pools[pool].tokens[t] += n;
}

#define KEY_VALID (UINT64_C(1) << 63) /* all of pool, path, reason and status may be 0 */

uint64_t
metric_key(struct metric_request r)
{
	return KEY_VALID | (uint64_t)r.pool << 32 | (uint64_t)r.path << 24 |
	       (uint64_t)r.reason << 16 | r.status;
}

struct metric_request
metric_unkey(uint64_t key)
{
	return (struct metric_request){
		.pool = (uint16_t)(key >> 32),
		.path = (uint8_t)(key >> 24),
		.reason = (uint8_t)(key >> 16),
		.status = (uint16_t)key,
	};
}

/* The key's cell, else the free one where it goes, else NULL: n other keys are there. */
static struct metric_cell *
cell_find(struct metric_cell *cells, size_t n, uint64_t key)
{
	const uint64_t hash = key * UINT64_C(0x9e3779b97f4a7c15) >> 32; /* Fibonacci hashing */

	for (size_t i = 0; i < n; i++) {
		struct metric_cell *cell = &cells[(hash + i) % n];

		if (cell->key == key || cell->key == 0)
			return cell;
	}
	return NULL;
}

void
metric_request_count(struct metrics_slab *s, struct metric_request r)
{
	const uint64_t key = metric_key(r);
	struct metric_cell *cell = cell_find(s->cells, METRIC_CELLS, key);

	if (cell == NULL) {
		s->other++;
		return;
	}
	/* A reader that comes between the two sees a new key with 0 requests, which is true. */
	cell->key = key;
	cell->count++;
}

uint64_t
metric_sum(const struct seg *seg, enum metric_counter m)
{
	uint64_t sum = 0;

	for (uint32_t slot = 0; slot < seg->hdr->nslots; slot++)
		sum += shm_load(&seg_slab(seg, slot)->counters[m]);
	return sum;
}

int64_t
metric_gauge_sum(const struct seg *seg, enum metric_gauge g)
{
	int64_t sum = 0;

	for (uint32_t slot = 0; slot < seg->hdr->nslots; slot++)
		sum += shm_load(&seg_slab(seg, slot)->gauges[g]);
	return sum;
}

int64_t
metric_gauge_settled(const struct seg *seg, enum metric_gauge g)
{
	/* What this process has stored in its slab comes before what it reads of others.  Pairs with the
	 * barrier that another process passes in metric_gauge_settled(). */
	shm_mb();
	return metric_gauge_sum(seg, g);
}

void
metric_hist_sum(
	const struct seg *seg, uint32_t pool, enum metric_histogram h, struct metric_hist *ret)
{
	assert(pool < seg->hdr->max_pools);
	memset(ret, 0, sizeof(*ret));
	for (uint32_t slot = 0; slot < seg->hdr->nslots; slot++) {
		const struct metric_hist *hist = &seg_slab(seg, slot)->pools[pool].hist[h];

		for (unsigned i = 0; i <= METRIC_BUCKETS; i++)
			ret->bucket[i] += shm_load(&hist->bucket[i]);
		ret->sum_us += shm_load(&hist->sum_us);
	}
}

uint64_t
metric_tokens_sum(const struct seg *seg, uint32_t pool, enum metric_tokens t)
{
	uint64_t sum = 0;

	assert(pool < seg->hdr->max_pools);
	for (uint32_t slot = 0; slot < seg->hdr->nslots; slot++)
		sum += shm_load(&seg_slab(seg, slot)->pools[pool].tokens[t]);
	return sum;
}

static int
by_key(const void *a, const void *b)
{
	const uint64_t x = ((const struct metric_cell *)a)->key,
		       y = ((const struct metric_cell *)b)->key;

	return x < y ? -1 : x > y;
}

/* Adds one slab's cells to the set in ret[max]; returns the requests that had no cell there. */
static uint64_t
cells_add(const struct metrics_slab *s, struct metric_cell *ret, size_t max)
{
	uint64_t homeless = shm_load(&s->other);

	for (size_t i = 0; i < METRIC_CELLS; i++) {
		const uint64_t key = shm_load(&s->cells[i].key),
			       count = shm_load(&s->cells[i].count);
		struct metric_cell *cell;

		if (key == 0)
			continue;
		cell = cell_find(ret, max, key);
		if (cell == NULL) {
			homeless += count;
			continue;
		}
		cell->key = key;
		cell->count += count;
	}
	return homeless;
}

size_t
metric_cells_sum(const struct seg *seg, struct metric_cell *ret, size_t max, uint64_t *ret_other)
{
	size_t n = 0;

	memset(ret, 0, max * sizeof(*ret));
	*ret_other = 0;
	for (uint32_t slot = 0; slot < seg->hdr->nslots; slot++)
		*ret_other += cells_add(seg_slab(seg, slot), ret, max);
	/* removes the holes of the set; then one order, page after page */
	for (size_t i = 0; i < max; i++)
		if (ret[i].key != 0)
			ret[n++] = ret[i];
	qsort(ret, n, sizeof(*ret), by_key);
	return n;
}

void
metric_gauges_restore(struct metrics_slab *s, const int64_t known[G_N], uint32_t slot)
{
	for (unsigned g = 0; g < G_N; g++)
		if (suspect(SUSPECT_METRICS, slot, shm_load(&s->gauges[g]) != known[g]))
			shm_store(&s->gauges[g], known[g]);
}

static uint32_t
counts_mend(uint64_t *counts, size_t n)
{
	uint32_t bad = 0;

	for (size_t i = 0; i < n; i++)
		if (shm_load(&counts[i]) >= METRIC_TOO_MANY) {
			shm_store(&counts[i], UINT64_C(0));
			bad++;
		}
	return bad;
}

static bool
key_possible(const struct seg *seg, uint64_t key)
{
	const struct metric_request r = metric_unkey(key);

	return key == 0 ||
	       (metric_key(r) == key && (r.pool == METRIC_NO_POOL || r.pool < seg->hdr->max_pools));
}

static uint32_t
cells_mend(const struct seg *seg, struct metrics_slab *s)
{
	uint32_t bad = 0;

	for (size_t i = 0; i < METRIC_CELLS; i++) {
		struct metric_cell *cell = &s->cells[i];

		if (key_possible(seg, shm_load(&cell->key)) &&
			shm_load(&cell->count) < METRIC_TOO_MANY)
			continue;
		shm_store(&cell->key, UINT64_C(0));
		shm_store(&cell->count, UINT64_C(0));
		bad++;
	}
	return bad;
}

/* A worker restores its gauges from what it knows; the master and the notifier have no copy. */
static uint32_t
gauges_mend(struct metrics_slab *s)
{
	uint32_t bad = 0;

	for (unsigned g = 0; g < G_N; g++)
		if (shm_load(&s->gauges[g]) < 0) {
			shm_store(&s->gauges[g], INT64_C(0));
			bad++;
		}
	return bad;
}

static uint32_t
pool_mend(struct metric_pool *p)
{
	uint32_t bad = counts_mend(p->tokens, T_N);

	for (unsigned h = 0; h < H_N; h++)
		bad += counts_mend(p->hist[h].bucket, METRIC_BUCKETS + 1) +
		       counts_mend(&p->hist[h].sum_us, 1);
	return bad;
}

uint32_t
metric_mend(struct seg *seg, uint32_t slot, uint32_t pools_end)
{
	struct metrics_slab *s = seg_slab(seg, slot);
	uint32_t bad = counts_mend(s->counters, M_N) + counts_mend(&s->other, 1) + gauges_mend(s);

	for (uint32_t i = 0; i < pools_end; i++)
		bad += pool_mend(&s->pools[i]);
	return bad + cells_mend(seg, s);
}

void
metric_reap(struct seg *seg, uint32_t slot)
{
	for (unsigned g = 0; g < G_N; g++)
		shm_store(&seg_slab(seg, slot)->gauges[g], 0);
}
