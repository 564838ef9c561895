/* The retry budget: a share of the requests of the last ten seconds, and a few for nothing. */
#include "worker/schedule/budget.h"

#include <criterion/criterion.h>

#define T0 1000000u /* ms */

static bool
budget_try(struct budget *b, uint32_t percent, uint64_t now_ms)
{
	const bool left = budget_left(b, percent, now_ms);

	if (left)
		budget_take(b, now_ms);
	return left;
}

static uint32_t
tries(struct budget *b, uint32_t percent, uint64_t now_ms, uint32_t most)
{
	uint32_t n = 0;

	while (n < most && budget_try(b, percent, now_ms))
		n++;
	return n;
}

static void
requests(struct budget *b, uint32_t n, uint64_t now_ms)
{
	for (uint32_t i = 0; i < n; i++)
		budget_request(b, now_ms);
}

Test(budget, a_share_of_the_requests)
{
	struct budget b = {0};

	requests(&b, 300, T0);
	cr_assert_eq(tries(&b, 20, T0, 1000), 60);
	requests(&b, 5, T0);
	cr_assert_eq(tries(&b, 20, T0, 1000), 1);
}

Test(budget, a_few_are_free_whatever_the_share)
{
	struct budget b = {0};

	cr_assert_eq(tries(&b, 0, T0, 1000), BUDGET_FREE);
	cr_assert_eq(tries(&b, 0, T0 + 9999, 1000), 0);
	cr_assert_eq(tries(&b, 0, T0 + 10000, 1000), BUDGET_FREE, "the window has gone on");
}

Test(budget, the_window_slides)
{
	struct budget b = {0};

	for (uint64_t s = 0; s < 10; s++)
		requests(&b, 100, T0 + s * 1000);
	cr_assert_eq(tries(&b, 20, T0 + 9000, 1000), 200);
	cr_assert_eq(tries(&b, 20, T0 + 10000, 1000), 0, "900 requests allow 180");
	cr_assert_eq(tries(&b, 20, T0 + 18999, 1000), 0, "tries count as long as requests do");
	requests(&b, 100, T0 + 19000);
	cr_assert_eq(tries(&b, 20, T0 + 19000, 1000), 20);
}

Test(budget, a_clock_that_stands_still_or_turns_back)
{
	struct budget b = {0};

	requests(&b, 100, T0);
	cr_assert_eq(tries(&b, 20, T0 - 5000, 1000), 20);
	cr_assert_eq(tries(&b, 20, T0, 1000), 0);
}
