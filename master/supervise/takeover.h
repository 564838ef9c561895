/*
 * This instance and the older ones: taking the place of the instance that has started this one, and then whatever the
 * older instances still do.  The other side is upgrade.h.
 *
 *   STARTING   own workers get ready, engines are probed; the older instance serves
 *   READY      it knows that this instance can serve
 *   TRIAL      it has said `take`: this instance serves; the older one finishes its requests and could serve again
 *   FINAL      it has said `final`, or there was none.  The newest instance has all that there is to own.
 *   GIVEN_UP   from all but FINAL: this instance ends.  The older one sees its end, and serves on or again.
 *
 * Older instances finish their requests.  They stop when this instance stops, which waits for them, unless it has given
 * up.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "master/fleet/drain.h"

struct control;
struct evbuffer;
struct event_base;
struct fleet;
struct inherit;
struct listeners;
struct procs;
struct reload;
struct sd;
struct seg;
struct takeover;

struct takeover_parts {
	struct event_base *base;
	struct seg *seg;
	struct sd *sd;
	struct listeners *listeners;
	struct fleet *fleet;
	struct procs *procs;
	struct reload *reload;
	struct control *const *control; /* NULL while there is none */
	const struct inherit *in;       /* must outlive the takeover */
};

struct takeover_hooks {
	/* The older instance has ended, or does not want this one: the end, if this one does not serve yet. */
	void (*refused)(void *arg);
	/* This instance cannot go on in its trial. */
	void (*failed)(void *arg, const char *why);
	/* The older instance stops, and so must this one. */
	void (*stop)(void *arg, bool now);
	/* An older instance answers what takeover_tell() has told it: what it has left there. */
	void (*said)(void *arg, uint64_t number, const struct drain_left *left);
	/* An older instance has ended.  It had answered all numbers up to this one. */
	void (*gone)(void *arg, uint64_t said);
	void *arg;
};

/* Tells the sender of `in` each error that is logged, from now on until this instance serves. */
void takeover_report_errors(const struct inherit *in);

struct takeover *takeover_new(
	const struct takeover_parts *parts, const struct takeover_hooks *hooks);
void takeover_free(struct takeover **); /* NULL is fine */

/* Once per loop turn. */
void takeover_turn(struct takeover *t);
/* This instance cannot go on; the older one is told why.  True if that one serves on or again as soon as this one has
 * ended.  False if there is none that could: takeover_stop(). */
bool takeover_give_up(struct takeover *t, const char *why);
/* This instance stops: so do the older ones, if this one serves. */
void takeover_stop(struct takeover *t, bool now);
/* How many older instances this one has to wait for before it exits. */
unsigned takeover_waits_for(const struct takeover *t);
/* Tells the older instances what the operator wants (drain.h); returns how many they are.  Each number is higher than the one
 * before. */
size_t takeover_tell(struct takeover *t, enum drain_what what, uint64_t number, const char *words);

/* --- for upgrade.c: this instance is to be replaced in turn --- */
/* NULL: this instance can be replaced as soon as takeover_is_final().  Else why not.  Ends the trial. */
const char *takeover_make_final(struct takeover *t);
bool takeover_is_final(const struct takeover *t);
/* Adds the older instances to what the new instance gets. */
void takeover_pass(const struct takeover *t, struct inherit *in);
/* The new instance talks to the older ones. */
void takeover_pause(struct takeover *t, bool pause);
/* The new instance does so for ever. */
void takeover_leave(struct takeover *t);

/* A line for each older instance, or a JSON array. */
void takeover_status(const struct takeover *t, struct evbuffer *out, bool json);
