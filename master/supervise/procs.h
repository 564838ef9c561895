/*
 * All child processes: generations of workers, the notifier, heartbeats, shutdown.
 *
 * Process: master.
 * A generation is the set of workers of one configuration.  The one in force, the one that is to replace
 * it (starting) and those that were replaced (draining) live at once, as many as procs_generation_fits().
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "master/supervise/child.h"

struct conf;
struct event_base;
struct evbuffer;
struct door_fd;
struct notices_to;
struct procs;
struct seg;

/*
 * Events that procs.c reports to its owner.  All but reaped() are called from an event of their own, never
 * from inside a procs_x() call, so the owner may call any function of procs.h.
 */
struct procs_hooks {
	void (*ready)(void *arg, uint32_t generation); /* all its workers can serve; once */
	/* one said "do not respawn me" before ready() */
	void (*refused)(void *arg, uint32_t generation);
	/* its last process is dead and none will follow */
	void (*gone)(void *arg, uint32_t generation);
	/* After waitpid and after everything the process held in shared memory was given back. */
	void (*reaped)(void *arg);
	void *arg;
};

/* `kinds` ends with a row without a name; wake_fds is indexed by process slot.  The caller owns all arguments;
 * they must outlive the result. */
struct procs *procs_new(struct event_base *base, struct seg *seg, const struct proc_kind *kinds,
	const int *wake_fds, const struct procs_hooks *hooks);
/* Before the first generation: whose rights children get.  Without it they get the master's own. */
void procs_identity(struct procs *ps, const struct identity *as);
void procs_free(struct procs **); /* kills what still lives */

/*
 * Whether one more generation may start: at most GENERATIONS_MAX live, and all their workers fit into the
 * worker slots.
 */
#define GENERATIONS_MAX 8
bool procs_generation_fits(const struct procs *ps, const struct conf *conf);
/* So that it fits: the oldest draining generations, as few as needed, must end within the drain_ms in force. */
void procs_make_room(struct procs *ps, const struct conf *conf);
/*
 * Starts a generation that fits, with these listening sockets (copied).  Returns its number.  `conf`
 * must live until the generation has ended or has another one (procs_conf_set()).
 */
uint32_t procs_generation_start(
	struct procs *ps, const struct conf *conf, const struct door_fd *fds, size_t nfds);
/*
 * `generation` and `conf` are in force from now on: its workers serve, single processes are started, stopped or
 * replaced as conf says, every other generation drains (reload_drain_ms of conf from its first drain on),
 * respawned workers use conf.
 */
void procs_conf_set(struct procs *ps, const struct conf *conf, uint32_t generation);
/* Ends a generation without a drain: its workers end their requests with an error. */
void procs_generation_quit(struct procs *ps, uint32_t generation);
unsigned procs_generations(const struct procs *ps); /* how many live */

/*
 * This instance is to replace another one (upgrade.h): until procs_release() its workers get ready and do not serve,
 * and the notifier, whose address the other one has, does not start.
 */
void procs_hold(struct procs *ps);
void procs_release(struct procs *ps);
/*
 * Notices come from a newer instance over this socket: the notifier with its own sockets ends, and one that reads the
 * socket follows; 0: back.  The other sockets lead to older instances.  The caller owns all of them.
 */
void procs_notices_from(struct procs *ps, int fd);
void procs_notices_to(struct procs *ps, const struct notices_to *to, size_t n);
/* No notifier lives that has sockets of its own. */
bool procs_notices_left(const struct procs *ps);
/* A newer instance serves: all generations drain for limit_ms (0: no limit), and none is in force.  Again: the sooner end
 * counts. */
void procs_retire(struct procs *ps, uint64_t limit_ms);

/* SIGCHLD: reaps the children that have died. */
void procs_sigchld(struct procs *ps);
/* Shutdown: drains everything; hooks->gone() is called per generation, procs_alive() becomes 0. */
void procs_stop(struct procs *ps);
/* The same without patience: children end what they have; those that do not are killed after 2 s. */
void procs_stop_now(struct procs *ps);
/* Processes that live or will be respawned. */
unsigned procs_alive(const struct procs *ps);

/* A worker has died three times in a row, each time soon after its start. */
bool procs_die_young(const struct procs *ps);

/* The processes for `status` and `workers`: lines for people, or a JSON array. */
void procs_status(const struct procs *ps, struct evbuffer *out, bool json);
