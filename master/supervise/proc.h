/*
 * One child process: its state table, from the start to the back-off before its successor.
 *
 * Process: master.  Only procs.c and the unit test include this.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "master/supervise/child.h"

struct door_fd;
struct evbuffer;
struct event;
struct event_base;
struct notices_to;
struct seg;

struct generation {
	uint32_t number; /* 0: this place is free */
	const struct conf *conf;
	struct door_fd *fds;
	size_t nfds;
	uint32_t wanted; /* processes */
	bool told_ready;
	bool refused;
	uint64_t drain_from_ms; /* since when it drains; 0: it does not */
	uint64_t end_ms; /* when its remaining requests are ended; GENERATION_NO_END: never */
};
#define GENERATION_NO_END UINT64_MAX

/*
 *            START           READY             DRAIN             QUIT or time is up     2 s
 *   idle -----------> starting -----> ready ------------> draining ---------> quitting -----> SIGKILL
 *    ^                  ^  \_________________________________^ |                 |
 *    |           100 ms |      |                               |                 |
 *    |           .. 10 s|      | exit                          | exit            | exit
 *    |                 dead <--+                               |                 |
 *    +---- DRAIN -------+                                      |                 |
 *    +<---------------------------------------------------- ---+-----------------+
 *
 * idle      no process, and none is needed; the slot is free
 * starting  forked, has not reported ready; killed if its heartbeat stops
 * ready     can serve; a worker does so once its generation is in force, and is told (SERVE)
 * draining  told to finish, until its generation's end_ms; a second DRAIN looks at end_ms again
 * quitting  told to end the remaining requests with an error
 * dead      reaped; its successor comes when the back-off is over
 */
enum proc_phase { PS_IDLE, PS_STARTING, PS_READY, PS_DRAINING, PS_QUITTING, PS_DEAD, PS_NSTATES };
enum proc_event {
	PE_START,
	PE_READY,
	PE_SERVE,
	PE_DRAIN,
	PE_QUIT,
	PE_EXIT,
	PE_REFUSE,
	PE_TIMER,
	PE_N
};

/* What all processes share.  W: procs.c */
struct proc_env {
	struct event_base *base;
	struct seg *seg;
	const int *wake_fds;
	const struct conf *conf; /* in force; NULL before the first */
	uint32_t generation;     /* in force: its workers serve, unless `held` */
	bool held;               /* this instance has yet to replace another one */
	int notices_from;        /* struct heritage; 0: the notifier has its own sockets */
	const struct notices_to *notices_to;
	size_t nnotices_to;
	pid_t master;
	struct identity as;      /* whose rights children get */
	struct event *ev_settle; /* made active by whatever may have completed something */
	/* After waitpid and after everything the process held in shared memory was given back. */
	void (*reaped)(void *arg);
	void *arg;
};

#define PROC_DIES_YOUNG_MS                                                                         \
	400 /* backoff_ms after the third death, if no process has lived for 10 s */

struct proc {
	const struct proc_env *env;
	const struct proc_kind *kind;
	uint32_t slot;
	enum proc_phase state;
	struct generation *gen; /* NULL: a single process */
	char *identity;         /* of a single process, as it was started */
	pid_t pid;              /* 0: none */
	int channel;            /* -1: none */
	struct event *ev_channel;
	struct event *ev_timer;
	uint64_t started_ms;
	uint64_t backoff_ms; /* that preceded this process, or is to end; 0: none */
	uint64_t restarts;
	bool refused; /* single process: said "do not respawn me"; asked again after a reload */
	uint64_t heartbeat; /* that the last tick saw */
	bool hangs;         /* it was killed for its silence; dying may take it a while */
};

void proc_init(struct proc *p, const struct proc_env *env, uint32_t slot);
/* Kills the process if it lives, and waits for it. */
void proc_fini(struct proc *p);

void proc_post(struct proc *p, enum proc_event ev);
/* waitpid() has returned this process with this status. */
void proc_reap(struct proc *p, int status);
/* One line for people, or one JSON object. */
void proc_status(const struct proc *p, struct evbuffer *out, bool json);

/* For the unit test: the state table has no empty cell; the delay before a respawn, by the one before
 * and by how long the process lived. */
const char *proc_phase_name(enum proc_phase state);
bool proc_handles(enum proc_phase state, enum proc_event event);
uint64_t proc_backoff_ms(uint64_t last_ms, uint64_t lived_ms);
