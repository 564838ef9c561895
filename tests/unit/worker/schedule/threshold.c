/* routing_threshold: auto, against fleets whose times are known, and against simulated ones. */
#include "worker/schedule/threshold.h"

#include <criterion/criterion.h>
#include <math.h>

#include "tests/bench/sched_routes.h"
#include "tests/bench/sched_trace.h"

/* What a fleet without queues takes: a fixed time, and one for each token. */
struct times {
	double us, token_us;
};

struct world {
	struct times way[2]; /* [1] direct */
	uint32_t shortest, longest;
};

static struct threshold t;
static uint64_t rnd, dice;

static void
setup(void)
{
	threshold_init(&t);
	rnd = 88172645463325252u;
	dice = 1;
}

TestSuite(threshold, .init = setup);

struct ask {
	uint32_t estimate;
	bool direct;
	double us;
};

/* One request of a length that is as often in each octave; it may take half as long again. */
static struct ask
ask(const struct world *w)
{
	const double octaves = log2((double)w->longest / w->shortest);
	struct ask a = {.estimate = (uint32_t)(w->shortest * exp2(octaves * dice_unit(&dice)))};

	a.direct = threshold_direct(&t, a.estimate, &rnd);
	a.us = (w->way[a.direct].us + w->way[a.direct].token_us * a.estimate) *
	       (1 + dice_unit(&dice) / 2);
	threshold_learn(&t, a.estimate, a.direct, (uint64_t)a.us);
	return a;
}

/* 40 ms more for the long way, 0.1 ms a token less: even at 400 tokens. */
static const struct world usual = {{{60000, 100}, {20000, 200}}, 16, 100000};

Test(threshold, begins_with_all_disaggregated)
{
	cr_expect_eq(threshold_now(&t), 0);
	cr_expect_leq(sizeof(t), 1024);
}

Test(threshold, finds_the_length_where_both_ways_are_even)
{
	for (int i = 0; i < 20000; i++)
		(void)ask(&usual);
	for (int i = 0; i < 20; i++) {
		for (int k = 0; k < 200; k++)
			(void)ask(&usual);
		cr_expect(threshold_now(&t) > 180 && threshold_now(&t) < 800, "%u",
			threshold_now(&t));
	}
}

Test(threshold, all_go_the_way_that_is_always_better)
{
	static const struct world direct = {{{60000, 100}, {20000, 50}}, 16, 100000},
				  disaggregated = {{{20000, 50}, {60000, 100}}, 16, 100000};

	for (int i = 0; i < 20000; i++)
		(void)ask(&direct);
	cr_expect_gt(threshold_now(&t), 50000, "%u", threshold_now(&t));
	setup();
	for (int i = 0; i < 20000; i++)
		(void)ask(&disaggregated);
	cr_expect_lt(threshold_now(&t), 40, "%u", threshold_now(&t));
}

Test(threshold, a_changed_fleet_is_learned_again)
{
	static const struct world later = {{{360000, 100}, {20000, 200}}, 16, 100000};

	for (int i = 0; i < 20000; i++)
		(void)ask(&usual);
	for (int i = 0; i < 20000; i++)
		(void)ask(&later); /* even at 3,400 */
	cr_expect(threshold_now(&t) > 1500 && threshold_now(&t) < 7000, "%u", threshold_now(&t));
	for (int i = 0; i < 20000; i++)
		(void)ask(&usual);
	cr_expect(threshold_now(&t) > 180 && threshold_now(&t) < 800, "%u", threshold_now(&t));
}

Test(threshold, shorter_go_direct_and_longer_do_not)
{
	uint32_t asked[20] = {0}, direct[20] = {0};

	for (int i = 0; i < 20000; i++)
		(void)ask(&usual);
	for (int i = 0; i < 40000; i++) {
		const struct ask a = ask(&usual);
		const int octave = 31 - __builtin_clz(a.estimate);

		asked[octave]++;
		direct[octave] += a.direct;
	}
	for (int octave = 4; octave < 16; octave++) {
		const double share = (double)direct[octave] / asked[octave];

		cr_expect(octave > 6 || share > 0.9, "2^%d: %.3f", octave, share);
		cr_expect(octave < 10 || share < 0.1, "2^%d: %.3f", octave, share);
		cr_expect(octave == 4 ||
				  share < (double)direct[octave - 1] / asked[octave - 1] + 0.02,
			"2^%d: %.3f", octave, share);
	}
}

Test(threshold, at_most_one_in_a_hundred_tries_the_other_way)
{
	uint32_t n[2] = {0};

	for (int i = 0; i < 20000; i++)
		(void)ask(&usual);
	for (int i = 0; i < 40000; i++) {
		const uint32_t now = threshold_now(&t);
		const struct ask a = ask(&usual);

		/* an octave around it is mixed */
		n[0] += !a.direct && a.estimate < now / 1.5;
		n[1] += a.direct && a.estimate > now * 1.5;
	}
	cr_expect(n[0] > 40 && n[0] < 410, "disaggregated: %u", n[0]);
	cr_expect(n[1] > 40 && n[1] < 410, "direct: %u", n[1]);
}

Test(threshold, trying_loses_little_time_however_bad_a_way_is)
{
	static const struct world far = {{{20000, 50}, {20000000, 100}}, 16, 100000};
	double taken = 0, best = 0;

	for (int i = 0; i < 4000; i++)
		(void)ask(&far);
	for (int i = 0; i < 100000; i++) {
		const struct ask a = ask(&far);

		taken += a.us;
		best += 1.25 * (far.way[0].us + far.way[0].token_us * a.estimate);
	}
	cr_expect_lt(taken, 1.02 * best, "%.4f of the best", taken / best);
}

Test(threshold, odd_figures_do_no_harm)
{
	static const uint32_t estimates[] = {0, 1, 15, 16, 22, 23, 1u << 19, 1u << 20, UINT32_MAX};
	static const uint64_t times[] = {0, 1, UINT32_MAX, UINT64_MAX};

	for (int i = 0; i < 100000; i++) {
		const uint32_t estimate =
			estimates[dice_next(&dice) % (sizeof(estimates) / sizeof(estimates[0]))];
		const bool direct = threshold_direct(&t, estimate, &rnd);

		threshold_learn(&t, estimate, i % 2 == 0 ? direct : !direct,
			times[dice_next(&dice) % (sizeof(times) / sizeof(times[0]))]);
		cr_assert_neq(rnd, 0);
	}
	cr_expect(threshold_now(&t) == UINT32_MAX || threshold_now(&t) < 2000000);
}

/* No first token is seen: nothing is learned, nothing tried for ever. */
Test(threshold, without_news_it_stays)
{
	uint32_t direct = 0;

	for (int i = 0; i < 100000; i++)
		direct += threshold_direct(&t, (uint32_t)i, &rnd);
	cr_expect_eq(threshold_now(&t), 0);
	cr_expect_leq(direct, 1016);
}

/* Short form of the table that `make bench-sched` prints, not so close to capacity that a single run is chance. */
Test(threshold, is_never_worse_than_the_better_fixed_choice)
{
	static const struct routes_plan plans[] = {
		{20000, 1, 4, 4, 800, 1.35, 235, .005, 15e-6, 0, .3, 1}, /* both ways are good */
		{20000, 2, 4, 4, 800, 1.35, 235, .005, 15e-6, 0, .8,
			2}, /* all direct is too much */
		{20000, 1, 1, 7, 800, 1.35, 235, .005, 15e-6, 0, .8, 3}, /* direct, by far */
		{20000, 1, 4, 4, 200, .8, 120, .005, 30e-6, 0, .6, 4},
		{20000, 1, 6, 2, 4000, .8, 100, .005, 15e-6, 0, .8, 5},
		{20000, 1, 4, 4, 1500, 1, 400, .1, 400e-6, 0, .8, 6},
	};

	for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
		struct routes_result none, all, learned;
		double better;

		routes_run(&plans[i], 0, &none);
		routes_run(&plans[i], ROUTES_ALL_DIRECT, &all);
		routes_run(&plans[i], ROUTES_AUTO, &learned);
		better = fmin(none.mean_s, all.mean_s);
		cr_expect_leq(learned.mean_s, 1.05 * better,
			"%zu: %.1f ms, %.0f%% direct; %.1f or %.1f", i, 1000 * learned.mean_s,
			100 * learned.direct, 1000 * none.mean_s, 1000 * all.mean_s);
	}
}
