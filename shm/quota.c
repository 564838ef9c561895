/*
 * The table of clients: sets of QUOTA_WAYS entries, with words packed as quota_word.h draws them.
 *
 * Three things must hold although every process may die, or be stopped, between any two steps: a client has
 * one entry at most, a busy entry is not reassigned, and each request is counted for its own client.
 *
 *   - A request is counted in `held` (an operation of load.c, so a dead worker's requests are given back).
 *     Its CAS demands the life that the key had.  While a request is counted the entry stays: so the CAS of
 *     the arrival time is of this client too.
 *   - An entry is reassigned in two steps.  First it is freed, by a CAS that demands that no request is
 *     counted.  Then a CAS writes the new client into the set's word `last`, marked as pending.  That CAS
 *     fails if `last` has changed since before the worker searched the set and did not find the client: so if
 *     two workers bring the same client, one of them searches again.
 *   - Any process that finds `last` pending finishes the remaining steps.  They are the same for every
 *     process, so no process waits, and a death leaves nothing undone.  Each step is a CAS from the value
 *     read while `last` was still the same; a late CAS fails.  (A process that is stopped between its read and
 *     its CAS while the set reassigns 32,768 entries could succeed late: then a client is forgotten, or has
 *     two entries until one is idle.)
 *
 *   - Tokens are charged while the request is counted, so to its own client.  An entry that owes tokens is
 *     not freed: who frees it reads `held` before `paid`, and a charge in between changes `held` twice.
 *
 * The arrival time is the generic cell rate algorithm (ITU-T I.371): a request passes if it is not more than
 * burst - 1 intervals early.  `paid` is the same with tokens for cells and a minute's tokens for the burst, but
 * for one thing: a request is charged when it has ended, whatever it has used.
 */
#include "shm/quota.h"

#include <assert.h>

#include "shm/core/atomic.h"
#include "shm/base/sip.h"
#include "shm/own.h"
#include "shm/quota_word.h"

#define SECOND_NS UINT64_C(1000000000)
#define CLOCKS_APART_NS (10 * SECOND_NS) /* a worker may be stopped after it has read the clock */
/* bits of a hash that choose the set; the other bits are its tag */
#define SET_BITS 20
#define MINUTE_NS (60 * SECOND_NS)
#define DEBT_MOST_NS (24 * 60 * MINUTE_NS) /* no request costs more */
#define TOKENS_MOST (UINT64_C(1) << 28)    /* of one request: times MINUTE_NS it fits a word */
#define NONE UINT32_MAX
#define AGAIN (UINT32_MAX - 1)

uint64_t
quota_hash(const struct seg *seg, unsigned char kind, const void *name, size_t n)
{
	struct sip s;

	sip_begin(&s, seg->hdr->seed);
	sip_add(&s, &kind, 1);
	sip_add(&s, name, n);
	return sip_end(&s);
}

/* No client has tag 0. */
static uint64_t
tag_of(uint64_t hash)
{
	return hash >> SET_BITS != 0 ? hash >> SET_BITS : 1;
}

static uint32_t
set_of(const struct seg *seg, uint64_t hash)
{
	const uint64_t nsets = seg->hdr->max_quotas / QUOTA_WAYS;

	return (uint32_t)((hash & BITS(SET_BITS)) * nsets >> SET_BITS);
}

static uint64_t
next_life(uint64_t last)
{
	return ((quota_key_life(last) + 1) & (QUOTA_LIFE_BOUND - 1)) | QUOTA_LIFE_BOUND;
}

/* *word becomes `to`, if `last` is still what it was when *word was read. */
static bool
settle_word(struct seg *seg, struct quota_set *set, uint64_t last, uint64_t *word, uint64_t to)
{
	/* The word before `last`.  Pairs with settle(): a worker that reassigns the entry has
	 * changed `last`. */
	const uint64_t old = shm_load_acquire(word);

	if (shm_load(&set->last) != last)
		return false;
	if (word >= set->held && word < set->held + QUOTA_WAYS) {
		if (quota_free(old))
			(void)word_swap(seg, word, old, to);
	} else if (old != to) {
		(void)shm_cas(word, old, to);
	}
	return true;
}

/*
 * Finishes the step that `last` shows as pending.  Each CAS is a full barrier, so other processes
 * see the CASes in this order, and all of them once `last` is no longer pending: settle_word()
 * relies on it when it is late, find() when it sees the key, entry_of() when it sees `last`,
 * look() when it sees the times.
 */
static void
settle(struct seg *seg, struct quota_set *set, uint64_t last)
{
	const uint32_t way = quota_last_way(last);
	const uint64_t key = quota_last_key(last);

	if (settle_word(seg, set, last, &set->tat[way], 0) &&
		settle_word(seg, set, last, &set->paid[way], 0) &&
		settle_word(
			seg, set, last, &set->held[way], quota_held_idle(quota_key_life(key))) &&
		/* the key last: from here on the entry is found */
		settle_word(seg, set, last, &set->key[way], key))
		(void)shm_cas(&set->last, last, last & ~QUOTA_PENDING);
}

/* The client's entry in the set, and its life; or NONE. */
static uint32_t
find(const struct quota_set *set, uint64_t tag, uint64_t *ret_life)
{
	for (uint32_t way = 0; way < QUOTA_WAYS; way++) {
		/* The key before `held`, which is settled first.  Pairs with settle(). */
		const uint64_t key = shm_load_acquire(&set->key[way]);

		if (quota_key_hash(key) != tag || !quota_bound(key, shm_load(&set->held[way])))
			continue;
		*ret_life = quota_key_life(key);
		return way;
	}
	return NONE;
}

/* For how long tokens will be owed.  A word beyond all debts was written by no worker. */
static uint64_t
debt_ns(uint64_t paid, uint64_t now_ns)
{
	return paid > now_ns && paid - now_ns <= DEBT_MOST_NS + CLOCKS_APART_NS ? paid - now_ns : 0;
}

/* An entry that is free or was freed now: of the idle entries the one with the oldest arrival
 * time, whose client loses least.  NONE: all are busy, or owe tokens.  AGAIN: the entry became busy meanwhile. */
static uint32_t
make_room(struct seg *seg, struct quota_set *set, uint64_t now_ns, uint32_t *evicted)
{
	uint64_t oldest = UINT64_MAX, held = 0;
	uint32_t found = NONE;

	for (uint32_t way = 0; way < QUOTA_WAYS; way++) {
		/* `held` before `paid`.  Pairs with quota_charge(): its request changes `held` after it. */
		const uint64_t h = shm_load_acquire(&set->held[way]);
		const uint64_t tat = shm_load(&set->tat[way]), paid = shm_load(&set->paid[way]);

		if (quota_held_count(h) != 0)
			continue;
		if (quota_free(h))
			return way;
		if (tat < oldest && debt_ns(paid, now_ns) == 0) {
			oldest = tat;
			held = h;
			found = way;
		}
	}
	if (found == NONE)
		return NONE;
	if (!word_swap(seg, &set->held[found], held,
		    quota_held_idle(quota_held_life(held) & ~QUOTA_LIFE_BOUND)))
		return AGAIN;
	++*evicted;
	return found;
}

/* The client's entry, bound now if there is none; NONE: no room. */
static uint32_t
entry_of(struct seg *seg, struct quota_set *set, uint64_t tag, uint64_t now_ns, uint64_t *ret_life,
	uint32_t *evicted)
{
	for (;;) {
		/* `last` before the entries.  Pairs with settle(): a search that misses the
		 * entry fails below. */
		const uint64_t last = shm_load_acquire(&set->last);
		uint64_t next;
		uint32_t way;

		if (last & QUOTA_PENDING) {
			settle(seg, set, last);
			continue;
		}
		way = find(set, tag, ret_life);
		if (way != NONE)
			return way;
		way = make_room(seg, set, now_ns, evicted);
		if (way == AGAIN)
			continue;
		if (way == NONE)
			return NONE;
		next = quota_last(quota_key(tag, next_life(last)), way);
		if (shm_cas(&set->last, last, next) == last)
			settle(seg, set, next);
	}
}

/* The generic cell rate algorithm with a client's terms, at one moment. */
struct rate {
	uint64_t interval_ns;
	uint64_t latest_ns; /* the latest arrival time that passes */
	uint64_t most_ns;   /* a later arrival time was computed under stricter terms */
	uint64_t tokens_ns; /* tokens must be paid for by then; UINT64_MAX: they do not count */
};

static struct rate
rate_at(const struct quota_terms *terms, uint64_t now_ns)
{
	const uint64_t time_ns = terms->per_s != 0 ? terms->per_s * SECOND_NS : SECOND_NS;
	struct rate r = {
		0, UINT64_MAX, UINT64_MAX, terms->tokens_per_minute != 0 ? now_ns : UINT64_MAX};

	if (terms->rate == 0)
		return r;
	r.interval_ns = time_ns / terms->rate;
	r.latest_ns = now_ns + (terms->burst - 1) * r.interval_ns;
	r.most_ns = r.latest_ns + r.interval_ns + CLOCKS_APART_NS;
	return r;
}

/* By how much a request is too early; 0: it passes. */
static uint64_t
too_early_ns(const struct rate *r, uint64_t tat)
{
	return tat > r->latest_ns && tat <= r->most_ns ? tat - r->latest_ns : 0;
}

/*
 * Whether a request would be refused by its rate, before it takes a slot: a request that took a
 * slot for a moment could make another request of the client be refused that should pass.  If two
 * requests both pass here, one may still be refused by in_time(), with its slot taken for that
 * moment.  A third request that is refused for lack of this slot would not have passed either: the
 * other two came before it.  The same for tokens.  Returns QUOTA_ADMITTED if it is not refused; QUOTA_UNCOUNTED
 * if the entry was reassigned meanwhile: search again.
 */
static enum quota_outcome
look(const struct quota_set *set, uint32_t way, uint64_t life, const struct rate *r,
	uint64_t *ret_wait_ns)
{
	/* The times before the life.  Pairs with settle(): an entry is freed before another
	 * client's times are written, so a life that is still ours means that the times were. */
	const uint64_t tat = shm_load_acquire(&set->tat[way]),
		       paid = shm_load_acquire(&set->paid[way]);

	if (quota_held_life(shm_load(&set->held[way])) != life)
		return QUOTA_UNCOUNTED;
	*ret_wait_ns = too_early_ns(r, tat);
	if (*ret_wait_ns != 0)
		return QUOTA_RATE;
	*ret_wait_ns = debt_ns(paid, r->tokens_ns);
	return *ret_wait_ns != 0 ? QUOTA_TOKENS : QUOTA_ADMITTED;
}

/*
 * Advances the arrival time, or returns by how much the request is too early.  An arrival time
 * later than these terms ever give was computed under stricter ones, before a reload: the client
 * begins anew, with the last request of its burst.
 */
static bool
in_time(uint64_t *tat, const struct rate *r, uint64_t now_ns, uint64_t *ret_wait_ns)
{
	uint64_t seen = shm_load(tat), old;

	do {
		uint64_t from = seen > r->most_ns ? r->latest_ns : seen;

		*ret_wait_ns = too_early_ns(r, from);
		if (*ret_wait_ns != 0)
			return false;
		if (from < now_ns)
			from = now_ns;
		old = seen;
		seen = shm_cas(tat, old, from + r->interval_ns);
	} while (seen != old);
	return true;
}

enum quota_outcome
quota_enter(struct seg *seg, uint32_t me, uint64_t hash, const struct quota_terms *terms,
	uint64_t now_ns, struct quota_pass *ret)
{
	const uint32_t number = set_of(seg, hash);
	const uint32_t max = terms->max_inflight == 0 || terms->max_inflight > QUOTA_HELD_MAX
				     ? QUOTA_HELD_MAX
				     : terms->max_inflight;
	const struct rate rate = rate_at(terms, now_ns);
	struct quota_set *set = &seg->quotas[number];
	enum quota_outcome why;
	uint32_t way;
	uint64_t life;

	assert(terms->rate == 0 || terms->burst > 0);
	ret->evicted = 0;
	if (seg->hdr->max_quotas == 0)
		return QUOTA_UNCOUNTED;
	for (;;) {
		way = entry_of(seg, set, tag_of(hash), now_ns, &life, &ret->evicted);
		if (way == NONE)
			return QUOTA_UNCOUNTED;
		why = look(set, way, life, &rate, &ret->wait_ns);
		if (why == QUOTA_UNCOUNTED)
			continue;
		if (why != QUOTA_ADMITTED)
			return why;
		ret->entry = number * QUOTA_WAYS + way;
		if (word_operate(seg, me, ret->entry, QUOTA, 1, (uint32_t)(life << QUOTA_HELD_BITS),
			    (uint32_t)(life << QUOTA_HELD_BITS) | max))
			break;
		if (quota_held_life(shm_load(&set->held[way])) == life)
			return terms->max_inflight == 0 ? QUOTA_UNCOUNTED : QUOTA_INFLIGHT;
	}
	if (in_time(&set->tat[way], &rate, now_ns, &ret->wait_ns))
		return QUOTA_ADMITTED;
	quota_leave(seg, me, ret->entry);
	return QUOTA_RATE;
}

void
quota_charge(struct seg *seg, uint32_t entry, uint64_t tokens, uint32_t tokens_per_minute,
	uint64_t now_ns)
{
	uint64_t *paid = &seg->quotas[entry / QUOTA_WAYS].paid[entry % QUOTA_WAYS];
	const uint64_t ns =
		(tokens < TOKENS_MOST ? tokens : TOKENS_MOST) * MINUTE_NS / tokens_per_minute;
	const uint64_t full =
		now_ns > MINUTE_NS ? now_ns - MINUTE_NS : 0; /* none owed, a minute's left */
	const uint64_t most = now_ns + DEBT_MOST_NS;
	uint64_t seen = shm_load(paid), old;

	/* The CAS is a full barrier, before that of quota_leave(): make_room() relies on it. */
	do {
		uint64_t to =
			seen < full || (seen > now_ns && debt_ns(seen, now_ns) == 0) ? full : seen;

		to = to < most && ns < most - to ? to + ns : most;
		old = seen;
		seen = shm_cas(paid, old, to);
	} while (seen != old);
}

void
quota_leave(struct seg *seg, uint32_t me, uint32_t entry)
{
	assert(*own_share(seg, me, entry, QUOTA) > 0);
	(void)word_operate(seg, me, entry, QUOTA, -1, 0, 0);
}
