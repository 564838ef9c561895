/*
 * The state_file on disk.  It is replaced as a whole: a temporary file beside it is written and synced,
 * renamed, and the directory is synced.  So a process that dies at any instruction, or a machine without
 * power, leaves the former text or the new one.
 *
 * Of several processes that are given one file only the first writes it (PATH.lock); the others read it.
 *
 * Process: master.  A process of its own writes the file, so the master does not wait for two syncs.  Other calls block for
 * as long as the disk takes to open or to read a small file.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct membuf;
struct state_file;

/*
 * Takes the lock; `lock` is a descriptor that another process passed, or -1, and counts if it is of this
 * PATH.lock.  Never fails: what keeps the file from being written is logged.
 */
struct state_file *state_file_new(const char *path, int lock);
/* The descriptor of the lock file; -1: this process does not have it. */
int state_file_lock(const struct state_file *sf);
void state_file_free(struct state_file **); /* NULL is fine; waits for the end of a write */

/*
 * Reads the text, of at most `max` bytes; a file that is not there has none.  True, or false if it cannot be
 * read: then it has been set aside.
 */
bool state_file_read(struct state_file *sf, size_t max, struct membuf *out);
/* Renames the file to PATH.broken, in place of an earlier one, and logs why. */
void state_file_set_aside(const struct state_file *sf, const char *why);

/*
 * Begins to write; no other write is under way.  False, logged at the first time: it cannot be written, state_file_error()
 * says why, and the former text stays.
 */
bool state_file_begin(struct state_file *sf, const void *text, size_t n);
bool state_file_is_written(const struct state_file *sf); /* now */
/* After SIGCHLD.  True: the write has ended; *ret_good: the text is on the disk, else as above. */
bool state_file_end(struct state_file *sf, bool *ret_good);
/* For a text that cannot be written: as a write that fails for this reason (static). */
void state_file_fail(struct state_file *sf, const char *why);
/* Why the file does not have the last text; "" if it has. */
const char *state_file_error(const struct state_file *sf);
const char *state_file_path(const struct state_file *sf);
