/* Choice among the endpoints of one role: pure functions of the table and the endpoint words. */
#include <criterion/criterion.h>
#include <string.h>

#include "shm/load.h"
#include "worker/policy.h"

#define N 4

static struct seg *seg;
static struct table_endpoint eps[N];
static struct table table = {.nendpoints = N, .endpoints = eps};
static const uint32_t all[N] = {0, 1, 2, 3};
static struct policy_view view;

static void
setup(void)
{
	struct seg_sizes sizes = {
		.max_workers = 2, .max_endpoints = 8, .max_pools = 1, .flags_per_worker = 64};

	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	memset(eps, 0, sizeof(eps));
	for (uint32_t i = 0; i < N; i++) {
		ep_slot_begin(seg, i);
		ep_state_set(seg, i, EP_UP);
		eps[i].slot = i;
		eps[i].tag = (uint32_t)ep_tag(seg, i);
		eps[i].addr.family = AF_INET;
	}
	view = (struct policy_view){.seg = seg,
		.table = &table,
		.eps = all,
		.n = N,
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
		view.cursor = (uint32_t)i + 1;
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
	eps[0].max_inflight = 1;
	cr_assert(load_reserve(seg, 0, 0, 1));
	cr_assert_not(load_reserve(seg, 1, 0, 1));
	eps[1].tag++;
	eps[3].addr.family = 0;
	cr_assert_eq(policy_least_loaded(&view), 2);
	cr_assert_eq(policy_round_robin(&view), 2);
}
