/* Samples of an engine's pace: which life of the engine they are of. */
#include "worker/attempt/timing.h"

#include <string.h>

#include "shm/pace.h"
#include "shm/restart.h"
#include "tests/unit/worker/one_engine.h"
#include "worker/attempt/attempt.h"

#define SECOND 1000000u

static struct branch branch;
static struct attempt a;
static struct job job;

/* An attempt whose prefill leg was sent in the present life of the engine. */
static void
setup(void)
{
	one_engine();
	job = (struct job){.w = &w, .branches = &branch, .nbranches = 1};
	branch = (struct branch){.job = &job, .attempt = &a};
	a = (struct attempt){.w = &w, .branch = &branch, .timing = {.prefill_us = SECOND}};
	a.t.of.facts = &job.facts;
	a.reserved.of[ROLE_PREFILL] = (struct reservation){
		.ep = &ep, .role = ROLE_PREFILL, .tokens = 1000, .life = restart_life(w.seg, SLOT)};
}

static uint32_t
samples(void)
{
	return pace_unpack(pace_word(w.seg, SLOT)).samples / PACE_SAMPLE;
}

Test(timing, a_prefill_answer_is_a_sample, .init = setup)
{
	timing_prefilled(&a, 2 * SECOND);
	cr_assert_eq(samples(), 1);
}

Test(timing, an_answer_of_a_former_life_of_the_engine_is_none, .init = setup)
{
	restart_begin(w.seg, SLOT);
	timing_prefilled(&a, 2 * SECOND);
	cr_assert_eq(samples(), 0);
}

Test(timing, an_answer_of_a_former_life_of_the_slot_is_none, .init = setup)
{
	ep_slot_begin(w.seg, SLOT);
	timing_prefilled(&a, 2 * SECOND);
	cr_assert_eq(samples(), 0);
}
