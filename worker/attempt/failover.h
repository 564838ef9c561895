/*
 * A leg has failed: failure.h says what that means; here it is carried out.  Other engines are tried by a new attempt,
 * then the decode engine alone (`retries`, `retry_budget`, `fallback` of the pool), else the client hears of it.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

#include "worker/attempt/attempt.h"
#include "worker/attempt/failure.h"

/* What the failure means.  The outcome is recorded for the engines at fault (shm/eject.h). */
struct outcome failover_outcome(struct attempt *a, enum leg_kind kind, enum failure_cause cause);
/*
 * Makes another attempt with other engines.  True: the branch goes on with it, or the request goes on with the decode
 * engine alone; the request may even be over.  False: no engine is left, and nothing was changed.
 */
bool failover_others(struct attempt *a, enum leg_kind kind, const struct outcome *o);
/* Records the outcome and carries it out.  If no engine is left the job ends, by `end` or by the engine's own answer.
 * Returns the action: ACTION_CORRECT and ACTION_FINISH, which only a decode leg can have, are left to the caller. */
enum failure_action failover(
	struct attempt *a, enum leg_kind kind, enum failure_cause cause, enum req_end end);
/* The KV became too old before decode could be sent its parameters: prefill is done again, once.  This is no try. */
void failover_prefill_again(struct attempt *a);

/* Records that the engine did its part. */
void failover_record_good(struct attempt *a, enum leg_kind kind);
/* Records that the decode answer has begun well. */
void failover_record_begun(struct attempt *a);

/* The cause, of a leg that has ended by LEG_EV_FAIL. */
enum failure_cause failover_cause(const struct leg *leg);
/* How the request ends when a leg has failed, or its time is over, and no other engine serves it. */
enum req_end failover_end(const struct attempt *a, enum leg_kind kind);
enum req_end failover_late_end(const struct attempt *a, enum leg_kind kind);
/* Whose answer it is that the client gets, for the log. */
const char *failover_who(enum leg_kind kind);
