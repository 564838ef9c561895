/*
 * The prefix cache of one engine: full blocks of prompts, by the hash of all ids up to a block's
 * end, in the order of their last use.
 *
 * As in vLLM (v1/core/kv_cache_manager.py): only full blocks are kept, the last token of a prompt
 * is always computed, and the deepest blocks of a prompt are evicted before the blocks they follow.
 * Unlike vLLM, blocks of running requests and generated tokens take no place in this cache.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "tests/engine/json.h"

struct prefix;
struct sim;

/* Where the hashes of a prompt start: what its KV depends on besides its ids. */
struct prefix_prompt {
	uint64_t root;
	const uint32_t *ids;
	uint64_t nids;
	struct jv adapter, salt; /* what of that KV events name: JSON texts; .p NULL: none */
};

/* NULL without --cache-blocks: nothing is cached, and the other functions are not to be called. */
struct prefix *prefix_new(struct sim *sim);
void prefix_free(struct prefix **prefix);
/* How many tokens of the prompt are cached.  Their blocks count as used now. */
uint64_t prefix_find(struct prefix *prefix, const struct prefix_prompt *p);
/* All full blocks of the prompt are there now. */
void prefix_store(struct prefix *prefix, const struct prefix_prompt *p);
void prefix_clear(struct prefix *prefix);
uint64_t prefix_blocks(const struct prefix *prefix);
