/* Tallies: outcomes of an endpoint by cause, its last failure, its last sign of life. */
#include "shm/tally.h"

#include <string.h>

#include "shm/load.h"
#include "tests/unit/shm/fixture.h"

#define EP 1u
#define NOW UINT64_C(1000000)

TestSuite(shm_tally, .init = small_seg, .fini = small_seg_end);

Test(shm_tally, each_cause_counts_for_itself_at_its_endpoint)
{
	for (enum tally_cause cause = 0; cause < TALLY_N; cause++)
		for (unsigned i = 0; i <= cause; i++)
			tally_add(seg, EP, cause, NOW);
	for (enum tally_cause cause = 0; cause < TALLY_N; cause++) {
		cr_assert_eq(tally_count(seg, EP, cause), cause + 1, "%s", tally_cause_name(cause));
		cr_assert_eq(tally_count(seg, EP + 1, cause), 0);
	}
	cr_assert_eq(tally_requests(seg, EP), TALLY_N * (TALLY_N + 1) / 2);
}

Test(shm_tally, the_last_failure_is_named_with_its_time)
{
	uint64_t ms;

	cr_assert_eq(tally_last(seg, EP, &ms), TALLY_GOOD);
	cr_assert_null(tally_last_name(seg, EP));
	tally_add(seg, EP, TALLY_RESET, NOW);
	tally_add(seg, EP, TALLY_BUSY, NOW + 7);
	tally_add(seg, EP, TALLY_GOOD, NOW + 9);
	cr_assert_eq(tally_last(seg, EP, &ms), TALLY_BUSY);
	cr_assert_eq(ms, NOW + 7);
	cr_assert_str_eq(tally_last_name(seg, EP), "busy");
}

Test(shm_tally, the_last_sign_of_life_has_its_time)
{
	cr_assert_eq(tally_alive_ms(seg, EP), 0);
	tally_alive(seg, EP, NOW);
	tally_alive(seg, EP, NOW - 5); /* a worker whose clock is older */
	tally_alive(seg, EP, NOW + TALLY_ALIVE_STEP_MS - 1);
	cr_assert_eq(tally_alive_ms(seg, EP), NOW, "not each one is written");
	tally_alive(seg, EP, NOW + TALLY_ALIVE_STEP_MS);
	tally_add(seg, EP, TALLY_5XX, NOW + 2 * TALLY_ALIVE_STEP_MS);
	cr_assert_eq(tally_alive_ms(seg, EP), NOW + TALLY_ALIVE_STEP_MS);
	cr_assert_eq(tally_alive_ms(seg, EP + 1), 0);
}

Test(shm_tally, a_new_life_of_the_slot_begins_with_nothing)
{
	uint64_t ms;

	tally_add(seg, EP, TALLY_GOOD, NOW);
	tally_add(seg, EP, TALLY_4XX, NOW);
	tally_alive(seg, EP, NOW);
	tally_shed(seg, EP, NOW);
	cr_assert_eq(tally_shed_ms(seg, EP), NOW);
	ep_slot_begin(seg, EP);
	cr_assert_eq(tally_shed_ms(seg, EP), 0);
	cr_assert_eq(tally_requests(seg, EP), 0);
	cr_assert_eq(tally_alive_ms(seg, EP), 0);
	cr_assert_eq(tally_last(seg, EP, &ms), TALLY_GOOD);
	cr_assert_eq(ms, 0);
}

Test(shm_tally, names_are_distinct)
{
	for (enum tally_cause a = 0; a < TALLY_N; a++)
		for (enum tally_cause b = 0; b < a; b++) {
			cr_assert_str_neq(tally_cause_name(a), tally_cause_name(b));
			cr_assert_str_neq(tally_cause_meaning(a), tally_cause_meaning(b));
		}
}
