#include "worker/base/blocks.h"

#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/base/mem.h"

/* Sizes between one power of two and the next: at most a fifth of a block is not used. */
#define STEPS 4

/* A block that is free. */
struct block {
	struct block *next;
	size_t left; /* of a huge one: its bytes that the kernel has not got back */
};

static bool
is_kept(size_t n)
{
	return n >= BLOCK_LEAST && n <= BLOCK_MOST;
}

/* Returns the size of the smallest block of at least n bytes; *row: of `kept`. */
static size_t
size_of(size_t n, uint32_t *row)
{
	size_t octave = BLOCK_LEAST, size = BLOCK_LEAST;

	for (*row = 0; size < n; size += octave / STEPS, ++*row)
		if (size == 2 * octave)
			octave = size;
	return size;
}

static struct block *
pop(struct blocks *b, uint32_t row, size_t size)
{
	struct block *block = b->kept[row].first;

	if (block == NULL)
		return NULL;
	ASAN_UNPOISON_MEMORY_REGION(block, size);
	b->kept[row].first = block->next;
	b->kept[row].n--;
	b->bytes -= size;
	if (b->kept[row].n < b->kept[row].least)
		b->kept[row].least = b->kept[row].n;
	return block;
}

char *
block_grow(struct blocks *b, char *p, size_t had, size_t want)
{
	uint32_t row, row_had;
	size_t size;
	char *block;

	if (!is_kept(want))
		return mem_resize(p, want, 1);
	size = size_of(want, &row);
	if (p != NULL && is_kept(had) && size_of(had, &row_had) == size)
		return p;
	block = (char *)pop(b, row, size);
	if (block == NULL)
		return mem_resize(p, size, 1);
	if (p != NULL)
		memcpy(block, p, had);
	block_give(b, p, had);
	return block;
}

char *
block_of(char *p, size_t n)
{
	uint32_t row;

	return is_kept(n) ? mem_resize(p, size_of(n, &row), 1) : p;
}

static void
give_huge(struct blocks *b, struct block *block, size_t n)
{
	if (b->huge != NULL && b->huge_bytes + n > BLOCKS_KEPT) {
		free(block);
		return;
	}
	block->next = b->huge;
	block->left = n;
	b->huge = block;
	b->huge_bytes += n;
	ASAN_POISON_MEMORY_REGION(block + 1, n - sizeof(*block));
}

bool
blocks_turn(struct blocks *b)
{
	struct block *block = b->huge;
	uintptr_t page, from, to;

	if (block == NULL)
		return false;
	if (block->left > 2 * BLOCK_STEP) {
		page = (uintptr_t)sysconf(_SC_PAGESIZE);
		to = ((uintptr_t)block + block->left) / page * page;
		from = ((uintptr_t)block + block->left - BLOCK_STEP) / page * page;
		block->left -= BLOCK_STEP;
		b->huge_bytes -= BLOCK_STEP;
		(void)madvise((void *)from, to - from, MADV_DONTNEED);
		return true;
	}
	b->huge = block->next;
	b->huge_bytes -= block->left;
	ASAN_UNPOISON_MEMORY_REGION(block + 1, block->left - sizeof(*block));
	free(block);
	return b->huge != NULL;
}

void
block_give(struct blocks *b, char *p, size_t n)
{
	struct block *block = (struct block *)(void *)p;
	uint32_t row;
	size_t size;

	if (p != NULL && n > BLOCK_MOST) {
		give_huge(b, block, n);
		return;
	}
	if (p == NULL || !is_kept(n)) {
		free(p);
		return;
	}
	size = size_of(n, &row);
	if (b->bytes + size > BLOCKS_KEPT) {
		free(p);
		return;
	}
	block->next = b->kept[row].first;
	b->kept[row].first = block;
	b->kept[row].n++;
	b->bytes += size;
	ASAN_POISON_MEMORY_REGION(block, size);
}

/* Frees n blocks of a size. */
static void
drop(struct blocks *b, uint32_t row, size_t size, uint32_t n)
{
	while (n-- > 0)
		free(pop(b, row, size));
	b->kept[row].least = b->kept[row].n;
}

void
blocks_shrink(struct blocks *b)
{
	size_t size = BLOCK_LEAST;

	for (uint32_t row = 0; row < BLOCK_SIZES; row++, size++) {
		size = size_of(size, &row);
		drop(b, row, size, b->kept[row].least);
	}
}

void
blocks_free(struct blocks *b)
{
	for (uint32_t row = 0; row < BLOCK_SIZES; row++)
		b->kept[row].least = b->kept[row].n;
	blocks_shrink(b);
	while (blocks_turn(b))
		;
}
