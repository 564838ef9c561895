/*
 * Memory for bodies.  glibc gives large allocations back to the kernel when they are freed, and the kernel clears the
 * pages of the next one again: for requests of 128 KiB that was a third of the CPU.  So a worker keeps free
 * blocks for the next bodies: as many as its load has needed within the last half second, at most BLOCKS_KEPT bytes.
 *
 * Process: worker.
 * Ownership: a block belongs to the caller until block_give().
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCK_LEAST ((size_t)32 << 10) /* bytes: smaller ones come from glibc's heap */
#define BLOCK_MOST ((size_t)1 << 20)   /* larger ones, which are huge, are mapped each time */
#define BLOCKS_KEPT ((size_t)16 << 20) /* bytes */
#define BLOCK_STEP ((size_t)2 << 20)   /* bytes of a huge one that are freed in one turn: 0.3 ms */
#define BLOCK_SIZES 21                 /* 32, 40, 48, 56, 64, 80 ... 1024 KiB */

struct block;

struct blocks {
	struct {
		struct block *first;
		uint32_t n, least; /* kept now; the fewest since the last blocks_shrink() */
	} kept[BLOCK_SIZES];       /* all 0: none */
	size_t bytes;
	/* Freed in steps: the kernel takes 8 ms for 60 MiB at once.  One, or several of at most BLOCKS_KEPT bytes. */
	struct block *huge;
	size_t huge_bytes;
};

/* Returns a block of at least `want` bytes with the bytes of the block `p`, which had `had` (NULL, 0: there is none
 * yet).  `want` is not less than `had`. */
char *block_grow(struct blocks *b, char *p, size_t had, size_t want);
/* Returns allocated memory of `n` bytes, which it takes over, as a block of `n` bytes. */
char *block_of(char *p, size_t n);
/* Takes a block back.  `n`: what the caller has asked for. */
void block_give(struct blocks *b, char *p, size_t n);
/* Once in a turn of the loop: frees a step of the huge ones.  Returns true if there are more. */
bool blocks_turn(struct blocks *b);
/* Twice a second: frees the blocks that were not needed since the last call. */
void blocks_shrink(struct blocks *b);
/* Frees all that are kept. */
void blocks_free(struct blocks *b);
