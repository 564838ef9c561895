/* A share of answers within the last seconds. */
#include "shm/window.h"

#include <criterion/criterion.h>

#define NOW UINT64_C(1000000)

static uint64_t word[2];

static void
expect(uint32_t bad, uint32_t good, uint64_t now_ms)
{
	const struct window_sum sum = window_read(word, now_ms);

	cr_assert_eq(sum.bad, bad);
	cr_assert_eq(sum.good, good);
}

Test(shm_window, slides_by_halves)
{
	window_add(word, NOW, true);
	window_add(word, NOW + WINDOW_HALF_MS, false);
	expect(1, 1, NOW + WINDOW_HALF_MS);
	expect(0, 1, NOW + 2 * WINDOW_HALF_MS);
	expect(0, 0, NOW + 3 * WINDOW_HALF_MS);
	window_add(word, NOW + 2 * WINDOW_HALF_MS, true);
	expect(1, 1, NOW + 2 * WINDOW_HALF_MS);
}

Test(shm_window, keeps_the_share_of_very_many)
{
	for (int i = 0; i < 200000; i++)
		window_add(word, NOW, i % 4 == 0);
	cr_assert_float_eq(
		(double)window_read(word, NOW).bad / window_read(word, NOW).good, 1.0 / 3, 0.001);
}

Test(shm_window, takes_back_what_it_still_has)
{
	window_add(word, NOW, true);
	window_take_back(word, NOW + WINDOW_HALF_MS);
	expect(0, 0, NOW + WINDOW_HALF_MS);
	window_take_back(word, NOW);
	expect(0, 0, NOW);
	window_add(word, NOW, true);
	window_take_back(word, NOW + 2 * WINDOW_HALF_MS);
	expect(1, 0, NOW);
}

Test(shm_window, forgets)
{
	window_add(word, NOW, true);
	window_forget(word);
	expect(0, 0, NOW);
}
