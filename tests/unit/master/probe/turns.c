/* Timers that many engines share: order, one wake-up, and callbacks that set, cancel and free turns. */
#include "master/probe/turns.h"

#include <criterion/criterion.h>
#include <event2/event.h>

#define MANY 200

static struct event_base *base;
static struct turns *all;
static struct turn turn[MANY];
static size_t called, order[MANY];

static void
setup(void)
{
	base = event_base_new();
	all = turns_new(base);
}

static void
teardown(void)
{
	turns_free(&all); /* asserts that no turn is set */
	event_base_free(base);
}

TestSuite(turns, .init = setup, .fini = teardown, .timeout = 60);

static void
note(void *arg)
{
	order[called++] = (size_t)((struct turn *)arg - turn);
}

/* Sets the first n turns so that all are due in one millisecond. */
static void
set_together(size_t n, turn_fn *fn)
{
	for (size_t i = 0; i < n; i++)
		turn_init(&turn[i], all, fn, &turn[i]);
	do
		for (size_t i = 0; i < n; i++)
			turn_after(&turn[i], 50);
	while (turn[0].group != turn[n - 1].group); /* the clock went on meanwhile */
}

Test(turns, those_of_one_millisecond_share_a_timer_and_keep_their_order)
{
	set_together(5, note);
	cr_assert_eq(event_base_get_num_events(base, EVENT_BASE_COUNT_ADDED), 1);
	event_base_dispatch(base);
	cr_assert_eq(called, 5);
	for (size_t i = 0; i < 5; i++) {
		cr_assert_eq(order[i], i);
		cr_assert_not(turn_is_set(&turn[i]));
	}
}

Test(turns, a_crowd_leaves_the_loop_its_turns)
{
	set_together(MANY, note);
	while (called == 0)
		event_base_loop(base, EVLOOP_ONCE);
	cr_assert_lt(called, MANY);
	event_base_dispatch(base);
	cr_assert_eq(called, MANY);
	cr_assert_eq(order[MANY - 1], MANY - 1);
}

Test(turns, one_that_is_set_again_is_called_once_and_a_cancelled_one_never)
{
	set_together(3, note);
	turn_cancel(&turn[1]);
	turn_after(&turn[0], 60);
	cr_assert_not(turn_is_set(&turn[1]));
	event_base_dispatch(base);
	cr_assert_eq(called, 2);
	cr_assert_eq(order[0], 2);
	cr_assert_eq(order[1], 0);
}

/* The first one cancels the others, and begins anew. */
static void
cancel_all(void *arg)
{
	note(arg);
	for (size_t i = 0; i < MANY; i++)
		if (turn_is_set(&turn[i]))
			turn_cancel(&turn[i]);
	if (called < 3)
		turn_after(arg, 0);
}

Test(turns, a_callback_may_cancel_all_others_and_set_itself_again)
{
	set_together(MANY, cancel_all);
	event_base_dispatch(base);
	cr_assert_eq(called, 3);
	for (size_t i = 0; i < 3; i++)
		cr_assert_eq(order[i], 0);
}
