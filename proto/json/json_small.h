/*
 * Reading small documents whose shape we know: model lists, flat objects, and error bodies (json-c's
 * one door).
 * What passes through to a peer is never read here but spliced (splice.h).
 *
 * No text makes memory grow: a list is walked without a tree, and texts a tree is made of are short.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/json/splice.h"

#define JSON_ID_MAX 512 /* bytes of an id, unescaped; longer ones are returned as "" */
/* Error bodies above this are not parsed: json-c needs up to 200 bytes for each byte of the
 * text. */
#define JSON_ERROR_MAX (16u << 10)

struct json_model {
	const char *id;
	uint64_t max_model_len; /* tokens; 0: not said, or no number of tokens */
	/* raw: a string with its quotes, or null; of no bytes if absent or anything else */
	struct splice_seg owned_by, root, parent;
};

/*
 * Calls fn for the entries of {"data":[{"id":..,"max_model_len":..,"root":..}]}, the answer of
 * GET /v1/models (protocols.md 1.8; vLLM's ModelCard, entrypoints/openai/engine/protocol.py), until fn
 * returns false: the entries after that one are only counted.  Returns the number of all entries, or -1
 * if the text or an entry that fn was to be given does not have that shape; then the caller discards
 * what fn was given.
 */
int json_models(
	const char *text, size_t len, bool (*fn)(const struct json_model *m, void *arg), void *arg);

/*
 * One member of a flat object, such as GET /server_info answers (protocols.md 5.4): a string that fits
 * into buf whole and has no NUL inside (else buf is ""), or a number up to `max` of nothing but digits
 * (else *ret stays).  False if it is absent or anything else, or the text is no JSON object.
 */
bool json_member_text(const char *text, size_t len, const char *name, char *buf, size_t size);
bool json_member_number(
	const char *text, size_t len, const char *name, uint64_t max, uint64_t *ret);

/*
 * The message of an engine's error body: {"error":{"message":..}}, {"message":..} (vLLM <= 0.10,
 * SGLang) or {"error":".."} (vLLM's answer to a wrong API key).  Copies it clipped into buf; returns
 * false if there is none.
 */
bool json_error_message(const char *text, size_t len, char *buf, size_t size);
