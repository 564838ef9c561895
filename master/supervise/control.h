/*
 * The control socket: a unix stream socket with a line protocol, for pdctl and scripts.
 *
 *   reload | reload dry-run | config diff | status | status json | workers | check | ping
 *   drain | undrain | in-flight, each with ENDPOINT [role=ROLE] [pool=POOL]
 *
 * Each answer is any number of lines and then `OK` or `ERR text`.  A reload is answered when the
 * configuration is in force or refused.  Commands may follow each other: each is run when the answer to
 * the one before it is written.
 *
 * Process: master.  Bounded: 16 clients, lines of 1 KiB, one answer, 5 s of silence or of not reading.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct control;
struct evbuffer;
struct event_base;

struct control_hooks {
	uint64_t (*reload)(void *arg); /* the attempt to wait for; 0: not now */
	/* what a reload would change, in lines of text.  0, or -1 with the reason in error */
	int (*preview)(void *arg, bool dry_run, struct evbuffer *out, char *error, size_t size);
	void (*status)(void *arg, struct evbuffer *out, bool json);
	void (*workers)(void *arg, struct evbuffer *out);
	/* What they do to the endpoints that `what` names, in lines of text.  0, or -1: then *out is the
	 * reason, without its end. */
	int (*drain)(void *arg, const char *what, struct evbuffer *out);
	int (*undrain)(void *arg, const char *what, struct evbuffer *out);
	int (*in_flight)(void *arg, const char *what, struct evbuffer *out);
	/* a line for each broken invariant of the shared memory; returns how many there are */
	unsigned (*check)(void *arg, struct evbuffer *out);
	void *arg;
};

/*
 * Makes the socket, mode 0600, and its directory if missing.  The socket file of a process that has died is
 * replaced.  Returns 0, or -1 with an error in the log if another pdrouter has the socket.  When the socket
 * cannot be made for another reason, the log has a warning and *ret is NULL: pdrouter works without it.
 */
int control_new(struct event_base *base, const char *path, const struct control_hooks *hooks,
	struct control **ret);
void control_free(struct control **); /* NULL is fine; removes the socket file */

/* Answers the clients that wait for this attempt (exact) or for any up to it.  error NULL: OK. */
void control_reloaded(
	struct control *c, uint64_t attempt, bool exact, const char *error, const char *notes);
