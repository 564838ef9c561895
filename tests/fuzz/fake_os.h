/*
 * What a worker asks of its kernel, answered without one: the clock stands still until it is moved, random bits
 * repeat, a connection to an engine is a socketpair, and a loop that would sleep asks what happens next.
 *
 * The functions of the C library that are defined in fake_os.c are the kernel's own while no run is on.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct fake_os {
	/* Nothing is left to do.  Returns true if the clock has moved on, false if something else has happened. */
	bool (*sleeps)(uint64_t timeout_ms);
	/* A connection to a port; `fd` is the far end, and the callee's if it returns 0.  Else an errno: EINPROGRESS is a
	 * connection that fails later, EALREADY one that is never established. */
	int (*connects)(uint16_t port, int fd);
	/* Bytes that the far end has read. */
	uint64_t (*acknowledged)(int fd);
};

/* From here to fake_os_end() these are asked. */
void fake_os_begin(const struct fake_os *os);
void fake_os_end(void);
/* Since fake_os_begin(). */
uint64_t fake_os_ms(void);
void fake_os_advance(uint64_t ms);
