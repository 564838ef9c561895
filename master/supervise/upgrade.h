/*
 * Replacing this instance by a new one, of another version or of the same, without losing a request: SIGUSR2 or
 * `pdctl upgrade`.  The new instance has a master, workers and a shared segment of its own.  What both have is passed as
 * descriptors (inherit.h).  The other side is takeover.h.
 *
 *                reload over          good                  `ready`            notifier gone
 *   NONE -> WAITING -----> CHECKING ------> STARTING ---------------> GIVING ------------> TRIAL ----> OVER
 *    ^         | too late     | wrong         | ended, too late          | ended            | ended   upgrade_trial
 *    +---------+--------------+---------------+--------------------------+------------------+         is over
 *
 * WAITING   for the end of a reload, and of this instance's own trial.  Then the old generations must leave enough slots
 *           for this instance to start its workers again
 * CHECKING  the new program reads the configuration (-t)
 * STARTING  the new instance gets ready; this one serves
 * GIVING    the notifier of this instance ends, since the new one needs its address; so does a write of the state_file
 * TRIAL     the new instance serves, and this one finishes its requests.  It keeps the listening sockets: when the new
 *           instance ends, it starts new workers and serves again
 * OVER      only the requests are left
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>

struct control;
struct event_base;
struct fleet;
struct listeners;
struct procs;
struct reload;
struct sd;
struct seg;
struct takeover;
struct upgrade;

/* The caller owns all parts; they must outlive the struct upgrade. */
struct upgrade_parts {
	struct event_base *base;
	char *const *argv; /* the command line of this process */
	struct seg *seg;
	struct sd *sd;
	struct listeners *listeners;
	struct fleet *fleet;
	struct procs *procs;
	struct reload *reload;
	struct takeover *takeover;
	struct control *const *control; /* NULL while there is none */
};

struct upgrade_hooks {
	/* The newer instance stops, and so must this one. */
	void (*stop)(void *arg, bool now);
	void *arg;
};

struct upgrade *upgrade_new(const struct upgrade_parts *parts, const struct upgrade_hooks *hooks);
void upgrade_free(struct upgrade **); /* NULL is fine */

/*
 * Starts an upgrade; `reason` is for the log.  The log and the clients of the control socket get the outcome.
 * Returns NULL, or why there can be none now (static).
 */
const char *upgrade_start(struct upgrade *u, const char *reason);
/* Once per loop turn. */
void upgrade_turn(struct upgrade *u);
/* SIGCHLD. */
void upgrade_sigchld(struct upgrade *u);
/* This instance stops: so does a new one in its trial; one that does not serve yet is ended. */
void upgrade_stop(struct upgrade *u, bool now);
/* A new instance in its trial stops: this one is the main process of the service and has to exit last. */
bool upgrade_waits(const struct upgrade *u);
/* This instance has been replaced and has only requests to finish. */
bool upgrade_is_over(const struct upgrade *u);
