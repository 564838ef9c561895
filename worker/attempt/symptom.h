/*
 * Symptoms: the errors by which engines report that KV did not pass from the prefill to the decode engine.  One table of
 * engines, legs and texts.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

#include "proto/http/http.h"
#include "shm/base/conf.h"
#include "worker/attempt/failure.h"

/* Returns true if the failure of the engine of that leg may be about the KV.  `text`: bytes of the answer's body. */
bool symptom_of_kv(enum engine_kind engine, enum failure_leg leg, enum failure_cause cause,
	int status, struct span text);

/* An answer that has this has been aborted by its engine: vLLM ends all that runs with this reason
 * when it is stopped (`shutdown_timeout` 0) or paused, SGLang at /abort_request.  In a string the
 * quotes would be escaped. */
#define SYMPTOM_ABORT "\"finish_reason\":\"abort\""
/* Returns true if the kept answer of a leg says so. */
bool symptom_of_abort(struct span answer);
