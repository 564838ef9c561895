/* Runs another program. */
#pragma once
#include "shm/base/mem.h"

/* Runs argv[0], found in PATH, and waits for it.  Its output is appended to *out (the first MiB of it), or
 * printed if that is NULL.  Its exit code, or -1 after a message. */
int program_run(const char *const argv[], struct membuf *out);
/* Becomes argv[0]; returns -1 after a message. */
int program_become(const char *const argv[]);
