/*
 * A lock that a process holds as long as it lives: the lock file PATH.lock beside a file that only one
 * process may use.
 */
#pragma once

/*
 * Opens and locks PATH.lock.  The lock ends with its process, so it is never stale, and of two
 * processes that start at the same time one gets it.  The file stays: if it was removed at the end,
 * a process could lock the removed file while another process locks a new one.
 *
 * Returns the descriptor, -EWOULDBLOCK if another process has the lock and keeps it for 200 ms, or another
 * -errno.
 */
int lockfile_take(const char *path);
