/*
 * `pdctl drain`, `undrain`, `weight` and what is in flight, over all instances: this one does what the operator wants and tells
 * the older ones (takeover.h).  The answer comes when each of them has said what it has left there, and when the state_file
 * has been written.  A weight is not waited for: an older instance chooses engines only if it has to serve again.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "master/fleet/drain.h"

struct drains;
struct event_base;
struct evbuffer;
struct takeover;

struct drains_hooks {
	/* The lines of the answer and its end: error NULL is OK.  May be called before drains_ask() returns. */
	void (*done)(void *arg, uint64_t ticket, struct evbuffer *text, const char *error);
	void *arg;
};

/* The caller owns the fleet and the takeover, which outlive the struct drains. */
struct drains *drains_new(struct event_base *base, struct fleet *fleet, struct takeover *takeover,
	const struct drains_hooks *hooks);
void drains_free(struct drains **); /* NULL is fine; what waits gets no answer */

/* `words` name endpoints (drain.h, weight.h).  Each ticket is higher than the one before, also over instances. */
void drains_ask(struct drains *d, enum drain_what what, uint64_t ticket, const char *words);
/* The client that was to get the answer has gone. */
void drains_forget(struct drains *d, uint64_t ticket);

/* Once per loop turn. */
void drains_turn(struct drains *d);

/* For the hooks of the takeover. */
void drains_said(struct drains *d, uint64_t ticket, const struct drain_left *left);
void drains_gone(struct drains *d, uint64_t said);
