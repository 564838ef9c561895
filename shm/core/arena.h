/*
 * Tables in shared memory are built by bump allocation from an arena, and never changed afterwards.  A checksum tells
 * whether a table's bytes are still those that were built.
 *
 * Process: master.  Checksums also in the workers of debug builds.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_ALIGN 8 /* the widest type in a table, and what the checksum steps by */

struct arena {
	unsigned char *base;
	size_t used, size;
	bool full; /* from the first failure on */
};

static inline size_t
arena_round_up(size_t n)
{
	return (n + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

void arena_begin(struct arena *a, void *base, size_t size);
/* Zeroed bytes, or copies of texts; NULL from the first failure on. */
void *arena_take(struct arena *a, size_t n);
const char *arena_str(struct arena *a, const char *s);
const char *const *arena_strv(struct arena *a, const char *const *v, size_t n);

/* Of the `used` bytes at `base`, whole words; the word at offset `own` holds the checksum itself, and counts as 0. */
uint64_t arena_checksum(const void *base, size_t used, size_t own);
/* False if the words `used` and `checksum` do not fit the bytes.  `least`: bytes of the table's own struct. */
bool arena_intact(const void *base, uint64_t used, size_t least, size_t arena_bytes, size_t own);
