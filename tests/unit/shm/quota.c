/*
 * Limits per client: exact in number and in time whoever the workers are, one entry per client, busy ones
 * are kept, and whatever a worker was at when it was killed, or stood still, nothing stays counted.
 */
#include "shm/quota.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/mem.h"
#include "shm/check.h"
#include "shm/quota_word.h"
#include "shm/load.h"
#include "tests/unit/shm/fixture.h"

TestSuite(shm_quota, .init = small_seg, .fini = small_seg_end);

#define SECOND UINT64_C(1000000000)
#define START (UINT64_C(1000000) * SECOND) /* any time */
#define WAYS 8u                            /* the small segment's one set */

static const struct quota_terms no_terms, two_at_once = {.max_inflight = 2};

/* A client's hash, all of one set. */
static uint64_t
who(uint32_t i)
{
	return (uint64_t)(i + 1) << 32;
}

static enum quota_outcome
enter(uint32_t me, uint32_t client, const struct quota_terms *terms, uint64_t now_ns,
	struct quota_pass *pass)
{
	return quota_enter(seg, me, who(client), terms, now_ns, pass);
}

static bool
come_and_go(uint32_t me, uint32_t client, const struct quota_terms *terms, uint64_t now_ns)
{
	struct quota_pass pass;

	if (enter(me, client, terms, now_ns, &pass) != QUOTA_ADMITTED)
		return false;
	quota_leave(seg, me, pass.entry);
	return true;
}

static uint32_t
counted(uint32_t entry)
{
	return quota_held_count(seg->quotas[0].held[entry]);
}

/* In how many entries the client is, all their requests added. */
static uint32_t
entries_of(uint32_t client, uint32_t *ret_held)
{
	const struct quota_set *set = &seg->quotas[0];
	uint32_t n = 0;

	*ret_held = 0;
	for (uint32_t i = 0; i < WAYS; i++) {
		if (quota_key_hash(set->key[i]) != who(client) >> 20 ||
			!quota_bound(set->key[i], set->held[i]))
			continue;
		*ret_held += counted(i);
		n++;
	}
	return n;
}

static void
hear(const char *line, void *arg)
{
	(void)arg;
	cr_assert(strncmp(line, "I7 client", 9) != 0 && strncmp(line, "I8 client", 9) != 0 &&
			  strncmp(line, "I11", 3) != 0,
		"%s", line);
}

static void
look_over(void)
{
	(void)check_segment(seg, SMALL_BUILD, NULL, hear, NULL);
}

Test(shm_quota, burst_and_rate_are_exact_whichever_worker_asks)
{
	static const struct quota_terms terms[] = {{0, 1, 1, 1, 0}, {0, 3, 1, 1, 0},
		{0, 7, 20, 1, 0}, {0, 10, 5, 1, 0}, {0, 999, 1, 1, 0}, {0, 1000, 1000, 1, 0}};

	for (uint32_t i = 0; i < sizeof(terms) / sizeof(terms[0]); i++) {
		const struct quota_terms *t = &terms[i];
		uint64_t admitted = 0;

		/* asks every tenth of an interval, for ten seconds; the end belongs to it */
		for (uint64_t k = 0; k <= 10 * 10 * (uint64_t)t->rate; k++) {
			const uint64_t at = START + k * SECOND / (10 * t->rate);

			for (uint32_t w = 0; come_and_go(w % 4, i, t, at); w++)
				admitted++;
			cr_assert_eq(admitted, t->burst + k / 10, "rate %u, tenth %llu", t->rate,
				(unsigned long long)k);
		}
	}
}

Test(shm_quota, idle_time_is_saved_up_to_the_burst)
{
	static const struct quota_terms terms = {0, 10, 5, 1, 0};
	uint32_t n = 0;

	cr_assert(come_and_go(0, 1, &terms, START));
	while (come_and_go(1, 1, &terms, START + 3600 * SECOND))
		n++;
	cr_assert_eq(n, 5);
}

Test(shm_quota, a_rate_of_less_than_one_a_second)
{
	static const struct quota_terms a_minute = {.rate = 2, .burst = 3, .per_s = 60};
	static const struct quota_terms an_hour = {.rate = 1, .burst = 1000000, .per_s = 3600};
	struct quota_pass pass;

	for (int i = 0; i < 3; i++)
		cr_assert(come_and_go(0, 1, &a_minute, START));
	cr_assert_eq(enter(1, 1, &a_minute, START, &pass), QUOTA_RATE);
	cr_assert_eq(pass.wait_ns, 30 * SECOND);
	cr_assert_not(come_and_go(2, 1, &a_minute, START + 30 * SECOND - 1));
	cr_assert(come_and_go(2, 1, &a_minute, START + 30 * SECOND));
	/* the longest times there are */
	for (int i = 0; i < 1000000; i++)
		cr_assert(come_and_go(0, 2, &an_hour, START));
	cr_assert_eq(enter(1, 2, &an_hour, START, &pass), QUOTA_RATE);
	cr_assert_eq(pass.wait_ns, 3600 * SECOND);
}

Test(shm_quota, stricter_terms_of_before_are_forgotten)
{
	static const struct quota_terms strict = {.rate = 1, .burst = 10, .per_s = 3600};
	static const struct quota_terms now = {.rate = 2, .burst = 3, .per_s = 1};
	static const struct quota_terms none = {.rate = 0};
	struct quota_pass pass;

	for (uint32_t client = 1; client <= 2; client++)
		for (int i = 0; i < 10; i++)
			cr_assert(come_and_go(0, client, &strict, START));
	cr_assert_eq(enter(0, 1, &strict, START, &pass), QUOTA_RATE);
	cr_assert(come_and_go(1, 1, &now, START + SECOND), "the last of its burst");
	cr_assert_eq(enter(1, 1, &now, START + SECOND, &pass), QUOTA_RATE);
	cr_assert_eq(pass.wait_ns, SECOND / 2);
	cr_assert(come_and_go(1, 1, &now, START + 3 * SECOND / 2));
	/* without any in between */
	cr_assert(come_and_go(1, 2, &none, START + SECOND));
	cr_assert(come_and_go(1, 2, &now, START + SECOND));
	cr_assert_not(come_and_go(1, 2, &now, START + SECOND));
}

Test(shm_quota, who_reads_an_old_clock_is_not_mistaken_for_that)
{
	static const struct quota_terms terms = {0, 2, 3, 1, 0};

	for (int i = 0; i < 3; i++)
		cr_assert(come_and_go(0, 1, &terms, START + 5 * SECOND));
	cr_assert_not(come_and_go(1, 1, &terms, START));
}

Test(shm_quota, a_refused_one_hears_when_to_come)
{
	static const struct quota_terms terms = {0, 4, 2, 1, 0};
	struct quota_pass pass;

	cr_assert(come_and_go(0, 1, &terms, START));
	cr_assert(come_and_go(1, 1, &terms, START));
	cr_assert_eq(enter(2, 1, &terms, START, &pass), QUOTA_RATE);
	cr_assert_eq(pass.wait_ns, SECOND / 4);
	/* refusals cost nothing */
	cr_assert_eq(enter(2, 1, &terms, START + 1, &pass), QUOTA_RATE);
	cr_assert_eq(pass.wait_ns, SECOND / 4 - 1);
	cr_assert(come_and_go(3, 1, &terms, START + SECOND / 4));
	cr_assert_not(come_and_go(3, 1, &terms, START + SECOND / 4));
	cr_assert(come_and_go(3, 2, &terms, START), "another client");
	cr_assert_eq(counted(0), 0);
}

Test(shm_quota, a_request_that_is_too_many_does_not_count_in_time)
{
	static const struct quota_terms terms = {.max_inflight = 1, .rate = 10, .burst = 2};
	struct quota_pass pass, other;

	cr_assert_eq(enter(0, 1, &terms, START, &pass), QUOTA_ADMITTED);
	for (int i = 0; i < 5; i++)
		cr_assert_eq(enter(1, 1, &terms, START, &other), QUOTA_INFLIGHT);
	quota_leave(seg, 0, pass.entry);
	cr_assert(come_and_go(1, 1, &terms, START));
	cr_assert_not(come_and_go(1, 1, &terms, START));
}

Test(shm_quota, in_flight_is_of_all_workers_together)
{
	struct quota_pass a, b, c;

	cr_assert_eq(enter(0, 1, &two_at_once, START, &a), QUOTA_ADMITTED);
	cr_assert_eq(enter(1, 1, &two_at_once, START, &b), QUOTA_ADMITTED);
	cr_assert_eq(a.entry, b.entry);
	cr_assert_eq(enter(2, 1, &two_at_once, START, &c), QUOTA_INFLIGHT);
	cr_assert_eq(enter(2, 2, &two_at_once, START, &c), QUOTA_ADMITTED);
	quota_leave(seg, 1, b.entry);
	cr_assert_eq(enter(3, 1, &two_at_once, START, &b), QUOTA_ADMITTED);
	cr_assert_eq(counted(a.entry), 2);
	look_over();
}

Test(shm_quota, reaping_gives_a_dead_workers_back)
{
	struct quota_pass pass;

	cr_assert_eq(enter(2, 1, &two_at_once, START, &pass), QUOTA_ADMITTED);
	cr_assert_eq(enter(2, 1, &two_at_once, START, &pass), QUOTA_ADMITTED);
	cr_assert_eq(enter(0, 1, &two_at_once, START, &pass), QUOTA_INFLIGHT);
	cr_assert_eq(load_reap(seg, 2), 0);
	cr_assert_eq(counted(pass.entry), 0);
	cr_assert_eq(enter(0, 1, &two_at_once, START, &pass), QUOTA_ADMITTED);
	cr_assert_eq(load_reap(seg, 2), 0);
	cr_assert_eq(counted(pass.entry), 1);
	look_over();
}

Test(shm_quota, more_than_the_word_can_count)
{
	struct quota_pass pass;

	for (uint32_t i = 0; i < QUOTA_HELD_MAX; i++)
		cr_assert_eq(enter(i % 4, 1, &no_terms, START, &pass), QUOTA_ADMITTED);
	cr_assert_eq(enter(0, 1, &no_terms, START, &pass), QUOTA_UNCOUNTED);
	cr_assert_eq(enter(0, 1, &(struct quota_terms){.max_inflight = 1000000}, START, &pass),
		QUOTA_INFLIGHT);
	look_over();
}

Test(shm_quota, the_oldest_idle_one_is_forgotten)
{
	static const struct quota_terms terms = {0, 1, 1, 1, 0};
	struct quota_pass pass;
	uint32_t held;

	for (uint32_t i = 0; i < WAYS; i++)
		cr_assert(come_and_go(0, i, &terms, START + (i ^ 5) * 10 * SECOND));
	cr_assert_eq(enter(1, 100, &terms, START + 1000 * SECOND, &pass), QUOTA_ADMITTED);
	cr_assert_eq(pass.evicted, 1);
	for (uint32_t i = 0; i < WAYS; i++)
		cr_assert_eq(entries_of(i, &held), i != 5, "client %u", i);
	cr_assert_eq(entries_of(100, &held), 1);
	cr_assert_eq(held, 1);
	cr_assert_not(come_and_go(1, 0, &terms, START + 50 * SECOND), "it is remembered");
	cr_assert(come_and_go(1, 5, &terms, START + 50 * SECOND), "it is not");
}

Test(shm_quota, a_busy_one_is_never_forgotten)
{
	struct quota_pass pass[WAYS], other;
	uint32_t held;

	for (uint32_t i = 0; i < WAYS; i++)
		cr_assert_eq(enter(0, i, &two_at_once, START, &pass[i]), QUOTA_ADMITTED);
	for (uint32_t i = 0; i < 100; i++)
		cr_assert_eq(enter(1, 100 + i, &two_at_once, START, &other), QUOTA_UNCOUNTED);
	quota_leave(seg, 0, pass[3].entry);
	for (uint32_t i = 0; i < 100; i++) {
		cr_assert_eq(enter(1, 100 + i, &two_at_once, START, &other), QUOTA_ADMITTED);
		cr_assert_eq(other.entry, pass[3].entry);
		quota_leave(seg, 1, other.entry);
	}
	for (uint32_t i = 0; i < WAYS; i++)
		cr_assert_eq(entries_of(i, &held), i != 3);
	look_over();
}

/* --- tokens --------------------------------------------------------------------------------- */

static const struct quota_terms sixty = {.tokens_per_minute = 60}; /* one a second */

/* A request of the client that has used so many tokens.  Returns how it was answered. */
static enum quota_outcome
use(uint32_t client, uint64_t tokens, uint64_t now_ns, struct quota_pass *pass)
{
	const enum quota_outcome o = enter(0, client, &sixty, now_ns, pass);

	if (o != QUOTA_ADMITTED)
		return o;
	quota_charge(seg, pass->entry, tokens, sixty.tokens_per_minute, now_ns);
	quota_leave(seg, 0, pass->entry);
	return o;
}

Test(shm_quota, a_minutes_tokens_at_first_and_then_as_many_a_minute)
{
	struct quota_pass pass;

	cr_assert_eq(use(1, 59, START, &pass), QUOTA_ADMITTED);
	cr_assert_eq(use(1, 1, START, &pass), QUOTA_ADMITTED, "the last of the minute");
	cr_assert_eq(use(1, 100, START, &pass), QUOTA_ADMITTED, "none is owed");
	cr_assert_eq(use(1, 1, START, &pass), QUOTA_TOKENS);
	cr_assert_eq(pass.wait_ns, 100 * SECOND);
	cr_assert_eq(use(2, 1, START, &pass), QUOTA_ADMITTED, "another client");
	cr_assert_eq(use(1, 1, START + 100 * SECOND - 1, &pass), QUOTA_TOKENS);
	cr_assert_eq(use(1, 2, START + 100 * SECOND, &pass), QUOTA_ADMITTED);
	cr_assert_eq(use(1, 1, START + 101 * SECOND, &pass), QUOTA_TOKENS);
	look_over();
}

Test(shm_quota, tokens_are_saved_for_a_minute_and_no_longer)
{
	struct quota_pass pass;

	cr_assert_eq(use(1, 60, START, &pass), QUOTA_ADMITTED);
	cr_assert_eq(use(1, 61, START + 3600 * SECOND, &pass), QUOTA_ADMITTED);
	cr_assert_eq(use(1, 1, START + 3600 * SECOND, &pass), QUOTA_TOKENS);
	cr_assert_eq(pass.wait_ns, SECOND);
}

/* Terms without tokens are those of a reload, or of a key of the same name before. */
Test(shm_quota, tokens_owed_do_not_count_without_the_limit)
{
	struct quota_pass pass;

	cr_assert_eq(use(1, 1000, START, &pass), QUOTA_ADMITTED);
	cr_assert(come_and_go(1, 1, &two_at_once, START));
	cr_assert_eq(use(1, 1, START, &pass), QUOTA_TOKENS);
}

Test(shm_quota, no_request_costs_more_than_a_day)
{
	struct quota_pass pass;

	cr_assert_eq(use(1, UINT64_MAX, START, &pass), QUOTA_ADMITTED);
	cr_assert_eq(use(1, 1, START, &pass), QUOTA_TOKENS);
	cr_assert_eq(pass.wait_ns, 86400 * SECOND);
	seg->quotas[0].paid[pass.entry % WAYS] = UINT64_MAX; /* what no worker writes */
	cr_assert_eq(use(1, 60, START, &pass), QUOTA_ADMITTED);
	cr_assert_eq(use(1, 1, START, &pass), QUOTA_ADMITTED);
	cr_assert_eq(use(1, 1, START, &pass), QUOTA_TOKENS);
}

Test(shm_quota, a_client_that_owes_tokens_is_not_forgotten)
{
	struct quota_pass pass;
	uint32_t held;

	for (uint32_t i = 0; i < WAYS; i++)
		cr_assert_eq(use(i, i == 3 ? 1 : 120, START, &pass), QUOTA_ADMITTED);
	cr_assert_eq(use(100, 120, START, &pass), QUOTA_ADMITTED, "in place of client 3");
	cr_assert_eq(entries_of(3, &held), 0);
	cr_assert_eq(use(101, 1, START, &pass), QUOTA_UNCOUNTED);
	cr_assert_eq(use(101, 1, START + 60 * SECOND, &pass), QUOTA_ADMITTED, "they have paid");
	look_over();
}

#define CHARGERS 3
#define CHARGES 10000

static void
charge_many(uint32_t me, uint32_t entry)
{
	for (int i = 0; i < CHARGES; i++)
		quota_charge(seg, entry, 1 + me, 60, START);
	_exit(0);
}

/* Whoever charges at the same moment, no token is lost. */
Test(shm_quota, tokens_are_exact_over_all_workers)
{
	struct quota_pass pass;
	uint64_t all = 0;
	pid_t pids[CHARGERS];
	int status;

	cr_assert_eq(enter(0, 1, &no_terms, START, &pass), QUOTA_ADMITTED);
	for (uint32_t i = 0; i < CHARGERS; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			charge_many(i, pass.entry);
		all += (uint64_t)CHARGES * (1 + i);
	}
	for (uint32_t i = 0; i < CHARGERS; i++)
		cr_assert(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
	cr_assert_leq(all, 86400, "no more than a request may cost");
	cr_assert_eq(seg->quotas[0].paid[pass.entry % WAYS], START + (all - 60) * SECOND);
	quota_leave(seg, 0, pass.entry);
}

Test(shm_quota, lives_wrap_around)
{
	uint32_t held;

	for (uint32_t i = 0; i < 140000; i++)
		cr_assert(come_and_go(i % 4, i, &two_at_once, START + i));
	for (uint32_t i = 0; i < WAYS; i++)
		cr_assert_eq(entries_of(140000 - 1 - i, &held), 1);
	look_over();
}

Test(shm_quota, without_a_table_all_are_let_through)
{
	const struct seg_sizes sizes = {
		.max_workers = 1, .max_endpoints = 1, .max_pools = 1, .flags_per_worker = 64};
	struct quota_pass pass;
	struct seg *none;

	cr_assert_eq(seg_new(&sizes, 1, &none), 0);
	cr_assert_eq(quota_enter(none, 0, 1, &two_at_once, START, &pass), QUOTA_UNCOUNTED);
	seg_free(&none);
}

Test(shm_quota, a_hash_is_of_this_start_and_of_its_kind)
{
	const struct seg_sizes sizes = {.max_workers = 1,
		.max_endpoints = 1,
		.max_pools = 1,
		.flags_per_worker = 64,
		.max_quotas = 8};
	struct seg *other;

	cr_assert_eq(seg_new(&sizes, 1, &other), 0);
	cr_assert_eq(quota_hash(seg, 1, "abc", 3), quota_hash(seg, 1, "abc", 3));
	cr_assert_neq(quota_hash(seg, 1, "abc", 3), quota_hash(seg, 2, "abc", 3));
	cr_assert_neq(quota_hash(seg, 1, "abc", 3), quota_hash(seg, 1, "abd", 3));
	cr_assert_neq(quota_hash(seg, 1, "abc", 3), quota_hash(other, 1, "abc", 3));
	seg_free(&other);
}

/* --- killed, or standing still, at every instruction --------------------------------------- */

#define KNOWN 0u  /* a client with an entry */
#define NEW 50u   /* one without, for whom another is forgotten */
#define OTHER 60u /* comes meanwhile, and wants an entry as well */

/* Seven idle clients and one that worker 0 keeps busy. */
static void
fill(void)
{
	struct quota_pass pass;

	for (uint32_t i = 0; i < WAYS; i++)
		cr_assert_eq(enter(0, i, &no_terms, START + i, &pass), QUOTA_ADMITTED);
	for (uint32_t i = 0; i < WAYS - 1; i++)
		quota_leave(seg, 0, i);
}

static void
victim(void)
{
	static const struct quota_terms terms = {.max_inflight = 2, .rate = 1, .burst = 2};
	struct quota_pass a, b;

	(void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	(void)raise(SIGSTOP);
	(void)enter(2, NEW, &terms, START, &a);
	(void)enter(2, KNOWN, &terms, START, &b);
	quota_leave(seg, 2, a.entry);
	(void)enter(2, NEW, &terms, START, &a);
	quota_leave(seg, 2, a.entry);
	if (enter(2, NEW, &terms, START, &a) == QUOTA_ADMITTED) /* refused after a time */
		abort();
	quota_leave(seg, 2, b.entry);
	_exit(0);
}

static const struct quota_terms one_of_each = {.max_inflight = 1, .rate = 1, .burst = 1};

static void
comes_too_early(void)
{
	struct quota_pass pass;

	(void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	(void)raise(SIGSTOP);
	if (enter(2, KNOWN, &one_of_each, START, &pass) != QUOTA_RATE)
		abort();
	_exit(0);
}

static pid_t
start(void (*fn)(void))
{
	const pid_t pid = fork();
	int status;

	cr_assert_geq(pid, 0);
	if (pid == 0)
		fn();
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFSTOPPED(status));
	return pid;
}

static pid_t
victim_start(void)
{
	return start(victim);
}

/* One instruction; false if it was the last. */
static bool
step_once(pid_t pid)
{
	int status;

	cr_assert_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFSTOPPED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
	return WIFSTOPPED(status);
}

/* What others do then: the same new client, and one more. */
static void
others_come(struct quota_pass pass[2])
{
	cr_assert_eq(enter(0, NEW, &no_terms, START, &pass[0]), QUOTA_ADMITTED);
	cr_assert_eq(enter(1, OTHER, &no_terms, START, &pass[1]), QUOTA_ADMITTED);
}

static void
only_theirs(struct quota_pass pass[2], unsigned step)
{
	uint32_t held;

	cr_assert_eq(entries_of(NEW, &held), 1, "after %u instructions", step);
	cr_assert_eq(held, 1, "after %u instructions", step);
	cr_assert_eq(entries_of(OTHER, &held), 1, "after %u instructions", step);
	cr_assert_eq(held, 1, "after %u instructions", step);
	quota_leave(seg, 0, pass[0].entry);
	quota_leave(seg, 1, pass[1].entry);
	for (uint32_t i = 0; i < WAYS; i++)
		cr_assert_eq(counted(i), i == WAYS - 1, "entry %u after %u instructions", i, step);
	look_over();
	/* and every entry can be had */
	for (uint32_t i = 0; i < WAYS - 1; i++)
		cr_assert_eq(enter(0, 200 + i, &no_terms, START, &pass[0]), QUOTA_ADMITTED,
			"after %u instructions", step);
}

Test(shm_quota, killed_at_every_instruction_nothing_stays_counted)
{
	const size_t bytes = seg->writable_bytes;
	unsigned char *saved = mem_zero(bytes);
	unsigned step = 0, pending = 0, open = 0;
	pid_t pid;

	fill();
	pid = victim_start();
	do {
		struct quota_pass pass[2];

		pending += (seg->quotas[0].last & QUOTA_PENDING) != 0;
		open += seg->procs[2].journal != 0;
		memcpy(saved, seg->writable, bytes);
		for (int reap_first = 0; reap_first < 2; reap_first++) {
			if (reap_first)
				(void)load_reap(seg, 2);
			others_come(pass);
			if (!reap_first)
				(void)load_reap(seg, 2);
			only_theirs(pass, step);
			memcpy(seg->writable, saved, bytes);
		}
		step++;
	} while (step_once(pid));
	cr_assert_gt(pending, 10); /* else this test tested nothing */
	cr_assert_gt(open, 10);
	free(saved);
}

/* What the victim writes, but for what it notes for itself. */
static size_t
table_bytes(unsigned char *out)
{
	const struct proc_slot *p = &seg->procs[2];

	memcpy(out, seg->quotas, sizeof(*seg->quotas));
	memcpy(out + sizeof(*seg->quotas), &p->journal, sizeof(p->journal));
	return sizeof(*seg->quotas) + sizeof(p->journal);
}

/* After how many instructions the next one changes the table: there a process may stand with what it has read
 * long ago.  Returns how many such places there are. */
static unsigned
find_changes(unsigned *at, unsigned max)
{
	unsigned char before[1024], now[1024];
	const pid_t pid = victim_start();
	const size_t n = table_bytes(before);
	unsigned found = 0, step = 0;

	while (step_once(pid)) {
		(void)table_bytes(now);
		if (memcmp(before, now, n) != 0) {
			cr_assert_lt(found, max);
			at[found++] = step;
		}
		memcpy(before, now, n);
		step++;
	}
	return found;
}

/* The victim is not dead: it goes on where it stood, after others have been there. */
Test(shm_quota, standing_still_anywhere_does_no_harm)
{
	const size_t bytes = seg->writable_bytes;
	unsigned char *saved = mem_zero(bytes);
	unsigned stops[200], n;

	fill();
	memcpy(saved, seg->writable, bytes);
	n = find_changes(stops, sizeof(stops) / sizeof(stops[0]));
	cr_assert_gt(n, 20); /* else this test tests little */
	for (unsigned i = 0; i < n; i++) {
		struct quota_pass pass[2];
		pid_t pid;
		int status;

		memcpy(seg->writable, saved, bytes);
		pid = victim_start();
		for (unsigned k = 0; k < stops[i]; k++)
			cr_assert(step_once(pid));
		others_come(pass);
		cr_assert_eq(ptrace(PTRACE_CONT, pid, NULL, NULL), 0);
		cr_assert_eq(waitpid(pid, &status, 0), pid);
		cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0,
			"after %u instructions: status 0x%x", stops[i], (unsigned)status);
		only_theirs(pass, stops[i]);
	}
	free(saved);
}

/* Nor does it hold a slot that its sibling needs, whatever it is at when the sibling comes. */
Test(shm_quota, a_request_refused_by_rate_takes_no_slot_from_its_sibling)
{
	const size_t bytes = seg->writable_bytes;
	unsigned char *saved = mem_zero(bytes);
	unsigned step = 0;
	pid_t pid;

	cr_assert(come_and_go(0, KNOWN, &one_of_each, START));
	pid = start(comes_too_early);
	do {
		struct quota_pass pass;

		memcpy(saved, seg->writable, bytes);
		cr_assert_eq(enter(0, KNOWN, &one_of_each, START + SECOND, &pass), QUOTA_ADMITTED,
			"after %u instructions", step);
		memcpy(seg->writable, saved, bytes);
		step++;
	} while (step_once(pid));
	free(saved);
}
