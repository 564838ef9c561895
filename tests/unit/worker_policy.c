/* Choice among the endpoints of one role: pure functions of the table and the endpoint words. */
#include <criterion/criterion.h>
#include <string.h>

#include "shm/load.h"
#include "worker/policy.h"

#define N 4

static struct seg *seg;
static struct table_endpoint eps[N];
static struct table_pick picks[N];
static struct table table = {.nendpoints = N, .endpoints = eps};
static struct policy_view view;
static uint64_t rnd;

static void
setup(void)
{
	struct seg_sizes sizes = {
		.max_workers = 2, .max_endpoints = 8, .max_pools = 1, .flags_per_worker = 64};

	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	memset(eps, 0, sizeof(eps));
	memset(picks, 0, sizeof(picks));
	rnd = 4711;
	for (uint32_t i = 0; i < N; i++) {
		ep_slot_begin(seg, i);
		ep_state_set(seg, i, EP_UP);
		picks[i] = (struct table_pick){.endpoint = i,
			.slot = i,
			.tag = (uint32_t)ep_tag(seg, i),
			.hash = i * UINT64_C(0x9e3779b97f4a7c15),
			.weight = 1,
			.resolved = true};
	}
	view = (struct policy_view){.seg = seg,
		.table = &table,
		.picks = picks,
		.n = N,
		.max_weight = 1,
		.groups = UINT64_MAX,
		.model = "",
		.own = 1,
		.foreign_unit = 1,
		.rnd = &rnd,
		.now_ms = 10000,
		.foreign_max_age_ms = 3000};
}

static void
teardown(void)
{
	seg_free(&seg);
}

TestSuite(policy, .init = setup, .fini = teardown);

Test(policy, round_robin_takes_each_in_turn_and_skips_what_is_down)
{
	ep_state_set(seg, 2, EP_DOWN);
	for (int want, k = 0; k < 6; k++) {
		int i = policy_round_robin(&view);

		want = (int[]){0, 1, 3, 0, 1, 3}[k];
		cr_assert_eq(i, want, "round %d: %d", k, i);
	}
}

Test(policy, least_loaded_counts_all_workers)
{
	for (uint32_t i = 0; i < N; i++)
		if (i != 2)
			cr_assert(load_reserve(seg, i % 2, i, 0));
	cr_assert_eq(policy_least_loaded(&view), 2);
}

Test(policy, least_loaded_breaks_ties_by_the_cursor)
{
	view.cursor = 3;
	cr_assert_eq(policy_least_loaded(&view), 3);
	view.cursor = 5;
	cr_assert_eq(policy_least_loaded(&view), 1);
}

Test(policy, foreign_load_counts_while_it_is_fresh)
{
	load_foreign_set(seg, 0, 7, 9000);
	cr_assert_eq(policy_least_loaded(&view), 1);
	view.cursor = 0;
	view.now_ms = 13000; /* four seconds old: as if nobody had said it */
	cr_assert_eq(policy_least_loaded(&view), 0);
}

Test(policy, nobody_is_chosen_where_nobody_can_be)
{
	for (uint32_t i = 0; i < N; i++)
		ep_state_set(seg, i, i == 0 ? EP_STARTING : i == 1 ? EP_DRAINING : EP_DOWN);
	cr_assert_eq(policy_least_loaded(&view), -1);
	cr_assert_eq(policy_round_robin(&view), -1);
}

Test(policy, a_full_endpoint_and_one_of_another_life_are_passed_over)
{
	picks[0].max_inflight = 1;
	cr_assert(load_reserve(seg, 0, 0, 1));
	cr_assert_not(load_reserve(seg, 1, 0, 1));
	picks[1].tag++;
	picks[3].resolved = false;
	cr_assert_eq(policy_least_loaded(&view), 2);
	cr_assert_eq(policy_round_robin(&view), 2);
}
