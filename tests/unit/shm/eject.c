/* Ejection: when an endpoint goes, for how long, who tries it, and how many may be out. */
#include "shm/eject.h"

#include "shm/load.h"
#include "shm/table.h"
#include "shm/window.h"
#include "tests/unit/shm/fixture.h"

#define N 4u
#define EP 1u
#define NOW UINT64_C(1000000)
#define FIRST_MS 10000u
#define MOST_MS 60000u
#define TRIAL_MS 500u

static struct table_pick picks[N];
static struct table_pool pool;

static void
setup(void)
{
	small_seg();
	for (uint32_t i = 0; i < N; i++) {
		ep_state_set(seg, i, EP_UP);
		picks[i] = (struct table_pick){.endpoint = i, .slot = i};
	}
	pool = (struct table_pool){.n = {0, N},
		.picks = {NULL, picks},
		.ejection = {
			.failures = 3, .max_percent = 50, .time_ms = FIRST_MS, .max_ms = MOST_MS}};
}

TestSuite(shm_eject, .init = setup, .fini = small_seg_end);

static uint64_t
bad(uint32_t ep, uint64_t now_ms)
{
	return eject_bad_answer(seg, &pool, ROLE_DECODE, ep, true, now_ms);
}

static void
good(uint32_t ep, uint64_t now_ms)
{
	eject_good_answer(seg, ep, now_ms, &pool.ejection);
}

/* Fails until it is out; for how long. */
static uint64_t
put_out(uint32_t ep, uint64_t now_ms)
{
	uint64_t ms = 0;

	for (int i = 0; i < 300 && ms == 0; i++)
		ms = bad(ep, now_ms);
	return ms;
}

static enum eject_state
look(uint32_t ep, uint64_t now_ms)
{
	uint64_t left_ms;

	return eject_read(seg, ep, now_ms, &left_ms);
}

static bool
passed_by(uint32_t ep, uint64_t now_ms)
{
	return half_open_shut(seg->eps[ep].eject, now_ms);
}

/* The trial of a due endpoint; 0: not given. */
static uint64_t
try(uint32_t me, uint32_t ep, uint64_t now_ms)
{
	uint64_t trial;

	return eject_try(seg, me, ep, now_ms, TRIAL_MS, &trial) ? trial : 0;
}

/* --- out ---------------------------------------------------------------------------------- */

Test(shm_eject, so_many_failures_in_a_row)
{
	uint64_t left_ms;

	cr_assert_eq(bad(EP, NOW), 0);
	cr_assert_eq(bad(EP, NOW), 0);
	good(EP, NOW);
	cr_assert_eq(bad(EP, NOW), 0);
	cr_assert_eq(bad(EP, NOW), 0);
	cr_assert_eq(bad(EP, NOW), FIRST_MS);
	cr_assert_eq(eject_read(seg, EP, NOW + 1, &left_ms), EJECT_EJECTED);
	cr_assert_eq(left_ms, FIRST_MS - 1);
	cr_assert_eq(eject_count(seg, EP), 1);
	cr_assert_eq(look(0, NOW), EJECT_IN);
}

Test(shm_eject, while_it_is_out_nothing_counts)
{
	uint64_t word;

	(void)put_out(EP, NOW);
	word = seg->eps[EP].eject;
	good(EP, NOW + 1);
	cr_assert_eq(bad(EP, NOW + FIRST_MS + 1), 0, "not even when it is due");
	cr_assert_eq(seg->eps[EP].eject, word);
}

Test(shm_eject, passed_by_until_it_is_due)
{
	uint64_t trial = 1;

	cr_assert(eject_try(seg, 0, EP, NOW, TRIAL_MS, &trial));
	cr_assert_eq(trial, 0, "who is in is not tried");
	(void)put_out(EP, NOW);
	cr_assert(passed_by(EP, NOW + FIRST_MS - 1));
	cr_assert_not(eject_try(seg, 0, EP, NOW + FIRST_MS - 1, TRIAL_MS, &trial));
	cr_assert_not(passed_by(EP, NOW + FIRST_MS));
	cr_assert_eq(look(EP, NOW + FIRST_MS), EJECT_DUE);
}

Test(shm_eject, neither_of_the_two_counts_when_both_are_off)
{
	pool.ejection.failures = 0;
	cr_assert_eq(put_out(EP, NOW), 0);
	cr_assert_eq(seg->eps[EP].eject, 0);
	cr_assert_eq(seg->eps[EP].answers[0] | seg->eps[EP].answers[1], 0);
}

Test(shm_eject, failures_in_a_row_do_not_overflow)
{
	pool.ejection.max_percent = 0;
	for (int i = 0; i < 1000; i++)
		cr_assert_eq(bad(EP, NOW), 0);
	pool.ejection.max_percent = 50;
	pool.ejection.failures = 255;
	cr_assert_eq(bad(EP, NOW), FIRST_MS);
}

Test(shm_eject, one_that_is_not_up_is_not_ejected)
{
	ep_state_set(seg, EP, EP_DOWN);
	cr_assert_eq(put_out(EP, NOW), 0);
}

/* --- the rate ----------------------------------------------------------------------------- */

/* Every k-th of n answers fails, the last one too; what the last said. */
static uint64_t
answers(int n, int k, uint64_t now_ms)
{
	uint64_t ms = 0;

	for (int i = 1; i <= n && ms == 0; i++) {
		if (i % k == 0)
			ms = bad(EP, now_ms);
		else
			good(EP, now_ms);
	}
	return ms;
}

static void
by_rate(uint32_t percent)
{
	pool.ejection.failures = 0;
	pool.ejection.rate = percent;
}

Test(shm_eject, half_of_twenty_answers)
{
	by_rate(50);
	cr_assert_eq(answers(18, 2, NOW), 0);
	cr_assert_eq(answers(2, 2, NOW), FIRST_MS);
}

Test(shm_eject, a_third_is_not_half)
{
	by_rate(50);
	cr_assert_eq(answers(3000, 3, NOW), 0);
	by_rate(34);
	cr_assert_eq(answers(3, 3, NOW), 0);
	by_rate(33);
	cr_assert_eq(answers(3, 3, NOW), FIRST_MS);
}

Test(shm_eject, the_window_slides)
{
	by_rate(50);
	cr_assert_eq(answers(18, 2, NOW), 0);
	cr_assert_eq(answers(2, 2, NOW + 10000), 0, "too old to count");
	cr_assert_eq(answers(16, 2, NOW + 10000), 0);
	cr_assert_eq(answers(2, 2, NOW + 15000), FIRST_MS);
}

Test(shm_eject, many_answers_keep_their_share)
{
	by_rate(50);
	cr_assert_eq(answers(300000, 3, NOW), 0);
	by_rate(32);
	cr_assert_eq(bad(EP, NOW), FIRST_MS);
}

Test(shm_eject, a_rate_is_forgotten_when_it_is_back)
{
	by_rate(50);
	(void)answers(20, 1, NOW);
	cr_assert(eject_clear(seg, EP, false, NOW + 1));
	cr_assert_eq(bad(EP, NOW + 1), 0);
}

/* --- trials ------------------------------------------------------------------------------- */

Test(shm_eject, one_of_all_tries_it)
{
	const uint64_t due = NOW + put_out(EP, NOW);
	const uint64_t trial = try(2, EP, due);

	cr_assert_neq(trial, 0);
	cr_assert_eq(half_open_worker(seg->eps[EP].eject), 3);
	for (uint32_t w = 0; w < 4; w++)
		cr_assert_eq(try(w, EP, due), 0);
	cr_assert_eq(look(EP, due), EJECT_TRIED);
	cr_assert(passed_by(EP, due + TRIAL_MS - 1));
	cr_assert(eject_trial_good(seg, EP, trial, due + 5));
	cr_assert_eq(look(EP, due + 5), EJECT_IN);
	cr_assert_eq(eject_word_back_ms(seg->eps[EP].eject), due + 5);
	cr_assert_not(eject_trial_good(seg, EP, trial, due + 6), "over");
	cr_assert_eq(eject_trial_bad(seg, EP, trial, true, due + 6, &pool.ejection), 0, "over");
	cr_assert_not(eject_trial_none(seg, EP, trial), "over");
}

Test(shm_eject, a_failed_one_doubles_the_time_up_to_the_most)
{
	static const uint64_t times[] = {20000, 40000, MOST_MS, MOST_MS};
	uint64_t now_ms = NOW + put_out(EP, NOW);

	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		const uint64_t trial = try(0, EP, now_ms);

		cr_assert_eq(
			eject_trial_bad(seg, EP, trial, true, now_ms, &pool.ejection), times[i]);
		cr_assert(passed_by(EP, now_ms + times[i] - 1));
		now_ms += times[i];
		cr_assert_not(passed_by(EP, now_ms));
	}
	cr_assert_eq(eject_count(seg, EP), 5);
}

Test(shm_eject, levels_have_an_end)
{
	uint64_t now_ms = NOW, word;

	pool.ejection.time_ms = pool.ejection.max_ms = 1;
	(void)put_out(EP, now_ms);
	for (int i = 0; i < 40; i++) {
		now_ms++;
		cr_assert_eq(
			eject_trial_bad(seg, EP, try(0, EP, now_ms), true, now_ms, &pool.ejection),
			1);
	}
	word = seg->eps[EP].eject;
	cr_assert(half_open_out(word) && (word & EJECT_NEVER) == 0);
}

/* Back for a shorter time than it had been out. */
Test(shm_eject, one_that_has_not_recovered_is_out_for_longer)
{
	const uint64_t due = NOW + put_out(EP, NOW);

	(void)eject_trial_good(seg, EP, try(0, EP, due), due);
	cr_assert_eq(put_out(EP, due + FIRST_MS - 1), 2 * FIRST_MS);
}

Test(shm_eject, one_that_has_recovered_begins_anew)
{
	uint64_t due = NOW + put_out(EP, NOW);

	due += eject_trial_bad(seg, EP, try(0, EP, due), true, due, &pool.ejection);
	(void)eject_trial_good(seg, EP, try(0, EP, due), due);
	cr_assert_eq(put_out(EP, due + 2 * FIRST_MS), FIRST_MS);
}

Test(shm_eject, one_without_an_outcome_is_given_away)
{
	const uint64_t due = NOW + put_out(EP, NOW);

	cr_assert(eject_trial_none(seg, EP, try(0, EP, due)));
	cr_assert_eq(look(EP, due), EJECT_DUE);
	cr_assert_neq(try(1, EP, due), 0);
	cr_assert_eq(eject_count(seg, EP), 1);
}

Test(shm_eject, one_that_takes_too_long_is_anothers)
{
	const uint64_t due = NOW + put_out(EP, NOW);
	const uint64_t late = try(0, EP, due), trial = try(1, EP, due + TRIAL_MS);

	cr_assert_neq(trial, 0);
	cr_assert_not(eject_trial_good(seg, EP, late, due + TRIAL_MS));
	cr_assert_not(eject_trial_none(seg, EP, late));
	cr_assert_eq(eject_trial_bad(seg, EP, late, true, due + TRIAL_MS, &pool.ejection), 0);
	cr_assert_eq(look(EP, due + TRIAL_MS), EJECT_TRIED);
	cr_assert(eject_trial_good(seg, EP, trial, due + TRIAL_MS));
}

Test(shm_eject, the_dead_give_theirs_away)
{
	const uint64_t due = NOW + put_out(EP, NOW);

	(void)put_out(2, NOW);
	cr_assert(try(0, EP, due) != 0 && try(3, 2, due) != 0);
	cr_assert_eq(half_open_reap(seg, 1), 0);
	cr_assert_eq(half_open_reap(seg, 3), 1);
	cr_assert_eq(look(EP, due), EJECT_TRIED);
	cr_assert_eq(look(2, due), EJECT_DUE);
	cr_assert_eq(half_open_reap(seg, 3), 0);
}

/* --- other evidence ----------------------------------------------------------------------- */

Test(shm_eject, a_probe_brings_back_who_only_refused)
{
	cr_assert_not(eject_clear(seg, EP, true, NOW), "it is in");
	for (int i = 0; i < 3; i++)
		(void)eject_bad_answer(seg, &pool, ROLE_DECODE, EP, false, NOW);
	(void)put_out(2, NOW);
	cr_assert(eject_clear(seg, EP, true, NOW + 1));
	cr_assert_not(eject_clear(seg, 2, true, NOW + 1));
	cr_assert_eq(look(EP, NOW + 1), EJECT_IN);
	cr_assert_eq(look(2, NOW + 1), EJECT_EJECTED);
	cr_assert(eject_clear(seg, 2, false, NOW + 1));
	cr_assert_eq(look(2, NOW + 1), EJECT_IN);
}

Test(shm_eject, a_trial_that_is_answered_tells_that_it_does_not_only_refuse)
{
	uint64_t due = NOW;

	for (int i = 0; i < 3; i++)
		due += eject_bad_answer(seg, &pool, ROLE_DECODE, EP, false, NOW);
	(void)eject_trial_bad(seg, EP, try(0, EP, due), true, due, &pool.ejection);
	cr_assert_not(eject_clear(seg, EP, true, due));
}

Test(shm_eject, a_trial_ends_nothing_that_a_probe_has_ended)
{
	const uint64_t due = NOW + put_out(EP, NOW), trial = try(0, EP, due);

	cr_assert(eject_clear(seg, EP, false, due));
	cr_assert_eq(eject_trial_bad(seg, EP, trial, true, due, &pool.ejection), 0);
	cr_assert_eq(look(EP, due), EJECT_IN);
}

Test(shm_eject, a_new_life_knows_nothing)
{
	by_rate(50);
	(void)answers(20, 1, NOW);
	ep_slot_begin(seg, EP);
	cr_assert_eq(seg->eps[EP].eject, 0);
	cr_assert_eq(seg->eps[EP].answers[0] | seg->eps[EP].answers[1], 0);
	cr_assert_eq(eject_count(seg, EP), 0);
}

/* --- what was not its fault --------------------------------------------------------------- */

static bool
take_back(uint64_t now_ms)
{
	return eject_take_back(seg, EP, now_ms, &pool.ejection);
}

Test(shm_eject, failures_that_are_taken_back_do_not_add_up)
{
	for (int i = 0; i < 20; i++) {
		cr_assert_eq(bad(EP, NOW), 0);
		cr_assert_not(take_back(NOW));
	}
	cr_assert_eq(bad(EP, NOW), 0);
	cr_assert_eq(bad(EP, NOW), 0);
	cr_assert_neq(bad(EP, NOW), 0, "three that stay eject");
}

Test(shm_eject, the_failure_that_ejected_is_taken_back)
{
	const uint64_t ms = put_out(EP, NOW);

	cr_assert(take_back(NOW + 1));
	cr_assert_eq(look(EP, NOW + 1), EJECT_IN);
	cr_assert_eq(bad(EP, NOW + 1), ms, "it was two failures away, and not out for longer");
}

Test(shm_eject, of_more_failures_than_needed_each_must_be_taken_back)
{
	(void)put_out(0, NOW);
	(void)put_out(2, NOW);
	for (int i = 0; i < 5; i++)
		cr_assert_eq(bad(EP, NOW), 0, "too many are out");
	eject_begin(seg, 0);
	cr_assert_neq(bad(EP, NOW), 0);
	for (int i = 0; i < 3; i++)
		cr_assert_not(take_back(NOW));
	cr_assert(take_back(NOW));
}

Test(shm_eject, a_trial_that_failed_is_not_taken_back)
{
	const uint64_t due = NOW + put_out(EP, NOW), trial = try(0, EP, due);

	cr_assert_not(take_back(due), "a trial runs");
	cr_assert_neq(eject_trial_bad(seg, EP, trial, true, due, &pool.ejection), 0);
	cr_assert_not(take_back(due));
	cr_assert_eq(look(EP, due), EJECT_EJECTED);
}

static uint64_t
refuses(uint64_t now_ms)
{
	return eject_bad_answer(seg, &pool, ROLE_DECODE, EP, false, now_ms);
}

Test(shm_eject, failures_that_stay_were_reached_as_before)
{
	(void)put_out(EP, NOW);
	cr_assert(take_back(NOW));
	cr_assert_neq(refuses(NOW), 0);
	cr_assert_not(eject_clear(seg, EP, true, NOW), "two of its failures were reached");
}

Test(shm_eject, without_a_failure_nothing_was_reached)
{
	(void)bad(EP, NOW);
	cr_assert_not(take_back(NOW));
	while (refuses(NOW) == 0)
		;
	cr_assert(eject_clear(seg, EP, true, NOW), "all of its failures were refused connections");
}

Test(shm_eject, a_rate_forgets_what_is_taken_back)
{
	by_rate(50);
	cr_assert_eq(answers(18, 2, NOW), 0);
	for (int i = 0; i < 10; i++) {
		cr_assert_eq(bad(EP, NOW), 0);
		cr_assert_not(take_back(NOW + WINDOW_HALF_MS));
	}
}

Test(shm_eject, at_once)
{
	(void)bad(EP, NOW);
	cr_assert_neq(eject_at_once(seg, &pool, ROLE_DECODE, EP, NOW), 0);
	cr_assert_eq(eject_at_once(seg, &pool, ROLE_DECODE, EP, NOW), 0, "it is out");
	cr_assert_not(eject_clear(seg, EP, true, NOW), "a probe does not show that it is better");
	cr_assert_not(eject_clear(seg, EP, true, NOW), "it was reached");
	ep_state_set(seg, 2, EP_DOWN);
	cr_assert_eq(eject_at_once(seg, &pool, ROLE_DECODE, 0, NOW), 0, "too many");
	cr_assert_eq(eject_at_once(seg, &pool, ROLE_DECODE, 2, NOW), 0, "it is not up");
}

/* --- how many ----------------------------------------------------------------------------- */

static uint32_t
count_out(uint64_t now_ms)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < pool.n[ROLE_DECODE]; i++)
		n += look(i, now_ms) != EJECT_IN;
	return n;
}

Test(shm_eject, never_more_than_its_share_and_never_all)
{
	static const struct {
		uint32_t n, percent, out;
	} rows[] = {{1, 50, 0}, {1, 100, 0}, {2, 50, 1}, {2, 100, 1}, {3, 50, 1}, {3, 67, 2},
		{4, 50, 2}, {4, 100, 3}, {4, 0, 0}, {4, 24, 0}, {4, 25, 1}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		pool.n[ROLE_DECODE] = rows[i].n;
		pool.ejection.max_percent = rows[i].percent;
		for (uint32_t ep = 0; ep < N; ep++)
			eject_begin(seg, ep);
		for (uint32_t ep = 0; ep < rows[i].n; ep++)
			(void)put_out(ep, NOW);
		cr_assert_eq(count_out(NOW), rows[i].out, "%u of %u", rows[i].percent, rows[i].n);
	}
}

Test(shm_eject, who_does_not_serve_counts_as_out)
{
	static const enum ep_state states[] = {EP_STARTING, EP_DOWN, EP_DRAINING, EP_MISCONFIGURED};

	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
		eject_begin(seg, 0);
		eject_begin(seg, 1);
		ep_state_set(seg, 3, states[i]);
		cr_assert_neq(put_out(0, NOW), 0);
		cr_assert_eq(put_out(1, NOW), 0);
	}
}

Test(shm_eject, too_many_bring_back_the_one_that_is_nearest)
{
	(void)put_out(0, NOW + 5);
	(void)put_out(1, NOW);
	cr_assert_eq(eject_bring_back(seg, &pool, ROLE_DECODE, NOW), -1);
	ep_state_set(seg, 3, EP_DOWN);
	cr_assert_eq(eject_bring_back(seg, &pool, ROLE_DECODE, NOW), 1);
	cr_assert_eq(eject_bring_back(seg, &pool, ROLE_DECODE, NOW), -1);
	cr_assert_eq(look(0, NOW), EJECT_EJECTED);
	ep_state_set(seg, 2, EP_DOWN);
	cr_assert_eq(eject_bring_back(seg, &pool, ROLE_DECODE, NOW), 0);
	ep_state_set(seg, 1, EP_DOWN);
	cr_assert_eq(
		eject_bring_back(seg, &pool, ROLE_DECODE, NOW), -1, "nobody is left to bring back");
}

/* --- refused connections */

/* Refuses until it is out; for how long. */
static uint64_t
refuse(uint32_t ep)
{
	uint64_t ms = 0;

	for (int i = 0; i < 300 && ms == 0; i++)
		ms = eject_bad_answer(seg, &pool, ROLE_DECODE, ep, false, NOW);
	return ms;
}

Test(shm_eject, one_that_refuses_is_out_beyond_the_most_and_the_others_are_back)
{
	(void)put_out(0, NOW);
	(void)put_out(1, NOW + 5);
	cr_assert_eq(put_out(2, NOW), 0);
	eject_good_answer(seg, 2, NOW, &pool.ejection);
	cr_assert_neq(refuse(2), 0);
	cr_assert_eq(eject_bring_back(seg, &pool, ROLE_DECODE, NOW), 0);
	cr_assert_eq(eject_bring_back(seg, &pool, ROLE_DECODE, NOW), -1);
	cr_assert_neq(refuse(3), 0);
	cr_assert_eq(eject_bring_back(seg, &pool, ROLE_DECODE, NOW), 1);
	cr_assert_neq(refuse(0), 0);
	cr_assert_eq(refuse(1), 0, "one stays, whatever it does");
	cr_assert_eq(eject_bring_back(seg, &pool, ROLE_DECODE, NOW), -1);
	cr_assert_eq(count_out(NOW), 3);
}

Test(shm_eject, of_those_that_refuse_one_is_back_when_the_last_goes)
{
	pool.n[ROLE_DECODE] = 2;
	cr_assert_neq(refuse(0), 0);
	ep_state_set(seg, 1, EP_DOWN);
	cr_assert_eq(eject_bring_back(seg, &pool, ROLE_DECODE, NOW), 0);
}

Test(shm_eject, one_that_failed_otherwise_too_does_not_only_refuse)
{
	(void)put_out(0, NOW);
	(void)put_out(1, NOW);
	(void)bad(2, NOW);
	cr_assert_eq(refuse(2), 0);
}

Test(shm_eject, turned_off_all_are_back)
{
	(void)put_out(0, NOW);
	(void)put_out(1, NOW);
	(void)refuse(2);
	pool.ejection.failures = 0;
	while (eject_bring_back(seg, &pool, ROLE_DECODE, NOW) >= 0)
		;
	cr_assert_eq(count_out(NOW), 0);
}

/* What a worker leaves that dies between its CAS and its second count. */
Test(shm_eject, one_too_many_is_taken_back)
{
	(void)put_out(0, NOW);
	(void)put_out(1, NOW);
	seg->eps[2].eject = HALF_OPEN_OUT | (NOW + FIRST_MS);
	cr_assert_neq(eject_bring_back(seg, &pool, ROLE_DECODE, NOW), -1);
	cr_assert_eq(count_out(NOW), 2);
}
