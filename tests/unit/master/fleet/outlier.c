/* How many times the time of its peers an engine takes, what is allowed to slow it, and from when to when it is slow. */
#include "master/fleet/outlier.h"

#include "tests/unit/master/fleet.h"

#include <math.h>

#include "shm/base/clock.h"
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

/* --- engines of a fleet, second by second ------------------------------------------------------ */

#define SLOW "http://127.0.0.1:8201"
#define PEER "http://127.0.0.1:8202"
#define MIN_SAMPLES 10
#define BACK (3 * 0.75) /* times of the peers; below it an engine is slow no longer */
#define HOLDS 3

static uint64_t now_ms;

static uint32_t
slot_of(const char *url)
{
	return endpoint_of(url)->engine.slot;
}

static bool
is_slow(void)
{
	return share_slow(share_word(seg, slot_of(SLOW)));
}

static double
shown_times(void)
{
	return share_times(share_word(seg, slot_of(SLOW))) / SHARE_TIMES_ONE;
}

static void
answers(const char *url, uint32_t n, uint64_t ms)
{
	while (n-- > 0)
		pace_record(seg, slot_of(url), ms * 1000, 10);
}

/* One comparison a second, until it says `slow`.  Returns how many were needed, at most `most`. */
static uint32_t
seconds_until(bool slow, uint32_t most)
{
	uint32_t n = 0;

	while (n < most && is_slow() != slow) {
		now_ms += 1000;
		outlier_turn(fleet->outlier, now_ms);
		cr_expect(!is_slow() || shown_times() >= BACK, "slow, %.1f times", shown_times());
		n++;
	}
	return n;
}

static void
pass(uint32_t seconds)
{
	const bool was = is_slow();

	(void)seconds_until(!was, seconds);
	cr_assert_eq(is_slow(), was);
}

/* Two decode engines; one takes eight times as long, and is slow. */
static void
setup(void)
{
	struct conf *c = conf_make();
	struct conf_pool *p = conf_pool(c, "main", "m");

	p->outlier = (struct conf_outlier){.factor = 3, .min_samples = MIN_SAMPLES};
	conf_endpoint(p, ROLE_DECODE, SLOW);
	conf_endpoint(p, ROLE_DECODE, PEER);
	fleet_setup(4, 2);
	apply(c);
	now_ms = clock_ms();
	ep_state_set(seg, slot_of(SLOW), EP_UP);
	ep_state_set(seg, slot_of(PEER), EP_UP);
	answers(SLOW, 2 * MIN_SAMPLES, 800);
	answers(PEER, 2 * MIN_SAMPLES, 100);
	cr_assert_eq(seconds_until(true, 9), HOLDS);
	cr_expect_float_eq(shown_times(), 8, 0.2);
}

TestSuite(outlier_fleet, .init = setup, .fini = fleet_teardown);

Test(outlier_fleet, fast_answers_end_it)
{
	pass(1);
	answers(SLOW, 10, 100);
	cr_expect_eq(seconds_until(false, 9), HOLDS);
	pass(60);
}

/* With a short stats_interval comparisons come often: a pause is no longer for that. */
Test(outlier_fleet, what_changes_it_holds_for_seconds_however_often_it_is_compared)
{
	pass(1);
	answers(SLOW, 10, 100);
	for (const uint64_t end = now_ms + 1900; now_ms < end;) {
		outlier_turn(fleet->outlier, now_ms += 100);
		cr_assert(is_slow());
	}
	cr_expect_leq(seconds_until(false, 9), HOLDS);
}

Test(outlier_fleet, one_fast_answer_in_an_idle_fleet_ends_it)
{
	pass(40);
	answers(SLOW, 1, 100);
	cr_expect_eq(seconds_until(false, 9), HOLDS);
}

Test(outlier_fleet, fast_answers_between_slow_ones_do_not_end_it)
{
	pass(5);
	answers(SLOW, 2, 20);
	pass(HOLDS - 1);
	answers(SLOW, 4, 800);
	pass(10);
	cr_expect_gt(shown_times(), 3);
}

Test(outlier_fleet, it_ends_when_nothing_is_known)
{
	const uint32_t seconds = seconds_until(false, 300);

	cr_expect_gt(seconds, 60, "%us", seconds);
	cr_expect_lt(seconds, 150, "%us", seconds);
	pass(60);
}

Test(outlier_fleet, it_stays_when_few_answers_are_slow)
{
	for (uint32_t i = 0; i < 10; i++) {
		pass(60);
		answers(SLOW, 1, 800);
		answers(PEER, MIN_SAMPLES / 2, 100);
	}
	cr_expect_float_eq(shown_times(), 8, 0.2);
}

Test(outlier_fleet, it_ends_without_peers)
{
	ep_state_set(seg, slot_of(PEER), EP_DOWN);
	pass(HOLDS - 1);
	answers(SLOW, 9, 800);
	cr_expect_eq(seconds_until(false, 9), 1);
}

Test(outlier_fleet, an_engine_that_is_not_up_is_not_slow)
{
	ep_state_set(seg, slot_of(SLOW), EP_DOWN);
	cr_expect_eq(seconds_until(false, 9), 1);
}

Test(outlier_fleet, after_it_min_samples_are_needed)
{
	pass(1);
	answers(SLOW, 10, 100);
	cr_assert_eq(seconds_until(false, 9), HOLDS);
	pass(400); /* nothing is known then */
	answers(PEER, 2 * MIN_SAMPLES, 100);
	answers(SLOW, MIN_SAMPLES / 2, 800);
	pass(9);
	answers(SLOW, 2 * MIN_SAMPLES, 800);
	cr_expect_eq(seconds_until(true, 9), HOLDS);
}
