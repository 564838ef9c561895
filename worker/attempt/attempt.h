/*
 * An attempt: one try to serve a branch of a request, with one engine of each role that the hand-shake needs.
 *
 * A branch has one attempt at a time.  A retry, a resumed stream and a prefill that is done again are new attempts:
 * the old one is detached.  A detached attempt has no client; it only releases what its engines still hold,
 * and ends.
 *
 * Three small state machines advance independently; each has one function that writes it (attempt.c):
 *
 *   prefill   NOT_NEEDED   IDLE --> SENT --> ANSWERED
 *                                     `----> FAILED
 *   decode    IDLE --> SENT --> WITHHELD <--> RELAYING --> ENDED
 *               ^       |          |             `-------> FAILED
 *               `-------+----------'   sent again: other KV parameters, or another engine
 *   kv        NONE --> PREDICTED --> HELD --> DELIVERED --> SPENT
 *
 * A lookup precedes them where something must be known before a leg can be made.
 *
 * Process: worker.
 * Ownership: the branch owns its attempt; a detached attempt is the worker's.  attempt_end() is the one end; the loop
 * frees the attempt after the turn, so that a late callback finds a live object.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/answer/sse.h"
#include "shm/base/mem.h"
#include "shm/metrics.h"
#include "worker/base/end_list.h"
#include "worker/handshake/transfer.h"
#include "worker/net/leg.h"
#include "worker/schedule/reservation.h"

struct attempt;
struct req;

/* The first two are roles: enum role converts. */
enum leg_kind { LEG_PREFILL = ROLE_PREFILL, LEG_DECODE = ROLE_DECODE, LEG_LOOKUP, LEG_N };

enum attempt_life {
	ATTEMPT_SERVING,  /* its branch waits for it */
	ATTEMPT_DETACHED, /* nobody does: it releases what engines hold */
	ATTEMPT_OVER,     /* to be freed after the turn */
};

enum attempt_kind {
	ATTEMPT_FIRST,
	ATTEMPT_OTHER,         /* other engines, after a failure */
	ATTEMPT_PREFILL_AGAIN, /* the KV of the one before had become too old: once */
};

enum lookup_state {
	LOOKUP_NOT_NEEDED,
	LOOKUP_DUE, /* to be sent, or another attempt of this worker asks the same */
	LOOKUP_SENT,
	LOOKUP_KNOWN,
	LOOKUP_FAILED,
	LOOKUP_N
};

enum prefill_state {
	PREFILL_NOT_NEEDED,
	PREFILL_IDLE,
	PREFILL_SENT,
	PREFILL_ANSWERED, /* and the answer was of use */
	PREFILL_FAILED,
	PREFILL_N
};

enum decode_state {
	DECODE_IDLE,
	DECODE_SENT,
	DECODE_WITHHELD, /* it answers, but that may not be relayed yet: enum withheld says why */
	DECODE_RELAYING,
	DECODE_ENDED, /* all of its answer has been taken over */
	DECODE_FAILED,
	DECODE_N
};

enum withheld {
	WITHHELD_NOT,
	WITHHELD_SPECULATION,  /* the prefill engine has not confirmed what decode was sent */
	WITHHELD_CACHE_CHECK,  /* asked first, it may still say that it has too little of the KV */
	WITHHELD_COLLECTING,   /* the whole answer is rewritten, or no whole event is here */
	WITHHELD_PREFILL_PART, /* the answer begins with the prefill engine's part */
	WITHHELD_SLOW_CLIENT,  /* whole events wait for the client to read */
};

enum kv_state {
	KV_NONE,
	KV_PREDICTED, /* decode was sent parameters that the prefill engine has not confirmed */
	KV_HELD,      /* the prefill engine holds blocks for this attempt */
	KV_DELIVERED, /* a decode engine has the parameters */
	KV_SPENT,     /* that decode engine has failed: they must not be used again */
	KV_N
};

/* One sample or one prompt of a request; usually there is one branch. */
struct branch {
	struct req *req;
	uint32_t index; /* of its choice in the answer */
	struct attempt *attempt;
	struct span prompt; /* its element of a list of prompts, else NULL */
	int64_t seed;
	bool seeded; /* set once: `seed` replaces the client's */
	bool prefill_told; /* the answer has the prefill engine's part: a later attempt does not repeat it */
};

struct attempt {
	struct worker *w;
	struct branch *branch; /* NULL once detached */
	enum attempt_life life;
	enum attempt_kind kind;
	enum lookup_state lookup;
	enum prefill_state prefill;
	enum decode_state decode;
	enum withheld withheld;
	enum kv_state kv;
	struct transfer t;
	struct leg leg[LEG_N];
	struct reservation place[ROLE_N];

	struct lookup what;           /* the lookup that runs */
	struct endpoint *lookup_ep;   /* asked: a reference; NULL: none yet */
	struct endpoint *lookup_lock; /* told that somebody asks it; a reference, or NULL */
	uint64_t
		lookup_deadline_ms; /* what is not known by then is not learned; 0: the leg's limit alone */
	uint64_t prefilled_ms;        /* the prefill answer was here */
	uint64_t notices_deadline_ms; /* 0: not waiting for notices */

	bool output_started; /* the client's answer has something of this attempt; no state implies it, since
				 short answers are held, and the prefill engine may make the first token */
	bool failure_counted; /* a lookup may fail several times within one attempt */
	bool release_sent; /* decode was sent its request in the form that only frees KV: a fact about bytes */

	uint32_t decode_sends; /* how often decode was sent its request under the present id */
	struct sse sse;        /* of the decode answer */
	struct membuf event;   /* half an event, where answers are rewritten */

	struct facts *own_facts; /* detached: a copy */
	enum metric_counter released_as;
	TAILQ_ENTRY(attempt) link; /* in the worker's list of detached or ended ones */
};

static inline struct leg *
attempt_prefill(struct attempt *a)
{
	return &a->leg[LEG_PREFILL];
}

static inline struct leg *
attempt_decode(struct attempt *a)
{
	return &a->leg[LEG_DECODE];
}

/* --- life */

/* An attempt for the branch, without engines; the branch's own attempt stays what it is. */
struct attempt *attempt_new(struct branch *b, const struct connector *c, enum attempt_kind kind);
/* Its branch's prompt and seed, and the options of a followed stream. */
void attempt_take_share(struct attempt *a);
/* One with the same facts and text that only engines are chosen for: its reservations are taken over, then it ends. */
struct attempt *attempt_for_choice(const struct attempt *of);
/* Its engines are chosen: ids, ranks, what its connector begins with.  END_OK, or why it cannot be. */
enum req_end attempt_begin(struct attempt *a);
/* Closes legs, gives everything back; freed after the turn.  Idempotent. */
void attempt_end(struct attempt *a);
/* Frees the attempts that ended: after the loop turn. */
void attempt_reap(struct worker *w);
/* Takes note of the engine that was chosen: place[role] is filled. */
void attempt_set_engine(struct attempt *a, enum role role);
/* The engine of a role is not needed: its place and the reference go back. */
void attempt_drop_engine(struct attempt *a, enum role role);
/* Nothing more can be sent for it: drops its text and what was made of it. */
void attempt_drop_text(struct attempt *a);
/* Makes it a detached one: its own copy of the facts, in the worker's list. */
void attempt_detach(struct attempt *a);

/* --- the writers of the three states, and of `lookup`: an impossible step aborts */

void attempt_set_lookup(struct attempt *a, enum lookup_state to);
void attempt_set_prefill(struct attempt *a, enum prefill_state to);
void attempt_set_decode(struct attempt *a, enum decode_state to, enum withheld why);
void attempt_set_kv(struct attempt *a, enum kv_state to);
/* False for states that may not exist together: see attempt.c. */
struct attempt_states {
	enum attempt_life life;
	enum lookup_state lookup;
	enum prefill_state prefill;
	enum decode_state decode;
	enum withheld withheld;
	enum kv_state kv;
};
bool attempt_may_exist(const struct attempt_states *s);
/* Debug and sanitizer builds: aborts if the attempt is in states that may not exist. */
void attempt_check(const struct attempt *a);

/* --- running */

/* Starts the legs that start at this event.  The attempt may be over afterwards. */
void attempt_start(struct attempt *a, enum leg_starts when);
/* The legs may run: what was to be looked up is known. */
void attempt_begin_legs(struct attempt *a);
/* Decode is to be sent its request once more: back to IDLE, its place is kept. */
void attempt_decode_again(struct attempt *a);
/* Sends it, whatever it was to start at.  The attempt may be over afterwards. */
void attempt_send_decode(struct attempt *a);
/* A decode engine has seen the id, and must not see it twice. */
void attempt_new_id(struct attempt *a);
/* After prefill: starts decode, or the wait for the notices that say when. */
void attempt_go_on(struct attempt *a);
/* The notices of its KV have come, or are not waited for any more. */
void attempt_kv_ready(struct transfer *t);
/* Takes out of a prefill answer what decode is given. */
enum handoff attempt_take_handoff(struct attempt *a);
/* What waits for time to pass. */
void attempt_tick(struct attempt *a, uint64_t now_ms);
/* Takes what its engines have said by now. */
void attempt_poll(struct attempt *a);

/* --- predicates */

/* Decode was sent what is only believed of its prefill engine, whose answer is not here yet (NixlPush): until then
 * whatever decode says may come of a wrong belief. */
bool attempt_speculates(const struct attempt *a);
/* The decode answer waits for the prefill answer, whose part of the log probabilities comes first. */
bool attempt_waits_for_prefill(const struct attempt *a);
/* Nothing more comes from the decode leg, though some of it may still be withheld. */
bool attempt_decode_complete(const struct attempt *a);
/* The prefill engine holds KV for it, as far as its answer says. */
bool attempt_kv_handed(const struct attempt *a);
/* The role whose engine a leg is for: a lookup is sent for the sake of a leg that comes later. */
enum role attempt_role_of(const struct attempt *a, enum leg_kind kind);

enum leg_kind attempt_leg_kind(const struct attempt *a, const struct leg *leg);

/* compose.c: what each leg is sent. */
bool attempt_compose(struct leg *leg, struct leg_message *m);
