/*
 * Ids of the responses of /v1/responses.
 *
 * An engine keeps a response in its own memory, under the id that the request names: `request_id` of ResponsesRequest, in
 * vLLM's entrypoints/openai/responses/protocol.py and in SGLang's srt/entrypoints/openai/protocol.py.  The router names it,
 * so the id itself says which engine has the response.  No router keeps anything, and any router finds the response.
 *
 *   resp_  16 hex digits: the hash of the engine's URL  32 random hex digits
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

#define RESPONSE_ID_LEN (5 + 16 + 32)

/* Makes a new id of a response that the engine with this URL keeps. */
void response_id_make(const char *url, char out[RESPONSE_ID_LEN + 1]);
/* Returns the hash of the URL of the engine that keeps the response (table_pick.hash); 0: no router made this id. */
uint64_t response_id_engine(const char *id);
