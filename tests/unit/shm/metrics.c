/* Slabs: counting, summing over processes, and what stays when one dies. */
#include "shm/metrics.h"

#include <string.h>

#include "tests/unit/shm/fixture.h"

TestSuite(shm_metrics, .init = small_seg, .fini = small_seg_end);

Test(shm_metrics, counters_and_gauges_are_summed_over_slots)
{
	for (uint32_t slot = 0; slot < seg->hdr->nslots; slot++) {
		metric_add(seg_slab(seg, slot), M_EVENTS, slot + 1);
		metric_gauge_add(seg_slab(seg, slot), G_REQUESTS, slot % 2 ? -1 : 3);
	}
	cr_assert_eq(metric_sum(seg, M_EVENTS), 28);
	cr_assert_eq(metric_sum(seg, M_BYTES_OUT), 0);
	cr_assert_eq(metric_gauge_sum(seg, G_REQUESTS), 9);
}

Test(shm_metrics, a_dead_process_keeps_counters_and_loses_gauges)
{
	metric_add(seg_slab(seg, 1), M_CONNS, 5);
	for (int g = 0; g < G_N; g++)
		metric_gauge_add(seg_slab(seg, 1), (enum metric_gauge)g, 5);
	metric_gauge_add(seg_slab(seg, 2), G_OPEN_CONNS, 2);
	metric_reap(seg, 1);
	cr_assert_eq(metric_sum(seg, M_CONNS), 5);
	cr_assert_eq(metric_gauge_sum(seg, G_OPEN_CONNS), 2);
	cr_assert_eq(metric_gauge_sum(seg, G_SEND_QUEUE), 0);
}

Test(shm_metrics, buckets_ascend_and_their_bounds_are_inclusive)
{
	struct metrics_slab *s = seg_slab(seg, 0);
	struct metric_hist h;
	uint64_t sum = 0;

	for (unsigned i = 0; i < METRIC_BUCKETS; i++) {
		if (i > 0)
			cr_assert_gt(metric_bucket_us[i], metric_bucket_us[i - 1]);
		metric_observe(s, 1, H_GAP, metric_bucket_us[i]);
		metric_observe(s, 1, H_GAP, metric_bucket_us[i] + 1);
		sum += 2 * metric_bucket_us[i] + 1;
	}
	cr_assert_eq(metric_bucket_us[0], 1000);
	cr_assert_eq(metric_bucket_us[METRIC_BUCKETS - 1], 600000000);
	metric_hist_sum(seg, 1, H_GAP, &h);
	cr_assert_eq(h.bucket[0], 1);
	for (unsigned i = 1; i < METRIC_BUCKETS; i++)
		cr_assert_eq(h.bucket[i], 2, "bucket %u", i);
	cr_assert_eq(h.bucket[METRIC_BUCKETS], 1);
	cr_assert_eq(h.sum_us, sum);
}

Test(shm_metrics, histograms_of_pools_and_kinds_are_apart)
{
	struct metric_hist h;

	metric_observe(seg_slab(seg, 0), 0, H_TTFT, 10);
	metric_observe(seg_slab(seg, 3), 1, H_TTFT, 20);
	metric_observe(seg_slab(seg, 4), 1, H_TTFT, 30);
	metric_observe(seg_slab(seg, 0), 1, H_GAP, 40);
	metric_observe(seg_slab(seg, 0), METRIC_NO_POOL, H_DURATION, 50); /* never came to a pool */
	metric_hist_sum(seg, 1, H_TTFT, &h);
	cr_assert_eq(h.sum_us, 50);
	cr_assert_eq(h.bucket[0], 2);
	metric_hist_sum(seg, 0, H_TTFT, &h);
	cr_assert_eq(h.sum_us, 10);
	metric_hist_sum(seg, 1, H_DURATION, &h);
	cr_assert_eq(h.sum_us, 0);
}

Test(shm_metrics, tokens_of_pools_and_kinds_are_apart)
{
	metric_tokens_add(seg_slab(seg, 0), 1, T_PROMPT, 5);
	metric_tokens_add(seg_slab(seg, 3), 1, T_PROMPT, 6);
	metric_tokens_add(seg_slab(seg, 0), 1, T_COMPLETION, 7);
	metric_tokens_add(seg_slab(seg, 0), METRIC_NO_POOL, T_PROMPT, 8);
	cr_assert_eq(metric_tokens_sum(seg, 1, T_PROMPT), 11);
	cr_assert_eq(metric_tokens_sum(seg, 1, T_CACHED), 0);
	cr_assert_eq(metric_tokens_sum(seg, 1, T_COMPLETION), 7);
	cr_assert_eq(metric_tokens_sum(seg, 0, T_PROMPT), 0);
}

/* The end of one slab, then the first word of the next slab. */
Test(shm_metrics, a_slab_ends_before_the_next_begins)
{
	metric_observe(seg_slab(seg, 0), seg->hdr->max_pools - 1, H_N - 1, UINT64_C(601000000));
	metric_tokens_add(seg_slab(seg, 0), seg->hdr->max_pools - 1, T_N - 1, 1);
	cr_assert_eq(metric_sum(seg, 0), 0);
	cr_assert_eq(seg->slab_bytes, metrics_slab_bytes(seg->hdr->max_pools));
}

Test(shm_metrics, keys_are_never_zero_and_reversible)
{
	static const struct metric_request rows[] = {
		{0, 0, 0, 0},
		{0xffff, 0xff, 0xff, 0xffff},
		{1, 2, 3, 503},
		{METRIC_NO_POOL, 0, 9, 404},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const uint64_t key = metric_key(rows[i]);
		const struct metric_request r = metric_unkey(key);

		cr_assert_neq(key, 0);
		cr_assert(r.pool == rows[i].pool && r.path == rows[i].path &&
			  r.reason == rows[i].reason && r.status == rows[i].status);
	}
}

Test(shm_metrics, cells_of_all_slots_are_merged_in_one_order)
{
	const struct metric_request a = {0, 1, 2, 200}, b = {1, 1, 2, 200}, c = {0, 1, 2, 502};
	struct metric_cell got[8];
	uint64_t other;

	for (int i = 0; i < 3; i++)
		metric_request_count(seg_slab(seg, 0), a);
	metric_request_count(seg_slab(seg, 2), b);
	metric_request_count(seg_slab(seg, 2), a);
	metric_request_count(seg_slab(seg, 4), c);
	cr_assert_eq(metric_cells_sum(seg, got, 8, &other), 3);
	cr_assert_eq(other, 0);
	cr_assert(got[0].key == metric_key(a) && got[0].count == 4);
	cr_assert(got[1].key == metric_key(c) && got[1].count == 1);
	cr_assert(got[2].key == metric_key(b) && got[2].count == 1);
	/* too small: nothing is lost from the total */
	cr_assert_eq(metric_cells_sum(seg, got, 2, &other), 2);
	cr_assert_eq(got[0].count + got[1].count + other, 6);
}

Test(shm_metrics, combinations_beyond_the_cells_are_counted_in_one)
{
	struct metrics_slab *s = seg_slab(seg, 0);
	static struct metric_cell got[2 * METRIC_CELLS];
	struct metric_request r = {0};
	uint64_t other;

	for (int round = 0; round < 2; round++)
		for (unsigned i = 0; i < METRIC_CELLS + 7; i++) {
			r.status = (uint16_t)i;
			metric_request_count(s, r);
		}
	cr_assert_eq(metric_cells_sum(seg, got, 2 * METRIC_CELLS, &other), METRIC_CELLS);
	cr_assert_eq(other, 14);
	for (unsigned i = 0; i < METRIC_CELLS; i++) {
		cr_assert_eq(got[i].count, 2);
		cr_assert_eq(metric_unkey(got[i].key).status, i);
	}
}

/* Prometheus' rules, as far as a name shows them. */
Test(shm_metrics, names_follow_the_rules)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789_";

	for (int i = 0; i < M_N; i++) {
		const char *name = metric_counter_name[i], *label = name + strspn(name, allowed);
		const size_t len = (size_t)(label - name);
		const bool same = i > 0 && strncmp(name, metric_counter_name[i - 1], len + 1) == 0;

		cr_assert(*label == '\0' || (*label == '{' && name[strlen(name) - 1] == '}'), "%s",
			name);
		cr_assert_eq(strncmp(label - 6, "_total", 6), 0, "%s", name);
		/* of a name with labels the first one tells what all are */
		cr_assert_eq(
			strlen(metric_counter_help[i]) > 0, *label == '\0' || !same, "%s", name);
	}
	for (int i = 0; i < G_N; i++)
		cr_assert_eq(strspn(metric_gauge_name[i], allowed), strlen(metric_gauge_name[i]));
	for (int i = 0; i < H_N; i++)
		cr_assert_str_eq(metric_hist_name[i] + strlen(metric_hist_name[i]) - 8, "_seconds");
}
