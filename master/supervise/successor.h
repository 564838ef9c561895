/*
 * Starting the instance that is to replace this one: the program that stands at the path this instance was
 * started with, first with -t, which finds a wrong configuration or a missing library, then in earnest.
 *
 * Process: master.
 */
#pragma once
#include <stddef.h>
#include <sys/types.h>

struct inherit;

/*
 * The path of the program as an absolute one, as it was given: a symbolic link is followed at the upgrade.
 * The caller frees it; NULL: it was not found.
 */
char *successor_path(const char *argv0);

/* The pid of `path -t ...`, or -errno; *ret_fd: its standard error, non-blocking. */
pid_t successor_check(const char *path, char *const *argv, int *ret_fd);

struct successor {
	pid_t pid;
	int pidfd; /* to end it */
};
/*
 * Runs the program with what `in` passes to it.  It is no child of this process but of this process's reaper (process 1 or
 * systemd), which must see its end as soon as this process has gone.  `talk` is this process's end of in->from.talk.
 * 0, or -errno.
 */
int successor_start(const char *path, char *const *argv, const struct inherit *in, int talk,
	struct successor *ret);
