/* Retry-After: whole seconds within bounds, spread, and one for each way to end with 429 or 503. */
#include "worker/request/retry_after.h"

#include <criterion/criterion.h>

Test(retry_after, not_less_than_the_estimate_and_at_most_half_as_long_again)
{
	for (uint64_t ms = 0; ms <= 70000; ms += 250)
		for (uint32_t rnd = 0; rnd < 100000; rnd += 777) {
			const uint32_t s = retry_after_seconds(ms, rnd);
			const uint64_t most = ms < 2000 ? ms + 2000 : ms + ms / 2 + 999;

			cr_assert(s >= 1 && s <= RETRY_AFTER_MOST_S);
			cr_assert((uint64_t)s * 1000 >= ms || s == RETRY_AFTER_MOST_S);
			cr_assert((uint64_t)s * 1000 <= most, "%u s for %lu ms", s, ms);
		}
}

Test(retry_after, clients_that_are_refused_together_do_not_return_together)
{
	bool seen[RETRY_AFTER_MOST_S + 1] = {false};
	int n = 0;

	for (uint32_t rnd = 0; rnd < 100000; rnd += 777) {
		const uint32_t s = retry_after_seconds(20000, rnd);

		n += !seen[s];
		seen[s] = true;
	}
	cr_assert_geq(n, 10);
}
