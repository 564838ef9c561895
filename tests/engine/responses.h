/*
 * Responses of /v1/responses that the engine keeps, as vLLM (entrypoints/openai/responses/serving.py) and
 * SGLang (srt/entrypoints/openai/serving_responses.py) do: in memory, under the id that the request names.
 *
 * Ownership: one store, which lives as long as the process.
 */
#pragma once
#include <stdbool.h>

#include "tests/engine/buf.h"
#include "tests/engine/json.h"

struct conn;

#define RESPONSE_ID 160

/* What the answer is: the status says how far it has come. */
struct response_texts {
	struct buf waits, cancelled, whole; /* JSON, of each status */
};

/* The request's id, or a new one.  False: the request is refused, and answered. */
bool responses_begin(struct conn *c, struct jv doc, char id[RESPONSE_ID]);
/* Takes over what `t` holds.  In the background a response takes three tokens' time. */
void responses_keep(struct conn *c, struct jv doc, const char *id, struct response_texts *t);
bool responses_in_background(struct jv doc);
void responses_get(struct conn *c);    /* GET /v1/responses/{id} */
void responses_cancel(struct conn *c); /* POST /v1/responses/{id}/cancel */
void responses_clear(void);
