/*
 * The prefix index: which engine has the KV of which beginnings of prompts, as far as this router's requests show.
 *
 * A table of 64-bit words in buckets of one cache line.  A word says: the engine of this endpoint had this beginning
 * when it had computed so many tokens.
 *
 *	tag:18 | endpoint slot:16 | stamp:30
 *
 * The tag is of the digest of a cut (shm/base/prefix_key.h), of which another part chooses the bucket.  The stamp is the
 * engine's count of computed tokens, in units of 64.  An engine's cache throws the oldest out: so a word is stale when
 * the engine has computed more since than its cache holds (its capacity).  No word is ever emptied.  When an engine
 * begins another life (shm/restart.h) or says that its cache is empty, its count jumps further than any capacity, which
 * makes all its words stale at once.
 *
 * An engine that publishes KV events says itself how many tokens it has stored and removed (prefix_follow()).  Then its
 * count is of tokens stored, and a word is stale when more has been stored since than the cache holds now.
 *
 * Such an engine also names the ids of each block.  A prompt of ids is cut between blocks, and the notifier stores the word
 * of a cut when the engine stores the block before it, and makes the word stale when the engine removes that block
 * (prefix_stored(), prefix_removed()).  If all events have come, no other word of such a cut is stale: what the engine
 * computed for others counts, and how long ago does not.
 *
 * Every word is a hint.  It is written by plain stores: of two workers that store at the same time one hint is lost.  A
 * process that is killed leaves whole words.  A word that something else has overwritten names an engine that may not
 * have the beginning, which costs at most the time to compute it.
 *
 * A beginning that all engines have (a system prompt) needs a word for each engine, and a bucket has 8.  So a digest
 * has a row of buckets, as many as an eighth of the engines that may be chosen, and an endpoint has its place in the
 * row by its slot (prefix_row()).  Rows lie side by side, so the processor fetches them ahead.  The policy needs all
 * engines and not just some: an engine whose hint is missing seems to have to compute the whole system prompt, so
 * requests would crowd on the others.
 *
 * Process: workers; the functions under "master" are the master's.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/seg.h"
#include "shm/base/prefix_key.h"

/* What an engine is taken to hold that does not say: the KV of a model of 8 GB on a GPU of 80 GB. */
#define PREFIX_CAPACITY_UNKNOWN (UINT64_C(1) << 19)
/* A larger capacity is taken for this one, in tokens. */
#define PREFIX_CAPACITY_MAX (UINT64_C(1) << 29)

struct table_pool;

/* The endpoints that have some cut of the last prompt looked up: the deepest one of each.  A worker's own memory. */
struct prefix_found {
	const struct prefix_key *key; /* of that prompt */
	uint32_t tokens;              /* the prompt has so many ... */
	uint64_t part;                /* ... and a byte of it so many, times 2^PREFIX_PART_BITS */
	uint32_t row;
	uint32_t round;
	uint32_t nslots;
	struct prefix_hit {
		uint32_t round; /* others are of former prompts */
		uint32_t cuts;  /* 0: all its words are stale */
		/* its count and its capacity, in units, when it was met: read once for all its words */
		uint32_t now, capacity;
	} of[]; /* [nslots] */
};

/* What is expected of one engine for one prompt, in tokens. */
struct prefix_guess {
	uint32_t prompt;   /* 0: nothing is known, so nothing is expected */
	uint32_t hit;      /* the beginning that the index knows there */
	uint32_t expected; /* the same, times what the engine has kept to so far */
};

#define PREFIX_PART_BITS 16

struct prefix_found *prefix_found_new(uint32_t nslots);

/* The number of buckets in a row where so many endpoints may be chosen: a power of two. */
uint32_t prefix_row(uint32_t nendpoints);
/* The same of a pool: every engine that a prompt of the pool may go to has its place in the row. */
uint32_t prefix_row_of(const struct table_pool *pool);
/* The ids in a block of the pool's engines: of the first engine whose KV events name them.  0: none does. */
uint32_t prefix_block_of(const struct seg *seg, const struct table_pool *pool);
/* Looks up which endpoints have which beginning of a prompt of so many tokens.  Reads two buckets at each place of the row,
 * and some log2(key->n) for each length in which the endpoints there differ.  The key must stay as long as the result
 * is used. */
void prefix_look(const struct seg *seg, const struct prefix_key *key, uint32_t row, uint32_t tokens,
	struct prefix_found *ret);
/* The words that an insertion has taken. */
struct prefix_taken {
	uint32_t empty, fresh; /* never used before; in use for another beginning */
};
/* The engine of `ep` has, or will have, the whole prompt, for which it computes so many tokens; nothing is inserted of an
 * engine that keeps nothing. */
struct prefix_taken prefix_insert(struct seg *seg, const struct prefix_key *key, uint32_t row,
	uint32_t ep, uint32_t computes);
/* What endpoint `ep` is expected to have of the prompt. */
struct prefix_guess prefix_expect(
	const struct seg *seg, const struct prefix_found *found, uint32_t ep);
/* Whether it has anything. */
static inline bool
prefix_has(const struct prefix_found *found, uint32_t slot)
{
	return found->of[slot].round == found->round && found->of[slot].cuts > 0;
}

/* The engine has answered, and had `cached` of its own `prompt` tokens in its cache.  PREFIX_UNSAID: it does not say.
 * vLLM says nothing where it means 0, so this counts as 0 once the engine has said anything. */
#define PREFIX_UNSAID UINT64_MAX
void prefix_record(struct seg *seg, uint32_t ep, const struct prefix_guess *guess, uint64_t cached,
	uint64_t prompt);

/*
 * The notifier: the KV events of the engine have come (shm/kv_events.h), and it has stored so many tokens more than
 * before.  From now on the count moves by these and not by what workers expect.  `held`: the tokens in its cache, in
 * place of the capacity.
 */
#define PREFIX_HELD_UNKNOWN UINT64_MAX
void prefix_follow(struct seg *seg, uint32_t ep, uint64_t stored, uint64_t held);
/* The notifier stores the words of the engine's blocks, of so many ids; 0: it stores none.  `all`: each block that was
 * stored or removed since the cache was empty, in order, so these words say exactly what the engine has. */
void prefix_follow_blocks(struct seg *seg, uint32_t ep, uint32_t block, bool all);
/* The engine has stored, or removed, the block before the cut with that digest.  Of a worker that stores the same word
 * meanwhile one hint is lost, or is believed until the engine says more. */
void prefix_stored(struct seg *seg, uint64_t digest, uint32_t row, uint32_t ep);
void prefix_removed(struct seg *seg, uint64_t digest, uint32_t row, uint32_t ep);
/* They come no more.  Also the master's, of an endpoint without a source. */
void prefix_unfollow(struct seg *seg, uint32_t ep);

/* Whether it is known what the engine's cache holds, and how many tokens that are. */
bool prefix_held(const struct seg *seg, uint32_t ep, uint64_t *ret);

/* All words of the endpoint are void. */
void prefix_void(struct seg *seg, uint32_t ep);

/* What an endpoint's engine has said about prompts of which something was known, in this life of the slot. */
struct prefix_sums {
	uint64_t answers;
	uint64_t prompt, expected, cached; /* tokens, as estimated by the router */
	/* the part of the hits that the engine had in its cache lately: 1 if the index is right */
	double kept;
};
struct prefix_sums prefix_sums(const struct seg *seg, uint32_t ep);
/* What its engine keeps in tokens; 0: unknown; less than 64: it keeps nothing for later prompts. */
uint64_t prefix_capacity(const struct seg *seg, uint32_t ep);

/* --- master */

/* 0: unknown; less than 64: its prompts get no words. */
void prefix_capacity_set(struct seg *seg, uint32_t ep, uint64_t tokens);
/* The slot begins its next life.  Its words are void by restart_begin(). */
void prefix_begin(struct seg *seg, uint32_t ep);
/* Sums of the endpoint that cannot be begin at 0 again; returns how many. */
uint32_t prefix_mend(struct seg *seg, uint32_t ep);
