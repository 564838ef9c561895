/*
 * Carries out what a failure means (failure.h).  Other engines are tried by a new attempt,
 * then the decode engine alone (`retries`, `retry_budget`, `fallback` of the pool).  If no
 * engine is left the client gets the error.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

#include "worker/attempt/attempt.h"
#include "worker/attempt/failure.h"

/* Returns what the failure means.  Other workers change what that depends on, so call it once for a failure. */
struct outcome failover_decide(struct attempt *a, enum leg_kind kind, enum failure_cause cause);
/* Records the outcome for the engines at fault (shm/eject.h). */
void failover_record(
	struct attempt *a, enum leg_kind kind, enum failure_cause cause, struct outcome *o);
/* Does both. */
struct outcome failover_outcome(struct attempt *a, enum leg_kind kind, enum failure_cause cause);
/* Returns the answer of a leg for the client. */
struct reply failover_reply(const struct leg *leg);
/* No engine is left.  Passes the refusal on that another engine gave before.  Returns false if there was none, or if
 * the client has a part of an answer. */
bool failover_pass_refusal(struct attempt *a, enum leg_kind kind);
/*
 * Makes another attempt with other engines.  True: the branch continues with that attempt, or
 * the request continues with the decode engine alone; the request may even be over.  False:
 * no engine is left: the attempt still serves.  Its KV may have been released then, and its job
 * may have been prepared for a resumed stream.
 */
bool failover_others(struct attempt *a, enum leg_kind kind, const struct outcome *o);
/* Records the outcome and carries it out.  If no engine is left the job ends with `end` or with
 * the engine's own answer.  Returns the action.  The caller carries out ACTION_CORRECT and
 * ACTION_FINISH, which only a decode leg can have. */
enum failure_action failover(
	struct attempt *a, enum leg_kind kind, enum failure_cause cause, enum req_end end);
/* Repeats prefill, once: the KV became too old before decode could be sent its parameters.  The
 * new attempt does not count as a try.  False: no engine is free for that, and the attempt still serves. */
bool failover_prefill_again(struct attempt *a);

/* Records that the engine did its part. */
void failover_record_good(struct attempt *a, enum leg_kind kind);
/* The prefill answer was taken.  Its outcome is recorded when decode shows whether the KV is of use; at once if the answer
 * has no KV parameters. */
void failover_prefill_answered(struct attempt *a, bool kv_missing);
/* Decode has shown a token: the KV that it was given is of use. */
void failover_decode_works(struct attempt *a);
/* Records that the decode answer has begun well. */
void failover_record_begun(struct attempt *a);

/* Returns the cause of failure of a leg that has ended with LEG_EV_FAIL. */
enum failure_cause failover_cause(const struct leg *leg);
/* Returns how the request ends when a leg has failed (failover_end()), exceeded its time limit
 * (failover_late_end()) or its engine is down (failover_down_end()), and no other engine serves the request. */
enum req_end failover_end(const struct attempt *a, enum leg_kind kind);
enum req_end failover_late_end(const struct attempt *a, enum leg_kind kind);
enum req_end failover_down_end(const struct attempt *a, enum leg_kind kind);
/* Returns the name of the engine whose answer the client gets: static text for the log. */
const char *failover_who(enum leg_kind kind);
