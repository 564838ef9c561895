/*
 * What the master knows about the engines, behind one door: where endpoints come from (discover), their
 * addresses (resolve), whether they are up (health), how loaded they are (load), and the table made of
 * all that (publish).
 *
 * Process: master.  Runs on the master's event loop and never blocks it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct conf;
struct conf_error;
struct event_base;
struct fleet;
struct found;
struct membuf;
struct rcu_writer;
struct seg;
struct waiters;

/* Aborts only when out of memory.  Nothing is published before the first fleet_apply(). */
struct fleet *fleet_new(struct event_base *base, struct seg *seg);
void fleet_free(struct fleet **);

/*
 * Whether fleet_apply() can put it in force: there is a number for each pool's name, and the endpoint
 * table has room for it.  0, or -1 with *err filled.  True only until the next fleet_apply().
 */
int fleet_check(const struct fleet *f, const struct conf *conf, struct conf_error *err);

/*
 * Puts a configuration in force that has passed fleet_check(): endpoints are added, removed and changed, requests in flight are not
 * touched (removed endpoints drain).  The table with the new configuration is published before this
 * returns, or as soon as an arena is free.  `conf` must live until the next fleet_apply() has returned.
 */
void fleet_apply(struct fleet *f, const struct conf *conf, uint64_t config_number);
/* The table with the configuration of the last fleet_apply() is published. */
bool fleet_published(const struct fleet *f);

/*
 * Replaces the list of a pool's endpoints that a source other than the configuration's lists has
 * found (master/fleet/discover.h; the list is copied).  Endpoints are added, removed and changed as
 * by fleet_apply(), and published at the end of this turn of the loop.  The list is kept over later
 * configurations as long as these have the pool and the source.
 */
void fleet_found(
	struct fleet *f, const char *pool, const char *source, const struct found *list, size_t n);

/*
 * Takes endpoints also from engines that announce themselves (master/fleet/announced.h), and looks at
 * engines whose requests have met the sign of a restart (shm/restart.h).  `wake_fd` is the eventfd that
 * the notifier and the workers write then; the caller owns it.
 */
void fleet_hear(struct fleet *f, int wake_fd);

/*
 * Takes the operator's drains from the state_file, and keeps them there from now on (master/fleet/keep.h).
 * Before the first fleet_apply(): no table without them is published.
 */
void fleet_keep(struct fleet *f, const char *path);

/* No process writes the state_file: it has the drains of now, or cannot be written. */
bool fleet_state_is_settled(const struct fleet *f);
void fleet_sigchld(struct fleet *f);

/*
 * Upgrades (master/supervise/upgrade.h).  What one instance passes to the next: the drains (keep.h), and the engines that
 * have announced themselves, since each announces itself to one instance.
 */
void fleet_pass_drains(const struct fleet *f, struct membuf *out);
int fleet_state_lock(const struct fleet *f);
/* When it is settled: another instance has the drains and hears the announcements, or this one has them again. */
void fleet_hold_state(struct fleet *f, bool hold);
void fleet_leave_state(struct fleet *f);
bool fleet_state_is_held(const struct fleet *f);
void fleet_take_drains(struct fleet *f, const struct membuf *text);
/* And the state_file (NULL: none) with its lock: reads it. */
void fleet_take_state(struct fleet *f, const char *path, int lock);
/* Calls fn with a line for each announced engine; fleet_take_announced() reads such a line. */
void fleet_pass_announced(
	const struct fleet *f, void (*fn)(const char *line, void *arg), void *arg);
void fleet_take_announced(struct fleet *f, const char *line);
/* Each name has been looked up, and each endpoint's first probes have an outcome. */
bool fleet_is_settled(const struct fleet *f);

/* Called when an endpoint has become available or unavailable (master/fleet/waiters.h); may be
 * unset. */
void fleet_waiters(struct fleet *f, struct waiters *ws);

/* Whose the endpoint tables are, for check_segment(). */
const struct rcu_writer *fleet_writer(const struct fleet *f);

/* Reaping a dead worker freed reservations or reader lines: slots and arenas may be free now.  The worker may have set
 * a sign of a restart without waking the master. */
void fleet_worker_reaped(struct fleet *f);
