/*
 * A monotonic clock that shows how long the test has run: it stands while the machine does.  A test whose peers are in its
 * own event loop includes this, so that no timeout ends because the machine, or the test, was stopped for a while.
 *
 * Instead of libc's: this project and libevent read it.
 */
#pragma once
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RUNNING_STEP_US                                                                            \
	50000 /* between two readings; a loop that sleeps for longer takes several turns */

int
clock_gettime(clockid_t id, struct timespec *ts)
{
	static uint64_t read_us, shown_us;
	uint64_t now_us;

	if (id != CLOCK_MONOTONIC && id != CLOCK_MONOTONIC_COARSE)
		return (int)syscall(SYS_clock_gettime, id, ts);
	if (syscall(SYS_clock_gettime, CLOCK_MONOTONIC, ts) != 0)
		return -1;
	now_us = (uint64_t)ts->tv_sec * 1000000 + (uint64_t)ts->tv_nsec / 1000;
	if (read_us == 0)
		shown_us = now_us;
	else
		shown_us += now_us - read_us < RUNNING_STEP_US ? now_us - read_us : RUNNING_STEP_US;
	read_us = now_us;
	*ts = (struct timespec){.tv_sec = (time_t)(shown_us / 1000000),
		.tv_nsec = (long)(shown_us % 1000000 * 1000)};
	return 0;
}
