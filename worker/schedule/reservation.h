/*
 * One place of one endpoint, counted in shared memory (shm/load.h) from selection until it is released, and
 * what this request owes the endpoint's books: a half-open trial, a busy mark, an outcome.
 *
 * Process: worker.
 * Ownership: an attempt's, one per role.  A reservation is never shared or lent: reservation_move() is the one
 * function by which the place of one attempt becomes another's.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"

struct endpoint;
struct worker;

enum reservation_state {
	RESERVATION_NONE, /* no place is held */
	RESERVATION_HELD,
	RESERVATION_SENT, /* held, and a request is with the engine: load_sent() */
};

struct reservation {
	struct endpoint *
		ep; /* a reference; stays when the place is released, for the log.  NULL: none chosen */
	uint32_t pool;  /* id */
	enum role role; /* of the pool's list it was chosen from */
	enum reservation_state state;
	uint32_t tokens; /* counted at the endpoint with the place */
	uint64_t
		trial; /* the one request that tries an ejected endpoint (shm/eject.h); 0: it is not */
	uint64_t busy; /* what it found at a busy endpoint (shm/busy.h); 0: not busy */
	bool recorded; /* this exchange's outcome is in the endpoint's books (outcome.h) */
};

/* A request goes out to the engine; its exchange is over, in whatever way. */
void reservation_sent(struct worker *w, struct reservation *r);
void reservation_answered(struct worker *w, struct reservation *r);
/* Gives the place back, and wakes who waits for one.  Idempotent.  The endpoint stays known. */
void reservation_release(struct worker *w, struct reservation *r);
/* Gives back the place, the trial and the endpoint. */
void reservation_drop(struct worker *w, struct reservation *r);
/* The place changes hands as it is, so that nobody else can take it in between: `from` holds none afterwards.
 * Both must be of one endpoint, and `to` must hold no place. */
void reservation_move(struct worker *w, struct reservation *from, struct reservation *to);
/* Takes a place of the same endpoint again if it is up, is still the same, and has room.  False: none is held. */
bool reservation_again(struct worker *w, struct reservation *r, uint32_t tokens);
