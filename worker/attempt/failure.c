#include "worker/attempt/failure.h"

/* Returns true if another engine may do better: this engine is failing or full. */
static bool
retriable(const struct failure *f)
{
	return f->status >= 500 || f->status == 429;
}

static bool
not_the_engines(enum failure_cause cause)
{
	return cause == CAUSE_SHORTAGE || cause == CAUSE_OLD_KEYS || cause == CAUSE_STALE ||
	       cause == CAUSE_DOWN;
}

static bool
is_refusal(const struct failure *f)
{
	return f->cause == CAUSE_STATUS && failure_status_refusal(f->status);
}

/* Returns true if the request itself may have caused the failure: the engine has seen it. */
static bool
may_be_the_requests(const struct failure *f)
{
	return f->leg != FAILED_LOOKUP && f->cause != CAUSE_CONNECT &&
	       f->cause != CAUSE_CONNECT_TIMEOUT;
}

static enum fault
fault_of(const struct failure *f)
{
	if (not_the_engines(f->cause))
		/* the engine got no request, most likely, or the probes have decided about the engine */
		return FAULT_UNKNOWN;
	if (is_refusal(f) && f->leg == FAILED_DECODE && f->speculative)
		return FAULT_UNKNOWN; /* the engine may have been sent wrong parameters */
	if (is_refusal(f) && !f->only)
		return FAULT_REFUSAL;
	if (f->cause == CAUSE_STATUS && !failure_status_failing(f->status))
		return FAULT_NONE; /* the client's mistake, or the engine is full */
	if (f->hung_up || f->cause == CAUSE_TOO_LARGE)
		/* the engine closed after the router, or sent more than max_answer */
		return FAULT_UNKNOWN;
	if (f->leg == FAILED_DECODE && f->stream_done && !f->stream_error)
		return FAULT_NONE;
	if (f->leg == FAILED_DECODE && f->speculative)
		return FAULT_UNKNOWN; /* the engine may have been sent wrong parameters */
	if (f->leg == FAILED_PREFILL && f->cause == CAUSE_TIMEOUT && f->decode_waits)
		return FAULT_BOTH; /* failures add up at the engine that is at fault */
	if (f->cause == CAUSE_TIMEOUT && f->excused)
		return FAULT_UNKNOWN; /* the engine works: it generates, or the request waits there */
	if (f->kv_suspect)
		return FAULT_KV;
	if (f->failed && !f->trial && may_be_the_requests(f))
		return FAULT_REQUEST;
	return FAULT_ENGINE;
}

static enum failure_action
action_of(const struct failure *f)
{
	if (f->not_missing)
		return ACTION_IGNORE;
	if (f->leg == FAILED_DECODE && f->speculative && f->cause != CAUSE_DOWN)
		return ACTION_CORRECT;
	if (f->leg == FAILED_DECODE && f->stream_done && f->cause != CAUSE_STATUS &&
		f->cause != CAUSE_UNUSABLE)
		return ACTION_FINISH;
	if (f->cause == CAUSE_SHORTAGE)
		return ACTION_REFUSE;
	if (f->cause == CAUSE_TIMEOUT && f->whole)
		return ACTION_REFUSE; /* the engine may have generated all this time */
	if (f->cause == CAUSE_STATUS && !retriable(f))
		return is_refusal(f) && f->doubtful && !f->refused && !f->only ? ACTION_ASK
									       : ACTION_PASS_ON;
	return ACTION_OTHERS;
}

enum tally_cause
failure_tally(enum failure_cause cause, int status)
{
	static const enum tally_cause tallies[CAUSE_N] = {
		[CAUSE_SHORTAGE] = TALLY_GOOD, /* never recorded */
		[CAUSE_OLD_KEYS] = TALLY_GOOD, /* never recorded */
		[CAUSE_STALE] = TALLY_GOOD,    /* never recorded */
		[CAUSE_DOWN] = TALLY_GOOD,     /* never recorded */
		[CAUSE_CONNECT] = TALLY_REFUSED,
		[CAUSE_CONNECT_TIMEOUT] = TALLY_TIMEOUT,
		[CAUSE_BROKEN] = TALLY_RESET,
		[CAUSE_GARBAGE] = TALLY_BAD_ANSWER,
		[CAUSE_TOO_LARGE] = TALLY_BAD_ANSWER,
		[CAUSE_TIMEOUT] = TALLY_TIMEOUT,
		[CAUSE_STATUS] = TALLY_5XX,
		[CAUSE_UNUSABLE] = TALLY_BAD_ANSWER,
	};

	if (cause != CAUSE_STATUS || status >= 500)
		return tallies[cause];
	return status >= 400 ? TALLY_4XX : TALLY_BAD_ANSWER;
}

struct outcome
failure_outcome(const struct failure *f)
{
	const bool failing = f->cause != CAUSE_STATUS || failure_status_failing(f->status);

	return (struct outcome){
		.fault = fault_of(f),
		.action = action_of(f),
		.revocable = may_be_the_requests(f),
		.forget = f->leg != FAILED_LOOKUP && !not_the_engines(f->cause) && failing,
		.a_try = f->cause != CAUSE_STALE,
	};
}
