/*
 * `pdctl drain`: an endpoint gets no new requests, and its requests in flight continue.  The endpoint is
 * drained when none is left and its engine holds no KV that a decode engine has yet to fetch.  Draining is one
 * store into the endpoint's state word (state.h), never a publication.  Probes continue and do not bring
 * the endpoint back.  A drain outlives a reload, and with a state_file a restart (keep.h), but not the
 * endpoint's removal from the configuration.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct evbuffer;
struct fleet;

/*
 * `what` names endpoints (wanted.h).  Both append lines of text.  They return 0, or -1: then *out holds the reason, one
 * line without its end.
 */

/* One line for each pool and role of the endpoint, then the consequences. */
int drain_begin(struct fleet *f, const char *what, struct evbuffer *out);
/* One line for each: what has ended, a drain, an ejection, or that it was busy; and its state now. */
int drain_end(struct fleet *f, const char *what, struct evbuffer *out);
/* If the state_file lacks a drain or a weight (`what`, in the plural): the line that says so. */
void drain_print_unsaved(const struct fleet *f, const char *what, struct evbuffer *out);

/* What keeps endpoints from being drained. */
struct drain_left {
	uint32_t in_flight; /* requests */
	uint32_t kv;        /* KV that its engine holds and no decode engine has fetched */
	/* `draining`, `serving` if the endpoint is not drained in one of its pools and roles, or `gone` if it is
	 * neither configured nor has requests or KV (static) */
	const char *word;
	/* of this instance: how many of the endpoints get requests now, and how many there are.  A draining one that is
	 * no longer configured does not count. */
	uint32_t up, n;
};
/* What this instance has left there.  0, or -1 with the reason in *out. */
int drain_look(
	const struct fleet *f, const char *what, struct drain_left *ret, struct evbuffer *out);

/* --- an older instance, which the newest one tells what its operator wants --- */
enum drain_what { DRAIN_BEGIN, DRAIN_END, DRAIN_LOOK, DRAIN_WEIGHT /* weight.h */ };
/* Drains, undrains or looks at all endpoints that `words` mean, and says what is left there.  False: these are not understood. */
bool drain_follow(struct fleet *f, enum drain_what what, const char *words, struct drain_left *ret);
