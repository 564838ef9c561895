/*
 * Reservations: one word per endpoint that all workers CAS, and enough written down beside it that
 * the master can give back exactly what a killed worker held.
 *
 *	word     count:32 | last worker+1:8 | seq:24		of the endpoint
 *	journal  op:2 | endpoint:16 | seq:24 | row before:22	of the worker; 0 = no operation open
 *
 * The only question after a SIGKILL is whether the open operation's CAS happened.  It did if the
 * word still names (worker, seq).  If not, somebody may have overwritten that name; but whoever
 * overwrites a name first records its seq in acked[of that worker].  So it happened if and only if
 * the word names it or acked equals its seq.
 *
 * A seq has 24 bits and is compared within half of them, so names must not grow old: every
 * SCRUB_EVERY operations a worker takes its name off every word.  Between operations nobody needs
 * it.
 */
#include "shm/load.h"

#include <assert.h>

#include "shm/atomic.h"

#define BITS(n) ((UINT64_C(1) << (n)) - 1)

#define SEQ_BITS 24
#define SEQ_MASK BITS(SEQ_BITS)
#define SEQ_HALF (UINT64_C(1) << (SEQ_BITS - 1))
#define SCRUB_EVERY (UINT64_C(1) << 20) /* an eighth of SEQ_HALF */

#define ROW_BITS 22 /* reservations of one worker at one endpoint: above any max_connections */
#define ROW_MASK BITS(ROW_BITS)

enum op { OP_NONE, OP_RESERVE, OP_RELEASE };

static uint64_t
word_make(uint32_t count, uint64_t name)
{
	return (uint64_t)count << 32 | name;
}

static uint32_t
word_count(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

/* Who changed the word last, and by which of its operations; 0: nobody that anyone asks about. */
static uint64_t
name_make(uint32_t worker, uint64_t seq)
{
	return ((uint64_t)worker + 1) << SEQ_BITS | (seq & SEQ_MASK);
}

static uint64_t
word_name(uint64_t word)
{
	return word & BITS(32);
}

static uint64_t
name_worker(uint64_t name) /* + 1 */
{
	return name >> SEQ_BITS;
}

static uint64_t
journal_make(enum op op, uint32_t ep, uint64_t seq, uint32_t held)
{
	return (uint64_t)op << 62 | (uint64_t)ep << (SEQ_BITS + ROW_BITS) |
	       (seq & SEQ_MASK) << ROW_BITS | held;
}

/* Raises acked of the named worker to the named seq, never lowers it. */
static void
name_record(struct seg *seg, uint64_t name)
{
	uint64_t *acked, seen, old;

	if (name == 0)
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

/* count += delta, signed `name`; false and unchanged if that would go above `max`.  The one place
 * where a name is overwritten that somebody may ask about. */
static bool
word_add(struct seg *seg, uint32_t ep, int32_t delta, uint32_t max, uint64_t name)
{
	uint64_t *word = &seg->eps[ep].count;
	uint64_t seen = shm_load(word), old;

	do {
		if (delta > 0 && word_count(seen) >= max)
			return false;
		assert(delta > 0 || word_count(seen) >= (uint32_t)-delta);
		/*
		 * Recorded before it is overwritten: the next CAS is a full barrier, so who no
		 * longer sees the name sees acked.  Pairs with op_happened()'s acquire load.
		 */
		name_record(seg, word_name(seen));
		old = seen;
		seen = shm_cas(word, old, word_make(word_count(old) + (uint32_t)delta, name));
	} while (seen != old);
	return true;
}

/* Takes our name off every word.  Our journal is clear, so nobody can ask what it stood for. */
static void
names_scrub(struct seg *seg, uint32_t me, uint64_t seq)
{
	for (uint32_t ep = 0; ep < seg->hdr->max_endpoints; ep++) {
		uint64_t *word = &seg->eps[ep].count;
		uint64_t seen = shm_load(word), old;

		while (name_worker(word_name(seen)) == (uint64_t)me + 1) {
			old = seen;
			seen = shm_cas(word, old, word_make(word_count(old), 0));
			if (seen == old)
				break;
		}
	}
	/* acked must not fall behind by half the range either; all up to seq is settled */
	name_record(seg, name_make(me, seq));
}

/* One operation: journal, word, row, journal.  load_reap() knows each point between them. */
static bool
operate(struct seg *seg, uint32_t me, uint32_t ep, enum op op, uint32_t max)
{
	struct proc_slot *self = &seg->procs[me];
	struct row *row = seg_row(seg, me, ep);
	const uint64_t seq = shm_load(&self->seq) + 1;
	const uint32_t held = shm_load(&row->held);
	const int32_t delta = op == OP_RESERVE ? 1 : -1;
	bool done;

	assert(self->journal == OP_NONE);
	if (seq % SCRUB_EVERY == 0)
		names_scrub(seg, me, seq - 1);
	shm_store(&self->seq, seq);
	/*
	 * The journal before the word: its CAS in word_add() is a full barrier.  Pairs with
	 * journal_repair(): every operation on a word is journalled or in the row.
	 */
	shm_store(&self->journal, journal_make(op, ep, seq, held));
	done = word_add(seg, ep, delta, max, name_make(me, seq));
	if (done)
		shm_store(&row->held, held + (uint32_t)delta);
	/* The row before the end of the journal.  Pairs with journal_repair()'s acquire load. */
	shm_store_release(&self->journal, OP_NONE);
	return done;
}

bool
load_reserve(struct seg *seg, uint32_t me, uint32_t ep, uint32_t max_inflight)
{
	assert(seg_row(seg, me, ep)->held < ROW_MASK);
	return operate(seg, me, ep, OP_RESERVE, max_inflight == 0 ? UINT32_MAX : max_inflight);
}

void
load_release(struct seg *seg, uint32_t me, uint32_t ep)
{
	assert(seg_row(seg, me, ep)->held > 0);
	(void)operate(seg, me, ep, OP_RELEASE, 0);
}

void
load_sent(struct seg *seg, uint32_t me, uint32_t ep, int delta)
{
	struct row *row = seg_row(seg, me, ep);

	assert(delta >= 0 || row->sent >= (uint32_t)-delta);
	shm_store(&row->sent, row->sent + (uint32_t)delta);
}

/* Whether the dead worker's CAS took place. */
static bool
op_happened(const struct seg *seg, uint32_t ep, uint64_t name)
{
	/* The word first: if its name is gone, acked shows it.  Pairs with word_add(). */
	const uint64_t word = shm_load_acquire(&seg->eps[ep].count);

	if (word_name(word) == name)
		return true;
	return shm_load(&seg->procs[name_worker(name) - 1].acked) == (name & SEQ_MASK);
}

/* Brings the row of the open operation, if there is one, to what the word says. */
static void
journal_repair(struct seg *seg, uint32_t dead)
{
	/* Pairs with operate()'s release: a clear journal means that the row is up to date. */
	const uint64_t journal = shm_load_acquire(&seg->procs[dead].journal);
	const uint32_t ep = (uint32_t)(journal >> (SEQ_BITS + ROW_BITS) & BITS(16));
	const uint64_t seq = journal >> ROW_BITS & SEQ_MASK;
	uint32_t held = (uint32_t)(journal & ROW_MASK);

	if (journal == OP_NONE)
		return;
	if (op_happened(seg, ep, name_make(dead, seq)))
		held = journal >> 62 == OP_RESERVE ? held + 1 : held - 1;
	shm_store(&seg_row(seg, dead, ep)->held, held);
	shm_store(&seg->procs[dead].journal, OP_NONE);
}

uint32_t
load_reap(struct seg *seg, uint32_t dead)
{
	uint32_t given_back = 0;

	journal_repair(seg, dead);
	for (uint32_t ep = 0; ep < seg->hdr->max_endpoints; ep++) {
		struct row *row = seg_row(seg, dead, ep);

		if (row->held > 0)
			(void)word_add(seg, ep, -(int32_t)row->held, 0, 0);
		given_back += row->held;
		*row = (struct row){0};
	}
	return given_back;
}

uint32_t
load_count(const struct seg *seg, uint32_t ep)
{
	return word_count(shm_load(&seg->eps[ep].count));
}

/* The foreign word: requests:24 | milliseconds:40 (34 years of uptime). */
#define FOREIGN_MS_BITS 40
#define FOREIGN_MS_MASK BITS(FOREIGN_MS_BITS)
#define FOREIGN_MAX ((uint32_t)BITS(24))

void
load_foreign_set(struct seg *seg, uint32_t ep, uint32_t foreign, uint64_t now_ms)
{
	const uint64_t n = foreign < FOREIGN_MAX ? foreign : FOREIGN_MAX;

	shm_store(&seg->eps[ep].foreign, n << FOREIGN_MS_BITS | (now_ms & FOREIGN_MS_MASK));
}

uint64_t
load_score(const struct seg *seg, uint32_t ep, uint64_t now_ms, uint64_t max_age_ms)
{
	const uint64_t foreign = shm_load(&seg->eps[ep].foreign);
	const uint64_t age = (now_ms - foreign) & FOREIGN_MS_MASK;
	/* The caller's clock is of its loop turn: a stamp ahead of it is fresh too. */
	const bool fresh = age <= max_age_ms || age > FOREIGN_MS_MASK / 2;

	return load_count(seg, ep) + (fresh ? foreign >> FOREIGN_MS_BITS : 0);
}

uint32_t
load_sent_sum(const struct seg *seg, uint32_t ep)
{
	uint32_t sum = 0;

	for (uint32_t w = 0; w < SLOT_WORKERS(seg); w++)
		sum += shm_load(&seg_row(seg, w, ep)->sent);
	return sum;
}

void
ep_state_set(struct seg *seg, uint32_t ep, enum ep_state st)
{
	shm_store(&seg->eps[ep].state, (uint64_t)st);
}

enum ep_state
ep_state_get(const struct seg *seg, uint32_t ep)
{
	return (enum ep_state)shm_load(&seg->eps[ep].state);
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
	};

	assert(st < EP_STATE_N);
	return names[st];
}

uint64_t
ep_tag(const struct seg *seg, uint32_t ep)
{
	return shm_load(&seg->eps[ep].tag);
}

void
ep_slot_begin(struct seg *seg, uint32_t ep)
{
	struct ep_word *e = &seg->eps[ep];

	/* The count's word stays as it is: the names in it may still be asked about. */
	assert(load_count(seg, ep) == 0);
	shm_store(&e->foreign, 0);
	ep_scrape_set(seg, ep, &(struct ep_scrape){0});
	shm_store(&e->tag, e->tag + 1);
	shm_store(&e->state, (uint64_t)EP_STARTING);
}

void
ep_scrape_set(struct seg *seg, uint32_t ep, const struct ep_scrape *s)
{
	struct ep_word *e = &seg->eps[ep];

	shm_store(&e->scraped, (uint64_t)s->running << 32 | s->waiting);
	shm_store(&e->kv_usage_ppm, (uint64_t)s->kv_usage_ppm);
	shm_store(&e->scraped_ms, s->at_ms);
}

struct ep_scrape
ep_scrape_get(const struct seg *seg, uint32_t ep)
{
	const struct ep_word *e = &seg->eps[ep];
	const uint64_t scraped = shm_load(&e->scraped);

	return (struct ep_scrape){
		.running = (uint32_t)(scraped >> 32),
		.waiting = (uint32_t)scraped,
		.kv_usage_ppm = (uint32_t)shm_load(&e->kv_usage_ppm),
		.at_ms = shm_load(&e->scraped_ms),
	};
}
