/* A walk visits each object once, whatever the visits end or add. */
#include "worker/base/walk.h"

#include <criterion/criterion.h>
#include <stdbool.h>

#define N 5

struct thing {
	uint64_t walked;
	unsigned visits;
	bool ended;
	TAILQ_ENTRY(thing) link;
};
TAILQ_HEAD(thing_list, thing);

static struct thing_list live, ended;
static struct thing things[N + 1];

static void
end(struct thing *t)
{
	if (t->ended)
		return;
	t->ended = true;
	TAILQ_REMOVE(&live, t, link);
	TAILQ_INSERT_TAIL(&ended, t, link);
}

static void
setup(void)
{
	TAILQ_INIT(&live);
	TAILQ_INIT(&ended);
	for (int i = 0; i <= N; i++) {
		things[i] = (struct thing){.visits = 0};
		if (i < N)
			TAILQ_INSERT_TAIL(&live, &things[i], link);
	}
}

TestSuite(walk, .init = setup);

/* Each visit of `at` ends what the bits of `ends` name. */
static void
walk(uint64_t number, int at, unsigned ends)
{
	struct thing *t;

	while ((t = walk_next(&live, number)) != NULL) {
		cr_assert_not(t->ended);
		t->visits++;
		for (int i = 0; t == &things[at] && i < N; i++)
			if (ends >> i & 1)
				end(&things[i]);
	}
}

Test(walk, live_objects_are_visited_once_if_others_end)
{
	for (int at = 0; at < N; at++)
		for (unsigned ends = 0; ends < 1 << N; ends++) {
			setup();
			walk(1, at, ends);
			for (int i = 0; i < N; i++) {
				const bool gone_before = (ends >> i & 1) && i > at;

				cr_assert_eq(things[i].visits, gone_before ? 0 : 1,
					"%d ends %x: %d", at, ends, i);
			}
		}
}

Test(walk, the_order_stays)
{
	int i = 0;

	walk(1, 0, 0);
	walk(2, 0, 0);
	for (struct thing *t = TAILQ_FIRST(&live); t != NULL; t = TAILQ_NEXT(t, link))
		cr_assert_eq(t, &things[i++]);
	cr_assert_eq(i, N);
}

Test(walk, what_comes_meanwhile_is_not_visited)
{
	struct thing *t;
	bool added = false;

	while ((t = walk_next(&live, 1)) != NULL) {
		t->visits++;
		if (!added)
			TAILQ_INSERT_TAIL(&live, &things[N], link);
		added = true;
	}
	cr_assert_eq(things[N].visits, 0);
	for (int i = 0; i < N; i++)
		cr_assert_eq(things[i].visits, 1);
}

Test(walk, an_empty_list_is_over_at_once)
{
	TAILQ_INIT(&live);
	cr_assert_null(walk_next(&live, 1));
}
