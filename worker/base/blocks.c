#include "worker/base/blocks.h"

#include <assert.h>
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/base/mem.h"

/* Sizes between one power of two and the next: at most a fifth of a block is not used. */
#define STEPS 4
#define SHELF_KEPT                                                                                 \
	(SHELF / 8) /* bytes that were in use, of an empty shelf that waits for the next cells */

/* A block that is free. */
struct block {
	struct block *next;
	size_t left; /* of a huge one: its bytes that the kernel has not got back */
};

/*
 * A run of cells of one size, at an address that is a multiple of SHELF.  `fresh`: where the cells begin that were never
 * used.  Their pages cost nothing until then.
 */
struct shelf {
	LIST_ENTRY(shelf) link; /* in `shelves`, while it has a free cell */
	struct block *free;
	uint32_t row, used;
	size_t fresh;
};

static bool
is_kept(size_t n)
{
	return n > CELL_MOST && n <= BLOCK_MOST;
}

/* Returns the smallest size of at least n bytes; *row: its number, from `least`, a power of two. */
static size_t
size_of(size_t n, size_t least, uint32_t *row)
{
	unsigned int octave, step;

	*row = 0;
	if (n <= least)
		return least;
	octave = 63 - (unsigned int)__builtin_clzl(n - 1);
	step = (unsigned int)((n - 1 - ((size_t)1 << octave)) >> (octave - 2)) + 1;
	*row = STEPS * (octave - (unsigned int)__builtin_ctzl(least)) + step;
	return ((size_t)1 << octave) + ((size_t)step << (octave - 2));
}

/* --- cells --------------------------------------------------------------------------------------- */

static struct shelf *
shelf_new(struct blocks *b, uint32_t row)
{
	struct shelf *s = mem_aligned(SHELF);

	static_assert(sizeof(*s) <= CELL_LEAST, "the cells begin behind it");
	s->row = row;
	s->used = 0;
	s->free = NULL;
	s->fresh = CELL_LEAST;
	LIST_INSERT_HEAD(&b->shelves[row], s, link);
	ASAN_POISON_MEMORY_REGION((char *)s + CELL_LEAST, SHELF - CELL_LEAST);
	return s;
}

static void
shelf_free(struct shelf *s)
{
	LIST_REMOVE(s, link);
	ASAN_UNPOISON_MEMORY_REGION((char *)s + CELL_LEAST, SHELF - CELL_LEAST);
	free(s);
}

static char *
cell_new(struct blocks *b, size_t n)
{
	uint32_t row;
	const size_t size = size_of(n, CELL_LEAST, &row);
	struct shelf *s = LIST_FIRST(&b->shelves[row]);
	struct block *cell;

	if (s == NULL)
		s = shelf_new(b, row);
	cell = s->free;
	if (cell == NULL) {
		cell = (struct block *)(void *)((char *)s + s->fresh);
		s->fresh += size;
		ASAN_UNPOISON_MEMORY_REGION(cell, size);
	} else {
		ASAN_UNPOISON_MEMORY_REGION(cell, size);
		s->free = cell->next;
	}
	s->used++;
	if (s->free == NULL && s->fresh + size > SHELF)
		LIST_REMOVE(s, link);
	return (char *)cell;
}

/* Puts a shelf that was full behind the first one, which is filled first: the other one may become empty. */
static void
enter(struct shelf_list *shelves, struct shelf *s)
{
	if (LIST_EMPTY(shelves))
		LIST_INSERT_HEAD(shelves, s, link);
	else
		LIST_INSERT_AFTER(LIST_FIRST(shelves), s, link);
}

static void
cell_free(struct blocks *b, char *p, size_t n)
{
	struct shelf *s = (struct shelf *)(void *)(p - ((uintptr_t)p & (SHELF - 1)));
	struct block *cell = (struct block *)(void *)p;
	uint32_t row;
	const size_t size = size_of(n, CELL_LEAST, &row);

	assert(row == s->row && s->used > 0);
	if (s->free == NULL && s->fresh + size > SHELF)
		enter(&b->shelves[row], s);
	cell->next = s->free;
	s->free = cell;
	ASAN_POISON_MEMORY_REGION(cell, size);
	if (--s->used == 0 && (LIST_FIRST(&b->shelves[row]) != s || s->fresh > SHELF_KEPT))
		shelf_free(s); /* another one has room, or many cells of it were in use at once */
}

static void
drop_empty_shelves(struct blocks *b)
{
	struct shelf *s, *next;

	for (uint32_t row = 0; row < CELL_SIZES; row++)
		for (s = LIST_FIRST(&b->shelves[row]); s != NULL; s = next) {
			next = LIST_NEXT(s, link);
			if (s->used == 0)
				shelf_free(s);
		}
}

/* --- blocks -------------------------------------------------------------------------------------- */

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

static bool
is_cell(size_t n)
{
	return n <= CELL_MOST;
}

/* Returns the bytes that a block of n bytes has. */
static size_t
whole(size_t n)
{
	uint32_t row;

	if (is_cell(n))
		return size_of(n, CELL_LEAST, &row);
	return is_kept(n) ? size_of(n, BLOCK_LEAST, &row) : n;
}

/* Returns memory for a block of n bytes, or NULL: it is to come from glibc. */
static char *
take(struct blocks *b, size_t n)
{
	uint32_t row;
	size_t size;

	if (is_cell(n))
		return cell_new(b, n);
	if (!is_kept(n))
		return NULL;
	size = size_of(n, BLOCK_LEAST, &row);
	return (char *)pop(b, row, size);
}

char *
block_grow(struct blocks *b, char *p, size_t had, size_t want)
{
	const size_t size = whole(want);
	char *block;

	if (p != NULL && whole(had) == size)
		return p;
	block = take(b, want);
	if (block == NULL && (p == NULL || !is_cell(had)))
		return mem_resize(p, size, 1); /* moves pages in place of bytes */
	if (block == NULL)
		block = mem_resize(NULL, size, 1);
	if (p != NULL)
		memcpy(block, p, had);
	block_give(b, p, had);
	return block;
}

char *
block_copy(struct blocks *b, const void *p, size_t n)
{
	return memcpy(block_grow(b, NULL, 0, n), p, n);
}

char *
block_of(struct blocks *b, char *p, size_t n)
{
	char *cell;

	if (!is_cell(n))
		return mem_resize(p, whole(n), 1);
	cell = block_copy(b, p, n);
	free(p);
	return cell;
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
	if (p == NULL)
		return;
	if (is_cell(n)) {
		cell_free(b, p, n);
		return;
	}
	size = size_of(n, BLOCK_LEAST, &row);
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
		size = size_of(size, BLOCK_LEAST, &row);
		drop(b, row, size, b->kept[row].least);
	}
	drop_empty_shelves(b);
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
