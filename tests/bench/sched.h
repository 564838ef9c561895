/* The scheduler's benchmark: its parts. */
#pragma once

/* Says what failed, with errno, and ends the program. */
_Noreturn void die(const char *what);

/* Prints the table of what a selection costs.  Returns how many figures miss their mark. */
int sched_speed(int rounds);
