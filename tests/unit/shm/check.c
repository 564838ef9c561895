/*
 * The invariant checker: each breakage made on purpose is reported, in those words; a segment at work
 * never is, whatever its processes are in the midst of.
 */
#include "shm/accept.h"
#include "shm/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/announce.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/eject.h"
#include "shm/quota.h"
#include "shm/flags.h"
#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/core/rcu.h"
#include "shm/table.h"
#include "tests/unit/shm/fixture.h"

#define A 0u /* the workers at work */
#define B 1u
#define NOBODY 2u /* a worker slot without a process */
#define LIVE_ENDPOINTS 3u
#define EMPTY_ENDPOINT 3u
#define RETIRED_LONG_MS 2000
#define CREW 5u /* four workers and the notifier: the small segment's slots but the master's */

static struct rcu_writer *writer;
static struct flag_set *flags;
static struct flag_ref armed;
static struct quota_pass busy, idle;
static pid_t sleepers[3];
static struct announcement announcement = {
	.role = ROLE_PREFILL, .http = "10.0.0.1:8000", .kv = "10.0.0.1:9000", .seen_ms = 1};

/* --- what the checker said ---------------------------------------------------------------- */

static char said[2 * CHECK_LINES][256];
static unsigned nsaid;

static void
hear(const char *line, void *arg)
{
	cr_assert_eq(arg, &nsaid);
	cr_assert_lt(nsaid, sizeof(said) / sizeof(said[0]));
	(void)snprintf(said[nsaid++], sizeof(said[0]), "%s", line);
}

static unsigned
check(void)
{
	nsaid = 0;
	return check_segment(seg, SMALL_BUILD, writer, hear, &nsaid);
}

#define ALL_IS_WELL(...)                                                                           \
	do {                                                                                       \
		const unsigned n_found = check();                                                  \
		cr_assert_eq(n_found, 0, "%u findings, the first: %s", n_found, said[0]);          \
	} while (0)

/* --- a segment at work -------------------------------------------------------------------- */

static pid_t
sleeper(void)
{
	const pid_t pid = fork();

	cr_assert_geq(pid, 0);
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			(void)pause();
	}
	return pid;
}

static bool
publish(void)
{
	struct table_builder b;
	void *arena = rcu_arena_get(writer);

	if (arena == NULL)
		return false;
	cr_assert_not_null(table_begin(&b, arena, seg->arena_bytes, 1, LIVE_ENDPOINTS));
	for (uint32_t i = 0; i < LIVE_ENDPOINTS; i++) {
		struct table_endpoint *te = table_endpoint_at(&b, i);

		te->slot = i;
		te->tag = (uint32_t)ep_tag(seg, i);
	}
	table_pool_at(&b, 0)->name = table_str(&b, "pool");
	cr_assert_eq(table_end(&b), 0);
	rcu_publish(writer, arena);
	return true;
}

static void
people(pid_t a, pid_t b, pid_t notifier)
{
	proc_slot_set(seg, A, (uint64_t)a, PROC_READY, 1);
	proc_slot_set(seg, B, (uint64_t)b, PROC_DRAINING, 2);
	proc_slot_set(seg, SLOT_NOTIFIER(seg), (uint64_t)notifier, PROC_READY, 0);
	proc_slot_set(seg, SLOT_MASTER(seg), (uint64_t)getpid(), PROC_READY, 0);
}

/* Two workers with reservations, one in a section over a retired table, armed flags, a dead one's
 * traces, announcements. */
static void
at_work(void)
{
	static const struct quota_terms terms = {.max_inflight = 3};
	struct flag_ref ready;
	bool full;

	small_seg();
	writer = rcu_writer_new(seg);
	for (size_t i = 0; i < sizeof(sleepers) / sizeof(sleepers[0]); i++)
		sleepers[i] = sleeper();
	people(sleepers[0], sleepers[1], sleepers[2]);
	for (uint32_t ep = 0; ep < LIVE_ENDPOINTS; ep++)
		ep_slot_begin(seg, ep);
	ep_state_set(seg, 0, EP_DOWN);
	ep_state_recovered(seg, 1, 12345);
	publish();
	(void)rcu_enter(seg, A);
	publish();

	cr_assert(load_reserve(seg, NOBODY, 0, 0)); /* killed since, and reaped */
	cr_assert_eq(
		quota_enter(seg, NOBODY, UINT64_C(1) << 40, &terms, 1000, &idle), QUOTA_ADMITTED);
	cr_assert_eq(quota_enter(seg, A, 1, &terms, 1000, &busy), QUOTA_ADMITTED);
	cr_assert(load_reserve(seg, A, 0, 0));
	cr_assert(load_reserve(seg, A, 0, 0));
	cr_assert(load_reserve(seg, A, 1, 0));
	cr_assert(load_reserve(seg, B, 1, 0));
	cr_assert_eq(load_tokens_add(seg, A, 0, 70), 70);
	cr_assert_eq(load_tokens_add(seg, B, 1, 30), 30);
	load_sent(seg, A, 0, 1);
	cr_assert_eq(load_reap(seg, NOBODY), 1);

	flags = flag_set_new(seg, A);
	cr_assert(flag_arm(flags, 2, &armed));
	cr_assert(flag_arm(flags, 1, &ready));
	cr_assert_eq(flag_notify(seg, &ready), FLAG_READY_NOW);
	announce_begin(seg);
	cr_assert(announce_put(seg, &announcement, 1000, &full));
	metric_gauge_add(seg_slab(seg, A), G_REQUESTS, 3);
	metric_add(seg_slab(seg, NOBODY), M_EVENTS, 9); /* counters stay */
}

static void
off_work(void)
{
	for (size_t i = 0; i < sizeof(sleepers) / sizeof(sleepers[0]); i++) {
		(void)kill(sleepers[i], SIGKILL);
		(void)waitpid(sleepers[i], NULL, 0);
	}
	flag_set_free(&flags);
	rcu_writer_free(&writer);
	small_seg_end();
}

Test(shm_check, a_fresh_segment_is_well)
{
	small_seg();
	ALL_IS_WELL();
	writer = rcu_writer_new(seg);
	ALL_IS_WELL();
	rcu_writer_free(&writer);
	small_seg_end();
}

Test(shm_check, a_segment_at_work_is_well, .init = at_work, .fini = off_work)
{
	ALL_IS_WELL();
	rcu_leave(seg, A);
	ALL_IS_WELL();
	cr_assert_eq(rcu_poll(writer), 0);
	ALL_IS_WELL();
}

/* Killed and not yet reaped: what it holds is still counted, and its pid is nobody else's. */
Test(shm_check, one_that_waits_to_be_reaped_is_well, .init = at_work, .fini = off_work)
{
	siginfo_t info;

	cr_assert_eq(kill(sleepers[0], SIGKILL), 0);
	cr_assert_eq(waitid(P_PID, (id_t)sleepers[0], &info, WEXITED | WNOWAIT), 0);
	ALL_IS_WELL();
}

/* --- breakages ---------------------------------------------------------------------------- */

static void
header(void)
{
	seg->hdr->version++;
}

static void
not_reaped(void)
{
	cr_assert_eq(kill(sleepers[1], SIGKILL), 0);
	cr_assert_eq(waitpid(sleepers[1], NULL, 0), sleepers[1]);
}

static void
state_of_nobody(void)
{
	seg->proc_records[NOBODY].state = PROC_READY;
}

static void
state_of_somebody(void)
{
	seg->proc_records[B].state = PROC_EMPTY;
}

static void
one_process_twice(void)
{
	seg->proc_records[B].pid = seg->proc_records[A].pid;
}

static void
heartbeat_of_nobody(void)
{
	proc_heartbeat(seg, NOBODY, 5);
}

static void
bytes_of_nobody(void)
{
	seg->procs[NOBODY].stored[0] = 1;
}

static void
conns_of_nobody(void)
{
	accept_count(seg, NOBODY, 5);
}

static void
filter_of_nobody(void)
{
	proc_sandboxed_set(seg, NOBODY);
}

static void
forbidden_call_of_nobody(void)
{
	proc_forbidden_set(seg, NOBODY, 0);
}

static void
crash_note_of_nobody(void)
{
	proc_crash_note_set(seg, NOBODY, "oh");
}

static void
journal_of_nobody(void)
{
	seg->procs[NOBODY].journal = UINT64_C(1) << 62 | (seg->procs[NOBODY].seq & 0xffffff);
	seg->procs[NOBODY].change = (uint32_t)-1; /* of a release that did not happen */
}

static void
line_of_nobody(void)
{
	seg->readers[NOBODY].ctr = 3;
}

static void
gauge_of_nobody(void)
{
	seg_slab(seg, NOBODY)->gauges[G_SEND_QUEUE] = 4711;
}

/* The count with it: only that nobody holds it is wrong. */
static void
row_of_nobody(void)
{
	cr_assert(load_reserve(seg, NOBODY, 2, 0));
}

static void
tokens_of_nobody(void)
{
	cr_assert_eq(load_tokens_add(seg, NOBODY, 2, 40), 40);
}

static void
sent_of_nobody(void)
{
	seg_row(seg, NOBODY, 2)->sent = 1;
}

static void
kv_of_nobody(void)
{
	load_kv(seg, NOBODY, 2, 1);
}

static void
gauge_below_zero(void)
{
	metric_gauge_add(seg_slab(seg, B), G_OPEN_CONNS, -1);
}

static void
line_from_the_future(void)
{
	seg->readers[B].ctr = seg->rcu->gp + 3;
}

static void
line_even(void)
{
	seg->readers[B].ctr = seg->rcu->gp;
}

static void
gp_odd(void)
{
	seg->rcu->gp++;
}

static void
count_too_high(void)
{
	seg->eps[0].count += UINT64_C(1) << 32;
}

static void
count_too_low(void)
{
	seg->eps[0].count -= UINT64_C(1) << 32;
}

static void
tokens_too_high(void)
{
	seg->eps[1].tokens += UINT64_C(5) << 32;
}

static void
row_lost(void)
{
	seg_row(seg, B, 1)->held = 0;
	seg_row(seg, B, 1)->tokens = 0;
}

/* An operation stands open whose row was written twice over: neither before nor after fits. */
static void
change_wrong(void)
{
	const uint64_t seq = ++seg->procs[A].seq;

	seg->procs[A].change = UINT64_C(7) << 32 | 1;
	seg->procs[A].journal = UINT64_C(1) << 62 | seq;
}

static void
empty_but_held(void)
{
	cr_assert(load_reserve(seg, A, EMPTY_ENDPOINT, 0));
}

static void
empty_but_tokens(void)
{
	cr_assert(load_reserve(seg, A, 2, 0));
	cr_assert_eq(load_tokens_add(seg, A, 2, 9), 9);
	seg->eps[EMPTY_ENDPOINT].tokens = seg->eps[2].tokens;
}

static void
empty_but_kv(void)
{
	load_kv(seg, A, EMPTY_ENDPOINT, 1);
}

static void
state_unknown(void)
{
	seg->ep_records[1].state = 77;
}

static void
ramp_of_one_that_is_down(void)
{
	seg->ep_records[0].state = 12345 << 8 | EP_DOWN;
}

static void
life_never_begun(void)
{
	seg->ep_records[EMPTY_ENDPOINT].state = EP_STARTING;
}

static void
name_from_the_future(void)
{
	seg->procs[B].seq = 1; /* of two operations made; the last was on endpoint 1's tokens */
}

static void
name_too_old(void)
{
	seg->procs[B].seq += 3u << 20;
	seg->procs[B].acked = seg->procs[B].seq;
}

static void
name_of_no_worker(void)
{
	seg->eps[2].count = UINT64_C(99) << 24 | 1;
}

static void
sent_more_than_held(void)
{
	load_sent(seg, B, 1, 2);
}

static void
tokens_without_request(void)
{
	load_release(seg, B, 1);
}

static void
journal_of_another_operation(void)
{
	seg->procs[B].journal = UINT64_C(1) << 62 | 2u << 24 | ((seg->procs[B].seq - 1) & 0xffffff);
}

static void
journal_of_no_endpoint(void)
{
	seg->procs[B].journal = UINT64_C(1) << 62 | 4u << 24 | (seg->procs[B].seq & 0xffffff);
}

static void
journal_of_no_word(void)
{
	seg->procs[B].journal = seg->procs[B].seq & 0xffffff;
}

static void
journal_of_no_client(void)
{
	seg->procs[B].journal = UINT64_C(3) << 62 | 8u << 24 | (seg->procs[B].seq & 0xffffff);
}

static void
client_count_too_high(void)
{
	seg->quotas[0].held[busy.entry] += UINT64_C(1) << 32;
}

static void
client_row_of_nobody(void)
{
	seg->quota_rows[NOBODY * 8 + 5] = 2;
}

static void
client_twice(void)
{
	seg->quotas[0].key[7] = seg->quotas[0].key[busy.entry];
	seg->quotas[0].held[7] = seg->quotas[0].held[busy.entry] & UINT64_C(0xffff) << 48;
}

static void
client_nobody(void)
{
	seg->quotas[0].held[7] = UINT64_C(1) << 32;
	seg->quota_rows[7] = 1;
}

static void
client_freed_while_busy(void)
{
	seg->quotas[0].held[busy.entry] &= UINT64_C(0xffff) << 48;
}

static void
acked_ahead(void)
{
	seg->procs[A].acked = seg->procs[A].seq + 1;
}

static void
flag_of_nobody(void)
{
	struct flag_set *fs = flag_set_new(seg, NOBODY);
	struct flag_ref ref;

	cr_assert(flag_arm(fs, 1, &ref));
	flag_set_free(&fs);
}

static void
flag_with_no_notice_left(void)
{
	seg_flag(seg, A, armed.slot)->word &= ~UINT64_C(0xff00);
}

static void
flag_in_no_state(void)
{
	seg_flag(seg, B, 5)->word |= 0x7f;
}

static void
flag_free_with_notices(void)
{
	seg_flag(seg, B, 5)->word |= 0x300;
}

static void
flag_armed_in_gen_0(void)
{
	seg_flag(seg, B, 5)->word = 0x101;
}

static void
settings_open(void)
{
	seg->settings->seq |= 1;
}

static void
two_announcements_open(void)
{
	seg->announced[7].seq |= 1;
	seg->announced[9].seq |= 1;
}

static struct table *
current(void)
{
	struct table *t;

	memcpy(&t, &seg->rcu->table, sizeof(t)); /* a published table is const to everybody else */
	return t;
}

static void
table_written(void)
{
	current()->config++;
}

static void
table_nowhere(void)
{
	seg->rcu->table = (const struct table *)(const void *)(seg->arenas + 64);
}

static void
table_not_the_writers(void)
{
	struct rcu_writer *other = rcu_writer_new(seg); /* whose arenas are all free */

	rcu_writer_free(&writer);
	writer = other;
	seg->readers[A].ctr = 0;
}

static void
slot_reused_while_current(void)
{
	ep_slot_begin(seg, 2);
}

/* Endpoint 2 is dropped and its slot given away while A still reads the table that has it. */
static void
slot_reused_while_read(void)
{
	struct table_builder b;
	void *arena = rcu_arena_get(writer);

	(void)table_begin(&b, arena, seg->arena_bytes, 1, 0);
	cr_assert_eq(table_end(&b), 0);
	rcu_publish(writer, arena);
	rcu_leave(seg, A);
	(void)rcu_enter(seg, A);
	seg->readers[A].ctr -= 2; /* since before that publication */
	ep_slot_begin(seg, 2);
}

static void
slot_freed_while_current(void)
{
	ep_state_set(seg, 2, EP_EMPTY);
}

static void
publish_rows(uint32_t slot0, uint32_t slot1)
{
	struct table_builder b;
	void *arena = rcu_arena_get(writer);

	(void)table_begin(&b, arena, seg->arena_bytes, 1, 2);
	table_endpoint_at(&b, 0)->slot = slot0;
	table_endpoint_at(&b, 1)->slot = slot1;
	table_endpoint_at(&b, 0)->tag = table_endpoint_at(&b, 1)->tag = 1;
	cr_assert_eq(table_end(&b), 0);
	rcu_publish(writer, arena);
}

static void
slot_twice(void)
{
	publish_rows(1, 1);
}

static void
slot_out_of_range(void)
{
	publish_rows(1, 4);
}

static void
retired_written(void)
{
	struct table *t = current();

	publish(); /* A's line keeps it from being freed */
	t->config++;
}

static void
obtained(void)
{
	cr_assert_not_null(rcu_arena_get(writer));
}

static void
arena_of(enum arena_use use, uint64_t cookie, uint64_t retired_ms)
{
	for (size_t i = 0; i < SHM_ARENAS; i++) {
		const struct rcu_arena *a = rcu_arena_read(writer, i);
		const struct rcu_arena wrong = {use, cookie, retired_ms};

		if (a->use != ARENA_RETIRED)
			continue;
		memcpy((void *)(uintptr_t)a, &wrong, sizeof(wrong)); /* the writer's own */
		return;
	}
	cr_assert(false, "nothing is retired");
}

static void
retired_and_forgotten(void)
{
	rcu_leave(seg, A);
	arena_of(ARENA_RETIRED, seg->rcu->gp, clock_ms() - RETIRED_LONG_MS - 1);
}

static void
retired_for_ever(void)
{
	arena_of(ARENA_RETIRED, seg->rcu->gp + 100, clock_ms());
}

static void
two_current(void)
{
	rcu_leave(seg, A);
	arena_of(ARENA_CURRENT, 0, 0);
}

static void
trial_of_nobody(void)
{
	seg->eps[1].eject = HALF_OPEN_OUT | (NOBODY + 1) * (UINT64_C(1) << HALF_OPEN_MS_BITS) | 5;
}

static void
trial_of_one_that_is_in(void)
{
	seg->eps[1].eject = (A + 1) * (UINT64_C(1) << HALF_OPEN_MS_BITS) | 5;
}

static void
busy_trial_of_nobody(void)
{
	seg->eps[1].busy = HALF_OPEN_OUT | (NOBODY + 1) * (UINT64_C(1) << HALF_OPEN_MS_BITS) | 5;
}

static void
busy_word_that_is_not_busy(void)
{
	seg->eps[1].busy = 5;
}

static void
ejection_with_an_unknown_bit(void)
{
	seg->eps[2].eject = EJECT_NEVER;
}

#define ROW(breaks)                                                                                \
	{                                                                                          \
#breaks, breaks,
/* clang-format off */
static const struct breakage {
	const char *name;
	void (*breaks)(void);
	const char *line; /* of the first finding: how it begins */
	unsigned n;       /* findings */
} breakages[] = {
	ROW(header) "I2 the header is not", 1 },
	ROW(not_reaped) "I4 slot 1: process ", 1 },
	ROW(state_of_nobody) "I4 slot 2 is unused but in state 2", 1 },
	ROW(state_of_somebody) "I4 slot 1: process ", 1 },
	ROW(one_process_twice) "I4 slots 0 and 1 are both process ", 1 },
	ROW(heartbeat_of_nobody) "I4 slot 2 is unused but has a heartbeat", 1 },
	ROW(conns_of_nobody) "I4 slot 2 is unused but has a heartbeat, connections", 1 },
	ROW(bytes_of_nobody) "I4 slot 2 is unused but holds bytes", 1 },
	ROW(filter_of_nobody) "I4 slot 2 is unused but has a filter or a forbidden call", 1 },
	ROW(forbidden_call_of_nobody) "I4 slot 2 is unused but has a filter or a forbidden call", 1 },
	ROW(crash_note_of_nobody) "I4 slot 2 is unused but has a heartbeat, connections or a crash note", 1 },
	/* its open release counts as made: acked is its last seq */
	ROW(journal_of_nobody) "I4 slot 2 is unused but has an operation open", 2 },
	ROW(line_of_nobody) "I4 slot 2 is unused but its reader line shows gp 3", 1 },
	ROW(gauge_of_nobody) "I4 slot 2 is unused but its gauge pdrouter_send_queue_bytes is 4711", 1 },
	ROW(row_of_nobody) "I4 slot 2 is unused but holds 1 requests, 0 tokens of endpoint 2, 0 sent", 1 },
	ROW(tokens_of_nobody) "I4 slot 2 is unused but holds 0 requests, 40 tokens of endpoint 2", 2 },
	ROW(sent_of_nobody) "I4 slot 2 is unused but holds 0 requests, 0 tokens of endpoint 2, 1 sent", 2 },
	ROW(kv_of_nobody) "I4 slot 2 is unused but waits for 1 KV of endpoint 2", 1 },
	ROW(gauge_below_zero) "I1 slot 1: its gauge pdrouter_client_connections is -1", 1 },
	ROW(line_from_the_future) "I5 slot 1: its reader line shows 9, which gp 6 cannot have given", 1 },
	ROW(line_even) "I5 slot 1: its reader line shows 6", 1 },
	ROW(gp_odd) "I5 gp is 7, which is odd", 1 },
	ROW(count_too_high) "I7 endpoint 0: 3 requests are counted, the rows add up to 2", 1 },
	ROW(count_too_low) "I7 endpoint 0: 1 requests are counted, the rows add up to 2", 1 },
	ROW(tokens_too_high) "I7 endpoint 1: 35 tokens are counted, the rows add up to 30", 1 },
	ROW(row_lost) "I7 endpoint 1: 2 requests are counted, the rows add up to 1", 2 },
	ROW(change_wrong) "I7 endpoint 0: 2 requests are counted, the rows add up to 7", 1 },
	ROW(empty_but_held) "I7 endpoint 3 is empty but has 1 requests, 0 tokens", 1 },
	ROW(empty_but_tokens) "I7 endpoint 3 is empty but has 0 requests, 9 tokens", 2 },
	ROW(empty_but_kv) "I7 endpoint 3 is empty but holds 1 KV", 1 },
	ROW(state_unknown) "I1 endpoint 1: its state word is 0x4d", 1 },
	ROW(ramp_of_one_that_is_down) "I1 endpoint 0 is down, yet its weight ramps up", 1 },
	ROW(life_never_begun) "I5 endpoint 3 is starting and never began a life", 1 },
	ROW(name_from_the_future) "I8 endpoint 1: its tokens name operation 2 of slot 1, which has made 1", 1 },
	ROW(name_too_old) "I8 endpoint 1: its requests name operation 1 of slot 1, which has made 3145730", 2 },
	ROW(name_of_no_worker) "I8 endpoint 2: its requests name operation 1 of slot 98, which has made 0", 1 },
	ROW(sent_more_than_held) "I7 slot 1 has sent 2 requests to endpoint 1, and holds 1", 1 },
	ROW(tokens_without_request) "I7 slot 1 holds 30 tokens of endpoint 1 without a request", 1 },
	ROW(journal_of_another_operation) "I7 slot 1: its journal 0x4000000002000001 is of no operation", 1 },
	ROW(journal_of_no_endpoint) "I7 slot 1: its journal 0x4000000004000002 is of no operation", 1 },
	ROW(journal_of_no_word) "I7 slot 1: its journal 0x2 is of no operation", 1 },
	ROW(journal_of_no_client) "I7 slot 1: its journal 0xc000000008000002 is of no operation", 1 },
	ROW(client_count_too_high) "I7 client 1: 2 requests are counted, the rows add up to 1", 1 },
	ROW(client_row_of_nobody) "I4 slot 2 is unused but holds 2 requests of client 5", 2 },
	ROW(client_twice) "I11 clients 1 and 7 have the same key", 1 },
	ROW(client_nobody) "I11 client 7 has no key but 1 requests", 1 },
	ROW(client_freed_while_busy) "I7 client 1: 0 requests are counted, the rows add up to 1", 1 },
	ROW(acked_ahead) "I8 slot 0: operation 6 is acknowledged, the last made is 5", 1 },
	ROW(trial_of_nobody) "I12 endpoint 1: its ejection 0x8000030000000005 has a trial of no living worker", 1 },
	ROW(trial_of_one_that_is_in) "I12 endpoint 1: its ejection 0x10000000005", 1 },
	ROW(busy_trial_of_nobody) "I12 endpoint 1: its busy word 0x8000030000000005 has a trial of no living worker", 1 },
	ROW(busy_word_that_is_not_busy) "I12 endpoint 1: its busy word 0x5 has", 1 },
	ROW(ejection_with_an_unknown_bit) "I12 endpoint 2: its ejection 0x2000000000000000", 1 },
	ROW(flag_of_nobody) "I9 flag 0 of slot 2 is armed by no living worker", 1 },
	ROW(flag_with_no_notice_left) "I9 flag 0 of slot 0: its word 0x10001 is invalid", 1 },
	ROW(flag_in_no_state) "I9 flag 5 of slot 1: its word 0x7f is invalid", 1 },
	ROW(flag_free_with_notices) "I9 flag 5 of slot 1: its word 0x300 is invalid", 1 },
	ROW(flag_armed_in_gen_0) "I9 flag 5 of slot 1: its word 0x101 is invalid", 1 },
	ROW(settings_open) "I1 the settings are half written: seq is 1", 1 },
	ROW(two_announcements_open) "I1 2 announcements are half written", 1 },
	ROW(table_written) "I5 the current table has changed since it was published", 1 },
	ROW(table_nowhere) "I5 the current table is in no arena", 2 },
	ROW(table_not_the_writers) "I5 arena 1 holds the current table and is not marked as current", 1 },
	ROW(slot_reused_while_current) "I5 slot 2 was reused too early: it has tag 2, the current table has tag 1", 2 },
	ROW(slot_reused_while_read) "I5 slot 2 was reused too early: it has tag 2, the retired arena 1 has tag 1", 1 },
	ROW(slot_freed_while_current) "I5 slot 2 was freed too early: the current table has it", 2 },
	ROW(slot_twice) "I5 slot 1 is used twice in the current table", 1 },
	ROW(slot_out_of_range) "I5 endpoint 1 of the current table has slot 4, pool 0, role 0", 1 },
	ROW(retired_written) "I5 the retired arena 1 has changed since it was published", 1 },
	ROW(obtained) "I5 arena 2 was obtained and neither published nor returned", 1 },
	ROW(retired_and_forgotten) "I5 the retired arena 0 has no reader and was not freed", 1 },
	ROW(retired_for_ever) "I5 the retired arena 0 waits for gp 106, gp is 6", 1 },
	ROW(two_current) "I5 arena 0 is marked as the current table's and is not", 1 },
};
/* clang-format on */

Test(shm_check, each_breakage_is_reported)
{
	for (size_t i = 0; i < sizeof(breakages) / sizeof(breakages[0]); i++) {
		const struct breakage *b = &breakages[i];
		unsigned n;

		at_work();
		b->breaks();
		n = check();
		cr_expect(n == b->n && n == nsaid, "%s: %u findings, not %u; the last: %s", b->name,
			n, b->n, n > 0 ? said[n - 1] : "");
		cr_expect(strncmp(said[0], b->line, strlen(b->line)) == 0, "%s: %s", b->name,
			said[0]);
		off_work();
	}
}

/* --- repairs by the master ------------------------------------------------------------------ */

static void
mend(void)
{
	for (int turn = 0; turn < 3; turn++)
		check_mend(seg, &(struct check_cursor){.whole = 2}, UINT64_C(100000000));
}

/* Of the words that all processes write.  Those of living workers are theirs to repair: own.c. */
static void (*const repaired[])(void) = {heartbeat_of_nobody, conns_of_nobody, bytes_of_nobody,
	filter_of_nobody, forbidden_call_of_nobody, crash_note_of_nobody, journal_of_nobody,
	line_of_nobody, gauge_of_nobody, row_of_nobody, tokens_of_nobody, sent_of_nobody,
	kv_of_nobody, gauge_below_zero, line_from_the_future, line_even, count_too_high,
	count_too_low, tokens_too_high, row_lost, name_from_the_future, name_of_no_worker,
	client_count_too_high, client_row_of_nobody, client_twice, client_freed_while_busy,
	acked_ahead, trial_of_nobody, trial_of_one_that_is_in, busy_trial_of_nobody,
	busy_word_that_is_not_busy, ejection_with_an_unknown_bit, flag_of_nobody};

Test(shm_check, each_breakage_is_repaired)
{
	for (size_t i = 0; i < sizeof(repaired) / sizeof(repaired[0]); i++) {
		at_work();
		repaired[i]();
		cr_expect_gt(check(), 0, "%zu", i);
		mend();
		cr_expect_eq(check(), 0, "%zu: %s", i, said[0]);
		off_work();
	}
}

/* A word that is out until long after the clock would keep all requests away. */
Test(shm_check, no_endpoint_is_away_for_ever, .init = at_work, .fini = off_work)
{
	const uint64_t late_ms = clock_ms() + UINT64_C(1000) * 3600 * 24 * 30;

	seg->eps[0].eject = seg->eps[1].busy = HALF_OPEN_OUT | late_ms;
	mend();
	cr_assert_eq(seg->eps[0].eject, 0);
	cr_assert_eq(seg->eps[1].busy, 0);
}

Test(shm_check, what_has_happened_is_not_ahead_of_the_clock, .init = at_work, .fini = off_work)
{
	seg->tallies[0].last = seg->tallies[0].alive_ms = seg->tallies[0].blame = UINT64_MAX;
	seg->tallies[0].shed_ms = UINT64_MAX;
	seg->refusals[0].word = seg->refusals[0].failed_alike_ms = UINT64_MAX;
	seg->latencies[0].first[0] = seg->named_counts[NAMED_MODEL_SLOTS].count[0] = UINT64_MAX;
	mend();
	cr_assert_eq(seg->named_counts[NAMED_MODEL_SLOTS].count[0], 0);
	cr_assert_eq(seg->latencies[0].first[0], 0);
	cr_assert_eq(seg->tallies[0].last | seg->tallies[0].alive_ms | seg->tallies[0].blame, 0);
	cr_assert_eq(seg->tallies[0].shed_ms, 0);
	cr_assert_eq(seg->refusals[0].word | seg->refusals[0].failed_alike_ms, 0);
}

Test(shm_check, many_findings_are_all_counted_and_few_told, .init = at_work, .fini = off_work)
{
	for (uint32_t i = 0; i < 100; i++)
		seg_flag(seg, B, i)->word = 0x7f;
	cr_assert_eq(check(), 100);
	cr_assert_eq(nsaid, CHECK_LINES);
}

Test(shm_check, without_a_writer_the_current_table_is_looked_at, .init = at_work, .fini = off_work)
{
	(void)rcu_arena_get(writer); /* nobody's finding then */
	nsaid = 0;
	cr_assert_eq(check_segment(seg, SMALL_BUILD, NULL, hear, &nsaid), 0);
	table_written();
	cr_assert_eq(check_segment(seg, SMALL_BUILD, NULL, hear, &nsaid), 1);
}

/* --- while they work ---------------------------------------------------------------------- */

static uint64_t
next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* One request, as a worker would have it. */
static void
live_a_request(uint32_t me, uint32_t ep, struct flag_set *fs)
{
	struct flag_ref ref;
	uint32_t tokens;

	(void)rcu_enter(seg, me);
	if (!load_reserve(seg, me, ep, 2)) {
		rcu_leave(seg, me);
		return;
	}
	tokens = load_tokens_add(seg, me, ep, 70 + me);
	rcu_leave(seg, me);
	if (flag_arm(fs, 2, &ref)) {
		(void)flag_notify(seg, &ref);
		(void)flag_notify(seg, &ref);
		flag_free(fs, &ref);
	}
	load_sent(seg, me, ep, 1);
	load_sent(seg, me, ep, -1);
	load_tokens_sub(seg, me, ep, tokens);
	load_release(seg, me, ep);
}

static void
work(uint32_t me, uint64_t rnd)
{
	struct flag_set *fs = flag_set_new(seg, me);

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;)
		live_a_request(me, (uint32_t)(next_random(&rnd) >> 32) % LIVE_ENDPOINTS, fs);
}

static void
listen_to_engines(void)
{
	struct announcement a = announcement;
	bool full;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	announce_begin(seg);
	for (unsigned i = 0;; i = (i + 1) % ANNOUNCED_MAX) {
		(void)snprintf(a.http, sizeof(a.http), "10.0.0.1:%u", i);
		(void)announce_put(seg, &a, 1000, &full);
	}
}

static pid_t
hire(uint32_t me, uint64_t rnd)
{
	const pid_t pid = fork();

	cr_assert_geq(pid, 0);
	if (pid == 0 && me == SLOT_NOTIFIER(seg))
		listen_to_engines();
	if (pid == 0)
		work(me, rnd | 1);
	proc_slot_set(seg, me, (uint64_t)pid, PROC_READY, 1);
	return pid;
}

/* What the master does after waitpid. */
static void
bury(uint32_t slot)
{
	rcu_reap(seg, slot);
	if (slot < SLOT_WORKERS(seg)) {
		(void)load_reap(seg, slot);
		(void)flag_reap(seg, slot);
	}
	metric_reap(seg, slot);
	proc_slot_set(seg, slot, 0, PROC_EMPTY, 0);
}

static void
begin_work(void)
{
	small_seg();
	writer = rcu_writer_new(seg);
	proc_slot_set(seg, SLOT_MASTER(seg), (uint64_t)getpid(), PROC_READY, 0);
	for (uint32_t ep = 0; ep < LIVE_ENDPOINTS; ep++)
		ep_slot_begin(seg, ep);
	/* soon their seqs wrap, and names are scrubbed */
	for (uint32_t w = 0; w < SLOT_WORKERS(seg); w++)
		seg->procs[w].seq = seg->procs[w].acked = (1u << 24) - 500 * (w + 1);
	publish();
}

static void
end_work(void)
{
	rcu_writer_free(&writer);
	small_seg_end();
}

static bool
is_of_arenas(void)
{
	static const char arena[] = "I5 the retired arena ";
	bool all = true;

	for (unsigned i = 0; i < nsaid; i++)
		all = all && strncmp(said[i], arena, strlen(arena)) == 0;
	return all;
}

/* The master polls all the time, and so does this test.  An arena that was retired before the machine stopped for a while
 * is looked at once more. */
static unsigned
poll_and_check(void)
{
	unsigned n;

	(void)rcu_poll(writer);
	n = check();
	if (n == 0 || !is_of_arenas())
		return n;
	(void)rcu_poll(writer);
	return check();
}

#define POLL_AND_CHECK()                                                                           \
	do {                                                                                       \
		const unsigned n_found = poll_and_check();                                         \
		cr_assert_eq(n_found, 0, "%u findings, the first: %s", n_found, said[0]);          \
	} while (0)

/* Four workers on three endpoints and a notifier, stopped and killed anywhere, tables published under
 * them. */
Test(shm_check, at_work_nothing_is_found, .init = begin_work, .fini = end_work, .timeout = 60)
{
	const uint64_t from_ms = clock_ms();
	uint64_t rnd = (uint64_t)getpid() << 32 | 1, standing = 0, killed = 0;
	pid_t pids[CREW];

	for (uint32_t i = 0; i < CREW; i++)
		pids[i] = hire(i, next_random(&rnd));
	/* on a busy machine it takes longer until some were stopped inside an operation */
	while (clock_ms() < from_ms + 1000 ||
		((standing < 10 || killed < 10) && clock_ms() < from_ms + 30000)) {
		const uint32_t i = (uint32_t)(next_random(&rnd) >> 40) % CREW;

		(void)publish();
		POLL_AND_CHECK();
		cr_assert_eq(kill(pids[i], SIGSTOP), 0);
		(void)usleep(300);
		standing += seg->procs[i].journal != 0;
		POLL_AND_CHECK();
		if (i == SLOT_NOTIFIER(seg) || next_random(&rnd) % 4 != 0) {
			cr_assert_eq(kill(pids[i], SIGCONT), 0);
			continue;
		}
		cr_assert_eq(kill(pids[i], SIGKILL), 0);
		POLL_AND_CHECK();
		cr_assert_eq(waitpid(pids[i], NULL, 0), pids[i]);
		bury(i);
		POLL_AND_CHECK();
		pids[i] = hire(i, next_random(&rnd));
		killed++;
	}
	for (uint32_t i = 0; i < CREW; i++) {
		(void)kill(pids[i], SIGKILL);
		(void)waitpid(pids[i], NULL, 0);
		bury(i);
	}
	POLL_AND_CHECK();
	for (uint32_t ep = 0; ep < LIVE_ENDPOINTS; ep++)
		cr_assert(load_count(seg, ep) == 0 && load_tokens(seg, ep) == 0);
	cr_assert_geq(standing, 10); /* else this test tested nothing */
	cr_assert_geq(killed, 10);
	cr_assert_gt(seg->procs[0].seq, 1u << 24);
}

/* That the others go on does not hide it. */
Test(shm_check, a_leak_among_those_at_work_is_found, .init = begin_work, .fini = end_work,
	.timeout = 60)
{
	pid_t pids[4];
	unsigned n = 0;

	for (uint32_t w = 0; w < 4; w++)
		pids[w] = hire(w, w + 1);
	for (int i = 0; i < 50; i++)
		ALL_IS_WELL();
	(void)__atomic_add_fetch(&seg->eps[1].count, UINT64_C(1) << 32, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 1000 && n == 0; i++)
		n = check();
	cr_assert_eq(n, 1, "%u findings", n);
	cr_assert(strncmp(said[0], "I7 endpoint 1: ", 15) == 0, "%s", said[0]);
	for (uint32_t w = 0; w < 4; w++) {
		(void)kill(pids[w], SIGKILL);
		(void)waitpid(pids[w], NULL, 0);
	}
}

static void
victim(void)
{
	struct flag_set *fs = flag_set_new(seg, A);
	struct flag_ref ref;
	bool full;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)flag_arm(fs, 1, &ref); /* the first random number asks the kernel */
	(void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	(void)raise(SIGSTOP);
	live_a_request(A, 1, fs);
	(void)load_reserve(seg, A, 1, 1);
	(void)load_reserve(seg, A, 1, 1); /* refused */
	(void)announce_put(seg, &announcement, 1000, &full);
	_exit(0);
}

/* A process stands still after every single machine instruction of a request; there and after the
 * others have overwritten its name, all is well. */
Test(shm_check, standing_anywhere_is_well, .init = begin_work, .fini = end_work, .timeout = 120)
{
	const size_t bytes = seg->writable_bytes;
	unsigned char *saved = mem_zero(bytes);
	unsigned in_operation = 0;
	int status;
	bool full;
	pid_t pid;

	cr_assert(announce_put(seg, &announcement, 1000, &full)); /* the victim finds it first */
	pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0)
		victim();
	proc_slot_set(seg, A, (uint64_t)pid, PROC_READY, 1);
	proc_slot_set(seg, B, (uint64_t)getppid(), PROC_READY, 1);
	proc_slot_set(seg, SLOT_NOTIFIER(seg), 1, PROC_READY, 0);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	while (WIFSTOPPED(status)) {
		const bool open = seg->procs[A].journal != 0;

		ALL_IS_WELL();
		in_operation += open;
		if (open) {
			memcpy(saved, seg->writable, bytes);
			cr_assert(load_reserve(seg, B, 1, 0));
			cr_assert_eq(load_tokens_add(seg, B, 1, 7), 7);
			ALL_IS_WELL();
			memcpy(seg->writable, saved,
				bytes); /* else its CAS would never be the first */
		}
		cr_assert_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		cr_assert_eq(waitpid(pid, &status, 0), pid);
	}
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	cr_assert_gt(in_operation, 50);
	free(saved);
}
