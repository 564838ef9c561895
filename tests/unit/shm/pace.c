/* The estimate of an engine's times, and the part of its weight that a slow one has. */
#include "shm/pace.h"

#include <math.h>

#include "shm/load.h"
#include "tests/unit/shm/fixture.h"

#define EP 1u

TestSuite(shm_pace, .init = small_seg, .fini = small_seg_end);

static double
us_of(uint32_t log)
{
	return exp2((double)log / PACE_DOUBLE);
}

static double
token_us(uint64_t word)
{
	return us_of(pace_unpack(word).token) / exp2(PACE_TOKEN_SHIFT);
}

static uint64_t
many(uint64_t word, uint32_t n, uint64_t us, uint64_t tokens)
{
	while (n-- > 0)
		word = pace_with(word, us, tokens);
	return word;
}

static bool
near(double value, double right)
{
	return fabs(value / right - 1) < 0.0005;
}

Test(shm_pace, one_sample_is_itself)
{
	static const uint64_t times[] = {1, 3, 999, 20000, 1234567, 3600000000};

	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		const uint64_t word = pace_with(0, times[i], 7);

		cr_expect_eq(pace_unpack(word).samples, PACE_SAMPLE);
		cr_expect(near(us_of(pace_unpack(word).time), (double)times[i]), "%zu", i);
		cr_expect(near(token_us(word), (double)times[i] / 7), "%zu", i);
	}
}

Test(shm_pace, extremes_stay_inside_the_word)
{
	const struct pace longest = pace_unpack(pace_with(0, UINT64_MAX, 1));
	const struct pace shortest = pace_unpack(pace_with(0, 0, UINT64_MAX));

	cr_expect(near(us_of(longest.time), exp2(40)));
	cr_expect(near(us_of(longest.token), exp2(60)));
	cr_expect_eq(shortest.time, 0);
	cr_expect_eq(shortest.token, 0);
	cr_expect_eq(token_us(pace_with(0, 5000, 0)), token_us(pace_with(0, 5000, 1)));
}

Test(shm_pace, the_mean_is_geometric)
{
	uint64_t word = pace_with(pace_with(0, 10000, 1), 1000000, 1);

	cr_expect(near(token_us(word), 100000));
	word = pace_with(many(0, 31, 10000, 1), 1000000, 1);
	cr_expect_lt(token_us(word), 1.2 * 10000, "one of 32 that takes a hundred times as long");
}

Test(shm_pace, a_change_shows_within_32_samples)
{
	uint64_t word = many(0, 1000, 10000, 1);

	cr_expect_eq(pace_unpack(word).samples, PACE_MOST * PACE_SAMPLE);
	word = many(word, 16, 100000, 1);
	cr_expect_gt(token_us(word), 2.4 * 10000);
	word = many(word, 600, 100000, 1);
	cr_expect(near(token_us(word), 100000));
}

Test(shm_pace, old_samples_weigh_less)
{
	uint64_t word = many(0, PACE_MOST, 100000, 1);

	for (int s = 0; s < 40; s++)
		word = pace_older(word, 3, PACE_WHOLE);
	cr_expect_lt(pace_unpack(word).samples, PACE_SAMPLE);
	cr_expect(near(token_us(word), 100000), "time alone does not change the mean");
	cr_expect_lt(token_us(pace_with(word, 10000, 1)), 20000);
	word = pace_older(many(word, PACE_MOST, 100000, 1), 3, 8 * PACE_SAMPLE);
	cr_expect_eq(pace_unpack(word).samples, 7 * PACE_SAMPLE);
	for (int s = 0; s < 100; s++)
		word = pace_older(word, 3, PACE_WHOLE);
	cr_expect_eq(pace_unpack(word).samples, 0);
	cr_expect(near(token_us(pace_with(word, 10000, 1)), 10000));
}

Test(shm_pace, a_new_life_begins_with_nothing)
{
	pace_record(seg, EP, 10000, 1);
	share_lower(seg, EP, 25, true, 2560);
	cr_assert_eq(share_part(share_word(seg, EP)), 25);
	cr_assert(share_slow(share_word(seg, EP)));
	cr_assert_eq(share_times(share_word(seg, EP)), 2560);
	cr_assert(near(token_us(pace_word(seg, EP)), 10000));
	ep_slot_begin(seg, EP);
	cr_assert_eq(pace_word(seg, EP), 0);
	cr_assert_eq(share_word(seg, EP), 0);
	cr_assert_eq(share_part(share_word(seg, EP)), SHARE_WHOLE);
}
