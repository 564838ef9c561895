/* Bytes that all workers hold together. */
#include "shm/stored.h"

#include "shm/core/suspect.h"
#include "tests/unit/shm/fixture.h"

#define STEP 100

static struct stored shown[3];
static uint64_t suspects[SUSPECT_N];

static void
ignore(const char *where, uint64_t index, uint64_t n)
{
	(void)where;
	(void)index;
	(void)n;
}

static void
setup(void)
{
	small_seg();
	suspect_begin(suspects, ignore);
	for (uint32_t i = 0; i < 3; i++)
		proc_slot_set(seg, i, 1 + i, PROC_READY, 1);
}

TestSuite(stored, .init = setup, .fini = small_seg_end);

static void
show(uint32_t me, enum stored_kind kind, uint64_t bytes)
{
	if (stored_is_stale(bytes, STEP, shown[me].bytes[kind]))
		stored_publish(seg, me, kind, bytes, STEP, &shown[me].bytes[kind]);
}

static uint64_t
seen(uint32_t me, enum stored_kind kind)
{
	return stored_of(seg, me).bytes[kind];
}

Test(stored, what_is_published_is_never_less_and_seldom_changes)
{
	show(0, STORED_BUFFERED, 1);
	cr_assert_eq(seen(0, STORED_BUFFERED), STEP);
	show(0, STORED_BUFFERED, STEP);
	show(0, STORED_BUFFERED, 0);
	cr_assert_eq(seen(0, STORED_BUFFERED), STEP, "from afar only");
	show(0, STORED_BUFFERED, 3 * STEP + 1);
	cr_assert_eq(seen(0, STORED_BUFFERED), 4 * STEP);
	show(0, STORED_BUFFERED, 2 * STEP);
	cr_assert_eq(seen(0, STORED_BUFFERED), 4 * STEP);
	show(0, STORED_BUFFERED, 2 * STEP - 1);
	cr_assert_eq(seen(0, STORED_BUFFERED), 2 * STEP);
	cr_assert_eq(seen(0, STORED_DECLARED), 0);
}

Test(stored, the_step_is_a_small_part_of_the_bound)
{
	cr_assert_eq(stored_step(UINT64_C(1) << 20), 256);
	cr_assert_eq(stored_step(UINT64_C(1) << 30), 256 << 10);
	cr_assert_eq(stored_step(UINT64_C(1) << 40), 256 << 10);
}

Test(stored, others_are_all_workers_that_live)
{
	show(0, STORED_BUFFERED, 1 * STEP);
	show(1, STORED_BUFFERED, 2 * STEP);
	show(1, STORED_DECLARED, 3 * STEP);
	show(2, STORED_BUFFERED, 4 * STEP);
	seg->procs[3].stored[STORED_BUFFERED] =
		8 * STEP; /* a stray store: the slot has no process */
	cr_assert_eq(stored_others(seg, 0).bytes[STORED_BUFFERED], 6 * STEP);
	cr_assert_eq(stored_others(seg, 0).bytes[STORED_DECLARED], 3 * STEP);
	cr_assert_eq(stored_others(seg, 1).bytes[STORED_BUFFERED], 5 * STEP);
	proc_slot_set(seg, 1, 0, PROC_EMPTY, 0); /* killed */
	cr_assert_eq(stored_others(seg, 0).bytes[STORED_BUFFERED], 4 * STEP);
	proc_slot_set(seg, 1, 9, PROC_READY, 1);
	cr_assert_eq(stored_others(seg, 0).bytes[STORED_BUFFERED], 4 * STEP,
		"the next one begins with none");
	cr_assert_eq(stored_others(seg, 0).bytes[STORED_DECLARED], 0);
}

Test(stored, a_number_that_cannot_be_is_none)
{
	seg->procs[1].stored[STORED_BUFFERED] = UINT64_MAX;
	cr_assert_eq(stored_others(seg, 0).bytes[STORED_BUFFERED], 0);
	cr_assert_eq(suspects[SUSPECT_PROCESSES], 1);
}

Test(stored, its_owner_repairs_and_lowers_it)
{
	const struct stored held = {{STEP + 1, 0}};

	show(0, STORED_BUFFERED, STEP + 1);
	seg->procs[0].stored[STORED_BUFFERED] = 0;
	seg->procs[0].stored[STORED_DECLARED] = 1000 * STEP;
	stored_restore(seg, 0, &held, STEP, &shown[0]);
	cr_assert_eq(seen(0, STORED_BUFFERED), 2 * STEP);
	cr_assert_eq(seen(0, STORED_DECLARED), 0);
	cr_assert_eq(suspects[SUSPECT_PROCESSES], 2);
	show(0, STORED_BUFFERED, 1);
	cr_assert_eq(seen(0, STORED_BUFFERED), 2 * STEP);
	stored_restore(seg, 0, &(struct stored){{0}}, STEP, &shown[0]);
	cr_assert_eq(seen(0, STORED_BUFFERED), 0);
	cr_assert_eq(suspects[SUSPECT_PROCESSES], 2);
}
