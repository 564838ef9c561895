/*
 * Engines that announced themselves: the announcements in shm/announce.h become endpoints of the pools
 * whose announce_networks have their addresses.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>

#include "master/fleet/discover.h"

struct announced_engines;
struct fleet;

/* `found` is called from events of the loop and from announced_changed(). */
struct announced_engines *announced_new(struct fleet *f, found_fn *found);
void announced_free(struct announced_engines **);
/* The configuration has changed, or an announcement is new: assigns all to the pools. */
void announced_changed(struct announced_engines *a);

/* While another instance hears the engines, none is forgotten.  After that they have as long as if they had just spoken. */
void announced_hold(struct announced_engines *a, bool hold);

/* Calls fn with a line for each engine. */
void announced_pass(
	const struct announced_engines *a, void (*fn)(const char *line, void *arg), void *arg);
/* Such a line of another instance counts as an announcement of now.  One that does not parse is ignored. */
void announced_take(struct announced_engines *a, const char *line);
