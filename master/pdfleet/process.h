/* A process that may be another one's child, known by its pid and the time of its start (proc(5), /proc/PID/stat, field
 * 22): a pid alone may be another process by now. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Clock ticks after boot at which a process that runs has started; 0: it does not run, or is a zombie. */
uint64_t process_start(pid_t pid);
/*
 * SIGTERM, and SIGKILL after `stop_s` or at once if that is 0; then SIGKILL to what is left of its process group.
 * Returns when the process has ended.  -1 after a message: it could not be signalled.
 */
int process_stop(pid_t pid, uint64_t start, unsigned stop_s);
/* The value that the process was started with for the option -c, as a full path where that can be told; NULL: it has none,
 * or is not `program`.  The caller frees it. */
char *process_file(pid_t pid, const char *program);
/* SIGKILL to all processes but this one that were started with NAME=VALUE in their environment; returns when they have
 * ended.  -1 after a message. */
int process_stop_all(const char *name, const char *value);
/* Of the processes that were started with NAME=VALUE in their environment, the youngest one whose parent was not; 0: none. */
pid_t process_find(const char *name, const char *value);
/* The value of a variable in the environment that the process was started with; NULL: none, or it cannot be read.
 * The caller frees it. */
char *process_env(pid_t pid, const char *name);
