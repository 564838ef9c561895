/* Outcomes: which life of the engine they are of. */
#include "worker/schedule/outcome.h"

#include "shm/base/clock.h"
#include "shm/eject.h"
#include "shm/refusal.h"
#include "shm/restart.h"
#include "shm/table.h"
#include "shm/tally.h"
#include "tests/unit/worker/one_engine.h"
#include "worker/base/facts.h"
#include "worker/schedule/reservation.h"

static struct req_pool request_pool;
static struct facts facts = {.pool = &request_pool};
static struct reservation engine;
static struct exchange x;

/* An exchange with the present life of the engine. */
static void
setup(void)
{
	one_engine();
	engine = (struct reservation){.ep = &ep, .life = restart_life(w.seg, SLOT)};
	x = (struct exchange){.w = &w, .facts = &facts, .engine = &engine, .status = 200};
}

Test(outcome, a_request_that_fails_everywhere_is_remembered_for_this_life, .init = setup)
{
	outcome_failed_alike(&x);
	cr_assert(refusal_fails_alike(w.seg, SLOT, clock_ms()));
}

Test(outcome, a_request_that_failed_in_a_former_life_excuses_nothing_now, .init = setup)
{
	restart_begin(w.seg, SLOT);
	outcome_failed_alike(&x);
	cr_assert_not(refusal_fails_alike(w.seg, SLOT, clock_ms()));
}

Test(outcome, an_answer_of_a_former_life_does_not_show_that_the_engine_is_alive, .init = setup)
{
	outcome_accepted(&x);
	cr_assert_neq(tally_alive_ms(w.seg, SLOT), 0);
	ep_slot_begin(w.seg, SLOT);
	outcome_accepted(&x);
	cr_assert_eq(tally_alive_ms(w.seg, SLOT), 0);
}

/* Two failures put it out; `since_ms`: when the first was. */
static void
fails_twice(uint64_t since_ms, bool good_answer_between)
{
	struct table_pick pick[2] = {{.slot = SLOT}, {.slot = 0}};
	const struct table_pool pool = {.n = {0, 2},
		.picks = {NULL, pick},
		.ejection = {.failures = 2, .max_percent = 50, .time_ms = 10000, .max_ms = 10000}};

	request_pool.ejection = pool.ejection;
	ep_state_set(w.seg, SLOT, EP_UP);
	ep_state_set(w.seg, 0, EP_UP);
	(void)eject_bad_answer(w.seg, &pool, ROLE_DECODE, SLOT, true, since_ms);
	if (good_answer_between) {
		eject_good_answer(w.seg, SLOT, since_ms + 1, &pool.ejection);
		tally_alive(w.seg, SLOT, since_ms + 1);
		(void)eject_bad_answer(w.seg, &pool, ROLE_DECODE, SLOT, true, since_ms + 2);
	}
	cr_assert_gt(eject_bad_answer(w.seg, &pool, ROLE_DECODE, SLOT, true, since_ms + 3), 0);
}

Test(outcome, a_failure_that_was_the_requests_brings_the_engine_back, .init = setup)
{
	const uint64_t now_ms = clock_ms();
	uint64_t left_ms;

	fails_twice(now_ms, false);
	outcome_take_back(&x, now_ms);
	cr_assert_eq(eject_read(w.seg, SLOT, clock_ms(), &left_ms), EJECT_IN);
}

Test(outcome, a_failure_before_a_good_answer_is_not_taken_from_those_after_it, .init = setup)
{
	const uint64_t now_ms = clock_ms();
	uint64_t left_ms;

	fails_twice(now_ms, true);
	outcome_take_back(&x, now_ms);
	cr_assert_neq(eject_read(w.seg, SLOT, clock_ms(), &left_ms), EJECT_IN);
}
