/*
 * Files of a fleet on this host.  A file belongs to the fleet if its first line says so (TOPO_HEAD); no other file is
 * changed or removed, nor are FILE.former and FILE.new without that line.
 *
 * While an engine is replaced, FILE.former is the text that the engine last ran well with.
 */
#pragma once
#include <stdbool.h>

#include "master/topology/render.h"

enum owned_state { OWNED_SAME, OWNED_MISSING, OWNED_DIFFERS, OWNED_FOREIGN, OWNED_UNKNOWN };

/* The file on this host, against what it should be.  OWNED_UNKNOWN: it cannot be read, errno says why. */
enum owned_state owned_look(const struct topo_file *want, const char *fleet);
/* Whether the first line of the file at `path` names the fleet. */
bool owned_is(const char *path, const char *fleet);
/* Whether the file is there and the fleet's, or FILE.former or FILE.new is, which a killed apply has left. */
bool owned_is_left(const char *path, const char *fleet);
/* Prints what `write` would change: "-" and "+" lines. */
void owned_diff(const struct topo_file *want);

/* Before anything is changed: 0, or -1 after a message for each file that cannot be written because that would change a file
 * of another. */
int owned_refuse(const struct topo_files *want, const char *fleet);

/* The rest returns 0, or -1 after a message, and prints a line for each file that it changes. */
/* Writes those that differ; *ret_changed: whether there was one. */
int owned_write(const struct topo_files *want, const char *fleet, bool *ret_changed);
/* The new files are good: the former ones go. */
int owned_confirm(const struct topo_files *want);
/* Whether the engine ran with other files before, and these were not confirmed. */
bool owned_has_former(const struct topo_files *want);
/* The former files take their places again. */
int owned_restore(const struct topo_files *want);
/* Removes the file, and before it what a killed apply has left beside it. */
int owned_remove(const char *path, const char *fleet);
