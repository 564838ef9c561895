/* `pdctl completion SHELL`: a script that completes commands, options and their values, from the tables of command.h. */
#pragma once

/* Prints it.  Returns 0, or -1 for an unknown shell. */
int completion_print(const char *shell);
