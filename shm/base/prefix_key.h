/*
 * The beginnings of a prompt, as the prefix index (shm/prefix.h) knows them: the prompt is cut at fixed offsets, and
 * each cut has a digest of all bytes before it.  Two prompts that begin alike have the same digests up to the last
 * cut before they differ.
 *
 * The digests form a chain: each is a hash of the digest before it and of the bytes in between, so one pass makes them
 * all.  The hash is XXH3 with a secret that is drawn at the start: a client that does not know the secret cannot make
 * two prompts with one digest, and so cannot pass its prompt off for another client's.
 *
 * A prompt of token ids may be cut between the blocks of ids that its engines keep, into units of 64 ids or more.  What an
 * engine says of its blocks (KV events) then gives the same digests, whichever client has sent the prompt.
 *
 * Process: worker.  No memory is shared here.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* A cut every 256 bytes of the first 4 KiB, then after an eighth more each time: 63 cuts of 1 MiB.  What comes behind
 * the last cut is not looked up. */
#define PREFIX_CUTS 64
#define PREFIX_STEP 256u
#define PREFIX_EVEN 4096u

struct prefix_secret {
	unsigned char bytes[192];
};

/* Of a prompt of ids: a cut behind each of the first units, then after an eighth more each time. */
#define PREFIX_UNIT_IDS 64u
#define PREFIX_EVEN_UNITS 16u
#define PREFIX_BLOCK_MAX 4096u /* ids of a block; larger blocks are not followed */

struct prefix_key {
	uint32_t n; /* cuts */
	uint32_t
		block; /* ids of the engines' blocks, for a prompt of ids that is cut between them; 0: it is cut by bytes */
	uint32_t size; /* of the whole prompt: bytes or ids */
	uint32_t end[PREFIX_CUTS]; /* the same of what is before a cut */
	uint64_t digest[PREFIX_CUTS];
	const char *part[2];      /* where the prompt stood when it was cut, */
	uint32_t first;           /* so many bytes of it in its first part */
	uint32_t at[PREFIX_CUTS]; /* a prompt of ids: where it was cut, in bytes */
};

/* The bytes from a cut at `at` to the next one. */
static inline uint32_t
prefix_step(uint32_t at)
{
	return at < PREFIX_EVEN ? PREFIX_STEP : at / 8 & ~63u;
}

/* Blocks that are a unit of so many ids at least. */
static inline uint32_t
prefix_unit_blocks(uint32_t block)
{
	return (PREFIX_UNIT_IDS + block - 1) / block;
}

/* The units from a cut at `at` to the next one. */
static inline uint32_t
prefix_unit_step(uint32_t at)
{
	return at < PREFIX_EVEN_UNITS ? 1 : at / 8;
}

/* All processes of one seed have the same secret. */
void prefix_secret_make(struct prefix_secret *s, const uint64_t seed[2]);
/* What every prompt depends on, such as the model's name: part after part, beginning with 0. */
uint64_t prefix_root(const struct prefix_secret *s, uint64_t root, const void *part, size_t n);
/* What the digests of ids depend on: the model or its adapter, by its name, and then SGLang's lora_path and the cache_salt
 * as they stand in a body; none: no bytes. */
uint64_t prefix_ids_model(const struct prefix_secret *s, const char *model, size_t n);
uint64_t prefix_ids_root(const struct prefix_secret *s, uint64_t of_model, const char *lora_path,
	size_t nlora_path, const char *salt, size_t nsalt);
/* Cuts a prompt of n bytes.  Prompts with different roots have no digest in common. */
void prefix_cut(const struct prefix_secret *s, uint64_t root, const char *prompt, size_t n,
	struct prefix_key *ret);
/* The same of a prompt of two parts: behind the first one is a cut, too. */
void prefix_cut_two(const struct prefix_secret *s, uint64_t root, const char *first, size_t nfirst,
	const char *prompt, size_t n, struct prefix_key *ret);
/* The digest behind one more block of ids. */
uint64_t prefix_block(
	const struct prefix_secret *s, uint64_t digest, const uint32_t *ids, uint32_t block);
/* A hash of the bytes between cut i and the one before it, the same in all routers: no digest is, for the secrets differ.
 * The prompt must still stand where it was cut. */
uint64_t prefix_between(const struct prefix_key *key, uint32_t i);
