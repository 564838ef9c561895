#include "shm/base/clock.h"

uint64_t clock_held_us;

void
clock_hold(void)
{
	clock_held_us = 0;
	clock_held_us = clock_us();
}

void
clock_renew(void)
{
	if (clock_held_us != 0)
		clock_hold();
}

void
clock_go_on(void)
{
	clock_held_us = 0;
}
