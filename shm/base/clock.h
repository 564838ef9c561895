/* Monotonic time; and that of the wall, for what others read: metrics, spans. */
#pragma once
#include <stdint.h>
#include <sys/time.h>
#include <time.h>

/*
 * A worker holds the clock while it handles what one socket has brought: a request asks for the time 40 times, which would
 * cost it 3% of its CPU.  Code that waits for a time must not run then.
 */
void clock_hold(void);
void clock_go_on(void);
/* If it is held: at the present time from now on. */
void clock_renew(void);
extern uint64_t clock_held_us; /* private to the clock; 0: not held */

static inline uint64_t
clock_us(void)
{
	struct timespec ts;

	if (clock_held_us != 0)
		return clock_held_us;
	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

static inline uint64_t
clock_ms(void)
{
	return clock_us() / 1000u;
}

/* Since 1970. */
static inline uint64_t
clock_wall_us(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

/* In the form that event loops and sockets take. */
static inline struct timeval
clock_tv(uint64_t ms)
{
	return (struct timeval){
		.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
}
