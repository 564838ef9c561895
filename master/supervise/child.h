/*
 * What a child process is, and its steps between fork() and the main function of its kind.
 *
 * Process: child_run() runs in the child.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/heritage.h"
#include "shm/metrics.h"

struct conf;

/* One kind of child: a const row of main.c. */
struct proc_kind {
	const char *name;                     /* in log lines and as the process's name */
	int (*main)(const struct heritage *); /* returns an exit code (enum child_exit) */
	/* How many processes make a generation.  NULL: a single one outside the generations, see below; the first of these
	 * kinds has SLOT_NOTIFIER, the second SLOT_EXPORTER. */
	uint32_t (*count)(const struct conf *);
	/* A single process: the text that makes it another one when it changes; NULL: none is wanted. */
	const char *(*identity)(const struct conf *);
	bool drains_last; /* at shutdown: ends after the other children, because they need it */
	enum metric_counter restarts;
	enum sandbox sandbox;
};

/*
 * Closes every descriptor that is not inherited on purpose, sets signals and names, and runs the
 * kind's main function.  `h` describes what the child inherits.
 */
_Noreturn void child_run(const struct proc_kind *kind, const struct heritage *h);
/* For suspect_begin(), in all processes. */
void child_log_suspect(const char *where, uint64_t index, uint64_t n);
