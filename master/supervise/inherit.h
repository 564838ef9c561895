/*
 * What an instance of pdrouter passes to the one that is to replace it (upgrade.h): descriptors, named by one
 * environment variable.
 *
 *	PDR_UPGRADE="instance=2 from=1:7:9 old=0:4:5 state=8 listen=5 systemd=6 control=10:11 state_lock=12"
 *
 *	instance=N           number of the new instance
 *	from=N:TALK:NOTICES  the instance that passes: its number, a socket to talk to its master, a socket
 *	                     for the notices that belong to its requests
 *	old=N:TALK:NOTICES   the same of each older instance that still has requests
 *	state=FD             a memfd; has the drains when the old instance says `take`
 *	listen=FD            a listening socket that pdrouter has made; systemd=FD: one that systemd has made
 *	control=FD:LOCK      the control socket and its lock file; state_lock=FD: the lock file of the state_file
 *
 * Two versions of pdrouter have to understand each other in both directions: a reader ignores words that it
 * does not know, and further fields of a word that it knows.  Of `old`, `listen` and `systemd` there may be several.
 *
 * Process: master.  The parser opens and closes nothing.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INHERIT_ENV "PDR_UPGRADE"
#define INHERIT_OLD_MAX 16 /* older instances that still have requests */
#define INHERIT_LISTEN_MAX 256
#define INHERIT_FD_MAX 1048576

/* An older instance. */
struct inherit_old {
	uint32_t instance;
	int talk, notices;
};

struct inherit {
	uint32_t instance; /* 0: this process was not started by another one */
	struct inherit_old from;
	struct inherit_old old[INHERIT_OLD_MAX];
	size_t nold;
	int state, control, control_lock, state_lock; /* -1: none */
	struct {
		int fd;
		bool ours; /* false: systemd has made it */
	} listen[INHERIT_LISTEN_MAX];
	size_t nlisten;
};

/* Nothing is passed. */
void inherit_init(struct inherit *in);
/* Returns 0, or -1 with *ret_why one English phrase (static). */
int inherit_parse(const char *text, struct inherit *ret, const char **ret_why);
/* The caller frees it. */
char *inherit_text(const struct inherit *in);
/* Calls fn for each descriptor. */
void inherit_each(const struct inherit *in, void (*fn)(int fd, void *arg), void *arg);
