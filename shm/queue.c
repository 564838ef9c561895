/*
 * The queue.  An entry's word is ticket:40 | worker+1:8 | roles:8 | state:8; 0 is free.
 *
 *	FREE --enqueue--> TAKEN --mark--> WAITING --wake (any process)--> WOKEN
 *	  ^                 |                ^ `------- leave --------'|
 *	  `---- unmark -----'                `-------- rearm ----------'
 *
 * Only an entry's worker changes the word from and to TAKEN.  Any process may change WAITING into WOKEN, by
 * CAS: a ticket is never given twice, so a CAS with an old word fails.  The fields beside the word are written
 * while the word is not WAITING, except for `lacks`.  A mark says that an entry may be in use.  It is set before
 * WAITING and cleared in TAKEN, so every waiter is marked.
 *
 * Why no wake-up is lost.  A waiter that is not woken has no free slot, and is woken when there is one:
 *   - A waiter arms its entry (full barrier), then tries.  A process that frees a slot does so by a CAS (full
 *     barrier), then reads the entries.  One of the two sees the other's write: Dekker's argument.
 *   - A state word is a plain store: queue_wake_after_change() has the barrier between the store and the scan.
 *   - After a try `lacks` is narrowed to the roles that the try found full.  Until one of them has a free slot
 *     another try would fail too, and a process that frees a slot of that role does scan.
 *   - A request that enqueues behind a waiter of its own key, or behind a woken one, does not try: it must not
 *     overtake.  It is untried and relies on that other waiter, which leaves (full barrier) and then wakes the
 *     next.  Either that wake-up finds it, or it does not find the other waiter any more and tries itself.
 *     One order decides who is behind whom: ahead() and matches() compare the same three words.  A request
 *     that will go before a woken waiter tries itself, because that waiter passes a spurious wake-up on to waiters
 *     behind it only.
 *   - A waiter that gives up moves the waiters of its model behind it towards the front, never back.  One that was
 *     behind another may so have come before it, and would miss what the other passes on.  Therefore the waiter
 *     that gives up wakes the first waiter afterwards (full barrier in between): that wake-up is passed on in the
 *     new order.
 *   - A waiter that leaves, served or not, wakes the first of its own key, or an untried one.  It also passes on
 *     its own wake-up, for the roles that it did not take or that have a slot left.
 *   - Waiters of a key behind its first miss the free slots of roles that the first does not lack.  It leaves
 *     with a wake-up for these roles too: the wake-up may meet an untried waiter of another key before them,
 *     and that waiter passes on no more than the roles that it gets.
 *   - Of each key one waiter is woken at a time.  A second wake-up adds its roles to those of the woken waiter,
 *     before it rearms and tries; or finds it rearmed.
 *   - A woken waiter whose try fails passes its wake-up on to the first waiter of the next key behind it.
 *     Waiters with the same key would fail too, so they are skipped.
 *   - A worker that dies may owe a wake-up, or have woken a waiter and not written the eventfd.  After reaping
 *     it the master writes the eventfds of all workers with woken waiters, and wakes the first of each pool.
 *     A stopped worker delays one wake-up: so the master does the same once a second.
 */
#include "shm/queue.h"

#include <assert.h>

#include "shm/base/clock.h"
#include "shm/core/suspect.h"
#include "shm/fair.h"

enum queue_state { QUEUE_S_FREE, QUEUE_S_TAKEN, QUEUE_S_WAITING, QUEUE_S_WOKEN };

/* Keys distinguished in one scan of a queue; of further keys the first match is woken. */
#define KEYS 16
#define TICKET_MASK ((UINT64_C(1) << 40) - 1)
/* The waiters of a model may finish so many tokens later than they have: turns of a dead worker's waiters stay free. */
#define GAPS (UINT64_C(1) << 24)

static uint64_t
word_make(uint64_t ticket, uint32_t worker, uint32_t roles, enum queue_state state)
{
	return ticket << 24 | (uint64_t)(worker + 1) << 16 | (uint64_t)roles << 8 | state;
}

/* As many as there can be. */
static uint32_t
high_of(const struct seg *seg, uint32_t pool)
{
	const uint64_t high = shm_load(&seg_queue(seg, pool)->high);

	return high < seg->hdr->queue_slots ? (uint32_t)high : seg->hdr->queue_slots;
}

static enum queue_state
word_state(uint64_t word)
{
	return (enum queue_state)(word & 0xff);
}

static uint32_t
word_roles(uint64_t word)
{
	return (uint32_t)(word >> 8 & 0xff);
}

static uint32_t
word_worker(uint64_t word) /* + 1 */
{
	return (uint32_t)(word >> 16 & 0xff);
}

static uint64_t
word_ticket(uint64_t word)
{
	return word >> 24;
}

static void
mark_clear(uint64_t *mark, uint64_t bit)
{
	uint64_t seen = shm_load(mark), old;

	do {
		old = seen;
		seen = shm_cas(mark, old, old & ~bit);
	} while (seen != old);
}

/* --- looking ------------------------------------------------------------------------------------- */

/* A waiter, woken or not, as it was at one moment. */
struct seen {
	uint64_t word, key, since_ms, tokens;
	struct queue_order order;
	uint32_t lacks, slot;
};

static bool
is_before(const struct queue_order *a, const struct queue_order *b)
{
	if (a->priority != b->priority)
		return a->priority < b->priority;
	return a->start < b->start || (a->start == b->start && a->ticket < b->ticket);
}

/* No process of queue.c has written the word of this waiter. */
static bool
is_nobodys(const struct seg *seg, uint32_t slot, uint64_t word)
{
	return suspect(SUSPECT_QUEUES, slot,
		word_state(word) > QUEUE_S_WOKEN || word_worker(word) - 1 >= SLOT_WORKERS(seg));
}

/* False: the entry has no waiter.  All fields are of one waiter at one moment. */
static bool
see(const struct seg *seg, uint32_t pool, uint32_t slot, struct seen *ret)
{
	const struct queue_slot *s = seg_queue_slot(seg, pool, slot);

	ret->slot = slot;
	do {
		/* The word, the fields, the word, in this order.  Pairs with queue_rearm(). */
		ret->word = shm_load_acquire(&s->word);
		if (word_state(ret->word) < QUEUE_S_WAITING || is_nobodys(seg, slot, ret->word))
			return false;
		ret->key = shm_load_acquire(&s->key);
		ret->since_ms = shm_load_acquire(&s->since_ms);
		ret->tokens = shm_load_acquire(&s->tokens);
		ret->order.priority = shm_load_acquire(&s->priority);
		ret->order.start = shm_load_acquire(&s->start);
		ret->lacks = shm_load_acquire(&s->lacks);
	} while (shm_load(&s->word) != ret->word);
	ret->order.ticket = word_ticket(ret->word);
	return true;
}

/* The next waiter from *at on. */
static bool
see_next(const struct seg *seg, uint32_t pool, uint32_t *at, struct seen *ret)
{
	const uint32_t high = high_of(seg, pool);
	const uint64_t *marks = seg_queue_marks(seg, pool);

	while (*at < high) {
		const uint64_t left = shm_load(&marks[*at / 64]) >> *at % 64;

		if (left == 0) {
			*at = (*at / 64 + 1) * 64;
			continue;
		}
		*at += (uint32_t)__builtin_ctzll(left);
		if (*at >= high) /* the marks of the last word go on */
			return false;
		if (see(seg, pool, (*at)++, ret))
			return true;
	}
	return false;
}

/* A waiter before `order` can be served by the same endpoints, or was woken and is about to try. */
static bool
ahead(const struct seg *seg, uint32_t pool, uint64_t key, const struct queue_order *order)
{
	struct seen s;

	for (uint32_t at = 0; see_next(seg, pool, &at, &s);)
		if (is_before(&s.order, order) &&
			(s.key == key || word_state(s.word) == QUEUE_S_WOKEN))
			return true;
	return false;
}

bool
queue_ahead(const struct seg *seg, uint32_t pool, const struct queue_request *request)
{
	/* It has no turn yet, so it goes after all: a request that overtakes would not be charged for that. */
	const struct queue_order last = {
		.priority = request->priority, .start = UINT64_MAX, .ticket = UINT64_MAX};

	return queue_any(seg, pool) && ahead(seg, pool, request->key, &last);
}

uint32_t
queue_waiting(const struct seg *seg, uint32_t pool, uint64_t *ret_since_ms)
{
	uint32_t n = 0;
	struct seen s;

	*ret_since_ms = 0;
	for (uint32_t at = 0; see_next(seg, pool, &at, &s); n++)
		if (*ret_since_ms == 0 || s.since_ms < *ret_since_ms)
			*ret_since_ms = s.since_ms;
	return n;
}

/* What a new waiter meets. */
struct backlog {
	uint32_t all, own; /* waiters, and those of its model */
	uint64_t finish;   /* the last finish of its model's waiters that go before it; 0: none */
};

static struct backlog
look_at_backlog(const struct seg *seg, uint32_t pool, uint64_t key, int32_t priority)
{
	struct backlog b = {0};
	uint64_t tokens = 0, most;
	struct seen s;

	for (uint32_t at = 0; see_next(seg, pool, &at, &s); b.all++) {
		if (queue_model(s.key) != queue_model(key))
			continue;
		b.own++;
		if (s.order.priority > priority)
			continue;
		tokens += (uint32_t)s.tokens;
		if (s.order.start + s.tokens > b.finish)
			b.finish = s.order.start + s.tokens;
	}
	/* A finish that no turn reaches is that of a wrong word: the new waiter does not queue behind it. */
	most = fair_start(seg_queue(seg, pool), queue_model(key), 0) + tokens;
	if (b.finish > most + GAPS)
		b.finish = most;
	return b;
}

/* The entry is still the waiter's. */
static bool
is_of(uint64_t word, const struct queue_ref *ref)
{
	return word_ticket(word) == ref->order.ticket && word_worker(word) == ref->worker + 1 &&
	       word_state(word) != QUEUE_S_FREE;
}

static bool
has_entry(const struct seg *seg, const struct queue_ref *ref)
{
	return ref->slot != QUEUE_LOST &&
	       is_of(shm_load(&seg_queue_slot(seg, ref->pool, ref->slot)->word), ref);
}

/* Where the waiter stands by now.  Without an entry: where it stood, unless all times have begun anew since. */
static struct queue_order
present_order(const struct seg *seg, const struct queue_ref *ref)
{
	struct queue_order order = ref->order;
	struct backlog b;
	uint64_t last;

	if (has_entry(seg, ref)) {
		order.start = shm_load(&seg_queue_slot(seg, ref->pool, ref->slot)->start);
		return order;
	}
	b = look_at_backlog(seg, ref->pool, ref->key, order.priority);
	last = fair_start(seg_queue(seg, ref->pool), queue_model(ref->key), b.finish);
	if (order.start > last)
		order.start = last;
	return order;
}

/* --- enqueueing and leaving ------------------------------------------------------------------------ */

static uint64_t
next_ticket(struct queue_head *q)
{
	uint64_t seen = shm_load(&q->ticket), old;

	do {
		old = seen;
		seen = shm_cas(&q->ticket, old, old + 1);
	} while (seen != old);
	return (old + 1) & TICKET_MASK;
}

/* The first free entry from `at` on; `size` if there is none.  Marks of entries that were never used mean nothing. */
static uint32_t
find_free(const struct seg *seg, uint32_t pool, uint32_t at, uint32_t size)
{
	const uint64_t *marks = seg_queue_marks(seg, pool);
	const uint32_t high = high_of(seg, pool);

	for (; at < size; at++) {
		if (at % 64 == 0 && at + 64 <= high && shm_load(&marks[at / 64]) == UINT64_MAX) {
			at += 63;
			continue;
		}
		if (shm_load(&seg_queue_slot(seg, pool, at)->word) == 0)
			return at;
	}
	return size;
}

static bool
take_slot(struct seg *seg, uint32_t size, struct queue_ref *ref)
{
	struct queue_head *q = seg_queue(seg, ref->pool);
	const uint64_t taken = word_make(ref->order.ticket, ref->worker, 0, QUEUE_S_TAKEN);

	for (ref->slot = 0;; ref->slot++) {
		ref->slot = find_free(seg, ref->pool, ref->slot, size);
		if (ref->slot >= size)
			return false;
		/* before an entry is taken, so that queue_reap() and see_next() meet every entry that is in use */
		shm_raise(&q->high, ref->slot + 1);
		if (shm_cas(&seg_queue_slot(seg, ref->pool, ref->slot)->word, 0, taken) == 0)
			return true;
	}
}

/*
 * From how many entries on the request may take one: the dynamic threshold of Choudhury and Hahne
 * (1998).  Workers that enqueue at the same moment may exceed the threshold, but not take the last
 * entry for a model that has another.
 */
static uint32_t
share(const struct queue_request *request, const struct backlog *b, uint32_t size)
{
	if (!request->shares || b->own == 0)
		return size;
	return b->own + b->all < size ? size - 1 : 0;
}

/* In the taken entry, before it waits. */
static void
write_entry(struct seg *seg, const struct queue_ref *ref, uint64_t now_ms)
{
	struct queue_slot *s = seg_queue_slot(seg, ref->pool, ref->slot);

	shm_store(&s->key, ref->key);
	shm_store(&s->since_ms, now_ms);
	shm_store(&s->priority, ref->order.priority);
	shm_store(&s->lacks, ref->lacks);
	shm_store(&s->start, ref->order.start);
	shm_store(&s->tokens, ref->tokens);
}

enum queue_enqueued
queue_enqueue(struct seg *seg, uint32_t worker, uint32_t pool, uint32_t size,
	const struct queue_request *request, struct queue_ref *ret)
{
	struct queue_ref ref = {.pool = pool,
		.worker = worker,
		.key = request->key,
		.order.priority = request->priority};
	struct queue_head *q = seg_queue(seg, pool);
	const struct backlog b = look_at_backlog(seg, pool, request->key, request->priority);

	assert(request->key != 0);
	if (size > seg->hdr->queue_slots)
		size = seg->hdr->queue_slots;
	ref.order.ticket = next_ticket(q);
	if (!take_slot(seg, share(request, &b, size), &ref))
		return QUEUE_FULL;
	ref.order.start = fair_start(q, queue_model(ref.key), b.finish);
	ref.tokens = request->tokens;
	ref.was_full = QUEUE_ALL_ROLES;
	ref.lacks = QUEUE_UNTRIED | QUEUE_ALL_ROLES;
	write_entry(seg, &ref, request->now_ms);
	/* The mark before WAITING: every waiter is marked.  Pairs with queue_any() and queue_sound(). */
	shm_or(&seg_queue_marks(seg, pool)[ref.slot / 64], UINT64_C(1) << ref.slot % 64);
	(void)queue_rearm(seg, &ref);
	*ret = ref;
	/* After queue_rearm()'s barrier: a waiter that we find here finds us when it leaves.
	 * Pairs with queue_leave(). */
	return ahead(seg, pool, ref.key, &ref.order) ? QUEUE_BEHIND : QUEUE_FIRST;
}

/*
 * Another process has stored in the waiter's entry, or has freed it since its word could not be.  The waiter takes
 * another entry, with its old place in the order.  False: there is none; it tries again later.
 */
static bool
take_again(struct seg *seg, struct queue_ref *ref)
{
	ref->order = present_order(seg, ref);
	if (!take_slot(seg, seg->hdr->queue_slots, ref)) {
		ref->slot = QUEUE_LOST;
		return false;
	}
	write_entry(seg, ref, clock_ms());
	shm_or(&seg_queue_marks(seg, ref->pool)[ref->slot / 64], UINT64_C(1) << ref->slot % 64);
	return true;
}

static bool
has_lost(const struct seg *seg, const struct queue_ref *ref)
{
	return ref->slot == QUEUE_LOST || suspect(SUSPECT_QUEUES, ref->slot, !has_entry(seg, ref));
}

/* What stands beside the word is as the waiter has written it.  Others move a start towards the front alone. */
static bool
is_as_written(const struct seg *seg, const struct queue_ref *ref)
{
	const struct queue_slot *s = seg_queue_slot(seg, ref->pool, ref->slot);

	return shm_load(&s->key) == ref->key && shm_load(&s->priority) == ref->order.priority &&
	       shm_load(&s->lacks) == ref->lacks && shm_load(&s->tokens) == ref->tokens &&
	       shm_load(&s->start) <= ref->order.start;
}

/* Another process has stored in the waiter's entry, beside the word. */
static bool
write_again(struct seg *seg, struct queue_ref *ref)
{
	struct queue_slot *s = seg_queue_slot(seg, ref->pool, ref->slot);
	const uint64_t start = shm_load(&s->start);

	if (!suspect(SUSPECT_QUEUES, ref->slot, !is_as_written(seg, ref)))
		return false;
	(void)shm_xchg(&s->word, word_make(ref->order.ticket, ref->worker, 0, QUEUE_S_TAKEN));
	if (ref->order.start > start) /* it was moved */
		ref->order.start = start;
	write_entry(seg, ref, clock_ms());
	return true;
}

uint32_t
queue_rearm(struct seg *seg, struct queue_ref *ref)
{
	const bool lost = has_lost(seg, ref);
	const bool spoilt = !lost && write_again(seg, ref);
	struct queue_slot *s;
	uint64_t old;

	if (lost && !take_again(seg, ref))
		return QUEUE_ALL_ROLES;
	s = seg_queue_slot(seg, ref->pool, ref->slot);

	ref->lacks = QUEUE_UNTRIED | QUEUE_ALL_ROLES;
	shm_store(&s->lacks, ref->lacks);
	/*
	 * A full barrier: a process that frees a slot after our try has begun finds us waiting, and
	 * untried, with the fields of this ticket.  Pairs with queue_wake(), queue_any() before it,
	 * see(), and queue_wake_after_change().
	 */
	old = shm_xchg(&s->word, word_make(ref->order.ticket, ref->worker, 0, QUEUE_S_WAITING));
	if (lost || spoilt)
		return QUEUE_ALL_ROLES;
	return word_state(old) == QUEUE_S_WOKEN ? word_roles(old) : 0;
}

void
queue_tried(struct seg *seg, struct queue_ref *ref, uint32_t lacks)
{
	ref->lacks = ref->was_full = lacks;
	if (ref->slot != QUEUE_LOST)
		shm_store(&seg_queue_slot(seg, ref->pool, ref->slot)->lacks, lacks);
}

uint32_t
queue_woken(const struct seg *seg, const struct queue_ref *ref)
{
	uint64_t word;

	if (ref->slot == QUEUE_LOST)
		return QUEUE_ALL_ROLES;
	word = shm_load(&seg_queue_slot(seg, ref->pool, ref->slot)->word);
	if (!is_of(word, ref) || !is_as_written(seg, ref))
		return QUEUE_ALL_ROLES;
	return word_state(word) == QUEUE_S_WOKEN ? word_roles(word) : 0;
}

void
queue_served(struct seg *seg, const struct queue_ref *ref)
{
	const uint64_t start = present_order(seg, ref).start;

	fair_served(seg_queue(seg, ref->pool), queue_model(ref->key), start, start + ref->tokens);
}

bool
queue_give_up(struct seg *seg, const struct queue_ref *ref)
{
	const struct queue_order own = present_order(seg, ref);
	bool moved = false;
	struct seen s;

	for (uint32_t at = 0; see_next(seg, ref->pool, &at, &s);) {
		if (queue_model(s.key) != queue_model(ref->key) || !is_before(&own, &s.order) ||
			s.order.start < own.start + ref->tokens)
			continue;
		/* it fails where another process moves the same waiter: that one keeps its place */
		moved |= shm_cas(&seg_queue_slot(seg, ref->pool, s.slot)->start, s.order.start,
				 s.order.start - ref->tokens) == s.order.start;
	}
	return moved;
}

uint32_t
queue_leave(struct seg *seg, const struct queue_ref *ref)
{
	uint64_t *word, old;

	if (has_lost(seg, ref))
		return QUEUE_ALL_ROLES;
	word = &seg_queue_slot(seg, ref->pool, ref->slot)->word;
	old = shm_xchg(word, word_make(ref->order.ticket, ref->worker, 0, QUEUE_S_TAKEN));
	/* Before the entry is free, or this would clear the mark of its next owner. */
	mark_clear(&seg_queue_marks(seg, ref->pool)[ref->slot / 64], UINT64_C(1) << ref->slot % 64);
	/*
	 * A full barrier: a request that enqueues and still finds us here is found when our caller
	 * checks afterwards whether a slot is left.  Pairs with queue_enqueue().
	 */
	(void)shm_xchg(word, 0);
	if (!queue_any(seg, ref->pool))
		fair_idle(seg_queue(seg, ref->pool));
	return (word_state(old) == QUEUE_S_WOKEN ? word_roles(old) : 0) |
	       (QUEUE_ALL_ROLES & ~ref->was_full);
}

/* --- waking ------------------------------------------------------------------------------------- */

struct heads {
	uint32_t n;
	struct seen of[KEYS]; /* the first waiter of each key */
	bool more;
	struct seen best; /* the first match of the keys beyond those */
};

static bool
seen_before(const struct seen *a, const struct seen *b)
{
	return is_before(&a->order, &b->order);
}

static bool
matches(const struct seen *s, const struct queue_target *target, const struct queue_order *behind)
{
	if (behind != NULL && (s->key == target->behind->key || !is_before(behind, &s->order)))
		return false;
	return (s->lacks & target->roles) != 0 || s->key == target->key;
}

static void
heads_add(struct heads *h, const struct seen *s, const struct queue_target *target,
	const struct queue_order *behind)
{
	for (uint32_t i = 0; i < h->n; i++) {
		if (h->of[i].key != s->key)
			continue;
		if (seen_before(s, &h->of[i]))
			h->of[i] = *s;
		return;
	}
	if (h->n < KEYS) {
		h->of[h->n++] = *s;
	} else if (matches(s, target, behind) && (!h->more || seen_before(s, &h->best))) {
		h->best = *s;
		h->more = true;
	}
}

/* Its worker is stopped and cannot follow a wake-up: other waiters overtake it. */
static bool
is_stuck(const struct seg *seg, const struct seen *s, uint64_t now_ms)
{
	return proc_heartbeat_ms(seg, word_worker(s->word) - 1) + QUEUE_STILL_MS < now_ms;
}

/* The first match; false: there is none. */
static bool
choose(const struct seg *seg, uint32_t pool, const struct queue_target *target, struct seen *ret)
{
	const uint64_t now_ms = clock_ms();
	const struct queue_order *behind = NULL;
	struct queue_order order;
	struct heads h = {.n = 0};
	bool any;
	struct seen s;

	if (target->behind != NULL) {
		order = present_order(seg, target->behind);
		behind = &order;
	}
	for (uint32_t at = 0; see_next(seg, pool, &at, &s);)
		if (!is_stuck(seg, &s, now_ms))
			heads_add(&h, &s, target, behind);
	any = h.more;
	if (any)
		*ret = h.best;
	for (uint32_t i = 0; i < h.n; i++) {
		if (!matches(&h.of[i], target, behind) || (any && !seen_before(&h.of[i], ret)))
			continue;
		*ret = h.of[i];
		any = true;
	}
	return any;
}

uint32_t
queue_wake(struct seg *seg, uint32_t pool, const struct queue_target *target)
{
	struct seen s;

	/*
	 * After a full barrier of the caller, a release's CAS or queue_leave(): a waiter that is
	 * armed by now is seen, or its try comes after that barrier.  Pairs with queue_rearm().  A
	 * lost race means that another process woke the match, or that the match has left: scan
	 * again.
	 */
	assert(target->roles != 0);
	while (choose(seg, pool, target, &s)) {
		const bool woken = word_state(s.word) == QUEUE_S_WOKEN;
		const uint32_t worker = word_worker(s.word) - 1;
		const uint32_t roles = target->roles | word_roles(s.word);

		/* A woken waiter that has not tried yet takes this wake-up too: a second woken waiter might
		 * overtake it. */
		if (shm_cas(&seg_queue_slot(seg, pool, s.slot)->word, s.word,
			    word_make(word_ticket(s.word), worker, roles, QUEUE_S_WOKEN)) == s.word)
			return woken ? QUEUE_NOBODY : worker;
	}
	return QUEUE_NOBODY;
}

/* --- the master's -------------------------------------------------------------------------------- */

uint32_t
queue_wake_after_change(struct seg *seg, uint32_t pool)
{
	static const struct queue_target first = {.roles = QUEUE_ALL_ROLES};

	/*
	 * The state word is a plain store: the processor may still hold it in its store buffer while
	 * queue_any() reads the marks.  A waiter that enqueues in that moment would be missed here, and would
	 * itself read the old state.  With a full barrier on both sides one of the two sees the other.
	 * Pairs with queue_rearm().
	 */
	shm_mb();
	return queue_any(seg, pool) ? queue_wake(seg, pool, &first) : QUEUE_NOBODY;
}

void
queue_woken_all(const struct seg *seg, uint32_t pool, bool *workers)
{
	struct seen s;

	for (uint32_t at = 0; see_next(seg, pool, &at, &s);)
		if (word_state(s.word) == QUEUE_S_WOKEN)
			workers[word_worker(s.word) - 1] = true;
}

uint32_t
queue_reap(struct seg *seg, uint32_t dead)
{
	uint32_t n = 0;

	for (uint32_t pool = 0; pool < seg->hdr->max_pools; pool++) {
		const uint32_t high = high_of(seg, pool);

		for (uint32_t slot = 0; slot < high; slot++) {
			uint64_t *word = &seg_queue_slot(seg, pool, slot)->word;

			/* Other processes change at most WAITING into WOKEN: the worker in the
			 * word stays. */
			if (word_worker(shm_load(word)) != dead + 1)
				continue;
			mark_clear(
				&seg_queue_marks(seg, pool)[slot / 64], UINT64_C(1) << slot % 64);
			(void)shm_xchg(word, 0);
			n++;
		}
	}
	return n;
}

uint32_t
queue_drop_strays(struct seg *seg, uint32_t pool, uint32_t worker, const uint64_t *own)
{
	const uint32_t high = high_of(seg, pool);
	uint32_t n = 0;

	for (uint32_t slot = 0; slot < high; slot++) {
		uint64_t *word = &seg_queue_slot(seg, pool, slot)->word;
		const uint64_t seen = shm_load(word);

		if (word_worker(seen) != worker + 1 || (own[slot / 64] >> slot % 64 & 1) != 0)
			continue;
		(void)suspect(SUSPECT_QUEUES, slot, true);
		mark_clear(&seg_queue_marks(seg, pool)[slot / 64], UINT64_C(1) << slot % 64);
		n += shm_cas(word, seen, 0) == seen;
	}
	return n;
}

/* Takes a free entry, so that no worker marks it meanwhile, and clears its mark. */
static void
unmark_free(uint64_t *word, uint64_t *mark, uint64_t bit)
{
	const uint64_t taken = QUEUE_S_TAKEN; /* by no worker */

	if (shm_cas(word, 0, taken) != 0)
		return;
	mark_clear(mark, bit);
	(void)shm_cas(word, taken, 0);
}

/* The entry is sound, and not of a worker without a process. */
static bool
is_in_order(const struct seg *seg, uint32_t pool, uint32_t slot)
{
	uint32_t worker;

	return queue_sound(seg, pool, slot, &worker) &&
	       (worker == QUEUE_NOBODY || shm_load(&seg->proc_records[worker].pid) != 0);
}

void
queue_mend(struct seg *seg, uint32_t pool, uint32_t slot)
{
	uint64_t *mark = &seg_queue_marks(seg, pool)[slot / 64], bit = UINT64_C(1) << slot % 64;
	uint64_t *word = &seg_queue_slot(seg, pool, slot)->word;
	uint64_t seen;

	if (shm_load(word) == 0) {
		unmark_free(word, mark, bit);
		return;
	}
	/* what is beside the entry is put right first */
	shm_raise(&seg_queue(seg, pool)->high, slot + 1);
	shm_raise(&seg_queue(seg, pool)->ticket, word_ticket(shm_load(word)));
	if (is_in_order(seg, pool, slot))
		return;
	mark_clear(mark, bit);
	seen = shm_load(word);
	if (!is_in_order(seg, pool, slot))
		(void)shm_cas(word, seen, 0);
}

/* The marks behind that of the last entry, in the same word: 0. */
static uint64_t
marks_behind(const struct seg *seg, uint32_t pool)
{
	const uint32_t n = seg->hdr->queue_slots;

	return n % 64 == 0 ? 0 : shm_load(&seg_queue_marks(seg, pool)[n / 64]) >> n % 64 << n % 64;
}

bool
queue_head_sound(const struct seg *seg, uint32_t pool)
{
	const struct queue_head *q = seg_queue(seg, pool);

	return shm_load(&q->high) <= seg->hdr->queue_slots && marks_behind(seg, pool) == 0 &&
	       fair_sound(q);
}

void
queue_head_mend(struct seg *seg, uint32_t pool)
{
	struct queue_head *q = seg_queue(seg, pool);
	const uint64_t high = shm_load(&q->high);

	if (high > seg->hdr->queue_slots)
		(void)shm_cas(&q->high, high, seg->hdr->queue_slots);
	if (marks_behind(seg, pool) != 0)
		mark_clear(&seg_queue_marks(seg, pool)[seg->hdr->queue_slots / 64],
			marks_behind(seg, pool));
	if (fair_sound(q))
		return;
	/* All waiters start again, too: by priority and ticket.  Who moves forward may miss a wake-up (see above), so the
	 * master's next queue_wake_after_change() is needed, within a second. */
	fair_begin_anew(q);
	for (uint32_t slot = 0, n = high_of(seg, pool); slot < n; slot++)
		(void)shm_xchg(&seg_queue_slot(seg, pool, slot)->start, 0);
}

bool
queue_sound(const struct seg *seg, uint32_t pool, uint32_t slot, uint32_t *ret_worker)
{
	const struct queue_head *q = seg_queue(seg, pool);
	const uint64_t *mark = &seg_queue_marks(seg, pool)[slot / 64];
	/* The word, then its mark, then the word.  Pairs with queue_enqueue() and queue_leave(). */
	const uint64_t word = shm_load_acquire(&seg_queue_slot(seg, pool, slot)->word);
	const bool marked = (shm_load_acquire(mark) >> slot % 64 & 1) != 0;
	const enum queue_state state = word_state(word);

	*ret_worker = QUEUE_NOBODY;
	if (shm_load(&seg_queue_slot(seg, pool, slot)->word) != word)
		return true;
	if (word == 0)
		return !marked;
	*ret_worker = word_worker(word) - 1;
	return state >= QUEUE_S_TAKEN && state <= QUEUE_S_WOKEN && word_worker(word) != 0 &&
	       *ret_worker < SLOT_WORKERS(seg) && slot < shm_load(&q->high) &&
	       word_ticket(word) <= shm_load(&q->ticket) && (marked || state == QUEUE_S_TAKEN) &&
	       (state == QUEUE_S_WOKEN) == (word_roles(word) != 0) &&
	       (state == QUEUE_S_TAKEN || /* it may not have been written yet */
		       fair_possible(shm_load(&seg_queue_slot(seg, pool, slot)->start)));
}
