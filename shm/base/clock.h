/* Monotonic time; and that of the wall, for what others read: metrics, spans. */
#pragma once
#include <stdint.h>
#include <sys/time.h>
#include <time.h>

static inline uint64_t
clock_us(void)
{
	struct timespec ts;

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
