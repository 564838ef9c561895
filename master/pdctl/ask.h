/* The line protocol of pdrouter's control socket (master/supervise/control.h). */
#pragma once
#include <stdbool.h>

/*
 * Sends one line and hands the lines of the answer to fn, without their ends.  Returns 0 for OK, or 1 after an error, which
 * is said.  `slow`: the answer has no time limit.  Each time by a connection of its own: an upgrade may have replaced
 * the instance that was asked before.
 */
int ask(const char *socket, const char *line, bool slow, void (*fn)(const char *line, void *arg),
	void *arg);
