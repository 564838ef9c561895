/* Who accepts: shares, and that somebody always listens. */
#include "shm/accept.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#include "shm/base/clock.h"
#include "shm/stored.h"
#include "tests/unit/shm/fixture.h"

#define N 4 /* worker slots of the small segment: two generations of two */

TestSuite(accept, .init = small_seg, .fini = small_seg_end);

static uint32_t woken;

static bool
look(uint32_t me)
{
	return accept_poll(seg, me, true, 0, &woken);
}

/* A worker that could accept; -1: one that could not, -2: one that has been silent for long. */
static void
place(uint32_t slot, int conns)
{
	proc_slot_set(seg, slot, 1, PROC_READY, 1);
	proc_heartbeat(seg, slot, conns == -2 ? clock_ms() - 3000 : clock_ms() + 60000);
	accept_count(seg, slot, conns < 0 ? 0 : (uint64_t)conns);
	seg->procs[slot].accepts = conns == -1 ? ACCEPT_UNABLE : ACCEPT_LISTENS;
}

Test(accept, a_worker_stops_above_its_share)
{
	static const struct {
		int conns[N];
		bool listens[N];
	} table[] = {
		{{0, -1, -1, -1}, {true}},
		{{1000, -1, -1, -1}, {true}},
		{{0, 0, 0, 0}, {true, true, true, true}},
		{{4, 0, -1, -1}, {true, true}}, /* 2 above the mean */
		{{5, 0, -1, -1}, {false, true}},
		{{25, 15, -1, -1}, {true, true}}, /* 25 is 1.25 x 20: not above */
		{{26, 15, -1, -1}, {false, true}},
		{{125, 100, 100, 75}, {true, true, true, true}},
		{{126, 100, 100, 74}, {false, true, true, true}},
		{{9, -2, -1, -1}, {true}}, /* the silent one's 0 does not count */
		{{9, 0, -2, -2}, {false, true}},
		{{10, 10, 0, -1}, {false, false, true}},
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		for (uint32_t w = 0; w < N; w++)
			place(w, table[i].conns[w]);
		for (uint32_t w = 0; w < N; w++)
			if (table[i].conns[w] >= 0)
				cr_assert_eq(
					look(w), table[i].listens[w], "row %zu worker %u", i, w);
	}
}

Test(accept, who_stops_wakes_the_one_with_the_fewest)
{
	place(0, 9);
	place(1, 2);
	place(2, 1);
	place(3, 20);
	seg->procs[1].accepts = seg->procs[2].accepts = seg->procs[3].accepts = ACCEPT_RESTS;
	cr_assert(look(0)); /* mean 8 */
	cr_assert_eq(woken, 2, "who accepts wakes another one that may");
	cr_assert(look(0));
	cr_assert_eq(woken, 1, "the first one has been woken already");
	cr_assert(look(0));
	cr_assert_eq(woken, ACCEPT_NOBODY, "the last one is above its share");
	accept_count(seg, 0, 30);
	seg->procs[2].accepts = ACCEPT_RESTS;
	cr_assert_not(look(0));
	cr_assert_eq(woken, 2);
}

Test(accept, bytes_of_bodies_are_load)
{
	place(0, 3);
	place(1, 5);
	place(2, -1);
	place(3, -1);
	cr_assert(look(0));
	seg->procs[0].stored[STORED_BUFFERED] = 4 << 20;
	seg->procs[0].stored[STORED_DECLARED] = (6 << 20) - 1;
	cr_assert_not(look(0), "12 beside 5");
	cr_assert(look(1));
	cr_assert_eq(woken, ACCEPT_NOBODY);
	accept_count(seg, 1, 12);
	cr_assert(look(1));
	cr_assert_eq(woken, 0, "which has no more by now");
	seg->procs[0].stored[STORED_BUFFERED] = UINT64_MAX;
	cr_assert(look(0), "a number that cannot be is none");
}

Test(accept, who_can_no_longer_accept_wakes_another_one)
{
	place(0, 1);
	place(1, 8);
	seg->procs[1].accepts = ACCEPT_RESTS;
	cr_assert(look(0));
	cr_assert_eq(woken, ACCEPT_NOBODY);
	cr_assert_not(accept_poll(seg, 0, false, 0, &woken));
	cr_assert_eq(woken, 1, "alone, the other one has its share");
	cr_assert(look(1));
}

Test(accept, who_has_not_beaten_while_connections_wait_has_no_share)
{
	const uint64_t now = clock_ms();

	place(0, 9);
	place(1, 0);
	proc_heartbeat(seg, 1, now);
	cr_assert_not(look(0));
	cr_assert(accept_poll(seg, 0, true, now + 1, &woken));
}

/* However connections come and go, and whoever looks in whatever order: somebody listens, or has been woken. */
Test(accept, somebody_always_listens)
{
	uint64_t conns[N] = {0};
	unsigned x = 1;

	for (uint32_t w = 0; w < N; w++) {
		place(w, 0);
		cr_assert(look(w));
	}
	for (int round = 0; round < 20000; round++) {
		uint32_t w, up = 0;
		bool able;

		x = x * 1103515245 + 12345;
		w = x >> 16 & (N - 1);
		able = (x >> 20 & 15) != 0;
		if (seg->procs[w].accepts == ACCEPT_LISTENS && x >> 24 & 3)
			conns[w]++;
		else if (conns[w] > 0)
			conns[w] -= x >> 26 & 1 ? conns[w] : 1;
		accept_count(seg, w, conns[w]);
		(void)accept_poll(seg, w, able, 0, &woken);
		for (uint32_t i = 0; i < N; i++)
			up += seg->procs[i].accepts != ACCEPT_UNABLE;
		for (uint32_t i = 0; i < N && up > 0; i++)
			if (seg->procs[i].accepts >= ACCEPT_WOKEN)
				up = 0;
		cr_assert_eq(up, 0, "round %d", round);
	}
}
