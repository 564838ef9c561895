/* Blame: what an endpoint's word keeps of failures with partners, and who is at fault: every combination. */
#include "shm/blame.h"

#include "shm/load.h"
#include "tests/unit/shm/fixture.h"

#define EP 1u
#define NOW UINT64_C(1000000)

TestSuite(shm_blame, .init = small_seg, .fini = small_seg_end);

static void
expect(struct evidence e, enum standing standing, uint32_t partners)
{
	cr_assert_eq(e.standing, standing);
	cr_assert_eq(e.partners, partners);
}

Test(shm_blame, one_that_was_never_good_fails_at_once)
{
	expect(blame_failed(seg, EP, 7, NOW), STANDING_UNKNOWN, 1);
	expect(blame_failed(seg, EP, 7, NOW), STANDING_FAILING, 1);
	expect(blame_failed(seg, EP, 9, NOW), STANDING_FAILING, 2);
	expect(blame_failed(seg, EP + 1, 9, NOW), STANDING_UNKNOWN, 1);
}

Test(shm_blame, one_that_was_good_is_suspect_while_it_fails_with_one_partner)
{
	blame_good(seg, EP, NOW);
	expect(blame_failed(seg, EP, 7, NOW + 1), STANDING_GOOD, 1);
	for (uint32_t i = 1; i < BLAME_ROW; i++)
		expect(blame_failed(seg, EP, 7, NOW + 1), STANDING_SUSPECT, 1);
	expect(blame_failed(seg, EP, 7, NOW + 1), STANDING_FAILING, 1);
}

Test(shm_blame, a_second_partner_shows_it)
{
	blame_good(seg, EP, NOW);
	expect(blame_failed(seg, EP, 7, NOW + 1), STANDING_GOOD, 1);
	expect(blame_failed(seg, EP, 7, NOW + 1), STANDING_SUSPECT, 1);
	expect(blame_failed(seg, EP, 9, NOW + 1), STANDING_FAILING, 2);
	expect(blame_failed(seg, EP, 9, NOW + 1), STANDING_FAILING, 2);
}

Test(shm_blame, a_success_counts_for_a_while)
{
	blame_good(seg, EP, NOW);
	expect(blame_failed(seg, EP, 7, NOW + BLAME_GOOD_MS), STANDING_UNKNOWN, 1);
	blame_good(seg, EP, NOW);
	expect(blame_failed(seg, EP, 7, NOW + BLAME_GOOD_MS - 1), STANDING_GOOD, 1);
	expect(blame_failed(seg, EP, 7, NOW + BLAME_GOOD_MS), STANDING_FAILING, 1);
}

/* Another worker has noted it since this one took the time. */
Test(shm_blame, a_success_may_be_ahead)
{
	blame_good(seg, EP, NOW + 1);
	expect(blame_failed(seg, EP, 7, NOW), STANDING_GOOD, 1);
	expect(blame_failed(seg, EP, 7, NOW), STANDING_SUSPECT, 1);
}

Test(shm_blame, a_success_clears_failures)
{
	(void)blame_failed(seg, EP, 7, NOW);
	(void)blame_failed(seg, EP, 9, NOW);
	blame_good(seg, EP, NOW + 1);
	expect(blame_failed(seg, EP, 11, NOW + 2), STANDING_GOOD, 1);
}

Test(shm_blame, not_each_success_is_written)
{
	blame_good(seg, EP, NOW);
	blame_good(seg, EP, NOW + BLAME_STEP_MS - 1);
	expect(blame_failed(seg, EP, 7, NOW + BLAME_GOOD_MS), STANDING_UNKNOWN, 1);
}

Test(shm_blame, a_count_has_an_end)
{
	struct evidence e;

	for (uint32_t i = 0; i < 300; i++)
		e = blame_failed(seg, EP, i, NOW);
	expect(e, STANDING_FAILING, 16);
	blame_good(seg, EP, NOW);
	expect(blame_failed(seg, EP, 7, NOW), STANDING_GOOD, 1);
}

Test(shm_blame, a_new_life_of_the_slot_has_no_past)
{
	(void)blame_failed(seg, EP, 7, NOW);
	ep_slot_begin(seg, EP);
	expect(blame_failed(seg, EP, 7, NOW), STANDING_UNKNOWN, 1);
}

/* By hand: what is known of either, and who is at fault. */
static const struct {
	enum standing prefill, decode;
	enum blame blame;
} table[] = {
	{STANDING_UNKNOWN, STANDING_UNKNOWN, BLAME_PREFILL},
	{STANDING_UNKNOWN, STANDING_GOOD, BLAME_PREFILL},
	{STANDING_UNKNOWN, STANDING_SUSPECT, BLAME_NEITHER},
	{STANDING_UNKNOWN, STANDING_FAILING, BLAME_DECODE},
	{STANDING_GOOD, STANDING_UNKNOWN, BLAME_DECODE},
	{STANDING_GOOD, STANDING_GOOD, BLAME_NEITHER},
	{STANDING_GOOD, STANDING_SUSPECT, BLAME_NEITHER},
	{STANDING_GOOD, STANDING_FAILING, BLAME_DECODE},
	{STANDING_SUSPECT, STANDING_UNKNOWN, BLAME_NEITHER},
	{STANDING_SUSPECT, STANDING_GOOD, BLAME_NEITHER},
	{STANDING_SUSPECT, STANDING_SUSPECT, BLAME_NEITHER},
	{STANDING_SUSPECT, STANDING_FAILING, BLAME_DECODE},
	{STANDING_FAILING, STANDING_UNKNOWN, BLAME_PREFILL},
	{STANDING_FAILING, STANDING_GOOD, BLAME_PREFILL},
	{STANDING_FAILING, STANDING_SUSPECT, BLAME_PREFILL},
};

Test(shm_blame, evidence_decides)
{
	cr_assert_eq(sizeof(table) / sizeof(table[0]), STANDING_N * STANDING_N - 1);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		for (uint32_t n = 1; n <= 9; n++) { /* partners count only where both fail */
			const struct evidence p = {table[i].prefill, n};
			const struct evidence d = {table[i].decode, 10 - n};

			cr_assert_eq(blame_decide(&p, &d), table[i].blame, "row %zu", i);
		}
}

/* Both fail: the engine with more partners, else the prefill engine. */
Test(shm_blame, the_engine_that_fails_with_many_is_at_fault)
{
	for (uint32_t p = 1; p <= 4; p++)
		for (uint32_t d = 1; d <= 4; d++) {
			const struct evidence ep = {STANDING_FAILING, p};
			const struct evidence ed = {STANDING_FAILING, d};

			cr_assert_eq(blame_decide(&ep, &ed), d > p ? BLAME_DECODE : BLAME_PREFILL);
		}
}
