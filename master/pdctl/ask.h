/* The line protocol of pdrouter's control socket (master/supervise/control.h). */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* What belongs behind a line, sent when the master asks for it. */
struct ask_more {
	char *p;
	size_t n;
};

/*
 * Sends one line, and hands the lines of the answer to fn, without their ends.  Returns 0 for OK, or
 * 1 after an error, which is printed.  `more`: NULL if nothing belongs behind the line.  `slow`: the
 * answer has no time limit.  Each call makes a connection of its own: an upgrade may have replaced
 * the instance that answered before.
 */
int ask(const char *socket, const char *line, const struct ask_more *more, bool slow,
	void (*fn)(const char *line, void *arg), void *arg);
