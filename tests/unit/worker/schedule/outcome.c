/* Outcomes: which life of the engine they are of. */
#include "worker/schedule/outcome.h"

#include "shm/base/clock.h"
#include "shm/refusal.h"
#include "shm/restart.h"
#include "shm/tally.h"
#include "tests/unit/worker/one_engine.h"
#include "worker/base/facts.h"
#include "worker/schedule/reservation.h"

static struct facts facts;
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
