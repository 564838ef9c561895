/*
 * The control socket: a unix stream socket with a line protocol, for pdctl and scripts.
 *
 *   reload | reload dry-run | config diff | upgrade | status | status json | workers | prefix | check | ping
 *   log-level LEVEL | explain [bytes=N] [json] MODEL: N bytes of a prompt follow, when `MORE` has come
 *   requests [json] [slower=MS] | request [json] ID
 *   drain | undrain | in-flight | weight N | weight default, each with endpoints (master/fleet/wanted.h)
 *
 * An instance that does not know of prompts answers `ERR`: then nothing may follow, since it would take that for commands.
 *
 * Each answer is any number of lines and then `OK` or `ERR text`.  A reload is answered when the
 * configuration is in force or refused, an upgrade when the new instance has proven itself or has failed.  Commands may follow each other: each is run when the answer to
 * the one before it is written.  A long answer, that to `requests` and `request`, is made in parts, as the client reads it.
 *
 * Process: master.  Bounded: 16 clients, lines of 1 KiB, prompts of 4 MiB, one answer, 5 s of silence or of not reading.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "master/fleet/drain.h"

struct control;
struct evbuffer;
struct event_base;
struct inherit;
struct requests;

struct control_hooks {
	uint64_t (*reload)(void *arg); /* the attempt to wait for; 0: not now */
	/* starts an upgrade; NULL, or why there can be none now */
	const char *(*upgrade)(void *arg);
	/* what a reload would change, in lines of text.  0, or -1 with the reason in error */
	int (*preview)(void *arg, bool dry_run, struct evbuffer *out, char *error, size_t size);
	/* Each returns 0, or -1 with the reason in *out.  `prompt`: n bytes, or NULL. */
	int (*explain)(
		void *arg, const char *what, const char *prompt, size_t n, struct evbuffer *out);
	int (*log_level)(void *arg, const char *word, struct evbuffer *out);
	/* requests_new() */
	struct requests *(*requests)(void *arg, bool find, const char *what, struct evbuffer *out);
	void (*status)(void *arg, struct evbuffer *out, bool json);
	void (*workers)(void *arg, struct evbuffer *out);
	void (*prefix)(void *arg, struct evbuffer *out);
	/* The answer comes by control_drained(), at once or later. */
	void (*drain)(void *arg, enum drain_what what, uint64_t ticket, const char *words);
	void (*forget_drain)(void *arg, uint64_t ticket); /* its client has gone */
	/* a line for each broken invariant of the shared memory; returns how many there are */
	unsigned (*check)(void *arg, struct evbuffer *out);
	void *arg;
};

/*
 * Makes the socket, for its owner only, and its directory if missing.  The socket file of a process that has died is
 * replaced.  Returns 0, or -1 with an error in the log if another pdrouter has the socket.  When the socket
 * cannot be made for another reason, the log has a warning and *ret is NULL: pdrouter works without it.
 */
int control_new(struct event_base *base, const char *path, const struct control_hooks *hooks,
	const struct inherit *in, struct control **ret);
/* The socket's permissions and its group (NULL: that of the process), from when this instance accepts commands on.  A
 * failure is logged, and only the owner can connect then.  `c` NULL is fine. */
void control_permit(struct control *c, uint32_t mode, const char *group);
void control_free(
	struct control **); /* NULL is fine; removes the socket file, unless control_leave() */

/* A new instance gets the socket and its lock. */
void control_pass(const struct control *c, struct inherit *in);
/* Commands are not accepted: another instance accepts them.  Clients that have been accepted are served. */
void control_pause(struct control *c, bool pause);
/* The new instance has the socket for ever: after control_pause(), the socket and its lock are closed here. */
void control_leave(struct control *c);
/*
 * No client waits for an answer, or for the rest of one.  A client whose first command has not come yet may have sent it: it
 * counts until its silence ends it.
 */
bool control_is_quiet(const struct control *c);
/* The older instance no longer needs the inherited socket: it is removed, unless it is the one that is used. */
void control_own(struct control *c, const struct inherit *in);
/* A line for the clients that wait for an upgrade; with `end` it is the last one, and `error` the outcome. */
void control_upgraded(struct control *c, const char *line, bool end, const char *error);

/* Answers the client with this ticket: the lines, and the end.  error NULL: OK. */
void control_drained(struct control *c, uint64_t ticket, struct evbuffer *text, const char *error);

/* Answers the clients that wait for this attempt (exact) or for any up to it.  error NULL: OK. */
void control_reloaded(
	struct control *c, uint64_t attempt, bool exact, const char *error, const char *notes);
