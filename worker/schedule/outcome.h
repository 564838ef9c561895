/*
 * Outcomes: what each exchange shows of its engine.  shm/eject.h, shm/busy.h and shm/tally.h keep the counts of all
 * workers.
 *
 * Process: worker.
 * Each exchange of a prefill or decode leg has one outcome, good or bad.  The first outcome counts, and the start of
 * the next exchange clears it (reservation.recorded).  An exchange may have none: an abort, a client that left or a
 * drain shows nothing of the engine (reservation_drop_trial()).  Background requests never count.  An answered
 * lookup does not count; a lookup that fails the attempt is the fault of the engine that was asked.
 *
 * Only the engine at fault is charged: the other engine of the attempt has no outcome.
 *
 * Not inside a read section.
 */
#pragma once
#include <stdbool.h>

#include "proto/http/http.h"
#include "shm/blame.h"
#include "shm/tally.h"

struct facts;
struct reservation;
struct worker;

/* One exchange with one engine, as far as its outcome needs it. */
struct exchange {
	struct worker *w;
	const struct facts *facts;  /* of the request, for pool and log */
	struct reservation *engine; /* of the engine; it may hold no slot any more */
	int status;                 /* of the answer; 0: no answer has come */
	struct span head;           /* the answer's header lines */
	bool reached;               /* a connection was made */
	enum tally_cause cause; /* what the endpoint's tally counts, unless the engine is busy */
};

/*
 * The engine did its part: a prefill answer that was taken, a decode answer with its last byte; and a 413,
 * 429 or 501, which is the client's mistake or a full engine's right (sglang#25811: breakers that 4xx had
 * opened).
 */
void outcome_good(const struct exchange *x);
/*
 * Good so far: the engine has accepted the request; the first byte of a decode answer with status 2xx.  Ends a half-open
 * trial well, since a stream may last, but is no outcome: that comes with the answer's end or its breaking off.
 */
void outcome_begun(const struct exchange *x);
/* The same, but the trial goes on: a prefill engine's answer, until its KV is of use. */
void outcome_accepted(const struct exchange *x);
/*
 * The engine is at fault: refused, silent for its time, reset, garbage, an answer cut short, 5xx, a 200
 * that cannot be used, an error event in a stream.
 */
void outcome_bad(const struct exchange *x);
/*
 * The engine may have restarted, or serve something else by now: the master looks at it.  Beside the outcome, which
 * does not depend on it.
 */
void outcome_doubt(const struct exchange *x);
/* The engine has named itself by that id, n bytes: outcome_doubt() if it is a new one.  n may be 0. */
void outcome_named(const struct exchange *x, const char *id, size_t n);
/*
 * An answered lookup that says that the engine has no room; nothing for any other answer.  outcome_good() and
 * outcome_bad() see it themselves of prefill and decode answers: such an answer is neither good nor bad.
 */
void outcome_busy(const struct exchange *x);
/* The answer is 429, or 503 with Retry-After: the endpoint is busy for all workers (shm/busy.h). */
bool outcome_says_busy(const struct exchange *x);

/* --- refusals (shm/refusal.h): other 4xx, which are good or bad only by what another engine says */

/* Another engine of the role should be asked: other engines accept requests, and refusals of this engine are not
 * believed now.  A half-open trial is always doubted. */
bool outcome_doubtful(const struct exchange *x);
/* Other engines have lately refused the same as this engine: its refusals are clients' mistakes. */
bool outcome_believed(const struct exchange *x);
/* The engine has refused; to be called once for each refusal, before one of the functions below. */
void outcome_refusal_seen(const struct exchange *x);
/* Identifies what was known of its refusals when it refused, for outcome_shared(). */
uint64_t outcome_refusal_mark(const struct worker *w, const struct reservation *engine);
/* No other engine was asked, or none could tell.  Neither good nor bad, unless earlier refusals were contradicted, or
 * the engine refuses so much more than its peers that it cannot be chance. */
void outcome_refused(const struct exchange *x);
/* Another engine refused the same request: the client's mistake. */
void outcome_shared(const struct exchange *x, uint64_t mark);
/* Another engine accepted the same request: the engine is at fault. */
void outcome_contradicted(const struct exchange *x);

/* --- failures of others */

/* Requests have lately failed on the engine and on another one: that this one fails proves nothing yet. */
bool outcome_fails_alike(const struct exchange *x);
/* The request failed on the engine and on another one, and no engine served it. */
void outcome_failed_alike(const struct exchange *x);
/* The engine took part, but the request or another engine is to blame: neither good nor bad. */
void outcome_excused(const struct exchange *x);
/* The same of an engine that outcome_bad() charged at that time, when the request is to blame.  A good
 * answer since then has taken the charge back already. */
void outcome_take_back(const struct exchange *x, uint64_t charged_ms);

/* --- KV that could not be used (shm/blame.h) */

/* KV that passed through the engine was used well: evidence, no outcome. */
void outcome_works(const struct exchange *x);
/* One of the two engines, `by`, reports that KV did not pass between them.  Returns who is at fault, by evidence of both;
 * no outcome. */
enum blame outcome_kv_blame(
	const struct exchange *prefill, const struct exchange *decode, const struct exchange *by);
