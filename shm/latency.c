#include "shm/latency.h"

#include <assert.h>

#include "shm/core/atomic.h"
#include "shm/metrics.h"

#define MS 1000u
#define S 1000000u
/* A host nearby accepts within 0.3 ms; the kernel sends a lost SYN again after 1 s, and after 2 s more. */
static const uint64_t connect_us[] = {
	500, 1 * MS, 3 * MS, 10 * MS, 50 * MS, 250 * MS, 1 * S, 3 * S};
/* From a short prompt that is cached to the longest one behind others. */
static const uint64_t first_us[] = {10 * MS, 25 * MS, 50 * MS, 100 * MS, 250 * MS, 500 * MS, 1 * S,
	2500 * MS, 5 * S, 10 * S, 30 * S, 60 * S};
#undef MS
#undef S

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))
static_assert(LENGTH(connect_us) == LATENCY_CONNECT_BUCKETS, "as laid out");
static_assert(LENGTH(first_us) == LATENCY_BUCKETS, "as laid out");

const uint64_t *
latency_bounds(enum latency_kind kind, unsigned *ret_n)
{
	*ret_n = kind == LATENCY_CONNECT ? LENGTH(connect_us) : LENGTH(first_us);
	return kind == LATENCY_CONNECT ? connect_us : first_us;
}

/* The buckets of a kind, and behind them the sum. */
static uint64_t *
words_of(const struct seg *seg, uint32_t ep, enum latency_kind kind)
{
	struct latency *l = &seg->latencies[ep];

	return kind == LATENCY_CONNECT ? l->connect : l->first;
}

void
latency_add(struct seg *seg, uint32_t ep, enum latency_kind kind, uint64_t us)
{
	unsigned n, i = 0;
	const uint64_t *bounds = latency_bounds(kind, &n);
	uint64_t *words = words_of(seg, ep, kind);

	while (i < n && us > bounds[i])
		i++;
	shm_add(&words[i], 1);
	shm_add(&words[n + 1], us);
}

uint64_t
latency_read(const struct seg *seg, uint32_t ep, enum latency_kind kind,
	uint64_t ret[LATENCY_BUCKETS + 1])
{
	unsigned n;
	const uint64_t *words = words_of(seg, ep, kind);

	(void)latency_bounds(kind, &n);
	for (unsigned i = 0; i <= n; i++)
		ret[i] = shm_load(&words[i]);
	return shm_load(&words[n + 1]);
}

void
latency_begin(struct seg *seg, uint32_t ep)
{
	for (enum latency_kind kind = 0; kind < LATENCY_N; kind++) {
		unsigned n;

		(void)latency_bounds(kind, &n);
		for (unsigned i = 0; i <= n + 1; i++)
			(void)shm_xchg(&words_of(seg, ep, kind)[i], 0);
	}
}

uint32_t
latency_mend(struct seg *seg, uint32_t ep)
{
	uint32_t bad = 0;

	for (enum latency_kind kind = 0; kind < LATENCY_N; kind++) {
		unsigned n;

		(void)latency_bounds(kind, &n);
		for (unsigned i = 0; i <= n + 1; i++)
			if (shm_load(&words_of(seg, ep, kind)[i]) >= METRIC_TOO_MANY) {
				(void)shm_xchg(&words_of(seg, ep, kind)[i], 0);
				bad++;
			}
	}
	return bad;
}
