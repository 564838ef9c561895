/* The line protocol of pdrouter's control socket (master/supervise/control.h). */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/*
 * Sends one line, and what belongs behind it (NULL: nothing) when it is asked for, and hands the lines of the answer to
 * fn, without their ends.  Returns 0 for OK, or 1 after an error, which is said.  `slow`: the answer has no time limit.  Each time by a connection of its own: an upgrade may have replaced
 * the instance that was asked before.
 */
struct ask_more {
	char *p;
	size_t n;
};
int ask(const char *socket, const char *line, const struct ask_more *more, bool slow,
	void (*fn)(const char *line, void *arg), void *arg);
