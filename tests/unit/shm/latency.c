/* Latencies: histograms of an endpoint's connections and first bytes. */
#include "shm/latency.h"

#include "shm/load.h"
#include "shm/metrics.h"
#include "tests/unit/shm/fixture.h"

#define EP 1u

TestSuite(shm_latency, .init = small_seg, .fini = small_seg_end);

static uint64_t
total(uint32_t ep, enum latency_kind kind)
{
	uint64_t counts[LATENCY_BUCKETS + 1], sum = 0;
	unsigned n;

	(void)latency_bounds(kind, &n);
	(void)latency_read(seg, ep, kind, counts);
	for (unsigned i = 0; i <= n; i++)
		sum += counts[i];
	return sum;
}

Test(shm_latency, buckets_ascend_and_their_bounds_are_inclusive)
{
	for (enum latency_kind kind = 0; kind < LATENCY_N; kind++) {
		uint64_t counts[LATENCY_BUCKETS + 1], sum = 0;
		unsigned n;
		const uint64_t *bounds = latency_bounds(kind, &n);

		for (unsigned i = 0; i < n; i++) {
			if (i > 0)
				cr_assert_gt(bounds[i], bounds[i - 1]);
			latency_add(seg, EP, kind, bounds[i]);
			latency_add(seg, EP, kind, bounds[i] + 1);
			sum += 2 * bounds[i] + 1;
		}
		cr_assert_eq(latency_read(seg, EP, kind, counts), sum);
		cr_assert_eq(counts[0], 1);
		for (unsigned i = 1; i < n; i++)
			cr_assert_eq(counts[i], 2, "bucket %u", i);
		cr_assert_eq(counts[n], 1);
		cr_assert_eq(total(EP + 1, kind), 0);
	}
}

Test(shm_latency, first_bytes_are_told_apart_from_10_ms_to_60_s)
{
	unsigned n;
	const uint64_t *bounds = latency_bounds(LATENCY_FIRST, &n);

	cr_assert_eq(bounds[0], 10000);
	cr_assert_eq(bounds[n - 1], 60000000);
}

Test(shm_latency, a_new_life_of_the_slot_begins_with_nothing)
{
	for (enum latency_kind kind = 0; kind < LATENCY_N; kind++) {
		latency_add(seg, EP, kind, 1);
		latency_add(seg, EP, kind, UINT64_C(1) << 40);
	}
	ep_slot_begin(seg, EP);
	for (enum latency_kind kind = 0; kind < LATENCY_N; kind++) {
		uint64_t counts[LATENCY_BUCKETS + 1];

		cr_assert_eq(total(EP, kind), 0);
		cr_assert_eq(latency_read(seg, EP, kind, counts), 0);
	}
}

Test(shm_latency, counts_that_cannot_be_begin_again)
{
	latency_add(seg, EP, LATENCY_CONNECT, 1);
	seg->latencies[EP].first[3] = METRIC_TOO_MANY;
	seg->latencies[EP].connect[LATENCY_CONNECT_BUCKETS + 1] = UINT64_MAX;
	cr_assert_eq(latency_mend(seg, EP), 2);
	cr_assert_eq(latency_mend(seg, EP), 0);
	cr_assert_eq(total(EP, LATENCY_FIRST), 0);
	cr_assert_eq(total(EP, LATENCY_CONNECT), 1);
}
