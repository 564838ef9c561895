/*
 * An attempt: one try to serve a branch of a request, with one engine of each role that the hand-shake needs.
 *
 * A branch has one attempt at a time.  A retry, a resumed stream and a prefill that is done again are new attempts:
 * the old one is detached.  A detached attempt has no client; it only releases what its engines still hold,
 * and ends.
 *
 * These state machines advance independently; each has one function that writes it (attempt.c):
 *
 *   prefill   NOT_NEEDED   IDLE --> SENT --> ANSWERED
 *                                     `----> FAILED
 *   decode    IDLE --> SENT --> WITHHELD <--> RELAYING --> ENDED
 *               ^       |          |             `-------> FAILED
 *               `-------+----------'   sent again: other KV parameters, or another engine
 *   kv        NONE --> HELD --> DELIVERED --> FETCHED
 *                |               ^  `-----> SPENT
 *                `---> PREDICTED-'      a speculation: decode is sent its request first
 *
 * `lookup`, the fourth, precedes them if something must be known before a leg can be made.
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
#include "proto/answer/usage_end.h"
#include "shm/base/mem.h"
#include "shm/blame.h"
#include "shm/metrics.h"
#include "worker/attempt/job.h"
#include "worker/attempt/leg_kind.h"
#include "worker/base/end_list.h"
#include "worker/handshake/transfer.h"
#include "worker/net/leg.h"
#include "worker/schedule/reservation.h"

enum attempt_life {
	ATTEMPT_SERVING,  /* its branch waits for its answer */
	ATTEMPT_DETACHED, /* no branch has it: the attempt releases what its engines hold */
	ATTEMPT_OVER,     /* to be freed after the turn */
};

enum attempt_kind {
	ATTEMPT_FIRST,
	ATTEMPT_OTHER, /* other engines, after a failure */
	/* after an attempt whose KV parameters had become too old; at most once */
	ATTEMPT_PREFILL_AGAIN,
};

enum lookup_state {
	LOOKUP_NOT_NEEDED,
	LOOKUP_DUE, /* to be sent; after a failure at the next tick */
	/* another attempt of this worker has sent the same lookup: the answer serves both */
	LOOKUP_SHARED,
	LOOKUP_SENT,
	LOOKUP_KNOWN,
	LOOKUP_N
};

enum prefill_state {
	PREFILL_NOT_NEEDED,
	PREFILL_IDLE,
	PREFILL_SENT,
	PREFILL_ANSWERED, /* the answer was usable */
	PREFILL_FAILED, /* the client's answer is complete without it; else the attempt ends in SENT */
	PREFILL_N
};

enum decode_state {
	DECODE_IDLE,
	DECODE_SENT,
	DECODE_WITHHELD, /* the answer may not be relayed yet: enum withheld has the reason */
	DECODE_RELAYING,
	DECODE_ENDED, /* the whole answer was taken over */
	DECODE_FAILED,
	DECODE_N
};

enum withheld {
	WITHHELD_NOT,
	WITHHELD_SPECULATION, /* the prefill engine has not confirmed what decode was sent */
	/* decode, sent first, may still answer that it has too little of the KV */
	WITHHELD_CACHE_CHECK,
	WITHHELD_COLLECTING,   /* the whole answer is rewritten, or no whole event is here */
	WITHHELD_PREFILL_PART, /* the answer begins with the prefill engine's part */
	WITHHELD_SLOW_CLIENT,  /* whole events wait for the client to read */
	WITHHELD_REFUSAL,      /* a 4xx: another engine may be tried once all of it is here */
};

/* Whether decode could use the KV of the prefill engine. */
enum kv_proof {
	PROOF_OPEN,  /* not known */
	PROOF_NO_KV, /* decode was given none */
	PROOF_GIVEN, /* decode has shown a token */
};

enum kv_state {
	KV_NONE,
	KV_PREDICTED, /* decode was sent parameters that the prefill engine has not confirmed */
	KV_HELD,      /* the prefill engine holds blocks for this attempt */
	KV_DELIVERED, /* a decode engine has the parameters */
	KV_FETCHED,   /* that decode engine answers: the prefill engine holds nothing any more */
	KV_SPENT,     /* that decode engine has failed: the parameters must not be used again */
	KV_N
};

/* What timing.c measures.  Times are clock_us(). */
struct timing {
	uint64_t prefill_us; /* when the prefill leg was sent */
	uint64_t decode_us;  /* when decode had all it needs */
	/* the present stretch of decode's stream: since when, and the events before it; 0: none */
	uint64_t stretch_us, stretch_events;
};

struct leg_spans;

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
	enum kv_proof proof;
	enum blame blame; /* who was at fault when decode failed with that KV */
	struct transfer t;
	struct reserved reserved; /* the engines and their reservations */

	struct lookup what;         /* the lookup that is running */
	struct endpoint *lookup_ep; /* a reference to the engine of the lookup; NULL: none yet */
	/* the endpoint whose lookup_runs this attempt set; a reference, or NULL */
	struct endpoint *lookup_lock;
	/* the end of learning, clock_ms(); 0: only the leg's time limit counts */
	uint64_t lookup_deadline_ms;
	uint64_t prefilled_ms; /* when the prefill answer was complete */
	uint64_t kv_life; /* the engine's life then (shm/restart.h): who answers holds the KV */
	uint64_t notices_deadline_ms; /* 0: not waiting for notices */

	/* Fact, set once: the client's answer has a part of this attempt.  No state implies it:
	 * short answers are held, and the prefill engine may make the first token. */
	bool output_started;
	/* Fact: M_ATTEMPTS_FAILED has counted the present failure.  A lookup may fail several
	 * times before it is given up. */
	bool failure_counted;
	/* Fact about sent bytes, set once: decode was sent the request that only frees KV. */
	bool release_sent;

	uint32_t decode_sends;   /* how often decode was sent its request under the current id */
	struct sse sse;          /* of the decode answer */
	struct timing timing;    /* how long the engines take */
	struct leg_spans *spans; /* of a trace that is exported; else NULL */
	/* tokens of the prompt as the prefill engine counts them; USAGE_NONE: not known */
	uint64_t prompt_tokens, cached_tokens;
	struct usage_tail tail; /* of the decode answer, for its usage */
	struct membuf event;    /* an incomplete event, if answers are rewritten */

	struct facts *own_facts; /* detached: a copy */
	enum metric_counter released_as;
	TAILQ_ENTRY(attempt) link; /* in a list of the worker: LOOKUP_SHARED, detached or over */
	/* LEG_LOOKUP is there only if the connector has lookups */
	enum leg_kind nlegs;
	struct leg leg[];
};

static inline struct leg *
attempt_prefill_leg(struct attempt *a)
{
	return &a->leg[LEG_PREFILL];
}

static inline struct leg *
attempt_decode_leg(struct attempt *a)
{
	return &a->leg[LEG_DECODE];
}

/* --- life */

/* Returns a new attempt for the branch, without engines.  The branch's current attempt stays. */
struct attempt *attempt_new(struct branch *b, const struct connector *c, enum attempt_kind kind);
/* Moves the engines that were chosen into the attempt; `e` is empty afterwards. */
void attempt_take_engines(struct attempt *a, struct reserved *e);
/* Moves a new decode engine into the attempt, in place of the present one; `r` is empty
 * afterwards. */
void attempt_take_decode(struct attempt *a, struct reservation *r);
/* Gives back the reservation and the reference of the role's engine, which is not needed. */
void attempt_drop_engine(struct attempt *a, enum role role);
/* The engines are chosen: sets ids and ranks, and calls the connector's begin().  Returns END_OK, or why the attempt
 * cannot begin. */
enum req_end attempt_begin(struct attempt *a);
/* Other attempts of this worker may send the engine the same lookup. */
void attempt_unlock_lookup(struct attempt *a);
/* Closes the legs and gives reservations and flag back.  The attempt is freed after the turn.  Idempotent. */
void attempt_end(struct attempt *a);
/* Frees the attempts that ended: after the loop turn. */
void attempt_reap(struct worker *w);
/* Drops the attempt's text and what was made of the text: the attempt will send no more bytes
 * of them. */
void attempt_drop_text(struct attempt *a);
/* Detaches the attempt from its branch: the attempt gets its own copy of the facts and joins
 * worker->detached. */
void attempt_detach(struct attempt *a);

/* --- the writers of the four states: an impossible step aborts */

void attempt_set_lookup(struct attempt *a, enum lookup_state to);
void attempt_set_prefill(struct attempt *a, enum prefill_state to);
void attempt_set_decode(struct attempt *a, enum decode_state to, enum withheld why);
void attempt_set_kv(struct attempt *a, enum kv_state to);
/* Decode has failed: the parameters that it was sent must not be used again. */
void attempt_spend_kv(struct attempt *a);
/* Call it after each event and each payload: the KV is fetched when decode begins to answer. */
void attempt_note_fetch(struct attempt *a);
/* The states of an attempt, as values.  attempt_may_exist() returns false for a combination
 * that must not occur. */
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

/* Starts the legs that start at the event `when`.  The attempt may be over afterwards. */
void attempt_start(struct attempt *a, enum leg_starts when);
/* All lookups have their answers: starts the legs that start at once. */
void attempt_begin_legs(struct attempt *a);
/* Prepares decode for sending its request once more: sets decode to IDLE and keeps the
 * reservation. */
void attempt_decode_again(struct attempt *a);
/* Sends the decode request now, whatever event it was to start at.  The attempt may be over afterwards. */
void attempt_send_decode(struct attempt *a);
/* Gives the attempt a fresh id.  A decode engine has seen the current id and must not see it
 * twice. */
void attempt_new_id(struct attempt *a);
/* Decode has its request, and does not wait for prefill: begins the limit that the attempts of a
 * branch share for an answer in one piece. */
void attempt_begin_limit(struct attempt *a);
/* Returns true if that limit is over. */
bool attempt_limit_over(const struct attempt *a, uint64_t now_ms);
/* After prefill: starts decode, or the wait for the notices that start decode. */
void attempt_go_on(struct attempt *a);
/* Call it after each event.  A leg that is over gives its slot back, unless the leg may be sent
 * again.  Checks the states (attempt_check()). */
void attempt_settle(struct attempt *a);
/* Sets the answers in a->t, which connectors read, to what the legs have kept so far. */
void attempt_give_answers(struct attempt *a);
/* Takes the KV parameters for decode from the prefill answer.  Returns what the connector's
 * prefilled() returns. */
enum handoff attempt_take_handoff(struct attempt *a);
/* Returns true if that result means that the prefill answer had no KV parameters. */
bool attempt_kv_missing(const struct attempt *a, enum handoff r);
/* --- predicates */

/* Returns true if decode was sent predicted parameters and the prefill answer is not here yet
 * (NixlPush).  Until then an error of decode may come from a wrong prediction. */
bool attempt_speculates(const struct attempt *a);
/* Returns true if the decode answer waits for the prefill answer, whose part of the log
 * probabilities comes first. */
bool attempt_waits_for_prefill(const struct attempt *a);
/* Returns true if the decode answer is complete; a part of it may still be withheld. */
bool attempt_decode_complete(const struct attempt *a);
/* Returns true if the prefill engine holds KV for the attempt according to its answer.  Such KV is
 * counted for the endpoint (load_kv()). */
bool attempt_kv_handed(const struct attempt *a);
/* Returns true if the lease of that KV is over, counted from the prefill answer: the engine may have
 * freed the blocks. */
bool attempt_kv_lease_over(const struct attempt *a);
/* Returns the role whose engine a leg is sent to: a lookup is sent to the engine of a later
 * leg. */
enum role attempt_role_of(const struct attempt *a, enum leg_kind kind);

enum leg_kind attempt_leg_kind(const struct attempt *a, const struct leg *leg);
