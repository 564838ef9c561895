/*
 * json-c's one door: reading small documents whose shape we know (model lists, server info, engine
 * error bodies).  What passes through to a peer is never read here but spliced (splice.h).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* larger texts are refused unread: a model list with 10k adapters is under 4 MiB */
#define JSON_SMALL_MAX (8u << 20)

/* True if text is one well-formed JSON document whose top level is an object. */
bool json_is_object(const char *text, size_t len);

/*
 * Calls fn for the "id" of each entry of {"data":[...]}, as GET /v1/models answers (protocols.md 1.8).
 * Returns the number of entries, or -1 if the text is not of that shape.
 */
int json_model_ids(const char *text, size_t len, void (*fn)(const char *id, void *arg), void *arg);

/*
 * The message of an engine's error body, in either form: {"error":{"message":..}} or {"message":..}
 * (vLLM <= 0.10, SGLang).  Copies it clipped into buf; returns false if there is none.
 */
bool json_error_message(const char *text, size_t len, char *buf, size_t size);
