/*
 * What a failure means: the one place that decides it.  Pure: facts in, outcome out.  A unit test walks every
 * combination.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

enum failure_leg { FAILED_PREFILL, FAILED_DECODE, FAILED_LOOKUP };

enum failure_cause {
	CAUSE_SHORTAGE, /* the router has no descriptor for a connection */
	CAUSE_STALE,    /* a reused connection was reset after KV parameters had been sent on it */
	CAUSE_CONNECT,  /* refused, unreachable */
	CAUSE_CONNECT_TIMEOUT,
	CAUSE_BROKEN,    /* closed or reset before the answer's end */
	CAUSE_GARBAGE,   /* no HTTP */
	CAUSE_TOO_LARGE, /* more than max_answer */
	CAUSE_TIMEOUT,   /* no byte within the time limit */
	CAUSE_STATUS,    /* an error status */
	CAUSE_UNUSABLE,  /* a 200 that cannot be used, or says that it failed */
	CAUSE_N
};

struct failure {
	enum failure_leg leg;
	enum failure_cause cause;
	int status;        /* with CAUSE_STATUS */
	bool resent;       /* the request went out twice: a reused connection had gone stale */
	bool hung_up;      /* the router had closed its side */
	bool speculative;  /* decode: it was sent what prefill has not confirmed */
	bool stream_done;  /* decode: its stream had said [DONE] */
	bool stream_error; /* decode: its stream had said an error */
	bool not_missing;  /* the client's answer lacks nothing without this leg */
	bool decode_waits; /* prefill: decode was sent its request too, and has not answered a byte */
};

/* Whose fault the failure is: recorded for the endpoint (outcome.h). */
enum fault {
	FAULT_NOBODY, /* nothing is recorded */
	FAULT_NONE,   /* the engine did its part: recorded as good */
	FAULT_ENGINE, /* this leg's engine */
	FAULT_BOTH,   /* an ambiguous timeout: either engine may have caused it */
};

enum failure_action {
	ACTION_IGNORE,  /* the leg ends, the attempt goes on */
	ACTION_CORRECT, /* decode is sent its request again once prefill has answered */
	ACTION_FINISH,  /* the stream was complete: it ends well */
	ACTION_PASS_ON, /* the engine's own answer is the client's */
	ACTION_OTHERS,  /* other engines are tried; if there are none the client gets the error */
	ACTION_REFUSE,  /* no other engine could do better */
};

struct outcome {
	enum fault fault;
	enum failure_action action;
	bool forget; /* the engine may have restarted: what was learned of it is forgotten */
	bool a_try; /* another attempt counts against retries and retry_budget, and the engine is not chosen again */
};

struct outcome failure_outcome(const struct failure *f);

/* An engine is failing that says so; but one that cannot do what is asked (501) may be well. */
static inline bool
failure_status_failing(int status)
{
	return status >= 500 && status != 501;
}
