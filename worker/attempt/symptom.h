/*
 * Symptoms: the errors by which decode engines report that the KV of a prefill engine could not be used.  One table of
 * engines and texts.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

#include "proto/http/http.h"
#include "shm/base/conf.h"
#include "worker/attempt/failure.h"

/* Returns true if the decode engine's failure may be about the KV.  `text`: bytes of the answer's body. */
bool symptom_of_kv(enum engine_kind engine, enum failure_cause cause, int status, struct span text);
