/* The clock of a worker stands still while one socket is handled. */
#include "shm/base/clock.h"

#include <criterion/criterion.h>

/* Waits for the clock itself, whatever clock_us() returns. */
static void
until_after(uint64_t us)
{
	struct timespec ts;

	do
		(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	while ((uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u <= us);
}

Test(base_clock, it_is_held_and_goes_on)
{
	uint64_t held;

	clock_hold();
	held = clock_us();
	until_after(held + 1000);
	cr_expect_eq(clock_us(), held);
	cr_expect_eq(clock_ms(), held / 1000);
	clock_renew();
	cr_expect_gt(clock_us(), held, "it is read anew");
	held = clock_us();
	until_after(held);
	cr_expect_eq(clock_us(), held);
	clock_go_on();
	until_after(held);
	cr_expect_gt(clock_us(), held);
	clock_renew();
	held = clock_us();
	until_after(held);
	cr_expect_gt(clock_us(), held, "it was not held");
}
