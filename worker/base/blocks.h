/*
 * Memory for what clients and engines send: bodies, header lines, kept answers.
 *
 * glibc gives large allocations back to the kernel when they are freed, and the kernel clears the
 * pages of the next one again: for requests of 128 KiB that was a third of the CPU.  So a worker keeps free
 * blocks for the next bodies: as many as its load has needed within the last half second, at most BLOCKS_KEPT bytes.
 *
 * Small ones are cells of a shelf, which has cells of one size.  In glibc's heap they would lie between the objects of
 * the streams, which live longer, and leave gaps there: a third of a worker's memory after many streams were
 * opened at once.  A shelf without a used cell is freed: at once, or after half a second if it had few.
 *
 * Process: worker.
 * Ownership: a block belongs to the caller until block_give().
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define CELL_LEAST ((size_t)64) /* bytes */
#define CELL_MOST ((size_t)28 << 10)
#define CELL_SIZES 36                  /* 64, 80, 96, 112, 128, 160 ... 28672 bytes */
#define SHELF ((size_t)256 << 10)      /* bytes, and the alignment */
#define BLOCK_LEAST ((size_t)32 << 10) /* bytes: of what is larger than a cell */
#define BLOCK_MOST ((size_t)1 << 20)   /* larger ones, which are huge, are mapped each time */
#define BLOCKS_KEPT ((size_t)16 << 20) /* bytes */
#define BLOCK_STEP ((size_t)2 << 20)   /* bytes of a huge one that are freed in one turn: 0.3 ms */
#define BLOCK_SIZES 21                 /* 32, 40, 48, 56, 64, 80 ... 1024 KiB */

struct block;
struct shelf;

LIST_HEAD(shelf_list, shelf);

/* All 0: there are none. */
struct blocks {
	struct shelf_list shelves[CELL_SIZES]; /* those that have a free cell */
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
char *block_of(struct blocks *b, char *p, size_t n);
/* Returns a block of `n` bytes with a copy of those. */
char *block_copy(struct blocks *b, const void *p, size_t n);
/* Takes a block back.  `n`: what the caller has asked for. */
void block_give(struct blocks *b, char *p, size_t n);
/* Once in a turn of the loop: frees a step of the huge ones.  Returns true if there are more. */
bool blocks_turn(struct blocks *b);
/* Twice a second: frees the blocks that were not needed since the last call, and the shelves without a used cell. */
void blocks_shrink(struct blocks *b);
/* Frees all that are kept. */
void blocks_free(struct blocks *b);
