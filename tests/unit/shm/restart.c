/* Lives of an engine: who may put which one in doubt. */
#include <criterion/criterion.h>

#include "shm/core/seg.h"
#include "shm/load.h"
#include "shm/restart.h"

static struct seg *seg;

static void
setup(void)
{
	struct seg_sizes sizes = {
		.max_workers = 2, .max_endpoints = 4, .max_pools = 1, .flags_per_worker = 64};

	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
}

static void
teardown(void)
{
	seg_free(&seg);
}

TestSuite(restart, .init = setup, .fini = teardown);

Test(restart, the_first_sign_wakes_the_master_and_is_taken_once)
{
	cr_assert_not(restart_take(seg, 1));
	cr_assert(restart_doubt(seg, 1, 0));
	cr_assert_not(restart_doubt(seg, 1, 0), "the master has not taken the first one");
	cr_assert_not(restart_take(seg, 2));
	cr_assert(restart_take(seg, 1));
	cr_assert_not(restart_take(seg, 1));
	cr_assert(restart_doubt(seg, 1, 0), "a later one is a sign again");
}

Test(restart, signs_end_with_the_life_that_they_are_of)
{
	cr_assert(restart_doubt(seg, 1, 0));
	restart_begin(seg, 1);
	cr_assert_eq(restart_life(seg, 1), 1);
	cr_assert_not(restart_take(seg, 1));
	cr_assert_not(restart_doubt(seg, 1, 0), "an exchange with the former life");
	cr_assert_not(restart_doubt(seg, 1, 2), "nor with one to come");
	cr_assert(restart_doubt(seg, 1, 1));
}

Test(restart, an_id_that_no_answer_of_this_life_has_named_is_a_sign_once)
{
	cr_assert_not(restart_named(seg, 1, 0, 5), "nothing is known of the engine");
	cr_assert_not(restart_named(seg, 1, 0, 5));
	cr_assert(restart_named(seg, 1, 0, 6));
	cr_assert_not(restart_named(seg, 1, 0, 6), "two ranks, or two replicas behind one address");
	cr_assert_not(restart_named(seg, 1, 0, 5));
	cr_assert_not(restart_named(seg, 2, 0, 7), "another engine");
}

Test(restart, ids_end_with_the_life_that_they_are_of)
{
	cr_assert_not(restart_named(seg, 1, 0, 5));
	restart_begin(seg, 1);
	cr_assert_not(restart_named(seg, 1, 1, 6), "the first one of this life");
	cr_assert_not(restart_named(seg, 1, 1, 6));
	cr_assert(restart_named(seg, 1, 1, 5));
}

Test(restart, a_slot_that_begins_anew_has_another_engine)
{
	const uint64_t life = restart_life(seg, 3);

	ep_slot_begin(seg, 3);
	cr_assert_gt(restart_life(seg, 3), life);
}
