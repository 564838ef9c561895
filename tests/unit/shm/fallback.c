/* The budget of fallbacks: prompt tokens a second, a second of them at once, and a debt that is paid off. */
#include "shm/fallback.h"

#include "tests/unit/shm/fixture.h"

#define T0 UINT64_C(5000000) /* us */
#define SECOND UINT64_C(1000000)
#define POOL 1

TestSuite(shm_fallback, .init = small_seg, .fini = small_seg_end);

/* Prompts of so many tokens that go at once, at 1,000 tokens a second. */
static uint32_t
go(uint32_t tokens, uint64_t now_us, uint32_t most)
{
	uint32_t n = 0;

	while (n < most && fallback_wait_us(seg, POOL, now_us) == 0) {
		fallback_take(seg, POOL, tokens, 1000, now_us);
		n++;
	}
	return n;
}

Test(shm_fallback, a_second_at_once_then_the_rate)
{
	cr_assert_eq(go(10, T0, 1000), 101);
	cr_assert_eq(fallback_wait_us(seg, POOL, T0), SECOND / 100);
	cr_assert_eq(go(10, T0 + SECOND / 2, 1000), 50);
	cr_assert_eq(go(10, T0 + 100 * SECOND, 1000), 101, "what was not used is not kept");
	cr_assert_eq(fallback_wait_us(seg, 0, T0), 0, "each pool has its own");
}

Test(shm_fallback, a_long_prompt_goes_and_the_next_ones_wait)
{
	cr_assert_eq(go(5000, T0, 1000), 1);
	cr_assert_eq(fallback_wait_us(seg, POOL, T0), 4 * SECOND);
	cr_assert_eq(go(1, T0 + 4 * SECOND - 1, 1000), 0);
	cr_assert_eq(go(1, T0 + 4 * SECOND, 1), 1);
}

Test(shm_fallback, no_debt_is_longer_than_a_minute)
{
	fallback_take(seg, POOL, UINT32_MAX, 1, T0);
	fallback_take(seg, POOL, UINT32_MAX, 1, T0);
	cr_assert_eq(fallback_wait_us(seg, POOL, T0), FALLBACK_MOST_US);
}

Test(shm_fallback, a_word_that_no_worker_wrote)
{
	seg->fallbacks[POOL].used_until_us = UINT64_MAX;
	cr_assert_eq(go(10, T0, 1000), 101);
}
