/* Refusals: whose mistake they are, for how long they are believed, and when their share cannot be chance. */
#include "shm/refusal.h"

#include "shm/load.h"
#include "tests/unit/shm/fixture.h"

#define EP 1u
#define NOW UINT64_C(1000000)

TestSuite(shm_refusal, .init = small_seg, .fini = small_seg_end);

static bool
believed(uint64_t now_ms)
{
	return refusal_believed(seg, EP, false, now_ms);
}

Test(shm_refusal, the_first_is_not_believed)
{
	cr_assert_not(believed(NOW));
	cr_assert_not(believed(0), "right after the start of the machine");
}

Test(shm_refusal, the_time_doubles_up_to_a_minute)
{
	static const uint64_t times[] = {1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000};
	uint64_t now_ms = NOW;

	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		refusal_shared(seg, EP, refusal_mark(seg, EP), now_ms);
		cr_assert(believed(now_ms + times[i] - 1));
		cr_assert_not(believed(now_ms + times[i]));
		now_ms += times[i];
	}
	for (int i = 0; i < 100; i++, now_ms += 60000)
		refusal_shared(seg, EP, refusal_mark(seg, EP), now_ms);
	cr_assert(believed(now_ms - 1), "levels have an end");
	now_ms += 60000;
	refusal_shared(seg, EP, refusal_mark(seg, EP), now_ms);
	cr_assert_not(believed(now_ms + 1000), "after a quiet minute it begins anew");
}

Test(shm_refusal, of_several_that_met_the_same_word_one_counts)
{
	const uint64_t mark = refusal_mark(seg, EP);

	for (int i = 0; i < 5; i++)
		refusal_shared(seg, EP, mark, NOW);
	cr_assert(believed(NOW + 999));
	cr_assert_not(believed(NOW + 1000));
}

Test(shm_refusal, where_the_share_is_no_chance_one_a_second_is_doubted)
{
	for (int i = 0; i < 4; i++)
		refusal_shared(seg, EP, refusal_mark(seg, EP), NOW);
	cr_assert(believed(NOW + 7999));
	cr_assert(refusal_believed(seg, EP, true, NOW + 999));
	cr_assert_not(refusal_believed(seg, EP, true, NOW + 1000));
}

Test(shm_refusal, contradicted_until_it_accepts)
{
	refusal_shared(seg, EP, refusal_mark(seg, EP), NOW);
	cr_assert_str_eq(refusal_contradicted(seg, EP, 404), "engine refuses what others accept");
	cr_assert_not(believed(NOW + 1));
	cr_assert_null(refusal_contradicted(seg, EP, 400), "known");
	cr_assert_str_eq(refusal_text(seg, EP), "engine refuses what others accept");
	cr_assert_str_eq(
		refusal_contradicted(seg, EP, 401), "engine refuses our key", "why, is news");
	cr_assert_null(refusal_contradicted(seg, EP, 403));
	cr_assert_null(refusal_contradicted(seg, EP, 404));
	cr_assert_str_eq(refusal_text(seg, EP), "engine refuses our key");
	cr_assert(refusal_is_contradicted(seg, EP));
	cr_assert(refusal_accepted(seg, EP, NOW));
	cr_assert_not(refusal_accepted(seg, EP, NOW));
	cr_assert_not(refusal_is_contradicted(seg, EP));
	cr_assert_str_eq(refusal_text(seg, EP), "");
	cr_assert_str_eq(
		refusal_contradicted(seg, EP, 401), "engine refuses our key", "a new change");
}

Test(shm_refusal, a_clients_mistake_in_between_excuses_no_contradiction)
{
	(void)refusal_contradicted(seg, EP, 401);
	refusal_shared(seg, EP, refusal_mark(seg, EP), NOW);
	cr_assert(refusal_is_contradicted(seg, EP));
	cr_assert_str_eq(refusal_text(seg, EP), "engine refuses our key");
	cr_assert_not(believed(NOW));
}

Test(shm_refusal, a_slot_begins_without_a_past)
{
	refusal_seen(seg, EP, NOW);
	refusal_shared(seg, EP, refusal_mark(seg, EP), NOW);
	refusal_begin(seg, EP);
	cr_assert_not(believed(NOW));
	cr_assert_eq(window_read(seg->refusals[EP].answers, NOW).bad, 0);
}

/* --- shares -------------------------------------------------------------------------------------- */

Test(shm_refusal, requests_that_fail_everywhere_are_remembered)
{
	cr_assert_not(refusal_fails_alike(seg, 0, 500), "never");
	refusal_failed_alike(seg, 0, 1000);
	cr_assert(refusal_fails_alike(seg, 0, 1000 + FAILED_ALIKE_MS - 1));
	cr_assert_not(refusal_fails_alike(seg, 1, 1000), "another engine");
	cr_assert_not(refusal_fails_alike(seg, 0, 1000 + FAILED_ALIKE_MS));
	refusal_begin(seg, 0);
	cr_assert_not(refusal_fails_alike(seg, 0, 1000), "a new life");
}

static bool
far_above(uint32_t bad, uint32_t good, uint32_t others_bad, uint32_t others_good)
{
	const struct window_sum one = {bad, good}, others = {others_bad, others_good};

	return refusal_far_above(&one, &others);
}

Test(shm_refusal, a_share_that_cannot_be_chance)
{
	cr_assert(far_above(13, 0, 0, 13));
	cr_assert(far_above(30, 70, 1, 99));
	cr_assert(far_above(10, 0, 0, 100000));
	cr_assert(far_above(60000, 60000, 40000, 60000), "no overflow");
}

Test(shm_refusal, a_share_that_may_be_chance)
{
	cr_assert_not(far_above(0, 0, 0, 0));
	cr_assert_not(far_above(9, 0, 0, 1000), "too few");
	cr_assert_not(far_above(1000, 0, 0, 9), "too few others");
	cr_assert_not(far_above(12, 0, 0, 12));
	cr_assert_not(
		far_above(10, 490, 2, 998), "a few of few: the tail is longer than the normal's");
	cr_assert_not(far_above(50, 50, 40, 60));
	cr_assert_not(far_above(100, 0, 100, 0), "the clients' mistake");
	cr_assert_not(far_above(0, 100, 100, 0), "below is not above");
	cr_assert_not(far_above(0, 100, 0, 100));
}

/* Under chance alone it happens to less than once in a hundred million; here with both shares 5%, 20% and 50%. */
Test(shm_refusal, chance_is_not_taken_for_a_fault)
{
	static const unsigned shares[] = {50, 200, 500};
	uint64_t state = 88172645463325252u;
	unsigned wrong = 0;

	for (unsigned round = 0; round < 30000; round++) {
		struct window_sum one = {0, 0}, others = {0, 0};

		for (int i = 0; i < 120; i++) {
			struct window_sum *to = i % 4 == 0 ? &one : &others;

			state ^= state << 13;
			state ^= state >> 7;
			state ^= state << 17;
			*(state % 1000 < shares[round % 3] ? &to->bad : &to->good) += 1;
		}
		wrong += refusal_far_above(&one, &others);
	}
	cr_assert_eq(wrong, 0);
}
