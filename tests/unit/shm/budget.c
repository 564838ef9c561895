/* Budgets: a share of the requests of all workers in the last ten seconds, and a few for nothing. */
#include "shm/budget.h"

#include "tests/unit/shm/fixture.h"

#define T0 1000000u /* ms */
#define POOL 1

TestSuite(shm_budget, .init = small_seg, .fini = small_seg_end);

static bool
budget_try(uint32_t me, uint32_t percent, uint64_t now_ms)
{
	const bool left = budget_left(seg, POOL, BUDGET_RETRY, percent, now_ms);

	if (left)
		budget_take(seg, me, POOL, BUDGET_RETRY, now_ms);
	return left;
}

/* Tries that the workers get in turn. */
static uint32_t
tries(uint32_t percent, uint64_t now_ms, uint32_t most)
{
	uint32_t n = 0;

	while (n < most && budget_try(n % 3, percent, now_ms))
		n++;
	return n;
}

static void
requests(uint32_t me, uint32_t n, uint64_t now_ms)
{
	for (uint32_t i = 0; i < n; i++)
		budget_request(seg, me, POOL, now_ms);
}

Test(shm_budget, a_share_of_the_requests_of_all_workers)
{
	requests(0, 200, T0);
	requests(3, 100, T0);
	cr_assert_eq(tries(20, T0, 1000), 60);
	requests(2, 5, T0);
	cr_assert_eq(tries(20, T0, 1000), 1);
}

Test(shm_budget, each_pool_has_its_own)
{
	requests(0, 100, T0);
	cr_assert_eq(tries(20, T0, 1000), 20);
	cr_assert(budget_left(seg, 0, BUDGET_RETRY, 0, T0));
}

Test(shm_budget, a_few_are_free_whatever_the_share)
{
	cr_assert_eq(tries(0, T0, 1000), BUDGET_FREE);
	cr_assert_eq(tries(0, T0 + 9999, 1000), 0);
	cr_assert_eq(tries(0, T0 + 10000, 1000), BUDGET_FREE, "the window has gone on");
}

Test(shm_budget, the_window_slides)
{
	for (uint64_t s = 0; s < 10; s++)
		requests((uint32_t)s % 4, 100, T0 + s * 1000);
	cr_assert_eq(tries(20, T0 + 9000, 1000), 200);
	cr_assert_eq(tries(20, T0 + 10000, 1000), 0, "900 requests allow 180");
	cr_assert_eq(tries(20, T0 + 18999, 1000), 0, "tries count as long as requests do");
	requests(0, 100, T0 + 19000);
	cr_assert_eq(tries(20, T0 + 19000, 1000), 20);
}

Test(shm_budget, clocks_of_workers_differ)
{
	requests(0, 100, T0 + 1);
	cr_assert_eq(tries(20, T0 - 1, 1000), 20, "a second ago for this worker");
}

Test(shm_budget, retries_and_releases_are_counted_apart)
{
	requests(0, 150, T0);
	cr_assert_eq(tries(20, T0, 1000), 30);
	for (int i = 0; i < 150; i++) {
		cr_assert(budget_left(seg, POOL, BUDGET_RELEASE, 100, T0));
		budget_take(seg, 1, POOL, BUDGET_RELEASE, T0);
	}
	cr_assert(!budget_left(seg, POOL, BUDGET_RELEASE, 100, T0));
	cr_assert_eq(tries(21, T0, 1000), 1);
}

Test(shm_budget, the_pace_at_which_requests_get_engines)
{
	struct budget_pace p = budget_pace(seg, POOL, T0);

	cr_assert_eq(p.requests, 0);
	requests(0, 4, T0);
	p = budget_pace(seg, POOL, T0 + 100);
	cr_assert(p.requests == 4 && p.ms == 1000);
	requests(1, 4, T0 + 3000);
	p = budget_pace(seg, POOL, T0 + 3500);
	cr_assert(p.requests == 8 && p.ms == 3500);
	p = budget_pace(seg, POOL, T0 + 10500);
	cr_assert(p.requests == 4 && p.ms == 7500);
}

Test(shm_budget, counts_that_do_not_fit)
{
	const uint64_t full = (uint64_t)(T0 / 1000) << 46 | ((UINT64_C(1) << 46) - 1);
	uint64_t *word = &seg_budget(seg, 0, POOL)->second[T0 / 1000 % BUDGET_SECONDS];

	*word = full;
	requests(0, 3, T0);
	budget_take(seg, 0, POOL, BUDGET_RETRY, T0);
	budget_take(seg, 0, POOL, BUDGET_RELEASE, T0);
	cr_assert_eq(*word, full);
}
