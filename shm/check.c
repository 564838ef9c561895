/*
 * The walk over the whole segment.  Two methods tell the unfinished step of a running process from
 * a violation.
 *
 * Counts are compared exactly.  The checker reads the rows between two reads of the word.  If the
 * word is the same in both, each open operation on it changed the word before the first read, or
 * will change it after the second.  load_reap()'s rule says which of the two.  So a process may be
 * stopped anywhere inside an operation, for any time, and the sum is exact.
 *
 * Besides, a finding must LAST: a running process has finished its step a moment later, and the
 * stores of a stopped process are in memory.
 */
#include "shm/check.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "shm/api_keys.h"
#include "shm/core/atomic.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/quota_word.h"
#include "shm/busy.h"
#include "shm/eject.h"
#include "shm/flags.h"
#include "shm/latency.h"
#include "shm/load.h"
#include "shm/load_word.h"
#include "shm/metrics.h"
#include "shm/named.h"
#include "shm/prefix.h"
#include "shm/queue.h"
#include "shm/core/rcu.h"
#include "shm/core/suspect.h"
#include "shm/mend.h"
#include "shm/table.h"
#include "shm/tally.h"

#define LAST 4   /* reads in a row that must agree on a finding */
#define TRIES 64 /* reads of a word that other processes change meanwhile */
/* A worker removes its name from every word, and acked is raised, each SCRUB_EVERY operations;
 * twice that is too old. */
#define OLDEST_NAME (2 * SCRUB_EVERY)
/* The master checks every few milliseconds whether a retired arena is free.  After this time it
 * has forgotten to. */
#define RETIRED_LONG_MS 2000
#define CLOCKS_APART_MS 1000
#define WALK_MS 1000 /* from the begin of a walk that repairs to the next one */
#define AWAY_MOST_MS                                                                               \
	(24 * UINT64_C(3600000)) /* the longest eject_max_time, and longer than any trial */
#define QUEUE_BEYOND 64          /* slots of a queue that are checked though none was ever used */

struct check {
	const struct seg *seg;
	uint64_t build;
	const struct rcu_writer *writer; /* may be NULL */
	check_report *report;
	void *arg;
	unsigned found;
	bool *listed;      /* [max_endpoints] slots that the checked table contains */
	struct seg *mends; /* what is wrong is repaired; NULL: it is only reported */
	bool whole;        /* what is not in use as well */
	uint64_t now_ms;
};

/* The segment, if a wrong word is to be repaired: the word is counted. */
static struct seg *
to_mend(const struct check *c, enum suspect_where where, uint64_t index)
{
	if (c->mends != NULL)
		suspect_found(where, index);
	return c->mends;
}

static void __attribute__((format(printf, 2, 3))) found(struct check *c, const char *fmt, ...)
{
	char line[200]; /* the longest: a pool's or gauge's name and three numbers */
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (c->found++ < CHECK_LINES)
		c->report(line, c->arg);
}

/* What is checked, and the figures of the last read. */
struct look {
	const struct seg *seg;
	uint32_t worker, ep, pool;
	enum which which;
	uint64_t a, b;
	uint64_t word; /* that was found wrong */
};
typedef bool wrong_fn(struct look *);

static bool
lasts(wrong_fn *wrong, struct look *l)
{
	for (int i = 0; i < LAST; i++)
		if (!wrong(l))
			return false;
	return true;
}

static const char *
which_name(enum which which)
{
	return which == TOKENS ? "tokens" : "requests";
}

static const char *
thing_name(enum which which)
{
	return which == QUOTA ? "client" : "endpoint";
}

/* --- process slots ------------------------------------------------------------------------ */

/* Repairs leave out the endpoints that are empty: ep_slot_begin() clears their words. */
static bool
passes_over(const struct check *c, uint32_t ep)
{
	return c->mends != NULL && !c->whole && ep_state_get(c->seg, ep) == EP_EMPTY;
}

/* The same for the entries that no client has had yet. */
static bool
passes_over_client(const struct check *c, uint32_t i)
{
	return c->mends != NULL && !c->whole && shm_load(word_of(c->seg, i, QUOTA)) == 0 &&
	       shm_load(&c->seg->quotas[i / QUOTA_WAYS].key[i % QUOTA_WAYS]) == 0;
}

static void
check_empty_rows(struct check *c, uint32_t slot)
{
	for (uint32_t ep = 0; ep < c->seg->hdr->max_endpoints; ep++) {
		const struct row *row = seg_row(c->seg, slot, ep);

		if (passes_over(c, ep))
			continue;
		const uint32_t held = shm_load(&row->held), tokens = shm_load(&row->tokens),
			       sent = shm_load(&row->sent), kv = shm_load(&row->kv);

		if (held != 0 || tokens != 0 || sent != 0)
			found(c,
				"I4 slot %u is unused but holds %u requests, %u tokens of endpoint %u, %u sent",
				slot, held, tokens, ep, sent);
		if (kv != 0)
			found(c, "I4 slot %u is unused but waits for %u KV of endpoint %u", slot,
				kv, ep);
		if ((held | tokens | sent | kv) != 0 && to_mend(c, SUSPECT_ROWS, ep) != NULL)
			mend_row(c->mends, slot, ep);
	}
	for (uint32_t i = 0; i < c->seg->hdr->max_quotas; i++) {
		if (passes_over_client(c, i))
			continue;
		const uint32_t held = shm_load(share_of(c->seg, slot, i, QUOTA));

		if (held != 0)
			found(c, "I4 slot %u is unused but holds %u requests of client %u", slot,
				held, i);
		if (held != 0 && to_mend(c, SUSPECT_CLIENTS, i) != NULL)
			shm_store(share_of(c->mends, slot, i, QUOTA), 0);
	}
}

/* The slot's last process was reaped: only its counters, acked and seq remain. */
static void
check_empty_slot(struct check *c, uint32_t slot)
{
	const struct proc_slot *p = &c->seg->procs[slot];
	const unsigned before = c->found;

	if (proc_slot_state(c->seg, slot) != PROC_EMPTY)
		found(c, "I4 slot %u is unused but in state %d", slot,
			(int)proc_slot_state(c->seg, slot));
	if (shm_load(&p->heartbeat_ms) != 0 || shm_load(&p->conns) != 0 ||
		shm_load(&p->accepts) != 0 || p->crash_note[0] != '\0')
		found(c, "I4 slot %u is unused but has a heartbeat, connections or a crash note",
			slot);
	if (shm_load(&p->stored[0]) != 0 || shm_load(&p->stored[1]) != 0)
		found(c, "I4 slot %u is unused but holds bytes", slot);
	if (shm_load(&p->sandboxed) != 0 || shm_load(&p->forbidden) != 0)
		found(c, "I4 slot %u is unused but has a filter or a forbidden call", slot);
	if (shm_load(&p->journal) != 0)
		found(c, "I4 slot %u is unused but has an operation open", slot);
	if (shm_load(&c->seg->readers[slot].ctr) != 0)
		found(c, "I4 slot %u is unused but its reader line shows gp %llu", slot,
			(unsigned long long)c->seg->readers[slot].ctr);
	for (unsigned g = 0; g < G_N; g++) {
		const int64_t n = shm_load(&seg_slab(c->seg, slot)->gauges[g]);

		if (n != 0)
			found(c, "I4 slot %u is unused but its gauge %s is %lld", slot,
				metric_gauge_name[g], (long long)n);
	}
	if (c->found != before && to_mend(c, SUSPECT_PROCESSES, slot) != NULL)
		mend_slot(c->mends, slot);
	if (slot < SLOT_WORKERS(c->seg))
		check_empty_rows(c, slot);
}

static void
check_process(struct check *c, uint32_t slot)
{
	const struct proc_record *p = &c->seg->proc_records[slot];
	const uint64_t pid = shm_load(&p->pid), state = shm_load(&p->state);

	if (state == PROC_EMPTY || state > PROC_DRAINING)
		found(c, "I4 slot %u: process %llu is in state %llu", slot, (unsigned long long)pid,
			(unsigned long long)state);
	/* one that was killed and not yet reaped still exists */
	if (kill((pid_t)pid, 0) == -1 && errno == ESRCH)
		found(c, "I4 slot %u: process %llu is gone and was not reaped", slot,
			(unsigned long long)pid);
	for (uint32_t i = 0; i < slot; i++)
		if (shm_load(&c->seg->proc_records[i].pid) == pid)
			found(c, "I4 slots %u and %u are both process %llu's", i, slot,
				(unsigned long long)pid);
	for (unsigned g = 0; g < G_N; g++) {
		const int64_t n = shm_load(&seg_slab(c->seg, slot)->gauges[g]);

		if (n < 0)
			found(c, "I1 slot %u: its gauge %s is %lld", slot, metric_gauge_name[g],
				(long long)n);
	}
}

static void
check_slot(struct check *c, uint32_t slot)
{
	if (shm_load(&c->seg->proc_records[slot].pid) == 0)
		check_empty_slot(c, slot);
	else if (c->mends == NULL) /* the process itself repairs its words */
		check_process(c, slot);
}

/* --- reader lines ------------------------------------------------------------------------- */

static void
check_reader(struct check *c, uint32_t slot)
{
	const uint64_t ctr = shm_load(&c->seg->readers[slot].ctr);
	const bool reads = slot < SLOT_WORKERS(c->seg);

	/* gp is even, our own, and was loaded before it was stored here */
	if (ctr == 0 || (reads && ctr % 2 != 0 && ctr - 1 <= shm_load(&c->seg->rcu->gp)))
		return;
	found(c, "I5 slot %u: its reader line shows %llu, which gp %llu cannot have given", slot,
		(unsigned long long)ctr, (unsigned long long)c->seg->rcu->gp);
	if (to_mend(c, SUSPECT_READERS, slot) != NULL)
		mend_word(&c->mends->readers[slot].ctr, ctr);
}

static void
check_gp(struct check *c, uint32_t i)
{
	(void)i;
	if (shm_load(&c->seg->rcu->gp) % 2 != 0)
		found(c, "I5 gp is %llu, which is odd", (unsigned long long)c->seg->rcu->gp);
}

/* --- endpoint words, rows, journals ------------------------------------------------------- */

/* Whether a worker's open operation has changed a word that now reads `word`: load_reap()
 * decides by the same rule. */
static bool
operation_counted(const struct seg *seg, uint32_t worker, uint64_t journal, uint64_t word)
{
	const uint64_t seq = journal & SEQ_MASK;

	return word_name(word) == name_make(worker, seq) ||
	       shm_load(&seg->procs[worker].acked) == seq;
}

/* The worker's share of `word`; false if the worker makes another operation meanwhile. */
static bool
share_counted(const struct look *l, uint32_t worker, uint64_t word, uint32_t *ret)
{
	const struct proc_slot *p = &l->seg->procs[worker];
	/* The journal before the row: without an operation on this word the row is up to date,
	 * and stays so while the word does not change.  Pairs with word_operate()'s releases. */
	const uint64_t journal = shm_load_acquire(&p->journal);
	uint64_t change;

	*ret = shm_load(share_of(l->seg, worker, l->ep, l->which));
	if (journal_which(journal) != l->which || journal_ep(journal) != l->ep)
		return true;
	change = shm_load(&p->change);
	*ret = (uint32_t)(change >> 32);
	if (operation_counted(l->seg, worker, journal, word))
		*ret += (uint32_t)change; /* signed, modulo 2^32 */
	/* The change before the second read.  Pairs with word_operate()'s releases. */
	shm_mb();
	return shm_load(&p->journal) == journal;
}

/* 1: the sum of the rows differs (l->a, l->b); 0: it does not; -1: the word changed meanwhile. */
static int
sum_differs(struct look *l)
{
	/* The word before acked.  Pairs with word_add(). */
	const uint64_t *at = word_of(l->seg, l->ep, l->which), word = shm_load_acquire(at);

	l->a = l->which == QUOTA ? quota_held_count(word) : word_count(word);
	l->b = 0;
	l->word = word;
	for (uint32_t w = 0; w < SLOT_WORKERS(l->seg); w++) {
		uint32_t share;

		if (!share_counted(l, w, word, &share))
			return -1;
		l->b += share;
	}
	/* All of these before the second read.  Pairs with word_add(). */
	shm_mb();
	return shm_load(at) != word ? -1 : l->a != l->b;
}

/* A word that changes all the time is left for the next walk. */
static bool
sum_wrong(struct look *l)
{
	int r = -1;

	for (int i = 0; r == -1 && i < TRIES; i++)
		r = sum_differs(l);
	return r == 1;
}

/* The name is of an operation that its worker made, and not long ago. */
static bool
name_wrong(struct look *l)
{
	/* The name before the seq.  Pairs with word_add(). */
	const uint64_t word = shm_load_acquire(word_of(l->seg, l->ep, l->which));
	const uint64_t name = word_name(word);

	l->word = word;
	if (name == 0)
		return false;
	l->worker = (uint32_t)name_worker(name) - 1;
	l->a = name & SEQ_MASK;
	l->b = 0;
	if (l->worker >= SLOT_WORKERS(l->seg))
		return true;
	l->b = shm_load(&l->seg->procs[l->worker].seq);
	return ((l->b - l->a) & SEQ_MASK) > OLDEST_NAME;
}

/*
 * Repairs first add up the rows as they are, without the journals.  A sum that is right by chance, while an
 * operation is open, is seen by the next walk.
 */
static bool
adds_up(const struct check *c, uint32_t ep, enum which which)
{
	const uint64_t word = shm_load(word_of(c->seg, ep, which));
	const uint32_t count = which == QUOTA ? quota_held_count(word) : word_count(word);
	uint32_t sum = 0;

	for (uint32_t w = 0; c->mends != NULL && w < SLOT_WORKERS(c->seg); w++)
		sum += shm_load(share_of(c->seg, w, ep, which));
	return c->mends != NULL && sum == count;
}

static void
check_word(struct check *c, uint32_t ep, enum which which)
{
	const enum suspect_where where = which == QUOTA ? SUSPECT_CLIENTS : SUSPECT_LOADS;
	struct look l = {.seg = c->seg, .ep = ep, .which = which};

	if (!adds_up(c, ep, which) && lasts(sum_wrong, &l)) {
		found(c, "I7 %s %u: %llu %s are counted, the rows add up to %llu",
			thing_name(which), ep, (unsigned long long)l.a, which_name(which),
			(unsigned long long)l.b);
		if (to_mend(c, where, ep) != NULL)
			mend_sum(c->mends, ep, which, l.word, (uint32_t)l.b);
	}
	if (!lasts(name_wrong, &l))
		return;
	found(c, "I8 %s %u: its %s name operation %llu of slot %d, which has made %llu",
		thing_name(which), ep, which_name(which), (unsigned long long)l.a, (int)l.worker,
		(unsigned long long)l.b);
	if (to_mend(c, where, ep) != NULL)
		mend_name(c->mends, ep, which, l.word);
}

/* `never`: bits that are not set.  A trial belongs to a living worker and to an endpoint that is
 * out. */
static bool
half_open_wrong(struct look *l, uint64_t word, uint64_t never)
{
	const uint32_t worker = half_open_worker(word);

	l->a = word;
	if (worker == 0)
		return (word & never) != 0;
	return (word & never) != 0 || !half_open_out(word) || worker > SLOT_WORKERS(l->seg) ||
	       shm_load(&l->seg->proc_records[worker - 1].pid) == 0;
}

static bool
eject_wrong(struct look *l)
{
	return half_open_wrong(l, shm_load(&l->seg->eps[l->ep].eject), EJECT_NEVER);
}

static bool
busy_wrong(struct look *l)
{
	const uint64_t word = shm_load(&l->seg->eps[l->ep].busy);

	return half_open_wrong(l, word, BUSY_NEVER) || (word != 0 && !half_open_out(word));
}

static void
check_half_open(struct check *c, uint32_t ep)
{
	struct look l = {.seg = c->seg, .ep = ep};

	if (lasts(eject_wrong, &l)) {
		found(c, "I12 endpoint %u: its ejection 0x%llx has a trial of no living worker", ep,
			(unsigned long long)l.a);
		if (to_mend(c, SUSPECT_AWAY, ep) != NULL)
			mend_word(&c->mends->eps[ep].eject, l.a);
	}
	if (lasts(busy_wrong, &l)) {
		found(c, "I12 endpoint %u: its busy word 0x%llx has a trial of no living worker",
			ep, (unsigned long long)l.a);
		if (to_mend(c, SUSPECT_AWAY, ep) != NULL)
			mend_word(&c->mends->eps[ep].busy, l.a);
	}
}

/* Words of an endpoint that hold the time of something that has happened, and how many bits of them; and counts of
 * such times. */
static void
mend_past(struct check *c, uint32_t ep)
{
	struct seg *seg = c->mends;
	const struct {
		uint64_t *word;
		unsigned low, bits;
	} times[] = {
		{&seg->tallies[ep].last, TALLY_CAUSE_BITS, 56},
		{&seg->tallies[ep].alive_ms, 0, 64},
		{&seg->tallies[ep].shed_ms, 0, 64},
		{&seg->tallies[ep].blame, 0, EP_MS_BITS},
		{&seg->refusals[ep].word, 0, EP_MS_BITS},
		{&seg->refusals[ep].failed_alike_ms, 0, 64},
	};

	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		const uint64_t word = shm_load(times[i].word);
		const uint64_t ms =
			word >> times[i].low << (64 - times[i].bits) >> (64 - times[i].bits);

		if (suspect(SUSPECT_TALLIES, ep, ms > c->now_ms + CLOCKS_APART_MS))
			mend_word(times[i].word, word);
	}
	if (latency_mend(seg, ep) + prefix_mend(seg, ep) > 0)
		suspect_found(SUSPECT_TALLIES, ep);
}

/* Requests do not stay away from an endpoint for longer than its pool's terms allow.  A reload may have shortened
 * these terms: then the word was possible, and is not counted. */
static void
mend_away(struct check *c, uint32_t ep, const struct table_pool *tp)
{
	struct ep_word *e = &c->mends->eps[ep];
	const uint64_t eject = shm_load(&e->eject), busy = shm_load(&e->busy);
	const uint64_t now_ms = c->now_ms + CLOCKS_APART_MS, ms = half_open_ms(eject);
	const uint64_t most_ms = !half_open_out(eject)          ? 0
				 : half_open_worker(eject) != 0 ? AWAY_MOST_MS
								: tp->ejection.max_ms;

	(void)suspect(SUSPECT_AWAY, ep, ms > now_ms + (half_open_out(eject) ? AWAY_MOST_MS : 0));
	if (ms > now_ms + most_ms)
		mend_word(&e->eject, eject);
	if (suspect(SUSPECT_AWAY, ep, half_open_ms(busy) > now_ms + BUSY_RETRY_MOST_MS))
		mend_word(&e->busy, busy);
}

static void
mend_pool(struct check *c, uint32_t i)
{
	const struct table *t = shm_load(&c->seg->rcu->table);

	for (enum role role = 0; t != NULL && i < t->npools && role < ROLE_N; role++)
		for (uint32_t k = 0; k < t->pools[i].n[role]; k++)
			mend_away(c, t->pools[i].picks[role][k].slot, &t->pools[i]);
}

static void
check_endpoint(struct check *c, uint32_t ep)
{
	if (passes_over(c, ep))
		return;
	const uint64_t word = shm_load(&c->seg->ep_records[ep].state);
	const enum ep_state state = ep_state_get(c->seg, ep);

	if (state >= EP_STATE_N) {
		found(c, "I1 endpoint %u: its state word is 0x%llx", ep, (unsigned long long)word);
		return;
	}
	if (state != EP_UP && ep_ramp_from(c->seg, ep) != 0)
		found(c, "I1 endpoint %u is %s, yet its weight ramps up", ep, ep_state_name(state));
	if (state != EP_EMPTY && ep_tag(c->seg, ep) == 0)
		found(c, "I5 endpoint %u is %s and never began a life", ep, ep_state_name(state));
	if (state == EP_EMPTY && (load_count(c->seg, ep) != 0 || load_tokens(c->seg, ep) != 0))
		found(c, "I7 endpoint %u is empty but has %u requests, %u tokens", ep,
			load_count(c->seg, ep), load_tokens(c->seg, ep));
	if (state == EP_EMPTY && load_kv_sum(c->seg, ep) != 0)
		found(c, "I7 endpoint %u is empty but holds %u KV", ep, load_kv_sum(c->seg, ep));
	check_word(c, ep, REQUESTS);
	check_word(c, ep, TOKENS);
	check_half_open(c, ep);
	if (c->mends != NULL)
		mend_past(c, ep);
}

/*
 * `part` of a row is more than `whole`.  Both are changed between operations, or inside an
 * operation in an order that keeps part <= whole.  So part is read first; while the seq is the
 * same, at most one operation can have come in between.
 */
static bool
part_exceeds(struct look *l, const uint32_t *part, const uint32_t *whole)
{
	const struct proc_slot *p = &l->seg->procs[l->worker];
	/* Pairs with word_operate()'s releases. */
	const uint64_t seq = shm_load_acquire(&p->seq);

	l->a = shm_load_acquire(part);
	l->b = shm_load_acquire(whole);
	return l->a > l->b && shm_load(&p->seq) == seq;
}

static bool
sent_wrong(struct look *l)
{
	const struct row *row = seg_row(l->seg, l->worker, l->ep);

	return part_exceeds(l, &row->sent, &row->held);
}

/* Tokens are added after their request is reserved, and subtracted before it is released. */
static bool
tokens_wrong(struct look *l)
{
	const struct row *row = seg_row(l->seg, l->worker, l->ep);

	return part_exceeds(l, &row->tokens, &row->held) && l->b == 0;
}

static bool
journal_wrong(struct look *l)
{
	const struct proc_slot *p = &l->seg->procs[l->worker];
	/* Pairs with word_operate()'s releases. */
	const uint64_t journal = shm_load_acquire(&p->journal);

	l->a = journal;
	l->b = shm_load(&p->seq);
	if (journal == 0 || shm_load(&p->journal) != journal)
		return false;
	return !journal_possible(l->seg, journal) || ((journal ^ l->b) & SEQ_MASK) != 0;
}

static bool
acked_wrong(struct look *l)
{
	const struct proc_slot *p = &l->seg->procs[l->worker];

	/* acked first, it only follows.  Pairs with name_record(). */
	l->a = shm_load_acquire(&p->acked);
	l->b = shm_load(&p->seq);
	return l->a > SEQ_MASK || ((l->b - l->a) & SEQ_MASK) > OLDEST_NAME;
}

static void
check_rows(struct check *c, uint32_t worker)
{
	struct look l = {.seg = c->seg, .worker = worker};

	for (l.ep = 0; l.ep < c->seg->hdr->max_endpoints; l.ep++) {
		if (lasts(sent_wrong, &l))
			found(c, "I7 slot %u has sent %llu requests to endpoint %u, and holds %llu",
				worker, (unsigned long long)l.a, l.ep, (unsigned long long)l.b);
		if (lasts(tokens_wrong, &l))
			found(c, "I7 slot %u holds %llu tokens of endpoint %u without a request",
				worker, (unsigned long long)l.a, l.ep);
	}
	if (lasts(journal_wrong, &l))
		found(c, "I7 slot %u: its journal 0x%llx is of no operation; its seq is %llu",
			worker, (unsigned long long)l.a, (unsigned long long)l.b);
}

static void
check_acked(struct check *c, uint32_t worker)
{
	struct look l = {.seg = c->seg, .worker = worker};

	if (!lasts(acked_wrong, &l))
		return;
	found(c, "I8 slot %u: operation %llu is acknowledged, the last made is %llu", worker,
		(unsigned long long)l.a, (unsigned long long)l.b);
	if (to_mend(c, SUSPECT_JOURNALS, worker) != NULL)
		mend_acked(c->mends, worker, l.a, l.b);
}

/* --- clients ------------------------------------------------------------------------------- */

/* Another entry of the set, before this one, belongs to the same client: l->a. */
static bool
twice_wrong(struct look *l)
{
	const struct quota_set *set = &l->seg->quotas[l->ep / QUOTA_WAYS];
	const uint32_t way = l->ep % QUOTA_WAYS;
	const uint64_t key = shm_load(&set->key[way]);

	for (uint32_t i = 0; i < way && quota_bound(key, shm_load(&set->held[way])); i++) {
		const uint64_t other = shm_load(&set->key[i]);

		l->a = l->ep - way + i;
		if (quota_key_hash(other) == quota_key_hash(key) &&
			quota_bound(other, shm_load(&set->held[i])))
			return true;
	}
	return false;
}

static bool
nobodys_wrong(struct look *l)
{
	const uint64_t held = shm_load(word_of(l->seg, l->ep, QUOTA));

	l->a = quota_held_count(held);
	return quota_free(held) && l->a != 0;
}

static void
check_client(struct check *c, uint32_t i)
{
	struct look l = {.seg = c->seg, .ep = i, .which = QUOTA};

	if (passes_over_client(c, i))
		return;
	check_word(c, i, QUOTA);
	if (lasts(twice_wrong, &l)) {
		found(c, "I11 clients %llu and %u have the same key", (unsigned long long)l.a, i);
		if (to_mend(c, SUSPECT_CLIENTS, i) != NULL)
			mend_client(c->mends, i);
	}
	if (lasts(nobodys_wrong, &l))
		found(c, "I11 client %u has no key but %llu requests", i, (unsigned long long)l.a);
}

/* --- flags -------------------------------------------------------------------------------- */

static void
check_flags(struct check *c, uint32_t w)
{
	const struct seg *seg = c->seg;
	const bool alive = shm_load(&seg->proc_records[w].pid) != 0;

	/* a worker repairs its own, and those of its slot when it begins */
	if (c->mends != NULL && (alive || !c->whole))
		return;
	for (uint32_t slot = 0; slot < seg->hdr->flags_per_worker; slot++) {
		bool used;

		if (!flag_sound(seg, w, slot, &used))
			found(c, "I9 flag %u of slot %u: its word 0x%llx is invalid", slot, w,
				(unsigned long long)shm_load(&seg_flag(seg, w, slot)->word));
		else if (used && !alive)
			found(c, "I9 flag %u of slot %u is armed by no living worker", slot, w);
		else
			continue;
		if (to_mend(c, SUSPECT_FLAGS, slot) != NULL)
			(void)flag_clear(c->mends, w, slot);
	}
}

/* --- queues ------------------------------------------------------------------------------- */

static bool
entry_wrong(struct look *l)
{
	l->word = shm_load(&seg_queue_slot(l->seg, l->pool, l->ep)->word);
	return !queue_sound(l->seg, l->pool, l->ep, &l->worker);
}

static void
check_entry(struct check *c, uint32_t pool, uint32_t slot)
{
	struct look l = {.seg = c->seg, .pool = pool, .ep = slot};

	if (lasts(entry_wrong, &l))
		found(c, "I13 slot %u of the queue of pool %u: its word 0x%llx is invalid%s", slot,
			pool, (unsigned long long)l.word, l.word == 0 ? ", being marked" : "");
	else if (l.worker != QUEUE_NOBODY && shm_load(&c->seg->proc_records[l.worker].pid) == 0)
		found(c, "I13 slot %u of the queue of pool %u is slot %u's, which is unused", slot,
			pool, l.worker);
	else
		return;
	if (to_mend(c, SUSPECT_QUEUES, pool) != NULL)
		queue_mend(c->mends, pool, slot);
}

static void
check_queue(struct check *c, uint32_t pool)
{
	const struct seg *seg = c->seg;
	/* all that were ever used, and some that must not have been; all of them would be many
	 * pages */
	const uint64_t high = shm_load(&seg_queue(seg, pool)->high);
	const uint64_t end = high < seg->hdr->queue_slots ? high + QUEUE_BEYOND : high;

	if (!queue_head_sound(seg, pool)) {
		found(c, "I13 the queue of pool %u: its first words cannot be", pool);
		if (to_mend(c, SUSPECT_QUEUES, pool) != NULL)
			queue_head_mend(c->mends, pool);
	}
	for (uint32_t slot = 0; slot < seg->hdr->queue_slots && slot < end; slot++)
		check_entry(c, pool, slot);
}

/* --- metrics ------------------------------------------------------------------------------ */

/* All pools of the table have lower ids. */
static uint32_t
end_of_pools(const struct table *t)
{
	uint32_t end = 0;

	for (uint32_t i = 0; t != NULL && i < t->npools; i++)
		if (t->pools[i].id >= end)
			end = t->pools[i].id + 1;
	return end;
}

static void
mend_slab(struct check *c, uint32_t slot)
{
	const uint32_t end = end_of_pools(shm_load(&c->seg->rcu->table));

	if (metric_mend(c->mends, slot, end) > 0)
		suspect_found(SUSPECT_METRICS, slot);
}

static void
mend_name_counts(struct check *c, uint32_t i)
{
	if (named_mend(c->mends, i) > 0)
		suspect_found(SUSPECT_METRICS, i);
}

/* --- announcements ------------------------------------------------------------------------ */

/*
 * The notifier writes one entry at a time, and begins by writing all of them.  So once the notifier
 * is ready at most one entry is half written.  Two seqs that were odd in both of two walks were odd
 * at the same time.
 */
static void
check_announcements(struct check *c, uint32_t part)
{
	const struct announced *all = c->seg->announced;
	uint64_t first[ANNOUNCED_MAX];
	unsigned odd = 0;

	(void)part;
	if (proc_slot_state(c->seg, SLOT_NOTIFIER(c->seg)) != PROC_READY)
		return;
	for (uint32_t i = 0; i < ANNOUNCED_MAX; i++)
		first[i] = shm_load(&all[i].seq);
	/* Pairs with entry_put()'s barrier and release. */
	shm_mb();
	for (uint32_t i = 0; i < ANNOUNCED_MAX; i++)
		odd += first[i] % 2 == 1 && shm_load(&all[i].seq) == first[i];
	if (odd > 1)
		found(c, "I1 %u announcements are half written, by one notifier", odd);
}

/* The checker runs in the master, the only writer of the settings. */
static void
check_settings(struct check *c, uint32_t part)
{
	const uint64_t seq = shm_load(&c->seg->settings->seq);

	(void)part;
	if (seq % 2 == 1)
		found(c, "I1 the settings are half written: seq is %llu", (unsigned long long)seq);
}

/* --- tables and arenas -------------------------------------------------------------------- */

/* What readers do with an endpoint of a table they hold: read its word, reserve there. */
static void
check_row(struct check *c, const struct table *t, const char *which, uint32_t i)
{
	const struct table_endpoint *te = &t->endpoints[i];
	uint64_t tag;

	if (te->slot >= c->seg->hdr->max_endpoints || te->pool >= t->npools || te->role >= ROLE_N) {
		found(c, "I5 endpoint %u of %s has slot %u, pool %u, role %d", i, which, te->slot,
			te->pool, (int)te->role);
		return;
	}
	tag = ep_tag(c->seg, te->slot);
	if ((uint32_t)tag != te->tag)
		found(c, "I5 slot %u was reused too early: it has tag %llu, %s has tag %u",
			te->slot, (unsigned long long)tag, which, te->tag);
	else if (ep_state_get(c->seg, te->slot) == EP_EMPTY)
		found(c, "I5 slot %u was freed too early: %s has it", te->slot, which);
	if (c->listed[te->slot])
		found(c, "I5 slot %u is used twice in %s", te->slot, which);
	c->listed[te->slot] = true;
}

static void
check_table(struct check *c, const struct table *t, const char *which)
{
	if (!table_intact(t, c->seg->arena_bytes)) {
		found(c, "I5 %s has changed since it was published", which);
		return;
	}
	for (uint32_t i = 0; i < c->seg->hdr->max_endpoints; i++)
		c->listed[i] = false;
	for (uint32_t i = 0; i < t->nendpoints; i++)
		check_row(c, t, which, i);
}

static void
check_keys(struct check *c, const struct api_keys *keys, const char *which)
{
	if (!api_keys_intact(keys, c->seg->keys_arena_bytes))
		found(c, "I5 %s has changed since it was published", which);
}

static const struct table *
arena_table(const struct seg *seg, uint32_t i)
{
	return (const void *)(seg->arenas + i * seg->arena_bytes);
}

/* Arenas of keys come after those of tables. */
static const struct api_keys *
arena_keys(const struct seg *seg, uint32_t i)
{
	return (const void *)(seg->keys_arenas + (i - SHM_ARENAS) * seg->keys_arena_bytes);
}

static bool
is_current(const struct seg *seg, uint32_t i)
{
	return i < SHM_ARENAS ? arena_table(seg, i) == shm_load(&seg->rcu->table)
			      : arena_keys(seg, i) == shm_load(&seg->rcu->keys);
}

static void
check_arena(struct check *c, uint32_t i, const char *which)
{
	if (i < SHM_ARENAS)
		check_table(c, arena_table(c->seg, i), which);
	else
		check_keys(c, arena_keys(c->seg, i), which);
}

/* One of the arenas from `first` to `end` - 1 has the current table. */
static void
check_current(struct check *c, uint32_t first, uint32_t end, const char *which)
{
	for (uint32_t i = first; i < end; i++) {
		if (!is_current(c->seg, i))
			continue;
		if (c->writer != NULL && rcu_arena_read(c->writer, i)->use != ARENA_CURRENT)
			found(c, "I5 arena %u holds %s and is not marked as current", i, which);
		check_arena(c, i, which);
		return;
	}
	found(c, "I5 %s is in no arena", which);
}

/* A retired table does not change, and its names stay valid, as long as a reader may hold it. */
static void
check_retired(struct check *c, uint32_t i)
{
	const struct rcu_arena *a = rcu_arena_read(c->writer, i);
	const uint64_t gp = shm_load(&c->seg->rcu->gp), ms = clock_ms() - a->retired_ms;
	char which[32];

	(void)snprintf(which, sizeof(which), "the retired arena %u", i);
	if (a->cookie % 2 != 0 || a->cookie > gp)
		found(c, "I5 %s waits for gp %llu, gp is %llu", which,
			(unsigned long long)a->cookie, (unsigned long long)gp);
	else if (rcu_oldest(c->seg) < a->cookie)
		check_arena(c, i, which);
	else if (ms > RETIRED_LONG_MS)
		found(c, "I5 %s has no reader and was not freed for %llu ms", which,
			(unsigned long long)ms);
}

static void
check_arenas(struct check *c, uint32_t part)
{
	(void)part;
	c->listed = mem_array(c->seg->hdr->max_endpoints, sizeof(*c->listed));
	if (shm_load(&c->seg->rcu->table) != NULL)
		check_current(c, 0, SHM_ARENAS, "the current table");
	if (shm_load(&c->seg->rcu->keys) != NULL)
		check_current(c, SHM_ARENAS, SHM_ALL_ARENAS, "the current table of keys");
	for (uint32_t i = 0; c->writer != NULL && i < SHM_ALL_ARENAS; i++) {
		const enum arena_use use = rcu_arena_read(c->writer, i)->use;

		if (use == ARENA_RETIRED)
			check_retired(c, i);
		else if (use == ARENA_OBTAINED)
			found(c, "I5 arena %u was obtained and neither published nor returned", i);
		else if (use == ARENA_CURRENT && !is_current(c->seg, i))
			found(c, "I5 arena %u is marked as the current table's and is not", i);
	}
	free(c->listed);
}

/* --- the whole ---------------------------------------------------------------------------- */

enum unit { ONCE, PER_SLOT, PER_WORKER, PER_ENDPOINT, PER_CLIENT, PER_POOL, PER_NAME };
static const struct {
	void (*check)(struct check *, uint32_t i);
	enum unit unit;
	enum { REPORTS = 1, MENDS = 2, BOTH = 3 } walks; /* that it is a part of */
} parts[] = {
	{check_slot, PER_SLOT, BOTH},
	{check_gp, ONCE, REPORTS},
	{check_reader, PER_SLOT, BOTH},
	{check_endpoint, PER_ENDPOINT, BOTH},
	{check_rows, PER_WORKER, REPORTS}, /* the worker repairs them */
	{check_acked, PER_WORKER, BOTH},
	{check_client, PER_CLIENT, BOTH},
	{check_flags, PER_WORKER, BOTH},
	{check_queue, PER_POOL, BOTH},
	{mend_pool, PER_POOL, MENDS},
	{mend_slab, PER_SLOT, MENDS},
	{mend_name_counts, PER_NAME, MENDS},
	{check_announcements, ONCE, REPORTS},
	{check_settings, ONCE, REPORTS},
	{check_arenas, ONCE, REPORTS},
};
#define NPARTS (sizeof(parts) / sizeof(parts[0]))

static uint32_t
units_of(const struct seg *seg, enum unit unit)
{
	const uint32_t n[] = {
		[ONCE] = 1,
		[PER_SLOT] = seg->hdr->nslots,
		[PER_WORKER] = SLOT_WORKERS(seg),
		[PER_ENDPOINT] = seg->hdr->max_endpoints,
		[PER_CLIENT] = seg->hdr->max_quotas,
		[PER_POOL] = seg->hdr->max_pools,
		[PER_NAME] = NAMED_MODEL_SLOTS + named_key_slots(seg->hdr->max_api_keys),
	};

	return n[unit];
}

unsigned
check_segment(const struct seg *seg, uint64_t build, const struct rcu_writer *w,
	check_report *report, void *arg)
{
	struct check c = {.seg = seg,
		.build = build,
		.writer = w,
		.report = report,
		.arg = arg,
		.now_ms = clock_ms()};

	if (seg_check(seg->hdr, build) != 0) { /* nothing else can be checked then */
		found(&c, "I2 the header is not of this version, build and size");
		return c.found;
	}
	for (size_t p = 0; p < NPARTS; p++)
		for (uint32_t i = 0;
			(parts[p].walks & REPORTS) != 0 && i < units_of(seg, parts[p].unit); i++)
			parts[p].check(&c, i);
	return c.found;
}

static void
no_report(const char *line, void *arg)
{
	(void)line;
	(void)arg;
}

/* Units between two looks at the clock.  A slot, a worker and a pool have as many words as there are endpoints, clients
 * or waiters. */
static const uint32_t at_once[] = {
	[ONCE] = 1,
	[PER_SLOT] = 1,
	[PER_WORKER] = 1,
	[PER_ENDPOINT] = 16,
	[PER_CLIENT] = 16,
	[PER_POOL] = 1,
	[PER_NAME] = 16,
};

void
check_mend(struct seg *seg, struct check_cursor *at, uint64_t most_us)
{
	const uint64_t until_us = clock_us() + most_us;
	struct check c = {.seg = seg,
		.mends = seg,
		.whole = at->whole > 0,
		.report = no_report,
		.now_ms = clock_ms()};
	uint32_t units = 0;

	if (at->part == 0 && at->unit == 0) {
		if (at->whole == 0 && at->began_ms != 0 && c.now_ms - at->began_ms < WALK_MS)
			return;
		at->began_ms = c.now_ms;
	}
	while (at->part < NPARTS) {
		if ((parts[at->part].walks & MENDS) == 0 ||
			at->unit >= units_of(seg, parts[at->part].unit)) {
			at->part++;
			at->unit = units = 0;
			continue;
		}
		parts[at->part].check(&c, at->unit++);
		if (++units % at_once[parts[at->part].unit] == 0 && clock_us() >= until_us)
			return;
	}
	at->part = 0;
	at->whole -= at->whole > 0;
}
