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
 * Another attempt, with other engines.  True: the branch goes on with it, or the request with the decode engine alone;
 * events may have come of it at once, and the request may even be over.  False: nobody is left, nothing was changed.
 */
bool failover_others(
	struct attempt *a, enum leg_kind kind, enum failure_cause cause, const struct outcome *o);
/* Records the outcome and carries it out.  If no engine is left the request ends, by `end` or by the engine's own answer. */
void failover(struct attempt *a, enum leg_kind kind, enum failure_cause cause, enum req_end end);
/* The KV has become too old before decode could be sent it: prefill again, once; not a try. */
void failover_prefill_again(struct attempt *a);

/* The engine did its part. */
void failover_record_good(struct attempt *a, enum leg_kind kind);
/* The decode answer has begun well. */
void failover_record_begun(struct attempt *a);

/* Of a leg that has ended by LEG_EV_FAIL. */
enum failure_cause failover_cause(const struct leg *leg);
/* How the request ends where a leg has failed, or its time is over, and nobody saves it. */
enum req_end failover_end(const struct attempt *a, enum leg_kind kind);
enum req_end failover_late_end(const struct attempt *a, enum leg_kind kind);
