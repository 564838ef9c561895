/*
 * The prompt of a request's body: how long it is, and its digests (shm/base/prefix_key.h).
 *
 * Engines that publish KV events name the token ids of each block.  So a prompt of ids has the digests that the notifier
 * computes of such events: they are of the ids, and not of the bytes of the body.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "proto/json/splice.h"
#include "shm/base/prefix_key.h"

/*
 * Cuts the prompt as it stands in the body, in the member `where`.  `system` is the first part of `messages`, and
 * `instructions` of `input`: these bodies have one prompt of two members.  Prompts for which an engine would compute another
 * cache have no cut in common: the model, its adapter, cache_salt and the tools belong to each cut.  False: the body
 * has no such member.
 *
 * `block`: the ids of a block of the engines; 0: they name none.  If there is one, one list of ids is cut between blocks.
 */
bool prompt_cut(const struct prefix_secret *secret, const struct splice *doc, enum splice_key where,
	const char *model, uint32_t block, struct prefix_key *ret);
/* The member that has the prompt, for those who do not know the path of the request.  SK_N_KEYS: none. */
enum splice_key prompt_member(const struct splice *doc);
/* Estimated prompt tokens: four characters each, token ids as counted.  At least 1, at most PROMPT_TOKENS_MAX. */
#define PROMPT_CHARS_PER_TOKEN 4
#define PROMPT_TOKENS_MAX (1u << 24)
uint32_t prompt_tokens(const struct splice *doc);
