/*
 * An engine's prefix cache in the simulation: so many blocks, the least recently used are evicted.
 *
 * A block's id stands for its tokens and all tokens before them, so two prompts have a block id in common if they begin
 * alike up to the end of that block.
 */
#pragma once
#include <stdint.h>

struct lru_node;

struct lru {
	uint32_t size, n; /* blocks: room for, held */
	uint32_t *heads;  /* [mask + 1] chains of a hash table; an index into nodes, or LRU_NONE */
	uint32_t mask;
	struct lru_node *nodes;  /* [size] */
	uint32_t newest, oldest; /* LRU_NONE while empty */
};

#define LRU_NONE UINT32_MAX

void lru_init(struct lru *l, uint32_t size);
void lru_fini(struct lru *l);
/* How many of the first blocks of a prompt are there, without a gap.  Changes nothing. */
uint32_t lru_match(const struct lru *l, const uint32_t *ids, uint32_t n);
/* The same of a prompt that is computed: all of its blocks are there afterwards as far as they fit, its last ones to be
 * evicted first. */
uint32_t lru_take(struct lru *l, const uint32_t *ids, uint32_t n);
