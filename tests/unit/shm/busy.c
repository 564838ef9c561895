/* Busy endpoints: for how long requests stay away, and who tries them. */
#include "shm/busy.h"

#include "shm/load.h"
#include "tests/unit/shm/fixture.h"

#define EP 1u
#define NOW UINT64_C(1000000)

TestSuite(shm_busy, .init = small_seg, .fini = small_seg_end);

/* What a request of worker `me` finds at EP; UINT64_MAX: it may not go there. */
static uint64_t
try(uint32_t me, uint64_t now_ms)
{
	uint64_t mark;

	return busy_try(seg, me, EP, now_ms, false, &mark) ? mark : UINT64_MAX;
}

static uint64_t
said(uint64_t mark, uint64_t now_ms)
{
	return busy_said(seg, EP, mark, now_ms, 0);
}

Test(shm_busy, an_answer_keeps_requests_away_and_then_one_tries)
{
	cr_assert_eq(try(0, NOW), 0);
	cr_assert_eq(said(0, NOW), BUSY_FIRST_MS);
	cr_assert(busy_is(seg, EP));
	cr_assert_eq(busy_left(seg, EP, NOW + 1), BUSY_FIRST_MS - 1);
	cr_assert_eq(try(0, NOW + BUSY_FIRST_MS - 1), UINT64_MAX);
	cr_assert_neq(try(0, NOW + BUSY_FIRST_MS), UINT64_MAX);
	cr_assert_eq(try(1, NOW + BUSY_FIRST_MS), UINT64_MAX, "one of all");
	cr_assert_eq(busy_left(seg, 0, NOW), 0);
}

Test(shm_busy, the_time_doubles_while_trials_are_refused)
{
	static const uint64_t times[] = {200, 400, 800, 1600, 2000, 2000};
	uint64_t now_ms = NOW, ms = said(0, now_ms);

	cr_assert_eq(ms, 100);
	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		now_ms += ms;
		ms = said(try(0, now_ms), now_ms);
		cr_assert_eq(ms, times[i]);
	}
	for (int i = 0; i < 40; i++) {
		now_ms += ms;
		ms = said(try(0, now_ms), now_ms);
	}
	cr_assert_eq(ms, BUSY_LONGEST_MS, "levels have an end");
	cr_assert_eq(busy_count(seg, EP), 47);
}

Test(shm_busy, retry_after_counts_up_to_a_minute)
{
	cr_assert_eq(busy_said(seg, EP, 0, NOW, 7000), 7000);
	cr_assert_eq(busy_said(seg, EP, try(0, NOW + 7000), NOW + 7000, 86400000), 60000);
}

Test(shm_busy, who_was_sent_before_tells_nothing_new)
{
	const uint64_t ms = said(0, NOW);

	cr_assert_eq(said(0, NOW + 1), 0);
	cr_assert_eq(busy_left(seg, EP, NOW), ms);
	cr_assert_eq(busy_count(seg, EP), 2);
}

Test(shm_busy, one_that_was_taken_ends_it)
{
	uint64_t mark;

	(void)said(0, NOW);
	mark = try(0, NOW + 100);
	cr_assert(busy_over(seg, EP));
	cr_assert_not(busy_over(seg, EP));
	cr_assert_eq(try(1, NOW + 100), 0);
	cr_assert_eq(said(mark, NOW + 101), 0, "a word that is no more");
	cr_assert_eq(said(0, NOW + 101), BUSY_FIRST_MS, "it begins anew");
}

/* A prompt may take longer than a trial lasts: others try meanwhile, and the first one's answer counts. */
Test(shm_busy, a_trial_lasts_two_seconds_and_its_answer_counts_later)
{
	uint64_t first, second;

	(void)said(0, NOW);
	first = try(0, NOW + 100);
	cr_assert_eq(try(1, NOW + 100 + BUSY_TRIAL_MS - 1), UINT64_MAX);
	second = try(1, NOW + 100 + BUSY_TRIAL_MS);
	cr_assert_neq(second, UINT64_MAX);
	cr_assert_eq(said(first, NOW + 2200), 0, "another one is trying");
	cr_assert(busy_over(seg, EP));
}

Test(shm_busy, one_without_an_outcome_is_given_back)
{
	uint64_t mark;

	(void)said(0, NOW);
	mark = try(0, NOW + 100);
	cr_assert(busy_none(seg, EP, mark));
	cr_assert_not(busy_none(seg, EP, mark));
	cr_assert_eq(busy_left(seg, EP, NOW), 0);
	cr_assert_neq(try(1, NOW + 101), UINT64_MAX);
}

Test(shm_busy, the_dead_give_theirs_back)
{
	(void)said(0, NOW);
	(void)try(1, NOW + 100);
	cr_assert_eq(half_open_reap(seg, 0), 0);
	cr_assert_eq(half_open_reap(seg, 1), 1);
	cr_assert_neq(try(0, NOW + 101), UINT64_MAX);
}

Test(shm_busy, who_comes_anyway_is_told_what_it_found)
{
	uint64_t mark, ms;

	ms = said(0, NOW);
	cr_assert(busy_try(seg, 0, EP, NOW, true, &mark));
	cr_assert_neq(mark, 0);
	cr_assert_not(busy_none(seg, EP, mark), "it is no trial");
	cr_assert_eq(said(mark, NOW), 2 * ms, "it says so again");
	cr_assert_eq(said(mark, NOW), 0, "once for all that found the same");
	(void)try(1, NOW + 2 * ms);
	cr_assert(busy_try(seg, 0, EP, NOW + 2 * ms, true, &mark));
	cr_assert_eq(mark, 0, "the trial is another's");
}

Test(shm_busy, a_new_life_knows_nothing)
{
	(void)said(0, NOW);
	ep_slot_begin(seg, EP);
	cr_assert_eq(seg->eps[EP].busy | busy_count(seg, EP), 0);
}
