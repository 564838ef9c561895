/*
 * Repairs: whatever is stored at whatever word that all processes write, no function of the master or of a worker
 * indexes or loops by it, and afterwards the segment is as it was.
 */
#include "shm/check.h"
#include "shm/core/suspect.h"
#include "shm/own.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/announce.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/core/rcu.h"
#include "shm/eject.h"
#include "shm/flags.h"
#include "shm/load.h"
#include "shm/load_word.h"
#include "shm/mend.h"
#include "shm/metrics.h"
#include "shm/prefix.h"
#include "shm/sibling_load.h"
#include "shm/siblings.h"
#include "shm/queue.h"
#include "shm/quota.h"
#include "shm/table.h"
#include "shm/tally.h"
#include "tests/unit/shm/fixture.h"

#define ME 0u
#define DEAD 1u
#define EP 1u
#define STORES 4000
#define AT_ONCE 3
#define LONG_US 100000000

static struct rcu_writer *writer;
static struct flag_set *flags;
static struct flag_ref armed;
static struct queue_ref waiter;
static int64_t gauges[G_N];
static char said[200];

static void
at_work(void)
{
	const struct queue_request ask = {.key = 9, .now_ms = clock_ms()};

	small_seg();
	writer = rcu_writer_new(seg);
	proc_slot_set(seg, ME, (uint64_t)getppid(), PROC_READY, 1);
	proc_slot_set(seg, SLOT_MASTER(seg), (uint64_t)getpid(), PROC_READY, 0);
	for (uint32_t ep = 0; ep < 3; ep++)
		ep_slot_begin(seg, ep);
	own_begin(seg, ME);
	flags = flag_set_new(seg, ME);
	cr_assert(flag_arm(flags, 2, &armed));
	cr_assert(load_reserve(seg, ME, EP, 0));
	cr_assert(load_reserve(seg, ME, EP, 0));
	cr_assert_eq(load_tokens_add(seg, ME, EP, 70), 70);
	cr_assert_eq(queue_enqueue(seg, ME, 0, 100, &ask, &waiter), QUEUE_FIRST);
}

static void
off_work(void)
{
	flag_set_free(&flags);
	own_end(seg);
	rcu_writer_free(&writer);
	small_seg_end();
}

TestSuite(shm_mend, .init = at_work, .fini = off_work);

static void
hear(const char *line, void *arg)
{
	(void)arg;
	(void)snprintf(said, sizeof(said), "%s", line);
}

static unsigned
check(void)
{
	return check_segment(seg, SMALL_BUILD, writer, hear, NULL);
}

static void
repair_all(void)
{
	uint64_t own[SHM_LINE] = {0}; /* a bit for each entry of a queue */

	own_restore(seg);
	metric_gauges_restore(seg_slab(seg, ME), gauges, ME);
	flag_restore(flags);
	if (queue_woken(seg, &waiter) != 0)
		(void)queue_rearm(seg, &waiter);
	own[waiter.slot / 64] |= UINT64_C(1) << waiter.slot % 64;
	(void)queue_drop_strays(seg, 0, ME, own);
	memset(own, 0, sizeof(own));
	(void)queue_drop_strays(seg, 1, ME, own);
	check_mend(seg, &(struct check_cursor){.whole = 2}, LONG_US);
}

/* A prompt that one endpoint gets again and again. */
static void
use_prefix_index(void)
{
	static struct prefix_secret secret;
	static struct prefix_found *found;
	static char prompt[2000];
	struct prefix_key key;

	if (found == NULL)
		found = prefix_found_new(4);
	prefix_cut(&secret, 0, prompt, sizeof(prompt), &key);
	prefix_look(seg, &key, 1, 500, found);
	for (uint32_t ep = 0; ep < 4; ep++) {
		const struct prefix_guess guess = prefix_expect(seg, found, ep);

		cr_assert_leq(guess.expected, 500);
		prefix_record(seg, ep, &guess, 100, 500);
	}
	(void)prefix_insert(seg, &key, 1, EP, 100);
}

/* The notifier's turn at a worker's ring, and what it says of other routers. */
static void
use_siblings(void)
{
	static uint64_t at;
	struct prefix_key key = {.n = 3};
	struct sibling_note note;
	struct sibling s;

	sibling_note_put(seg, ME, &key, EP, 100);
	for (uint32_t n; (n = sibling_note_next(seg, ME, &at, &note)) > 0;)
		cr_assert(n <= PREFIX_CUTS && note.ep < 4);
	sibling_notes_done(seg, ME, at);
	for (uint32_t ep = 0; ep < 4; ep++)
		cr_assert_leq(
			sibling_load_get(seg, ep, clock_ms()).requests, SIBLING_LOAD_REQUESTS_MAX);
	sibling_get(seg, 0, &s);
}

/* What reads those words between two repairs. */
static void
use_all(void)
{
	static const struct quota_terms terms = {.max_inflight = 3, .rate = 5, .burst = 2};
	struct queue_target any = {.roles = QUEUE_ALL_ROLES};
	struct announcement one;
	struct quota_pass pass;
	bool workers[UINT8_MAX];
	uint64_t ms;

	for (uint32_t ep = 0; ep < 4; ep++) {
		(void)tally_cause_name(tally_last(seg, ep, &ms));
		(void)eject_read(seg, ep, clock_ms(), &ms);
	}
	for (uint32_t i = 0; i < ANNOUNCED_MAX; i++)
		if (announce_get(seg, i, &one))
			cr_assert_lt((unsigned)one.role, ROLE_N);
	if (quota_enter(seg, ME, (uint64_t)rand(), &terms, clock_us() * 1000, &pass) ==
		QUOTA_ADMITTED)
		quota_leave(seg, ME, pass.entry);
	(void)queue_wake(seg, 0, &any);
	queue_woken_all(seg, 0, workers);
	if (load_reserve(seg, ME, EP, 0)) /* not where the stored count has no room for one more */
		load_release(seg, ME, EP);
	use_prefix_index();
	use_siblings();
	(void)rcu_poll(writer);
	(void)load_reap(seg, DEAD);
	(void)queue_reap(seg, DEAD);
}

static uint64_t
any_value(const uint64_t *words, size_t n, uint64_t old)
{
	const uint64_t random = (uint64_t)rand() << 33 ^ (uint64_t)rand();

	switch (rand() % 6) {
	case 0:
		return old ^ UINT64_C(1) << rand() % 64;
	case 1:
		return 0;
	case 2:
		return UINT64_MAX;
	case 3:
		return random % 300;
	case 4:
		return words[random % n];
	default:
		return random;
	}
}

Test(shm_mend, whatever_is_stored_wherever)
{
	uint64_t *words = (uint64_t *)(void *)seg->writable;
	const size_t n = seg->writable_bytes / sizeof(*words);

	srand(4711);
	for (int i = 0; i < STORES; i++) {
		size_t at = 0;

		for (int k = 0; k < AT_ONCE; k++) {
			at = (size_t)rand() % n;
			words[at] = any_value(words, n, words[at]);
		}
		use_all();
		for (int turn = 0; turn < 3; turn++)
			repair_all();
		cr_assert_eq(check(), 0, "store %d at word %zu: %s", i, at, said);
		cr_assert_eq(load_count(seg, EP), 2);
		cr_assert_eq(load_tokens(seg, EP), 70);
		cr_assert_eq(eject_is_out(seg, EP) && !half_open_out(seg->eps[EP].eject), 0);
		cr_assert_eq(rcu_oldest(seg), UINT64_MAX);
	}
}

/* --- counted and reported ------------------------------------------------------------------ */

static unsigned nreports;

static void
report(const char *where, uint64_t index, uint64_t n)
{
	cr_assert_str_eq(where, "rows");
	cr_assert_eq(index, EP);
	cr_assert_eq(n, 1);
	nreports++;
}

Test(shm_mend, is_counted_and_reported_once_a_second)
{
	uint64_t counters[SUSPECT_N] = {0};

	suspect_begin(counters, report);
	for (int i = 0; i < 5; i++) {
		seg_row(seg, ME, EP)->held = 77;
		own_restore(seg);
	}
	cr_assert_eq(seg_row(seg, ME, EP)->held, 2);
	cr_assert_eq(counters[SUSPECT_ROWS], 5);
	cr_assert_eq(nreports, 1);
	suspect_begin(NULL, NULL);
}

/* The notifier and the master read no table, so nobody but check_mend() writes their lines. */
Test(shm_mend, only_the_lines_of_workers_hold_tables)
{
	uint64_t *lines[] = {
		&seg->readers[SLOT_NOTIFIER(seg)].ctr, &seg->readers[SLOT_MASTER(seg)].ctr};

	proc_slot_set(seg, SLOT_NOTIFIER(seg), 1, PROC_READY, 0);
	for (int i = 0; i < 2; i++) {
		*lines[i] = 1;
		cr_assert_eq(rcu_oldest(seg), UINT64_MAX);
		cr_assert_eq(check(), 1, "%s", said);
		check_mend(seg, &(struct check_cursor){0}, LONG_US);
		cr_assert_eq(*lines[i], 0);
	}
}

Test(shm_mend, a_waiter_whose_entry_is_lost_takes_another)
{
	*(uint64_t *)(void *)seg_queue_slot(seg, 0, waiter.slot) = 0;
	cr_assert_eq(queue_woken(seg, &waiter), QUEUE_ALL_ROLES);
	cr_assert_eq(queue_rearm(seg, &waiter), QUEUE_ALL_ROLES);
	cr_assert_eq(queue_woken(seg, &waiter), 0);
	cr_assert_eq(queue_wake(seg, 0, &(struct queue_target){.roles = 1}), QUEUE_NOBODY,
		"its worker has no heartbeat");
	/* ahead: it does not count as stopped because the machine was */
	proc_heartbeat(seg, ME, clock_ms() + 60000);
	cr_assert_eq(queue_wake(seg, 0, &(struct queue_target){.roles = 1}), ME);
	cr_assert_eq(queue_leave(seg, &waiter), 1);
}

Test(shm_mend, marks_without_an_entry_are_cleared)
{
	const struct queue_request ask = {.key = 9, .now_ms = clock_ms()};
	struct queue_ref other;

	memset(seg_queue_marks(seg, 0), 0xff,
		2 * sizeof(uint64_t)); /* behind the last entry, too */
	cr_assert_eq(queue_enqueue(seg, ME, 0, 100, &ask, &other), QUEUE_BEHIND);
	cr_assert_eq(other.slot, 1, "entries that were never used are free, whatever is marked");
	(void)queue_leave(seg, &other);
	cr_assert_gt(check(), 1);
	check_mend(seg, &(struct check_cursor){0}, LONG_US);
	cr_assert_eq(seg_queue_marks(seg, 0)[0], 1, "that of the waiter");
	cr_assert_eq(seg_queue_marks(seg, 0)[1] >> (100 - 64), 0);
	cr_assert_eq(check(), 0, "%s", said);
	(void)queue_leave(seg, &waiter);
	cr_assert_not(queue_any(seg, 0));
}

Test(shm_mend, an_entry_of_no_living_worker_is_free)
{
	const struct queue_request ask = {.key = 9, .now_ms = clock_ms()};
	struct queue_ref of_dead;

	cr_assert_neq(queue_enqueue(seg, DEAD, 0, 100, &ask, &of_dead), QUEUE_FULL);
	cr_assert_eq(check(), 1);
	check_mend(seg, &(struct check_cursor){0}, LONG_US);
	cr_assert_eq(check(), 0, "%s", said);
	cr_assert_eq(seg_queue_slot(seg, 0, of_dead.slot)->word, 0);
}

/* --- a repair that comes too late changes nothing --------------------------------------------- */

Test(shm_mend, the_name_of_a_later_operation_stays)
{
	uint64_t *word = word_of(seg, EP, REQUESTS);
	const uint64_t wrong = word_make(2, name_make(ME, 4711));

	cr_assert(load_reserve(seg, ME, EP, 0));
	mend_name(seg, EP, REQUESTS, wrong);
	cr_assert_eq(word_name(*word), name_make(ME, seg->procs[ME].seq));
	*word = wrong;
	mend_name(seg, EP, REQUESTS, wrong);
	cr_assert_eq(*word, word_make(2, 0));
}

/* Whether the last operation has changed its word is shown by the word alone, then. */
Test(shm_mend, acked_is_repaired_to_before_the_last_operation)
{
	struct proc_slot *p = &seg->procs[ME];
	const uint64_t wrong = 1 << 23, right = p->acked;

	mend_acked(seg, ME, wrong, p->seq);
	cr_assert_eq(p->acked, right);
	p->acked = wrong;
	check_mend(seg, &(struct check_cursor){0}, LONG_US);
	cr_assert_eq(p->acked, p->seq - 1);
	p->acked = wrong;
	p->seq = 0;
	check_mend(seg, &(struct check_cursor){0}, LONG_US);
	cr_assert_eq(p->acked, SEQ_MASK);
}

/* --- metrics --------------------------------------------------------------------------------- */

static void
publish_one_pool(uint32_t id)
{
	void *arena = rcu_arena_get(writer);
	struct table_builder b;

	cr_assert_not_null(table_begin(&b, arena, seg->arena_bytes, 1, 0));
	table_pool_at(&b, 0)->id = id;
	table_pool_at(&b, 0)->name = table_str(&b, "pool");
	cr_assert_eq(table_end(&b), 0);
	rcu_publish(writer, arena);
}

/* A pool keeps its id when a reload drops the pools before it. */
Test(shm_mend, the_only_pool_may_have_a_high_id)
{
	struct metric_pool *pools = seg_slab(seg, ME)->pools;

	publish_one_pool(1);
	pools[1].hist[0].bucket[2] = UINT64_C(1) << 60;
	check_mend(seg, &(struct check_cursor){0}, LONG_US);
	cr_assert_eq(pools[1].hist[0].bucket[2], 0);
}

/* --- the walk costs little ------------------------------------------------------------------------ */

/* The rows of a slot are as many as there are endpoints: there is a look at the clock after each slot. */
Test(shm_mend, a_walk_stops_after_each_slot)
{
	struct check_cursor at = {0};

	for (uint32_t slot = 1; slot <= seg->hdr->nslots; slot++) {
		check_mend(seg, &at, 0);
		cr_assert_eq(at.part, 0);
		cr_assert_eq(at.unit, slot);
	}
}

static uint32_t
pages_in_use(void *from, size_t bytes)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *first = (char *)((uintptr_t)from / page * page + page); /* whole pages alone */
	const size_t n = ((uintptr_t)from + bytes - (uintptr_t)first) / page;
	unsigned char *resident = mem_array(n, 1);
	uint32_t sum = 0;

	cr_assert_eq(mincore(first, n * page, resident), 0);
	for (size_t i = 0; i < n; i++)
		sum += resident[i] & 1;
	free(resident);
	return sum;
}

Test(shm_mend, a_walk_touches_no_rows_of_clients_that_are_not_there)
{
	static const struct seg_sizes sizes = {.max_workers = 2,
		.max_endpoints = 4,
		.max_pools = 1,
		.flags_per_worker = 64,
		.max_quotas = 4096};
	struct seg *before = seg;
	size_t bytes;

	cr_assert_eq(seg_new(&sizes, SMALL_BUILD, &seg), 0);
	bytes = SLOT_WORKERS(seg) * sizes.max_quotas * sizeof(seg->quota_rows[0]);
	check_mend(seg, &(struct check_cursor){0}, LONG_US);
	cr_assert_eq(pages_in_use(seg->quota_rows, bytes), 0);
	(void)check_segment(seg, SMALL_BUILD, NULL, hear, NULL);
	cr_assert_gt(pages_in_use(seg->quota_rows, bytes), 0);
	seg_free(&seg);
	seg = before;
}

/* --- turns of models ------------------------------------------------------------------------ */

#define TOKENS_EACH 100u

static struct queue_ref
enter(uint32_t worker, uint64_t model)
{
	const struct queue_request ask = {
		.key = model << QUEUE_WAY_BITS, .tokens = TOKENS_EACH, .now_ms = clock_ms()};
	struct queue_ref ref;

	cr_assert_neq(queue_enqueue(seg, worker, 1, 100, &ask, &ref), QUEUE_FULL);
	return ref;
}

static uint64_t
start_of(const struct queue_ref *ref)
{
	return seg_queue_slot(seg, 1, ref->slot)->start;
}

/* One that enqueued while the virtual time could not be neither waits for ever nor brings that time back. */
Test(shm_mend, a_virtual_time_that_cannot_be_holds_no_model_back)
{
	struct queue_head *q = seg_queue(seg, 1);
	struct queue_ref a, later;

	q->vtime = UINT64_C(1) << 50;
	a = enter(ME, 1);
	cr_assert_eq(start_of(&a), UINT64_C(1) << 50);
	check_mend(seg, &(struct check_cursor){0}, LONG_US);
	cr_assert_eq(start_of(&a), 0);
	later = enter(ME, 1);
	cr_assert_eq(start_of(&later), TOKENS_EACH);
	queue_served(seg, &a);
	cr_assert_leq(q->vtime, TOKENS_EACH);
}

/* Its entry was lost before the times began anew. */
Test(shm_mend, a_lost_waiter_takes_no_former_time_along)
{
	struct queue_head *q = seg_queue(seg, 1);
	struct queue_ref a;

	q->vtime = UINT64_C(1) << 50;
	a = enter(ME, 1);
	seg_queue_slot(seg, 1, a.slot)->word = 0;
	check_mend(seg, &(struct check_cursor){0}, LONG_US);
	queue_served(seg, &a);
	cr_assert_leq(q->vtime, TOKENS_EACH);
	(void)queue_rearm(seg, &a);
	cr_assert_leq(start_of(&a), TOKENS_EACH);
}

Test(shm_mend, what_no_turn_reaches_cannot_be)
{
	struct queue_head *q = seg_queue(seg, 1);

	q->vtime = 1000;
	q->finish[3] = (1000 + (UINT64_C(1) << 33)) << 16 | 5;
	cr_assert_eq(check(), 1);
	check_mend(seg, &(struct check_cursor){0}, LONG_US);
	cr_assert_eq(check(), 0);
	q->finish[3] = (1000 + (UINT64_C(1) << 31)) << 16 | 5;
	cr_assert_eq(check(), 0);
}

/* The others of its model do not queue behind a start that is wrong, and its own worker sets it right. */
Test(shm_mend, a_start_that_is_too_far_away_is_one_waiters)
{
	struct queue_ref a = enter(ME, 1), b;

	seg_queue_slot(seg, 1, a.slot)->start = UINT64_C(1) << 40;
	b = enter(ME, 1);
	cr_assert_leq(start_of(&b), TOKENS_EACH);
	cr_assert_eq(queue_woken(seg, &b), 0);
	cr_assert_eq(queue_woken(seg, &a), QUEUE_ALL_ROLES);
	cr_assert_eq(queue_rearm(seg, &a), QUEUE_ALL_ROLES);
	cr_assert_eq(start_of(&a), 0);
	cr_assert_eq(queue_woken(seg, &a), 0);
}

/* None of the last waiter, before the entry's next owner writes its own. */
Test(shm_mend, a_start_counts_while_the_entry_has_a_waiter)
{
	struct queue_ref a = enter(ME, 1);
	struct queue_slot *s = seg_queue_slot(seg, 1, a.slot);

	s->start = UINT64_MAX;
	cr_assert_eq(check(), 1);
	s->word = (s->word & ~UINT64_C(0xff)) | 1;
	cr_assert_eq(check(), 0, "%s", said);
}

Test(shm_mend, a_waiter_restores_what_stands_in_its_entry)
{
	struct queue_ref a = enter(ME, 1);
	struct queue_slot *s = seg_queue_slot(seg, 1, a.slot);

	s->key = 5;
	s->priority = 77;
	s->tokens = 1;
	s->lacks = 0; /* it would not be woken any more */
	cr_assert_eq(queue_woken(seg, &a), QUEUE_ALL_ROLES);
	cr_assert_eq(queue_rearm(seg, &a), QUEUE_ALL_ROLES);
	cr_assert_eq(s->key, a.key);
	cr_assert_eq(s->priority, 0);
	cr_assert_eq(s->tokens, TOKENS_EACH);
	cr_assert_eq(s->lacks, QUEUE_UNTRIED | QUEUE_ALL_ROLES);
	queue_tried(seg, &a, 1);
	cr_assert_eq(queue_woken(seg, &a), 0);
	cr_assert_eq(queue_leave(seg, &a), QUEUE_ALL_ROLES & ~1u); /* it does not lack the others */
	cr_assert_not(queue_any(seg, 1));
}

/* The entry of a lost waiter is another's by now: that one's turn is not the lost waiter's. */
Test(shm_mend, another_waiters_start_is_not_its_own)
{
	struct queue_head *q = seg_queue(seg, 1);
	struct queue_ref a = enter(ME, 1), other;

	seg_queue_slot(seg, 1, a.slot)->word = 0;
	q->finish[0] = 5000 << 16 | 2;
	other = enter(DEAD, 2);
	cr_assert_eq(other.slot, a.slot);
	cr_assert_eq(start_of(&other), 5000);
	queue_served(seg, &a);
	cr_assert_eq(q->vtime, 0);
}

/* Whatever a former waiter has left in the entry. */
Test(shm_mend, a_waiter_that_enqueues_finds_nothing_wrong)
{
	uint64_t counters[SUSPECT_N] = {0};
	struct queue_ref a = enter(ME, 1), b;

	queue_tried(seg, &a, 1);
	(void)queue_leave(seg, &a);
	suspect_begin(counters, report);
	b = enter(ME, 2);
	cr_assert_eq(b.slot, a.slot);
	cr_assert_eq(counters[SUSPECT_QUEUES], 0);
	suspect_begin(NULL, NULL);
}

Test(shm_mend, a_flag_whose_notices_are_lost_is_ready)
{
	seg_flag(seg, ME, armed.slot)->word = 12345;
	flag_restore(flags);
	cr_assert(flag_is_ready(flags, &armed));
	flag_free(flags, &armed);
}

/* No notice would count. */
Test(shm_mend, a_flag_whose_nonce_is_lost_is_ready)
{
	flag_restore(flags);
	cr_assert_not(flag_is_ready(flags, &armed));
	seg_flag(seg, ME, armed.slot)->nonce ^= 1;
	flag_restore(flags);
	cr_assert(flag_is_ready(flags, &armed));
	flag_restore(flags);
	flag_free(flags, &armed);
}

/* --- what a dead worker leaves, and what others name, is not believed ----------------------- */

static uint64_t counters[SUSPECT_N];

static void
not_reported(const char *where, uint64_t index, uint64_t n)
{
	(void)where;
	(void)index;
	(void)n;
}

static void
count(void)
{
	suspect_begin(counters, not_reported);
}

Test(shm_mend, a_journal_of_no_word_changes_nothing)
{
	const uint32_t beyond = seg->hdr->max_endpoints; /* the next worker's first row */

	count();
	seg->procs[DEAD].journal = journal_make(REQUESTS, beyond, 1);
	seg->procs[DEAD].change = UINT64_C(7) << 32;
	(void)load_reap(seg, DEAD);
	cr_assert_eq(counters[SUSPECT_JOURNALS], 1);
	cr_assert_eq(seg->procs[DEAD].journal, 0);
	cr_assert_eq(seg_row(seg, DEAD + 1, 0)->held, 0);
}

Test(shm_mend, no_more_is_given_back_than_is_counted)
{
	count();
	seg_row(seg, DEAD, EP)->held = 5;
	(void)load_reap(seg, DEAD);
	cr_assert_eq(load_count(seg, EP), 0);
	cr_assert_eq(counters[SUSPECT_LOADS], 1);
	repair_all();
	cr_assert_eq(load_count(seg, EP), 2);
}

Test(shm_mend, a_name_of_no_worker_is_not_followed)
{
	const uint32_t beyond = SLOT_WORKERS(seg);

	count();
	seg->eps[EP].count = word_make(2, name_make(beyond, 5));
	cr_assert(load_reserve(seg, ME, EP, 0));
	cr_assert_eq(seg->procs[beyond].acked, 0);
	cr_assert_eq(counters[SUSPECT_LOADS], 1);
}

Test(shm_mend, a_waiter_of_no_worker_is_not_woken)
{
	uint64_t *word = (uint64_t *)(void *)seg_queue_slot(seg, 0, waiter.slot);
	const uint32_t beyond = SLOT_WORKERS(seg);
	bool workers[UINT8_MAX] = {false};

	count();
	proc_heartbeat(seg, beyond, clock_ms() + 60000);
	*word = (*word & ~UINT64_C(0xff0000)) | (uint64_t)(beyond + 1) << 16;
	cr_assert_eq(queue_wake(seg, 0, &(struct queue_target){.roles = 1}), QUEUE_NOBODY);
	queue_woken_all(seg, 0, workers);
	cr_assert_not(workers[beyond]);
	cr_assert_gt(counters[SUSPECT_QUEUES], 0);
}

/* EP's words say something else than its rows. */
static bool
is_mended_by(struct check_cursor *at)
{
	const uint64_t right = shm_load(word_of(seg, EP, REQUESTS));
	bool mended;

	shm_store(word_of(seg, EP, REQUESTS), word_make(word_count(right) + 5, 0));
	check_mend(seg, at, LONG_US);
	mended = load_count(seg, EP) == word_count(right);
	shm_store(word_of(seg, EP, REQUESTS), right);
	return mended;
}

Test(shm_mend, a_walk_begins_once_a_second_and_at_once_after_findings)
{
	struct check_cursor at = {0};

	cr_assert(is_mended_by(&at));
	cr_assert_not(is_mended_by(&at));
	at.whole = 2;
	cr_assert(is_mended_by(&at));
	cr_assert(is_mended_by(&at));
	cr_assert_not(is_mended_by(&at));
	at.began_ms -= 1000;
	cr_assert(is_mended_by(&at));
}

Test(shm_mend, a_walk_of_small_steps_goes_through_all_of_it)
{
	struct check_cursor at = {0};
	const uint64_t right = shm_load(word_of(seg, EP, REQUESTS));
	int steps = 0;

	shm_store(word_of(seg, EP, REQUESTS), word_make(word_count(right) + 5, 0));
	do
		check_mend(seg, &at, 0);
	while (++steps < 10000 && (at.part != 0 || at.unit != 0));
	cr_assert_gt(steps, 10);
	cr_assert_lt(steps, 10000);
	cr_assert_eq(load_count(seg, EP), word_count(right));
}
