/* The virtual time of a queue: equal numbers of tokens for models that wait, and what is remembered of a model. */
#include "shm/fair.h"

#include "tests/unit/shm/fixture.h"

static struct queue_head q;

static void
begin(void)
{
	q = (struct queue_head){.vtime = 0};
}

TestSuite(shm_fair, .init = begin);

/* One request of the model that waits alone is served.  Returns its start. */
static uint64_t
serve(uint64_t model, uint64_t tokens)
{
	const uint64_t start = fair_start(&q, model, 0);

	fair_served(&q, model, start, start + tokens);
	return start;
}

Test(shm_fair, a_model_starts_where_its_former_request_finished)
{
	cr_assert_eq(serve(7, 100), 0);
	cr_assert_eq(serve(7, 50), 100);
	cr_assert_eq(fair_start(&q, 7, 0), 150);
	cr_assert_eq(fair_start(&q, 7, 400), 400); /* behind its own waiters */
}

Test(shm_fair, a_model_that_was_away_starts_now)
{
	for (int i = 0; i < 10; i++)
		(void)serve(7, 100);
	cr_assert_eq(q.vtime, 900); /* the last start */
	cr_assert_eq(serve(8, 5), 900);
	cr_assert_eq(serve(8, 5), 905);
}

/* Model 7 asks for ten times as much each time: it is served a tenth as often. */
Test(shm_fair, models_that_wait_are_served_equal_numbers_of_tokens)
{
	uint64_t served[2] = {0};

	for (int i = 0; i < 1100; i++) {
		const uint64_t a = fair_start(&q, 7, 0), b = fair_start(&q, 8, 0);

		if (a <= b)
			served[0] += serve(7, 1000) == a ? 1000 : 0;
		else
			served[1] += serve(8, 100) == b ? 100 : 0;
	}
	cr_assert_leq(served[0], served[1] + 1000);
	cr_assert_leq(served[1], served[0] + 1000);
	cr_assert_eq(served[0] + served[1], 200000);
}

/* More models than entries, each far ahead of the virtual time: one that finds none starts no earlier either. */
Test(shm_fair, a_model_without_an_entry_gains_nothing)
{
	for (uint64_t model = 1; model <= QUEUE_MODELS; model++)
		fair_served(&q, model, 0, 1000 + model);
	cr_assert_eq(q.vtime, 0);
	fair_served(&q, 99, 0, 500);
	cr_assert_eq(fair_start(&q, 99, 0), 500);
	fair_served(&q, 99, 500, 5000);
	cr_assert_eq(fair_start(&q, 99, 0), 5000);
	fair_served(&q, 100, 5000,
		5100); /* the others' entries are free: the virtual time has passed them */
	cr_assert_eq(q.vtime, 5000);
	cr_assert_eq(fair_start(&q, 100, 0), 5100);
}

Test(shm_fair, an_empty_queue_makes_all_equal)
{
	(void)serve(7, 100);
	(void)serve(8, 3000);
	fair_idle(&q);
	cr_assert_eq(fair_start(&q, 7, 0), 3000);
	cr_assert_eq(fair_start(&q, 8, 0), 3000);
	cr_assert_eq(fair_start(&q, 9, 0), 3000);
}

Test(shm_fair, the_virtual_time_never_goes_back)
{
	fair_served(&q, 7, 100, 200);
	fair_served(&q, 8, 50, 60);
	cr_assert_eq(q.vtime, 100);
	cr_assert_eq(fair_start(&q, 7, 0), 200);
	fair_served(&q, 7, 100, 150); /* two workers served at once: the later finish counts */
	cr_assert_eq(fair_start(&q, 7, 0), 200);
}
