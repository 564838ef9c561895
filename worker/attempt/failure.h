/*
 * What a failure means: this is the only place that decides it.  A pure function takes facts
 * and returns an outcome.  A unit test checks every combination.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

#include "shm/blame.h"
#include "shm/tally.h"

enum failure_leg { FAILED_PREFILL, FAILED_DECODE, FAILED_LOOKUP };

enum failure_cause {
	CAUSE_SHORTAGE, /* the router has no descriptor for a connection */
	CAUSE_OLD_KEYS, /* TLS has failed, with keys of an old worker that are no longer in force */
	CAUSE_STALE,   /* a reused connection was reset; the engine has read nothing, most likely */
	CAUSE_CONNECT, /* refused, unreachable */
	CAUSE_CONNECT_TIMEOUT,
	CAUSE_BROKEN,    /* closed or reset before the answer's end */
	CAUSE_GARBAGE,   /* no HTTP */
	CAUSE_TOO_LARGE, /* more than max_answer */
	CAUSE_TIMEOUT,   /* no byte within the time limit */
	CAUSE_DOWN,      /* probes have found the engine down, and it has not answered */
	CAUSE_STATUS,    /* an error status */
	CAUSE_UNUSABLE,  /* a 200 that is unusable or carries an error */
	CAUSE_N
};

struct failure {
	enum failure_leg leg;
	enum failure_cause cause;
	int status;        /* with CAUSE_STATUS */
	bool hung_up;      /* the router had closed its side */
	bool speculative;  /* decode: sent what prefill has not confirmed */
	bool stream_done;  /* decode: its stream had sent [DONE] */
	bool stream_error; /* decode: its stream had sent an error */
	bool not_missing;  /* the client's answer is complete without this leg */
	bool decode_waits; /* prefill: decode has its request and has not answered a byte */
	bool whole;        /* decode: the client gets the answer in one piece */
	bool kv_suspect;   /* it reports that KV did not pass between the engines (symptom.h) */
	/* a timeout before the first byte: the engine has answered other requests meanwhile, or
	 * had little of the time limit */
	bool excused;
	bool doubtful; /* a refusal: another engine accepts requests and may be asked (outcome.h) */
	bool refused;  /* another engine has refused this leg of the branch before */
	/* another engine has failed this leg of the branch before (suspects.h), or requests have lately failed
	 * on this engine and on another one (outcome.h) */
	bool failed;
	bool only;  /* no other engine could serve the request: this one keeps its response */
	bool trial; /* the request was the engine's half-open trial */
};

/* The engine at fault: recorded for the endpoint (outcome.h). */
enum fault {
	FAULT_UNKNOWN, /* the failure says nothing about an engine: nothing is recorded */
	FAULT_NONE,    /* the engine worked: recorded as good */
	FAULT_ENGINE,  /* this leg's engine */
	FAULT_BOTH,    /* an ambiguous timeout: either engine may have caused it */
	FAULT_REFUSAL, /* this leg's engine or the client: what another engine says decides */
	FAULT_REQUEST, /* this leg's engine if another engine serves the request; else the request */
	FAULT_KV,      /* decode, or the prefill engine whose KV it was to get: evidence decides */
};

enum failure_action {
	ACTION_IGNORE,  /* the leg ends, the attempt continues */
	ACTION_CORRECT, /* decode is sent its request again once prefill has answered */
	ACTION_FINISH,  /* the stream was complete: the answer ends well */
	ACTION_PASS_ON, /* the engine's own answer is the client's */
	ACTION_ASK, /* one other engine is tried; without one the engine's own answer is the client's */
	ACTION_OTHERS, /* other engines are tried; without one the client gets the error */
	ACTION_REFUSE, /* no other engine could do better, or no time is left */
};

struct outcome {
	enum fault fault;
	enum failure_action action;
	/* FAULT_ENGINE, FAULT_KV: unless the same request fails on another engine too */
	bool revocable;
	bool forget; /* the engine may have restarted: drop what was learned of it */
	/* FAULT_KV: who is at fault, as failover.c found by evidence */
	enum blame blame;
	bool a_try; /* another attempt counts against retries and retry_budget, and the engine is not chosen again */
};

struct outcome failure_outcome(const struct failure *f);
/* Returns what the tally of the engine at fault counts (shm/tally.h). */
enum tally_cause failure_tally(enum failure_cause cause, int status);

/* Returns true for a status by which an engine refuses what it was sent.  413 is the client's mistake, and 429
 * comes from a full engine. */
static inline bool
failure_status_refusal(int status)
{
	return status >= 400 && status < 500 && status != 413 && status != 429;
}

/* Returns true for a status that shows a failing engine.  An engine that only cannot do what is
 * requested (501) may be healthy. */
static inline bool
failure_status_failing(int status)
{
	return status >= 500 && status != 501;
}
