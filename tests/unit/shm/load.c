/*
 * Reservations: the limit, and above all that a worker killed at any instruction leaves nothing
 * behind.  The packing of words is spelled here once more, on purpose: it is what a dead worker
 * leaves us.
 */
#include "shm/load.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/mem.h"
#include "tests/unit/shm/fixture.h"

TestSuite(shm_load, .init = small_seg, .fini = small_seg_end);

#define EP 1u
#define RESERVE 1
#define RELEASE (-1)

/* Worker w has an operation on the requests of ep open. */
static void
open_journal(uint32_t w, int change, uint32_t ep, uint64_t seq, uint32_t held)
{
	seg->procs[w].change = (uint64_t)held << 32 | (uint32_t)change;
	seg->procs[w].journal = UINT64_C(1) << 62 | (uint64_t)ep << 24 | (seq & 0xffffff);
}

static uint32_t
name(uint32_t ep)
{
	return (uint32_t)seg->eps[ep].count;
}

Test(shm_load, the_limit_holds_across_workers)
{
	cr_assert(load_reserve(seg, 0, EP, 3));
	cr_assert(load_reserve(seg, 1, EP, 3));
	cr_assert(load_reserve(seg, 2, EP, 3));
	cr_assert_not(load_reserve(seg, 0, EP, 3));
	cr_assert_not(load_reserve(seg, 3, EP, 2)); /* lowered by a reload meanwhile */
	cr_assert_eq(load_count(seg, EP), 3);
	load_release(seg, 1, EP);
	cr_assert(load_reserve(seg, 3, EP, 3));
	cr_assert_eq(load_count(seg, EP), 3);
	cr_assert_eq(load_count(seg, EP + 1), 0);
}

Test(shm_load, no_limit_is_zero)
{
	for (uint32_t i = 0; i < 1000; i++)
		cr_assert(load_reserve(seg, 0, EP, 0));
	cr_assert_eq(load_count(seg, EP), 1000);
}

Test(shm_load, a_refused_operation_leaves_no_trace)
{
	uint64_t word;

	cr_assert(load_reserve(seg, 0, EP, 1));
	word = seg->eps[EP].count;
	cr_assert_not(load_reserve(seg, 1, EP, 1));
	cr_assert_eq(seg->eps[EP].count, word);
	cr_assert_eq(seg->procs[1].journal, 0);
	cr_assert_eq(load_reap(seg, 1), 0);
	cr_assert_eq(load_count(seg, EP), 1);
}

Test(shm_load, reaping_gives_back_what_was_held_and_no_more)
{
	for (uint32_t ep = 0; ep < 4; ep++)
		for (uint32_t i = 0; i <= ep; i++)
			cr_assert(load_reserve(seg, 2, ep, 0));
	cr_assert(load_reserve(seg, 0, 3, 0));
	load_sent(seg, 2, 3, 1);
	cr_assert_eq(load_reap(seg, 2), 10);
	cr_assert_eq(load_count(seg, 0), 0);
	cr_assert_eq(load_count(seg, 3), 1);
	cr_assert_eq(load_sent_sum(seg, 3), 0);
	cr_assert_eq(load_reap(seg, 2), 0);
}

/* What worker 2 leaves when it dies at each point of an operation, and what a reserve or release by
 * worker 0 makes of it before the master comes. */
struct death {
	const char *at;
	int op;
	bool cas, row_stored;
};

Test(shm_load, an_open_operation_is_repaired)
{
	static const struct death deaths[] = {
		{"reserve, before the word", RESERVE, false, false},
		{"reserve, after the word", RESERVE, true, false},
		{"reserve, after the row", RESERVE, true, true},
		{"release, before the word", RELEASE, false, false},
		{"release, after the word", RELEASE, true, false},
		{"release, after the row", RELEASE, true, true},
	};

	for (size_t i = 0; i < 2 * sizeof(deaths) / sizeof(deaths[0]); i++) {
		const struct death *d = &deaths[i / 2];
		const bool overwritten = i % 2;
		const uint32_t after = d->op == RESERVE ? 3 : 1;
		uint64_t seq;

		cr_assert(load_reserve(seg, 2, EP, 0));
		cr_assert(load_reserve(seg, 2, EP, 0));
		seq = ++seg->procs[2].seq;
		open_journal(2, d->op, EP, seq, 2);
		if (d->cas)
			seg->eps[EP].count = (uint64_t)after << 32 | 3u << 24 | (seq & 0xffffff);
		if (d->row_stored)
			seg_row(seg, 2, EP)->held = after;
		if (overwritten)
			cr_assert(load_reserve(seg, 0, EP, 0));
		cr_assert_eq(load_reap(seg, 2), d->cas ? after : 2, "%s, %d", d->at, overwritten);
		cr_assert_eq(load_count(seg, EP), overwritten, "%s, %d", d->at, overwritten);
		if (overwritten)
			load_release(seg, 0, EP);
		cr_assert_eq(seg->procs[2].journal, 0);
	}
}

/* Reaping overwrites names as well, and must record them like any worker. */
Test(shm_load, two_workers_dead_in_their_operations)
{
	for (uint32_t w = 2; w < 4; w++) {
		const uint64_t seq = ++seg->procs[w].seq;

		open_journal(w, RESERVE, EP, seq, 0);
		if (w == 2) { /* 2 succeeded, then 3 overwrote it */
			seg->eps[EP].count = UINT64_C(1) << 32 | 3u << 24 | seq;
		} else {
			seg->procs[2].acked = seg->procs[2].seq;
			seg->eps[EP].count = UINT64_C(2) << 32 | 4u << 24 | seq;
		}
	}
	cr_assert_eq(load_reap(seg, 2), 1);
	cr_assert_eq(load_reap(seg, 3), 1);
	cr_assert_eq(load_count(seg, EP), 0);
}

static void
victim(void)
{
	(void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	(void)raise(SIGSTOP);
	(void)load_reserve(seg, 2, EP, 2);
	(void)load_reserve(seg, 2, EP, 2);
	(void)load_reserve(seg, 2, EP, 2); /* refused */
	(void)load_tokens_add(seg, 2, EP, 4000000000);
	(void)load_tokens_add(seg, 2, EP, 4000000000); /* would overflow */
	load_tokens_sub(seg, 2, EP, 4000000000);
	load_release(seg, 2, EP);
	load_release(seg, 2, EP);
	_exit(0);
}

/* Had the victim died just now, and had `others` reservations of worker 0 overwritten the word
 * before the master came: nothing of the victim's may be left. */
static void
bury(uint32_t others, unsigned step)
{
	for (uint32_t i = 0; i < others; i++) {
		cr_assert(load_reserve(seg, 0, EP, 0));
		cr_assert_eq(load_tokens_add(seg, 0, EP, 7), 7);
	}
	(void)load_reap(seg, 2);
	cr_assert_eq(load_count(seg, EP), others, "after %u instructions, %u others", step, others);
	cr_assert_eq(
		load_tokens(seg, EP), 7 * others, "after %u instructions, %u others", step, others);
	cr_assert_eq(load_count(seg, 0), 0);
	cr_assert_eq(seg_row(seg, 2, EP)->held, 0);
	cr_assert_eq(seg_row(seg, 2, EP)->tokens, 0);
	cr_assert_eq(seg->procs[2].journal, 0);
}

/* A real process stands still after every single machine instruction of its reserves and releases,
 * which is all that a SIGKILL there would leave; the master reaps, then memory is put back for the
 * next step. */
Test(shm_load, killed_at_every_instruction_nothing_leaks)
{
	const size_t bytes = seg->writable_bytes;
	unsigned char *saved = mem_zero(bytes);
	unsigned step, open_done = 0, open_not_done = 0;
	int status;
	pid_t pid;

	cr_assert(load_reserve(seg, 2, 0, 0));
	pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0)
		victim();
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	for (step = 0; WIFSTOPPED(status); step++) {
		if (seg->procs[2].journal != 0) {
			const bool tokens = seg->procs[2].journal >> 62 == 2;
			const uint64_t before = seg->procs[2].change >> 32;
			const uint32_t now = tokens ? load_tokens(seg, EP) : load_count(seg, EP);

			open_done += now != before;
			open_not_done += now == before;
		}
		memcpy(saved, seg->writable, bytes);
		for (uint32_t others = 0; others < 3; others++) {
			bury(others, step);
			memcpy(seg->writable, saved, bytes);
		}
		cr_assert_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		cr_assert_eq(waitpid(pid, &status, 0), pid);
	}
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	cr_assert_gt(open_done, 10); /* else this test tested nothing */
	cr_assert_gt(open_not_done, 10);
	free(saved);
}

Test(shm_load, tokens_are_counted_beside_requests)
{
	cr_assert(load_reserve(seg, 0, EP, 0));
	cr_assert_eq(load_tokens_add(seg, 0, EP, 0), 0);
	cr_assert_eq(load_tokens_add(seg, 0, EP, 100000), 100000);
	cr_assert(load_reserve(seg, 1, EP, 0));
	cr_assert_eq(load_tokens_add(seg, 1, EP, 10), 10);
	cr_assert_eq(load_tokens(seg, EP), 100010);
	cr_assert_eq(load_count(seg, EP), 2);
	cr_assert_eq(load_tokens_add(seg, 1, EP, UINT32_MAX - 100010), UINT32_MAX - 100010);
	cr_assert_eq(load_tokens_add(seg, 0, EP, 1), 0); /* no room in the word: not counted */
	load_tokens_sub(seg, 1, EP, UINT32_MAX - 100010);
	load_tokens_sub(seg, 0, EP, 100000);
	cr_assert_eq(load_tokens(seg, EP), 10);
	cr_assert_eq(load_reap(seg, 1), 1);
	cr_assert_eq(load_tokens(seg, EP), 0);
	cr_assert_eq(load_count(seg, EP), 1);
}

Test(shm_load, a_recovered_endpoint_says_since_when)
{
	ep_state_recovered(seg, EP, 123456);
	cr_assert_eq(ep_state_get(seg, EP), EP_UP);
	cr_assert_eq(ep_ramp_from(seg, EP), 123456);
	ep_state_set(seg, EP, EP_DOWN);
	cr_assert_eq(ep_state_get(seg, EP), EP_DOWN);
	ep_state_set(seg, EP, EP_UP);
	cr_assert_eq(ep_ramp_from(seg, EP), 0);
}

Test(shm_load, acked_follows_over_the_wrap_of_24_bits)
{
	seg->procs[0].seq = seg->procs[0].acked = 0xfffff0; /* as after 16 million operations */
	for (uint32_t i = 0; i < 20; i++) {
		cr_assert(load_reserve(seg, 0, EP, 0));
		cr_assert(load_reserve(seg, 1, EP, 0)); /* overwrites */
		cr_assert_eq(seg->procs[0].acked, seg->procs[0].seq & 0xffffff);
	}
	cr_assert_eq(seg->procs[0].seq, 0x1000004);
}

/* An older name met late must not lower acked: it may already answer for a younger operation. */
Test(shm_load, acked_never_goes_down)
{
	cr_assert(load_reserve(seg, 0, 0, 0));
	cr_assert(load_reserve(seg, 0, EP, 0));
	cr_assert(load_reserve(seg, 1, EP, 0));
	cr_assert_eq(seg->procs[0].acked, 2);
	cr_assert(load_reserve(seg, 1, 0, 0));
	cr_assert_eq(seg->procs[0].acked, 2);
}

/* A quiet endpoint would show a name for ever, and 2^24 operations later it would be believed. */
Test(shm_load, names_do_not_grow_old)
{
	cr_assert(load_reserve(seg, 0, 0, 0));
	cr_assert(load_reserve(seg, 1, 2, 0));
	cr_assert_eq(name(0), 1u << 24 | 1);
	seg->procs[0].seq = 0xfffffe;
	seg->procs[0].acked = 0xfffff0;
	cr_assert(load_reserve(seg, 0, EP, 0));
	cr_assert_eq(name(0), 1u << 24 | 1);
	cr_assert(load_reserve(seg, 0, EP, 0)); /* operation 2^24 */
	cr_assert_eq(name(0), 0);
	cr_assert_eq(load_count(seg, 0), 1);
	cr_assert_eq(name(2), 2u << 24 | 1); /* another's */

	/* operation 2^24 + 1 dies before the word at endpoint 0: not taken for the first one */
	seg->procs[0].seq++;
	open_journal(0, RESERVE, 0, seg->procs[0].seq, 1);
	cr_assert_eq(load_reap(seg, 0), 3);
	cr_assert_eq(load_count(seg, 0), 0);
	cr_assert_eq(load_count(seg, EP), 0);
}

Test(shm_load, sent_is_summed_over_workers)
{
	load_reserve(seg, 0, EP, 0);
	load_reserve(seg, 3, EP, 0);
	load_sent(seg, 0, EP, 1);
	load_sent(seg, 3, EP, 1);
	cr_assert_eq(load_sent_sum(seg, EP), 2);
	load_sent(seg, 0, EP, -1);
	cr_assert_eq(load_sent_sum(seg, EP), 1);
	cr_assert_eq(load_count(seg, EP), 2);
}

Test(shm_load, kv_is_summed_over_workers_and_forgotten_with_its_worker)
{
	load_kv(seg, 0, EP, 1);
	load_kv(seg, 2, EP, 1);
	load_kv(seg, 2, EP, 1);
	cr_assert_eq(load_kv_sum(seg, EP), 3);
	cr_assert_eq(load_kv_sum(seg, EP + 1), 0);
	load_kv(seg, 2, EP, -1);
	cr_assert_eq(load_kv_sum(seg, EP), 2);
	cr_assert_eq(load_reap(seg, 2), 0, "no reservation was held");
	cr_assert_eq(load_kv_sum(seg, EP), 1);
}

Test(shm_load, foreign_load_counts_while_it_is_fresh)
{
	load_reserve(seg, 0, EP, 0);
	cr_assert_eq(load_score(seg, EP, 1000000, 3000), 1); /* never scraped */
	load_foreign_set(seg, EP, 7, 1000000);
	cr_assert_eq(load_score(seg, EP, 1000000, 3000), 8);
	cr_assert_eq(load_score(seg, EP, 1003000, 3000), 8);
	cr_assert_eq(load_score(seg, EP, 1003001, 3000), 1);
	/* the reader's clock is of its loop turn */
	cr_assert_eq(load_score(seg, EP, 999990, 3000), 8);
}

Test(shm_load, foreign_load_is_capped_and_survives_40_bits_of_clock)
{
	const uint64_t late = (UINT64_C(1) << 40) - 10;

	load_foreign_set(seg, EP, UINT32_MAX, late);
	cr_assert_eq(load_score(seg, EP, late + 20, 100), 0xffffff);
	cr_assert_eq(load_score(seg, EP, late + 200, 100), 0);
}

Test(shm_load, a_slots_next_life)
{
	const struct ep_scrape s = {.running = 3,
		.waiting = 4,
		.kv_usage_ppm = 500000,
		.has_tokens = true,
		.prompt_tokens = 0,
		.generated_tokens = 1000000000000000,
		.at_ms = 9};
	struct ep_scrape got;

	load_reserve(seg, 0, EP, 0);
	load_release(seg, 0, EP);
	ep_state_set(seg, EP, EP_DRAINING);
	load_foreign_set(seg, EP, 7, 100);
	ep_scrape_set(seg, EP, &s);
	got = ep_scrape_get(seg, EP);
	cr_assert(got.running == 3 && got.waiting == 4 && got.kv_usage_ppm == 500000 &&
		  got.at_ms == 9);
	cr_assert(got.has_tokens && got.prompt_tokens == 0 &&
		  got.generated_tokens == s.generated_tokens);

	ep_slot_begin(seg, EP);
	cr_assert_eq(ep_state_get(seg, EP), EP_STARTING);
	cr_assert_eq(ep_tag(seg, EP), 1);
	cr_assert_eq(load_score(seg, EP, 100, 1000), 0);
	cr_assert_eq(ep_scrape_get(seg, EP).at_ms, 0);
	cr_assert_not(ep_scrape_get(seg, EP).has_tokens);
	cr_assert_eq(name(EP), 1u << 24 | 2); /* the count's word lives on */
	cr_assert_str_eq(ep_state_name(EP_STARTING), "starting");
}

/* Another process has stored there: the master's slots are freed when nothing is counted. */
Test(shm_load, a_next_life_begins_without_requests)
{
	load_reserve(seg, 0, EP, 0);
	load_kv(seg, 1, EP, 1);
	ep_slot_begin(seg, EP);
	cr_assert_eq(load_count(seg, EP), 0);
	cr_assert_eq(load_kv_sum(seg, EP), 0);
	cr_assert_eq(seg_row(seg, 0, EP)->held, 0);
}

Test(shm_load, releasing_what_is_not_held_aborts, .signal = SIGABRT)
{
	load_reserve(seg, 0, EP, 0);
	load_release(seg, 1, EP);
}
