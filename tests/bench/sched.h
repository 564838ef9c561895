/* The scheduler's benchmark: its parts. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Says what failed, with errno, and ends the program. */
_Noreturn void die(const char *what);

/* Prints the table of what a selection costs.  Returns how many figures miss their mark. */
int sched_speed(int rounds);

/* Runs job(0) to job(n - 1), each in a process of its own, as many at once as there are CPUs.  What they find out
 * they leave in shared memory. */
void sched_spread(void (*job)(size_t), size_t n);

/* Prints one line of the marks; 0 if it is met, 1 if missed. */
int sched_mark(bool ok, const char *what);

/* Simulates thresholds, prints their table.  Returns how many marks are missed. */
int sched_thresholds(bool smoke);

/* Replays prompts that have beginnings in common, prints the tables.  Returns how many marks are missed. */
int sched_caches(bool smoke);
