/* The segment's layout, its header's checks, and the balance rule of accepting. */
#include "shm/seg.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "tests/unit/shm_fixture.h"

TestSuite(shm_seg, .init = small_seg, .fini = small_seg_end);

static const struct seg_sizes normal = {
	.max_workers = 16, .max_endpoints = 1024, .max_pools = 16, .flags_per_worker = 4096};

Test(shm_seg, parts_are_aligned_in_order_and_disjoint)
{
	struct seg_part part[SEG_NPARTS];
	const size_t bytes = seg_size(&normal, part);
	size_t at = 0;

	for (size_t i = 0; i < SEG_NPARTS; i++) {
		cr_assert_eq(part[i].offset % SHM_LINE, 0, "%s", part[i].name);
		cr_assert_geq(
			part[i].offset, at, "%s begins inside the part before it", part[i].name);
		cr_assert_gt(part[i].bytes, 0, "%s", part[i].name);
		at = part[i].offset + part[i].bytes;
	}
	cr_assert_leq(at, bytes);
	cr_assert_lt(bytes - at, SHM_LINE);
}

/* The last byte of each part, as its users compute it, lies inside the part. */
Test(shm_seg, accessors_stay_inside_their_parts)
{
	struct seg_part part[SEG_NPARTS];
	const struct seg_sizes sizes = {2, 4, 2, 128};
	unsigned char *base = (unsigned char *)seg->hdr;
	const uint32_t workers = SLOT_WORKERS(seg), slots = seg->hdr->nslots;

	cr_assert_eq(seg->hdr->bytes, seg_size(&sizes, part));
#define ENDS(i, p)                                                                                 \
	cr_assert_eq(                                                                              \
		(unsigned char *)(p), base + part[i].offset + part[i].bytes, "%s", part[i].name)
	ENDS(1, seg->rcu + 1);
	ENDS(2, seg->readers + slots);
	ENDS(3, seg->procs + slots);
	ENDS(4, seg->eps + sizes.max_endpoints);
	ENDS(5, seg_row(seg, workers - 1, sizes.max_endpoints - 1) + 1);
	ENDS(6, seg_flag(seg, workers - 1, sizes.flags_per_worker - 1) + 1);
	ENDS(7, seg_ready(seg, workers));
	ENDS(8, seg->announced + ANNOUNCED_MAX);
	ENDS(9, (unsigned char *)seg_slab(seg, slots));
	ENDS(10, seg->pool_names + (size_t)sizes.max_pools * 64);
	ENDS(11, seg->arenas + SHM_ARENAS * seg->arena_bytes);
#undef ENDS
}

Test(shm_seg, slots_are_workers_of_two_generations_notifier_master)
{
	cr_assert_eq(SLOT_WORKERS(seg), 4);
	cr_assert_eq(SLOT_NOTIFIER(seg), 4);
	cr_assert_eq(SLOT_MASTER(seg), 5);
}

Test(shm_seg, impossible_sizes_are_refused)
{
	static const struct seg_sizes bad[] = {
		{0, 4, 2, 64}, {128, 4, 2, 64},   /* worker + 1 has 8 bits for two generations */
		{2, 0, 2, 64}, {2, 65537, 2, 64}, /* an endpoint has 16 bits in the journal */
		{2, 4, 0, 64}, {2, 4, 4097, 64}, {2, 4, 2, 0}, {2, 4, 2, 65},
		{2, 4, 2, 65600}, /* a slot has 4 hex digits */
	};
	struct seg *got = NULL;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cr_assert_eq(seg_new(&bad[i], 1, &got), -EINVAL, "row %zu", i);
		cr_assert_null(got);
	}
}

Test(shm_seg, another_build_version_or_size_is_refused)
{
	struct shm_header hdr = *seg->hdr;

	cr_assert_eq(seg_check(&hdr, SMALL_BUILD), 0);
	cr_assert_eq(seg_check(&hdr, SMALL_BUILD + 1), -EPROTO);
#define REFUSED_WITH(field)                                                                        \
	do {                                                                                       \
		hdr = *seg->hdr;                                                                   \
		hdr.field++;                                                                       \
		cr_assert_eq(seg_check(&hdr, SMALL_BUILD), -EPROTO, #field);                       \
	} while (0)
	REFUSED_WITH(magic);
	REFUSED_WITH(version);
	REFUSED_WITH(bytes);
	REFUSED_WITH(nslots);
	REFUSED_WITH(max_workers);
	REFUSED_WITH(max_endpoints);
	REFUSED_WITH(max_pools);
	REFUSED_WITH(flags_per_worker);
#undef REFUSED_WITH
}

Test(shm_seg, a_child_writes_and_its_master_reads)
{
	int status;
	const pid_t pid = fork();

	cr_assert_geq(pid, 0);
	if (pid == 0) {
		proc_beat(seg, 1, 77);
		proc_words_set(seg, 1, "assertion failed");
		_exit(0);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(proc_beat_ms(seg, 1), 77);
	cr_assert_str_eq(seg->procs[1].words, "assertion failed");
}

Test(shm_seg, last_words_are_clipped)
{
	char text[2 * SHM_WORDS];

	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	proc_words_set(seg, 0, text);
	cr_assert_eq(strlen(seg->procs[0].words), SHM_WORDS - 1);
	cr_assert_eq(proc_beat_ms(seg, 1), 0);
}

Test(shm_seg, a_cleared_slot_says_nothing)
{
	proc_slot_set(seg, 0, 4711, PROC_READY, 3);
	cr_assert_eq(proc_slot_state(seg, 0), PROC_READY);
	proc_beat(seg, 0, 5);
	proc_conns_set(seg, 0, 6);
	proc_words_set(seg, 0, "oh");
	proc_slot_set(seg, 0, 4711, PROC_DRAINING, 3);
	cr_assert_eq(seg->procs[0].conns, 6);
	proc_slot_set(seg, 0, 0, PROC_EMPTY, 0);
	cr_assert_eq(proc_slot_state(seg, 0), PROC_EMPTY);
	cr_assert_eq(seg->procs[0].pid, 0);
	cr_assert_eq(proc_beat_ms(seg, 0), 0);
	cr_assert_eq(seg->procs[0].conns, 0);
	cr_assert_str_empty(seg->procs[0].words);
}

/* conns of the four worker slots; -1: not ready, -2: ready but silent for long. */
struct balance {
	int conns[4];
	bool accepts[4];
};

Test(shm_seg, a_worker_stops_above_five_quarters_of_the_mean)
{
	static const struct balance table[] = {
		{{0, -1, -1, -1}, {true}},
		{{1000, -1, -1, -1}, {true}},
		{{0, 0, 0, 0}, {true, true, true, true}},
		{{1, 0, -1, -1}, {false, true}},
		{{1, 1, -1, -1}, {true, true}},
		{{5, 3, -1, -1}, {true, true}},  /* 5 is 1.25 x 4: not above */
		{{6, 3, -1, -1}, {false, true}}, /* 1.25 x 4.5 = 5.6 */
		{{125, 100, 100, 75}, {true, true, true, true}},
		{{126, 100, 100, 74}, {false, true, true, true}},
		{{9, -2, -1, -1}, {true}}, /* the silent one's 0 does not count */
		{{9, 0, -2, -2}, {false, true}},
	};
	const uint64_t now = clock_ms();

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		for (uint32_t w = 0; w < 4; w++) {
			const int n = table[i].conns[w];

			proc_slot_set(seg, w, 1, n == -1 ? PROC_EMPTY : PROC_READY, 1);
			proc_conns_set(seg, w, n < 0 ? 0 : (uint64_t)n);
			proc_beat(seg, w, n == -2 ? now - 3000 : now);
		}
		for (uint32_t w = 0; w < 4; w++)
			if (table[i].conns[w] >= 0)
				cr_assert_eq(proc_may_accept(seg, w), table[i].accepts[w],
					"row %zu worker %u", i, w);
	}
}

/* However the connections lie, somebody takes the next one. */
Test(shm_seg, somebody_always_accepts)
{
	unsigned x = 1;

	for (uint32_t w = 0; w < 4; w++) {
		proc_slot_set(seg, w, 1, PROC_READY, 1);
		proc_beat(seg, w, clock_ms() + 60000); /* fresh throughout */
	}
	for (int round = 0; round < 2000; round++) {
		bool any = false;

		for (uint32_t w = 0; w < 4; w++) {
			x = x * 1103515245 + 12345;
			proc_conns_set(seg, w, x >> 16 & (round % 2 ? 3 : 1023));
		}
		for (uint32_t w = 0; w < 4; w++)
			any |= proc_may_accept(seg, w);
		cr_assert(any, "round %d", round);
	}
}
