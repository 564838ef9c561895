/*
 * Reservations: two words per endpoint that all workers CAS.  Beside them each worker writes down
 * enough for the master to give back exactly what a killed worker held: word, journal and change,
 * packed as load_word.h draws them.  A client's requests in flight (quota.c) are a third kind of
 * such words.
 *
 * One operation changes one word; a worker has at most one open operation.
 *
 * After a SIGKILL one thing is unknown: whether the open operation's CAS happened.  The CAS
 * happened if the word still names (worker, seq).  If the word does not, another worker may have
 * overwritten the name; but before a worker overwrites a name, it records the seq in acked[of the
 * named worker].  So the CAS happened if and only if the word names the operation, or acked equals
 * its seq.
 *
 * A seq has 24 bits and is compared within half of them, so names must not grow old: every
 * SCRUB_EVERY operations a worker removes its name from every word.  Between operations the name is
 * not needed.
 */
#include "shm/load.h"

#include <assert.h>

#include "shm/core/atomic.h"
#include "shm/core/suspect.h"
#include "shm/blame.h"
#include "shm/busy.h"
#include "shm/eject.h"
#include "shm/sibling_load.h"
#include "shm/latency.h"
#include "shm/load_word.h"
#include "shm/own.h"
#include "shm/pace.h"
#include "shm/prefix.h"
#include "shm/quota_word.h"
#include "shm/refusal.h"
#include "shm/restart.h"
#include "shm/tally.h"

/* Raises acked of the named worker to the named seq, never lowers it.  acked_wrong() reads it
 * meanwhile. */
static void
name_record(struct seg *seg, uint64_t name)
{
	uint64_t *acked, seen, old;

	if (name == 0 || suspect(SUSPECT_LOADS, name_worker(name),
				 name_worker(name) - 1 >= SLOT_WORKERS(seg)))
		return;
	acked = &seg->procs[name_worker(name) - 1].acked;
	seen = shm_load(acked);
	do {
		const uint64_t ahead = (name - seen) & SEQ_MASK;

		if (ahead == 0 || ahead >= SEQ_HALF)
			return;
		old = seen;
		seen = shm_cas(acked, old, name & SEQ_MASK);
	} while (seen != old);
}

static bool
refused(uint32_t count, int64_t delta, uint32_t min, uint32_t max)
{
	return delta > 0 && (count < min || count + delta > (int64_t)max);
}

/* The upper half of a word that counts `seen` so far.  More is never given back than was counted. */
static uint32_t
sum_of(uint32_t seen, int64_t delta, enum which which)
{
	const uint32_t counted = which == QUOTA ? seen & QUOTA_HELD_MAX : seen;

	if (suspect(SUSPECT_LOADS, which, counted + delta < 0))
		delta = -(int64_t)counted;
	return (uint32_t)(seen + delta);
}

/*
 * count += delta, signed `name`; false and unchanged if the count is below `min` or would exceed
 * `max`.  Besides word_swap() the only place that overwrites a name which still matters.
 * sum_differs() and name_wrong() read it meanwhile.  Its CAS is a full barrier: load_count() relies
 * on the order of one worker's words, load_kv_sum() on a row that was written before.
 */
static bool
word_add(struct seg *seg, uint64_t *word, enum which which, int64_t delta, uint32_t min,
	uint32_t max, uint64_t name)
{
	uint64_t seen = shm_load(word), old;

	do {
		if (refused(word_count(seen), delta, min, max))
			return false;
		/*
		 * Recorded before it is overwritten: the next CAS is a full barrier, so a process
		 * that no longer sees the name sees acked.  Pairs with op_happened()'s acquire
		 * load.
		 */
		name_record(seg, word_name(seen));
		old = seen;
		seen = shm_cas(word, old, word_make(sum_of(word_count(old), delta, which), name));
	} while (seen != old);
	return true;
}

bool
word_swap(struct seg *seg, uint64_t *word, uint64_t old, uint64_t to)
{
	name_record(seg, word_name(old)); /* as in word_add() */
	return shm_cas(word, old, to) == old;
}

static void
name_scrub(uint64_t *word, uint32_t me)
{
	uint64_t seen = shm_load(word), old;

	while (name_worker(word_name(seen)) == (uint64_t)me + 1) {
		old = seen;
		seen = shm_cas(word, old, word_make(word_count(old), 0));
		if (seen == old)
			break;
	}
}

/* Removes our name from every word.  Our journal is clear, so no process needs the names. */
static void
names_scrub(struct seg *seg, uint32_t me, uint64_t seq)
{
	for (uint32_t ep = 0; ep < seg->hdr->max_endpoints; ep++) {
		name_scrub(word_of(seg, ep, REQUESTS), me);
		name_scrub(word_of(seg, ep, TOKENS), me);
	}
	for (uint32_t i = 0; i < seg->hdr->max_quotas; i++)
		name_scrub(word_of(seg, i, QUOTA), me);
	/* acked must not fall behind by half the range either; all operations up to seq are
	 * settled */
	name_record(seg, name_make(me, seq));
}

/* One operation: journal, word, row, journal.  load_reap() knows each point between them, and so
 * do share_counted(), part_exceeds() and journal_wrong() of check.c, which read them meanwhile. */
bool
word_operate(struct seg *seg, uint32_t me, uint32_t ep, enum which which, int64_t delta,
	uint32_t min, uint32_t max)
{
	struct proc_slot *self = &seg->procs[me];
	uint32_t *known = own_share(seg, me, ep, which);
	const uint64_t seq = (seg->own != NULL ? seg->own->seq : shm_load(&self->seq)) + 1;
	const uint32_t before = *known;
	bool done;

	if (seq % SCRUB_EVERY == 0)
		names_scrub(seg, me, seq - 1);
	shm_store(&self->seq, seq);
	if (seg->own != NULL)
		seg->own->seq = seq;
	shm_store(&self->change, (uint64_t)before << 32 | (uint32_t)delta);
	/*
	 * The change before the journal that validates it, the journal before the word: its CAS in
	 * word_add() is a full barrier.  Pairs with journal_repair(): every operation on a word is
	 * journalled or in the row.
	 */
	shm_store_release(&self->journal, journal_make(which, ep, seq));
	done = word_add(seg, word_of(seg, ep, which), which, delta, min, max, name_make(me, seq));
	if (done) {
		shm_store(share_of(seg, me, ep, which), (uint32_t)(before + delta));
		*known = (uint32_t)(before + delta);
	}
	/* The row before the end of the journal.  Pairs with journal_repair()'s acquire load. */
	shm_store_release(&self->journal, 0);
	return done;
}

bool
load_reserve(struct seg *seg, uint32_t me, uint32_t ep, uint32_t max_inflight)
{
	return word_operate(
		seg, me, ep, REQUESTS, 1, 0, max_inflight == 0 ? UINT32_MAX : max_inflight);
}

void
load_release(struct seg *seg, uint32_t me, uint32_t ep)
{
	assert(own_row(seg, me, ep)->held > 0);
	(void)word_operate(seg, me, ep, REQUESTS, -1, 0, 0);
}

uint32_t
load_tokens_add(struct seg *seg, uint32_t me, uint32_t ep, uint32_t tokens)
{
	return tokens > 0 && word_operate(seg, me, ep, TOKENS, tokens, 0, UINT32_MAX) ? tokens : 0;
}

void
load_tokens_sub(struct seg *seg, uint32_t me, uint32_t ep, uint32_t tokens)
{
	assert(own_row(seg, me, ep)->tokens >= tokens);
	if (tokens > 0)
		(void)word_operate(seg, me, ep, TOKENS, -(int64_t)tokens, 0, 0);
}

void
load_sent(struct seg *seg, uint32_t me, uint32_t ep, int delta)
{
	struct row *row = own_row(seg, me, ep);

	assert(delta >= 0 || row->sent >= (uint32_t)-delta);
	row->sent += (uint32_t)delta;
	shm_store(&seg_row(seg, me, ep)->sent, row->sent);
}

void
load_kv(struct seg *seg, uint32_t me, uint32_t ep, int delta)
{
	struct row *row = own_row(seg, me, ep);

	assert(delta >= 0 || row->kv >= (uint32_t)-delta);
	row->kv += (uint32_t)delta;
	shm_store(&seg_row(seg, me, ep)->kv, row->kv);
}

/* Whether the dead worker's CAS took place. */
static bool
op_happened(const struct seg *seg, const uint64_t *at, uint64_t name)
{
	/* The word first: if its name is gone, acked shows it.  Pairs with word_add(). */
	const uint64_t word = shm_load_acquire(at);

	if (word_name(word) == name)
		return true;
	return shm_load(&seg->procs[name_worker(name) - 1].acked) == (name & SEQ_MASK);
}

/* Brings the row of the open operation, if there is one, in line with the word. */
static void
journal_repair(struct seg *seg, uint32_t dead)
{
	struct proc_slot *p = &seg->procs[dead];
	/* Pairs with word_operate()'s release: a clear journal means that the row is up to date. */
	const uint64_t journal = shm_load_acquire(&p->journal);
	const enum which which = journal_which(journal);
	const uint32_t ep = journal_ep(journal);
	const uint64_t change = shm_load(&p->change);
	uint32_t share = (uint32_t)(change >> 32);

	if (journal == 0)
		return;
	if (suspect(SUSPECT_JOURNALS, dead, !journal_possible(seg, journal))) {
		shm_store(&p->journal, 0);
		return;
	}
	if (op_happened(seg, word_of(seg, ep, which), name_make(dead, journal & SEQ_MASK)))
		share += (uint32_t)change; /* signed, modulo 2^32 */
	shm_store(share_of(seg, dead, ep, which), share);
	shm_store(&p->journal, 0);
}

static void
quotas_reap(struct seg *seg, uint32_t dead)
{
	for (uint32_t i = 0; i < seg->hdr->max_quotas; i++) {
		uint32_t *share = share_of(seg, dead, i, QUOTA);

		if (*share > 0)
			(void)word_add(
				seg, word_of(seg, i, QUOTA), QUOTA, -(int64_t)*share, 0, 0, 0);
		*share = 0;
	}
}

uint32_t
load_reap(struct seg *seg, uint32_t dead)
{
	uint32_t given_back = 0;

	journal_repair(seg, dead);
	quotas_reap(seg, dead);
	for (uint32_t ep = 0; ep < seg->hdr->max_endpoints; ep++) {
		struct row *row = seg_row(seg, dead, ep);

		/* tokens first: at count 0 the slot may be reused */
		if (row->tokens > 0)
			(void)word_add(seg, word_of(seg, ep, TOKENS), TOKENS, -(int64_t)row->tokens,
				0, 0, 0);
		if (row->held > 0)
			(void)word_add(seg, word_of(seg, ep, REQUESTS), REQUESTS,
				-(int64_t)row->held, 0, 0, 0);
		given_back += row->held;
		*row = (struct row){0};
	}
	return given_back;
}

uint32_t
load_count(const struct seg *seg, uint32_t ep)
{
	/* The count before the tokens: a reader that sees count 0 sees tokens 0, since tokens
	 * are given back first.  ep_slot_begin() relies on it.  Pairs with word_add(). */
	return word_count(shm_load_acquire(&seg->eps[ep].count));
}

uint32_t
load_tokens(const struct seg *seg, uint32_t ep)
{
	return word_count(shm_load(&seg->eps[ep].tokens));
}

void
load_foreign_set(struct seg *seg, uint32_t ep, uint32_t foreign, uint64_t now_ms)
{
	const uint64_t n = foreign < EP_FOREIGN_MAX ? foreign : EP_FOREIGN_MAX;

	shm_store(&seg->ep_records[ep].foreign, n << EP_MS_BITS | (now_ms & BITS(EP_MS_BITS)));
}

uint32_t
load_foreign(const struct seg *seg, uint32_t ep, uint64_t now_ms, uint64_t max_age_ms)
{
	return ep_word_foreign(shm_load(&seg->ep_records[ep].foreign), now_ms, max_age_ms);
}

uint64_t
load_score(const struct seg *seg, uint32_t ep, uint64_t now_ms, uint64_t max_age_ms)
{
	return (uint64_t)load_count(seg, ep) + load_foreign(seg, ep, now_ms, max_age_ms) +
	       sibling_load_get(seg, ep, now_ms).requests;
}

uint32_t
load_sent_sum(const struct seg *seg, uint32_t ep)
{
	uint32_t sum = 0;

	for (uint32_t w = 0; w < SLOT_WORKERS(seg); w++)
		sum += shm_load(&seg_row(seg, w, ep)->sent);
	return sum;
}

uint32_t
load_kv_sum(const struct seg *seg, uint32_t ep)
{
	uint32_t sum = 0;

	/* The rows after the count.  Pairs with word_add()'s CAS, which load_release() executes
	 * after load_kv(). */
	for (uint32_t w = 0; w < SLOT_WORKERS(seg); w++)
		sum += shm_load(&seg_row(seg, w, ep)->kv);
	return sum;
}

void
ep_state_set(struct seg *seg, uint32_t ep, enum ep_state st)
{
	shm_store(&seg->ep_records[ep].state, (uint64_t)st);
}

void
ep_state_drain(struct seg *seg, uint32_t ep)
{
	shm_store(&seg->ep_records[ep].state, (uint64_t)EP_DRAINING);
	/*
	 * The state before we read the count: a worker reserves and then reads the state, so at
	 * least one of the two sees the other's write.  Pairs with reserve().
	 */
	shm_mb();
}

void
ep_state_recovered(struct seg *seg, uint32_t ep, uint64_t now_ms)
{
	shm_store(&seg->ep_records[ep].state, now_ms << EP_STATE_BITS | EP_UP);
}

enum ep_state
ep_state_get(const struct seg *seg, uint32_t ep)
{
	return ep_word_state(shm_load(&seg->ep_records[ep].state));
}

uint64_t
ep_ramp_from(const struct seg *seg, uint32_t ep)
{
	return ep_word_ramp(shm_load(&seg->ep_records[ep].state));
}

const char *
ep_state_name(enum ep_state st)
{
	static const char *const names[EP_STATE_N] = {
		[EP_EMPTY] = "empty",
		[EP_STARTING] = "starting",
		[EP_UP] = "up",
		[EP_DOWN] = "down",
		[EP_DRAINING] = "draining",
		[EP_MISCONFIGURED] = "misconfigured",
	};

	assert(st < EP_STATE_N);
	return names[st];
}

uint64_t
ep_tag(const struct seg *seg, uint32_t ep)
{
	return shm_load(&seg->ep_records[ep].tag);
}

static void
word_clear(struct seg *seg, uint64_t *word)
{
	uint64_t seen = shm_load(word);

	/* The name stays: it may still be needed. */
	while (word_count(seen) != 0 && !word_swap(seg, word, seen, word_name(seen)))
		seen = shm_load(word);
}

static void
load_clear(struct seg *seg, uint32_t ep)
{
	for (uint32_t w = 0; w < SLOT_WORKERS(seg); w++)
		*seg_row(seg, w, ep) = (struct row){0};
	word_clear(seg, word_of(seg, ep, TOKENS));
	word_clear(seg, word_of(seg, ep, REQUESTS));
}

void
ep_slot_begin(struct seg *seg, uint32_t ep)
{
	struct ep_record *e = &seg->ep_records[ep];

	/* Nothing was counted when its former life ended: slots_reap(). */
	if (suspect(SUSPECT_LOADS, ep,
		    load_count(seg, ep) != 0 || load_tokens(seg, ep) != 0 ||
			    load_kv_sum(seg, ep) != 0))
		load_clear(seg, ep);
	shm_store(&e->foreign, 0);
	eject_begin(seg, ep);
	busy_begin(seg, ep);
	tally_begin(seg, ep);
	latency_begin(seg, ep);
	refusal_begin(seg, ep);
	blame_begin(seg, ep);
	restart_begin(seg, ep);
	pace_begin(seg, ep);
	prefix_begin(seg, ep);
	ep_scrape_set(seg, ep, &(struct ep_scrape){0});
	shm_store(&e->tag, e->tag + 1);
	shm_store(&e->state, (uint64_t)EP_STARTING);
}

#define ABSURD (UINT64_C(1) << 32) /* of ep_word.kv_usage */

void
ep_scrape_set(struct seg *seg, uint32_t ep, const struct ep_scrape *s)
{
	struct ep_record *e = &seg->ep_records[ep];
	struct ep_tokens *tokens = &seg->ep_tokens[ep];

	shm_store(&e->scraped, (uint64_t)s->running << 32 | s->waiting);
	shm_store(&e->kv_usage, (s->absurd ? ABSURD : 0) | s->kv_usage_ppm);
	shm_store(&tokens->prompt, s->has_tokens ? s->prompt_tokens + 1 : 0);
	shm_store(&tokens->generated, s->has_tokens ? s->generated_tokens + 1 : 0);
	shm_store(&e->scraped_ms, s->at_ms);
}

struct ep_scrape
ep_scrape_get(const struct seg *seg, uint32_t ep)
{
	const struct ep_record *e = &seg->ep_records[ep];
	const uint64_t scraped = shm_load(&e->scraped), usage = shm_load(&e->kv_usage);
	const uint64_t prompt = shm_load(&seg->ep_tokens[ep].prompt),
		       generated = shm_load(&seg->ep_tokens[ep].generated);
	const bool has_tokens = prompt > 0 && generated > 0;

	return (struct ep_scrape){
		.running = (uint32_t)(scraped >> 32),
		.waiting = (uint32_t)scraped,
		.kv_usage_ppm = (uint32_t)usage,
		.absurd = (usage & ABSURD) != 0,
		.has_tokens = has_tokens,
		.prompt_tokens = has_tokens ? prompt - 1 : 0,
		.generated_tokens = has_tokens ? generated - 1 : 0,
		.at_ms = shm_load(&e->scraped_ms),
	};
}
