/* How many times the time of its peers an engine takes, and what is allowed to slow it. */
#include "master/fleet/outlier.h"

#include <criterion/criterion.h>
#include <math.h>

#include "shm/pace.h"

static const struct outlier_peers peers = {
	.time = 15 * PACE_DOUBLE, .token = 30 * PACE_DOUBLE, .load = 4, .foreign = 0, .weight = 1};

/* Times of an engine whose time and time per token are so many times its peers'. */
static double
times(double time, double token, double foreign, double weight)
{
	const struct outlier_own own = {.time = peers.time + log2(time) * PACE_DOUBLE,
		.token = peers.token + log2(token) * PACE_DOUBLE,
		.foreign = foreign,
		.weight = weight};

	return outlier_times(&own, &peers);
}

Test(outlier, both_times_must_be_longer)
{
	cr_expect_float_eq(times(10, 10, 0, 1), 10, 0.01);
	cr_expect_float_eq(times(10, 1, 0, 1), 1, 0.01, "longer prompts");
	cr_expect_float_eq(times(1, 10, 0, 1), 1, 0.01, "prompts that are cached elsewhere");
	cr_expect_float_eq(times(0.1, 0.1, 0, 1), 0.1, 0.01);
}

Test(outlier, foreign_requests_may_slow_it_in_proportion)
{
	cr_expect_float_eq(times(10, 10, 45, 1), 1, 0.01, "45 of others beside 4 and its own");
	cr_expect_gt(times(50, 50, 45, 1), 4.9);
}

Test(outlier, a_lighter_engine_may_be_slower)
{
	static const struct outlier_peers heavy = {.time = 0, .token = 0, .load = 4, .weight = 10};
	const struct outlier_own own = {
		.time = 3.0 * PACE_DOUBLE, .token = 3.0 * PACE_DOUBLE, .weight = 1};

	cr_expect_float_eq(outlier_times(&own, &heavy), 0.8, 0.01);
	cr_expect_float_eq(times(10, 10, 0, 10), 10, 0.01, "a heavier one may not");
}

Test(outlier, the_median_is_of_the_others)
{
	static const double sorted[] = {1, 3, 5, 100}, same[] = {7, 7, 7};
	const double far = 100, low = 1, foreign = 2;

	cr_expect_eq(outlier_median(sorted, 4, NULL), 4);
	cr_expect_eq(outlier_median(sorted, 4, &far), 3);
	cr_expect_eq(outlier_median(sorted, 4, &low), 5);
	cr_expect_eq(outlier_median(sorted, 4, &foreign), 4, "none of them");
	cr_expect_eq(outlier_median(sorted, 2, &low), 3);
	cr_expect_eq(outlier_median(same, 3, &same[1]), 7);
}
