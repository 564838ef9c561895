/* Who is visited by which tick, whatever the visits end, add or put off. */
#include "worker/base/rounds.h"

#include <criterion/criterion.h>

#define N 4
#define TICK UINT64_C(100)

static struct rounds rounds;
static uint64_t now_ms;
static struct visit v[N];

static void
setup(void)
{
	cr_assert_eq(WORKER_TICK_MS, TICK);
	now_ms = 5000;
	rounds_init(&rounds, now_ms);
	for (int i = 0; i < N; i++)
		v[i] = (struct visit){0};
}

TestSuite(rounds, .init = setup);

/* The number of ticks until it is visited; no other object is. */
static unsigned
ticks_until(const struct visit *want)
{
	for (unsigned n = 1; n <= VISIT_SLOTS; n++) {
		struct visit *got;

		rounds_tick(&rounds, now_ms += TICK);
		got = rounds_next(&rounds);
		if (got == NULL)
			continue;
		cr_assert_eq(got, want);
		cr_assert_null(rounds_next(&rounds));
		return n;
	}
	return 0;
}

Test(rounds, a_limit_has_its_tick)
{
	static const struct {
		uint64_t ms;
		unsigned ticks;
	} t[] = {{0, 1}, {TICK - 1, 1}, {TICK, 1}, {3 * TICK, 3}, {3 * TICK + 99, 3},
		{VISIT_MOST * TICK, VISIT_MOST}, {3600 * 1000, VISIT_MOST}};

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		visit_within(&rounds, &v[0], t[i].ms);
		cr_assert_eq(ticks_until(&v[0]), t[i].ticks, "%zu", i);
		cr_assert_eq(v[0].tick, 0);
	}
}

Test(rounds, the_sooner_of_two_counts)
{
	visit_within(&rounds, &v[0], 5 * TICK);
	visit_within(&rounds, &v[0], 2 * TICK);
	visit_within(&rounds, &v[0], 7 * TICK);
	cr_assert_eq(ticks_until(&v[0]), 2);
	visit_within(&rounds, &v[0], 7 * TICK);
	visit_soon(&rounds, &v[0]);
	visit_soon(&rounds, &v[0]);
	cr_assert_eq(ticks_until(&v[0]), 1);
	cr_assert_eq(ticks_until(NULL), 0, "once");
}

/* A visit may end others, and is itself put off to a later tick. */
Test(rounds, a_visit_may_end_any)
{
	for (int i = 0; i < N; i++)
		visit_soon(&rounds, &v[i]);
	rounds_tick(&rounds, now_ms += TICK);
	cr_assert_eq(rounds_next(&rounds), &v[0]);
	visit_drop(&rounds, &v[1]);
	visit_drop(&rounds, &v[1]);
	visit_soon(&rounds, &v[0]);
	cr_assert_eq(rounds_next(&rounds), &v[2]);
	cr_assert_eq(rounds_next(&rounds), &v[3]);
	cr_assert_null(rounds_next(&rounds));
	cr_assert_eq(ticks_until(&v[0]), 1);
}

Test(rounds, without_a_limit_it_is_the_most)
{
	cr_assert_eq(visit_sooner(700, 0, 50), 700);
	cr_assert_eq(visit_sooner(700, 60, 50), 10);
	cr_assert_eq(visit_sooner(700, 50, 50), 0);
	cr_assert_eq(visit_sooner(700, 40, 50), 0);
	cr_assert_eq(visit_sooner(700, 5000, 50), 700);
}

/* After a stall one tick visits all that came due meanwhile, in order, and no object twice. */
Test(rounds, a_stall)
{
	static const uint64_t stalls[] = {5, VISIT_MOST, VISIT_SLOTS, VISIT_SLOTS + 1, 1000};

	for (size_t i = 0; i < sizeof(stalls) / sizeof(stalls[0]); i++) {
		for (size_t k = 0; k < 3; k++)
			visit_within(&rounds, &v[k], (k + 1) * TICK);
		rounds_tick(&rounds, now_ms += stalls[i] * TICK);
		for (size_t k = 0; k < 3; k++) {
			cr_assert_not_null(rounds_next(&rounds));
			for (uint64_t t = 1; t <= VISIT_MOST; t++) {
				visit_drop(&rounds, &v[k]);
				visit_within(&rounds, &v[k], t * TICK);
			}
		}
		cr_assert_null(rounds_next(&rounds), "%zu", i);
		for (size_t k = 0; k < 3; k++)
			visit_drop(&rounds, &v[k]);
	}
}
