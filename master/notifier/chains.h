/*
 * Blocks of token ids that engines have, by KV events, as words of the prefix index (shm/prefix.h).
 *
 * An engine names a block by a hash of its own, and says the ids of the block and the hash of the block before it.  A
 * table remembers, by the engine's hash, the router's digest of all ids up to the end of the block.  So the digest of the
 * next block follows from the ids of that block alone.  A digest where prompts are cut (shm/base/prefix_key.h) is a word of
 * the index for the engine, until the engine says that the block was removed.
 *
 * The table has a fixed size, and the blocks go first that were not stored, nor a parent, for longest.  Blocks behind one
 * that is not known are not followed: after missed events, or when the notifier has begun later than the engine.  They
 * become known when they are stored again.
 * A publisher that lies has words of its own endpoint alone, but a pool has one size of blocks (prefix_block_of()).
 *
 * Process: notifier.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct chains;
struct kv_event;
struct seg;

/* One engine, in one life of its cache. */
struct chains_engine {
	uint64_t life; /* chains_life(): of another one nothing is remembered */
	uint32_t ep, row;
	uint64_t root;  /* prefix_ids_model() of its model */
	uint32_t block; /* ids of a block that was stored last; 0: none was */
	bool stale;     /* a block was removed that the table had forgotten: its word is left */
};

/* NULL: there is no prefix index. */
struct chains *chains_new(struct seg *seg);
void chains_free(struct chains **);
/* Bytes of the table: a quarter of the index, at most 256 MiB. */
uint64_t chains_bytes(const struct seg *seg);
/* A number that no other life has. */
uint64_t chains_life(struct chains *c);
/* An event of the engine: blocks stored or removed.  True: blocks that were stored are known now. */
bool chains_take(struct chains *c, struct chains_engine *e, const struct kv_event *event);
