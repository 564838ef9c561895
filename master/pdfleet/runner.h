/*
 * What starts and ends the units of this host: systemd, or pdfleet itself where there is no systemd.
 *
 * A unit is `pdrouter-engine@NAME` or `pdrouter`.  The functions read the definitions that stand in
 * the folders of `paths`; none of them knows the fleet file.  All return 0, or -1 after a message on stderr.
 */
#pragma once
#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#include "master/topology/engine.h"
#include "shm/base/mem.h"

enum unit_state {
	UNIT_ABSENT,   /* nothing defines it, and it has no process */
	UNIT_STOPPED,  /* it has been stopped, or never started */
	UNIT_STARTING, /* systemd is about to execute its program */
	UNIT_RUNNING,  /* its main process is there; whether it serves, its health tells */
	UNIT_STOPPING, /* its main process is there, and has been told to end */
	UNIT_FAILED,   /* its main process ended by itself; systemd may start it again */
	UNIT_STATE_N
};
const char *unit_state_name(enum unit_state state);

struct unit_status {
	enum unit_state state;
	pid_t pid;    /* of the main process; 0: none */
	time_t since; /* beginning of the state; 0: unknown */
};

struct runner;
struct runner_ops {
	const char *name;
	int (*status)(const struct runner *r, const char *unit, struct unit_status *ret);
	/* Returns when the program runs, or systemd has tried.  A unit that runs stays as it is; one that is
	 * stopping ends first. */
	int (*start)(const struct runner *r, const char *unit);
	/* SIGTERM to the main process, SIGKILL to all of the unit after r->stop_s.  Returns when the unit has
	 * no process.  A unit that does not run is fine. */
	int (*stop)(const struct runner *r, const char *unit);
	/* The unit is not started at boot any more, and a failure of it is forgotten. */
	int (*forget)(const struct runner *r, const char *unit);
	/* The definitions have changed. */
	int (*reload)(const struct runner *r);
	/* Appends the last `n` lines of the unit's log; without systemd that is of its last start. */
	int (*last)(const struct runner *r, const char *unit, unsigned n, struct membuf *out);
	/* Becomes a program that prints the last `n` lines and what follows; returns on failure only. */
	int (*follow)(const struct runner *r, const char *unit, unsigned n);
};

/* Where the files of this host are, and what runs its units.  The texts belong to the runner. */
struct runner {
	const struct runner_ops *ops;
	struct topo_paths paths;
	char *run;       /* folder of pid files, logs and the lock; ends with a slash */
	bool user;       /* systemd: the manager of the user, not that of the system */
	unsigned stop_s; /* longest time of a stop without SIGKILL; systemd has it in the unit */
};

/* systemd of the machine, which needs root: files below /etc. */
struct runner *runner_system(void);
/* systemd of the user: files below ~/.config.  NULL after a message: there is no home. */
struct runner *runner_user(void);
/* No systemd: all files below `dir`; processes that pdfleet starts.  NULL after a message. */
struct runner *runner_plain(const char *dir);
/* NULL is fine; *r becomes NULL. */
void runner_free(struct runner **r);

#define RUNNER_LOG_LINES 10 /* that are shown of a log */
/* Prints the last lines of the unit's log on stderr. */
void runner_show_log(const struct runner *r, const char *unit);

/* Path of a unit's drop-in; the caller frees it. */
char *runner_drop_in(const struct runner *r, const char *unit);

/* Inside runner*.c */
extern const struct runner_ops runner_systemd_ops, runner_plain_ops;
/* The answer of `systemctl show` with the properties of runner_systemd.c. */
void runner_systemd_parse(const char *text, struct unit_status *ret);
