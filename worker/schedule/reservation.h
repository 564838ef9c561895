/*
 * A slot of an endpoint, counted in shared memory (shm/load.h) from selection until it is released, and what
 * the request owes the endpoint: the end of a half-open trial, a busy mark, an outcome.
 *
 * Process: worker.
 * Ownership: an attempt's, one per role.  A reservation is never shared: reservation_move() is the one function
 * by which the slot of one attempt becomes another attempt's.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "shm/prefix.h"

struct endpoint;
struct worker;

enum reservation_state {
	RESERVATION_NONE, /* no slot is held */
	RESERVATION_HELD,
	RESERVATION_SENT, /* held, and a request is with the engine: load_sent() */
};

struct reservation {
	/* a reference; stays when the slot is released, for the log.  NULL: no endpoint is chosen */
	struct endpoint *ep;
	uint32_t pool;  /* id */
	enum role role; /* of the list of the pool that the endpoint was chosen from */
	enum reservation_state state;
	uint32_t tokens;           /* counted at the endpoint with the slot */
	struct prefix_guess guess; /* cache_aware: what is expected in its cache */
	bool kept;                 /* fact, with those: the prompt stands in the prefix index */
	uint64_t life;             /* of the engine when it was chosen (shm/restart.h) */
	uint64_t trial; /* the half-open trial that this request is (shm/eject.h); 0: none */
	uint64_t busy;  /* the mark found at a busy endpoint (shm/busy.h); 0: not busy */
	bool recorded;  /* the outcome of this exchange is recorded (outcome.h) */
};

/* What one attempt holds: an endpoint of each role that its connector needs.  An attempt with one engine has
 * the reservation at of[ROLE_DECODE], whatever the engine's role. */
struct reserved {
	struct reservation of[ROLE_N];
};

/* Returns true if the engine, and its slot, are still in the life in which it was chosen: an exchange with a former one
 * shows nothing of the present one. */
bool reservation_of_this_life(const struct worker *w, const struct reservation *r);
/* A request goes out to the engine; the exchange is over, in whatever way. */
void reservation_sent(struct worker *w, struct reservation *r);
void reservation_answered(struct worker *w, struct reservation *r);
/* Gives the slot back, and wakes a request that waits for one.  Idempotent.  The endpoint stays known. */
void reservation_release(struct worker *w, struct reservation *r);
/* No outcome will come: another request may take the half-open trial, or the busy mark, that this one had. */
void reservation_drop_trial(struct worker *w, struct reservation *r);
/* Gives back the slot, the trial and the endpoint. */
void reservation_drop(struct worker *w, struct reservation *r);
/* The slot moves as it is, so that no other request can take it in between: `from` holds none afterwards.
 * Both must be of one endpoint, and `to` must hold no slot. */
void reservation_move(struct worker *w, struct reservation *from, struct reservation *to);
/* Takes a slot of the same endpoint again if it is up, is still the same, and has room.  False: none is held. */
bool reservation_again(struct worker *w, struct reservation *r, uint32_t tokens);
