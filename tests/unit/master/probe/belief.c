/* Which load figures are believed, and how a figure that never changes is put to the test. */
#include "master/probe/belief.h"

#include <criterion/criterion.h>

static struct belief belief;
static uint64_t now_ms = 1000000;
static const char *why;

/* A second later. */
static uint32_t
scrape(uint32_t waiting, uint32_t ours, bool exact)
{
	const struct ep_scrape figures = {.waiting = waiting, .at_ms = now_ms += 1000};
	uint32_t counts;

	why = belief_in(&belief,
		&(struct belief_scrape){.figures = &figures,
			.foreign = waiting > ours ? waiting - ours : 0,
			.ours = ours,
			.exact = exact},
		&counts);
	return counts;
}

Test(belief, a_load_that_changes)
{
	for (uint32_t i = 0; i < 100; i++) {
		cr_assert_eq(scrape(64 + i % 2, 0, true), 64 + i % 2);
		cr_assert_null(why);
	}
}

Test(belief, more_than_any_engine_has)
{
	cr_assert_eq(scrape(BELIEF_MOST, 0, true), BELIEF_MOST);
	cr_assert_eq(scrape(BELIEF_MOST + 1, 0, true), 0);
	cr_assert_str_eq(why, "more than 100000 requests");
	cr_assert_eq(scrape(7, 0, true), 7, "the next one may be right");
	cr_assert_null(why);
}

Test(belief, a_constant_load_fades_until_it_changes)
{
	for (int i = 0; i < BELIEF_FEWEST; i++)
		cr_assert_eq(scrape(20, 0, true), 20);
	cr_assert_eq(scrape(20, 0, true), 10);
	cr_assert_eq(scrape(20, 0, true), 5);
	cr_assert_null(why, "it may be true");
	cr_assert_eq(scrape(22, 2, true), 20, "it shows our requests, so all of it counts");
	for (int i = 0; i < BELIEF_FEWEST - 1; i++)
		cr_assert_eq(scrape(22, 2, true), 20);
	cr_assert_lt(scrape(22, 2, true), 20);
	for (int i = 0; i < 100; i++)
		cr_assert_lt(scrape(22, 2, true), 20, "for ever");
}

Test(belief, figures_that_do_not_show_our_requests)
{
	for (uint32_t i = 0; i < BELIEF_FEWEST; i++)
		cr_assert_gt(scrape(20, i % 2, true), 0);
	cr_assert_eq(scrape(20, 1, true), 0);
	cr_assert_str_eq(why, "the same figures while requests come and go");
	cr_assert_eq(scrape(21, 1, true), 20);
	cr_assert_null(why);
}

Test(belief, a_number_that_changes_within_a_scrape_proves_nothing)
{
	for (uint32_t i = 0; i < 100; i++) {
		(void)scrape(20, i % 2, false);
		cr_assert_null(why);
	}
}

Test(belief, an_idle_engine)
{
	for (uint32_t i = 0; i < 100; i++) {
		cr_assert_eq(scrape(0, 0, true), 0);
		cr_assert_null(why);
	}
}

Test(belief, a_time_and_a_number_of_scrapes)
{
	const struct ep_scrape figures = {.running = 8, .at_ms = now_ms};
	uint32_t counts;

	for (int i = 0; i < 100; i++) {
		(void)belief_in(&belief,
			&(struct belief_scrape){.figures = &figures, .foreign = 8, .exact = true},
			&counts);
		cr_assert_eq(counts, 8, "many scrapes within no time");
	}
}
