/* Memory of bodies: blocks that are free serve the next bodies, and unused ones are freed. */
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

	for (size_t n = BLOCK_LEAST, before = 0; n <= BLOCK_MOST; n += KIB) {
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

Test(blocks, small_and_huge_ones_are_not_kept)
{
	block_give(&b, block_grow(&b, NULL, 0, BLOCK_LEAST - 1), BLOCK_LEAST - 1);
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
	q = block_of(p, 129 * KIB);
	cr_assert_eq(q[129 * KIB - 1], 'x');
	memset(q, 'y', 160 * KIB);
	block_give(&b, q, 129 * KIB);
	cr_assert_eq(b.bytes, 160 * KIB);
	p = malloc(KIB);
	cr_assert_eq(block_of(p, KIB), p);
	block_give(&b, p, KIB);
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
