/* Memory of bodies: blocks that are free serve the next bodies, and unused ones are freed.  Small ones are cells. */
#include "worker/base/blocks.h"

#include <criterion/criterion.h>
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((size_t)1 << 10)

static struct blocks b;

static void
teardown(void)
{
	blocks_free(&b);
	cr_assert_eq(b.bytes, 0);
	for (int i = 0; i < BLOCK_SIZES; i++)
		cr_assert_null(b.kept[i].first);
	for (int i = 0; i < CELL_SIZES; i++)
		cr_assert(LIST_EMPTY(&b.shelves[i]));
}

TestSuite(blocks, .fini = teardown);

Test(blocks, a_block_serves_the_next_body_of_its_size)
{
	char *p = block_grow(&b, NULL, 0, 130 * KIB), *q;

	memset(p, 'x', 130 * KIB);
	block_give(&b, p, 130 * KIB);
	cr_assert_eq(b.bytes, 160 * KIB);
	q = block_grow(&b, NULL, 0, 160 * KIB);
	cr_assert_eq(q, p);
	cr_assert_eq(b.bytes, 0);
	block_give(&b, q, 160 * KIB);
}

/* Another size is none of it: a body of 1 MiB would be written behind the end of one of 128 KiB. */
Test(blocks, a_block_serves_no_other_size)
{
	char *p = block_grow(&b, NULL, 0, 128 * KIB), *q;

	block_give(&b, p, 128 * KIB);
	q = block_grow(&b, NULL, 0, 128 * KIB + 1);
	cr_assert_eq(b.bytes, 128 * KIB, "it is still free");
	memset(q, 'x', 160 * KIB);
	block_give(&b, q, 128 * KIB + 1);
	cr_assert_eq(b.bytes, 288 * KIB);
}

Test(blocks, every_size_has_a_row_of_its_own)
{
	size_t rows = 0;

	for (size_t n = CELL_MOST + KIB, before = 0; n <= BLOCK_MOST; n += KIB) {
		struct blocks one = {.bytes = 0};
		char *p = block_grow(&one, NULL, 0, n);

		memset(p, 'x', n);
		block_give(&one, p, n);
		cr_assert_geq(one.bytes, n);
		cr_assert_leq(one.bytes, n * 5 / 4);
		rows += one.bytes != before;
		before = one.bytes;
		blocks_free(&one);
	}
	cr_assert_eq(rows, BLOCK_SIZES);
}

Test(blocks, a_body_that_grows_keeps_its_bytes)
{
	char *p = NULL;
	size_t had = 0;

	block_give(&b, block_grow(&b, NULL, 0, 64 * KIB), 64 * KIB); /* is used on the way */
	for (size_t n = KIB; n <= 4 * BLOCK_MOST; had = n, n *= 2) {
		p = block_grow(&b, p, had, n);
		for (size_t i = 0; i < had; i += KIB)
			cr_assert_eq(p[i], (char)(i / KIB));
		for (size_t i = had; i < n; i += KIB)
			p[i] = (char)(i / KIB);
	}
	block_give(&b, p, had);
	cr_assert_lt(b.bytes, 2 * BLOCK_MOST);
}

Test(blocks, huge_ones_are_not_kept)
{
	block_give(&b, block_grow(&b, NULL, 0, BLOCK_MOST + 1), BLOCK_MOST + 1);
	block_give(&b, NULL, 0);
	cr_assert_eq(b.bytes, 0);
}

/* In steps, by its pages: the last step frees the rest. */
Test(blocks, a_huge_one_is_freed_in_steps)
{
	const size_t n = 5 * BLOCK_STEP + 12345;
	char *p = block_grow(&b, NULL, 0, n);

	memset(p, 'x', n);
	block_give(&b, p, n);
	cr_assert_eq(b.huge_bytes, n);
	ASAN_UNPOISON_MEMORY_REGION(p + 64, n - 64);
	for (int i = 1; i < 5; i++) {
		cr_assert(blocks_turn(&b));
		cr_assert_eq(b.huge_bytes, n - i * BLOCK_STEP);
		cr_assert_eq(p[n - i * BLOCK_STEP + 128 * KIB], 0, "the kernel has it back");
		cr_assert_eq(p[n - i * BLOCK_STEP - 128 * KIB], 'x');
	}
	cr_assert_not(blocks_turn(&b));
	cr_assert_not(blocks_turn(&b));
	cr_assert_eq(b.huge_bytes, 0);
}

Test(blocks, huge_ones_beyond_the_bound_are_freed_at_once)
{
	const size_t n = BLOCKS_KEPT + 1;

	for (int i = 0; i < 3; i++)
		block_give(&b, block_grow(&b, NULL, 0, n), n);
	cr_assert_eq(b.huge_bytes, n, "the first one is freed in steps");
}

/* Memory that another part of the worker has allocated may be shorter than its block would be. */
Test(blocks, memory_of_others_becomes_a_block)
{
	char *p = malloc(129 * KIB), *q;

	memset(p, 'x', 129 * KIB);
	q = block_of(&b, p, 129 * KIB);
	cr_assert_eq(q[129 * KIB - 1], 'x');
	memset(q, 'y', 160 * KIB);
	block_give(&b, q, 129 * KIB);
	cr_assert_eq(b.bytes, 160 * KIB);
	p = malloc(KIB);
	memset(p, 'z', KIB);
	q = block_of(&b, p, KIB);
	cr_assert_eq(q[KIB - 1], 'z');
	block_give(&b, q, KIB);
}

Test(blocks, no_more_than_its_bound_is_kept)
{
	char *p[BLOCKS_KEPT / BLOCK_MOST + 1];
	const size_t n = sizeof(p) / sizeof(*p);

	for (size_t i = 0; i < n; i++)
		p[i] = block_grow(&b, NULL, 0, BLOCK_MOST);
	for (size_t i = 0; i < n; i++)
		block_give(&b, p[i], BLOCK_MOST);
	cr_assert_eq(b.bytes, BLOCKS_KEPT);
}

/* Three were free, one of them was needed since the last look: two have been of no use. */
Test(blocks, what_was_not_needed_is_freed)
{
	char *p[3];

	for (int i = 0; i < 3; i++)
		p[i] = block_grow(&b, NULL, 0, 128 * KIB);
	for (int i = 0; i < 3; i++)
		block_give(&b, p[i], 128 * KIB);
	blocks_shrink(&b);
	cr_assert_eq(b.bytes, 384 * KIB, "all were in use since the last look");
	for (int i = 0; i < 8; i++)
		block_give(&b, block_grow(&b, NULL, 0, 128 * KIB), 128 * KIB);
	blocks_shrink(&b);
	cr_assert_eq(b.bytes, 128 * KIB);
	blocks_shrink(&b);
	cr_assert_eq(b.bytes, 0);
}

/* --- cells --------------------------------------------------------------------------------------- */

static size_t
shelf_of(const char *p)
{
	return (uintptr_t)p / SHELF;
}

/* Each may be written to its end: no cell covers a part of another one, or of the shelf's own words. */
Test(blocks, cells_of_all_sizes_do_not_overlap)
{
	static char *p[2 * (CELL_MOST / 61 + 1)];
	size_t count = 0;

	for (size_t n = 1; n <= CELL_MOST; n += 61)
		for (int i = 0; i < 2; i++) {
			p[count] = block_grow(&b, NULL, 0, n);
			cr_assert_eq((uintptr_t)p[count] % 16, 0);
			memset(p[count++], (char)n, n);
		}
	count = 0;
	for (size_t n = 1; n <= CELL_MOST; n += 61)
		for (int i = 0; i < 2; i++, count++) {
			for (size_t at = 0; at < n; at++)
				cr_assert_eq(p[count][at], (char)n, "%zu of %zu", at, n);
			block_give(&b, p[count], n);
		}
}

Test(blocks, a_free_cell_is_the_next_one_of_its_size)
{
	char *p = block_grow(&b, NULL, 0, 1000), *q = block_grow(&b, NULL, 0, 1000), *other;

	cr_assert_eq(shelf_of(p), shelf_of(q));
	block_give(&b, p, 1000);
	other = block_grow(&b, NULL, 0, 1025);
	cr_assert_neq(shelf_of(other), shelf_of(p));
	cr_assert_eq(block_grow(&b, NULL, 0, 897), p);
	block_give(&b, p, 897);
	block_give(&b, q, 1000);
	block_give(&b, other, 1025);
}

/* Cells of many requests that began at once: all memory of them is given back, whatever was allocated in between. */
Test(blocks, shelves_without_a_used_cell_are_freed)
{
	enum { N = 3 * SHELF / 1024 };
	static char *p[N];
	size_t shelves = 1;
	char *last;

	for (size_t i = 0; i < N; i++) {
		p[i] = block_grow(&b, NULL, 0, 1024);
		shelves += i > 0 && shelf_of(p[i]) != shelf_of(p[i - 1]);
	}
	cr_assert_eq(shelves, 4);
	last = p[N - 1];
	for (size_t i = 0; i < N - 1; i++)
		block_give(&b, p[i], 1024);
	p[0] = block_grow(&b, NULL, 0, 1024);
	cr_assert_eq(shelf_of(p[0]), shelf_of(last), "it is the only one left");
	block_give(&b, p[0], 1024);
	block_give(&b, last, 1024);
	blocks_shrink(&b);
	for (uint32_t row = 0; row < CELL_SIZES; row++)
		cr_assert(LIST_EMPTY(&b.shelves[row]));
}

/* Without a call to the kernel for each request. */
Test(blocks, a_shelf_with_few_cells_waits_for_the_next_ones)
{
	char *p = block_grow(&b, NULL, 0, CELL_MOST);
	uint32_t row = 0;

	block_give(&b, p, CELL_MOST);
	while (LIST_EMPTY(&b.shelves[row]))
		row++;
	cr_assert_eq(block_grow(&b, NULL, 0, CELL_MOST), p);
	block_give(&b, p, CELL_MOST);
	blocks_shrink(&b);
	cr_assert(LIST_EMPTY(&b.shelves[row]));
}

/* A shelf that was full has a free cell again: it is used before another shelf is made. */
Test(blocks, a_full_shelf_comes_back)
{
	enum { N = (SHELF - CELL_LEAST) / 28672 };
	char *p[N], *q;

	for (size_t i = 0; i < N; i++) {
		p[i] = block_grow(&b, NULL, 0, 28000);
		memset(p[i], 'x', 28672);
		cr_assert_eq(shelf_of(p[i]), shelf_of(p[0]));
	}
	q = p[3];
	block_give(&b, q, 28000);
	p[3] = block_grow(&b, NULL, 0, 28672);
	cr_assert_eq(p[3], q);
	for (size_t i = 0; i < N; i++)
		block_give(&b, p[i], 28000);
}
