/*
 * Reading small documents whose shape we know: model lists, and error bodies (json-c's one door).
 * What passes through to a peer is never read here but spliced (splice.h).
 *
 * No text makes memory grow: a list is walked without a tree, and texts a tree is made of are short.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define JSON_ID_MAX 512 /* bytes of an id, unescaped; longer ones are told as "" */
/* Error bodies above this are not looked into: json-c needs up to 200 bytes for each of the text. */
#define JSON_ERROR_MAX (16u << 10)

/*
 * Calls fn for the "id" of the first `max` entries of {"data":[...]}, as GET /v1/models answers
 * (protocols.md 1.8).  Returns the number of all entries, or -1 if the text is not of that shape; then
 * fn has not been called.
 */
int json_model_ids(
	const char *text, size_t len, size_t max, void (*fn)(const char *id, void *arg), void *arg);

/*
 * The message of an engine's error body: {"error":{"message":..}}, {"message":..} (vLLM <= 0.10,
 * SGLang) or {"error":".."} (vLLM's answer to a wrong API key).  Copies it clipped into buf; returns
 * false if there is none.
 */
bool json_error_message(const char *text, size_t len, char *buf, size_t size);
