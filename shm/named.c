/*
 * Open addressing within a window: a name is in one of the WINDOW slots from its home on.  So a slot can be taken back
 * without a trace, and no search is long.
 */
#include "shm/named.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "shm/core/atomic.h"
#include "shm/metrics.h"

#define WINDOW 32

/*
 * A count is `gives:10 | count:54`: how often the slot was given to a name, and what was counted since.  A worker adds by a
 * CAS from a word that it read before it saw the name in the slot.  give() changes `gives`, so the CAS of a worker that
 * stalls in between fails.  `gives` wraps after 1,024 names in one slot, each of which needs a table of its own.
 */
#define COUNT_BITS 54
#define COUNT_MASK ((UINT64_C(1) << COUNT_BITS) - 1)

static_assert(METRIC_TOO_MANY <= COUNT_MASK, "a count that cannot be is seen");

static uint32_t
first_of(enum named_kind kind)
{
	return kind == NAMED_MODELS ? 0 : NAMED_MODEL_SLOTS;
}

uint32_t
named_slots(const struct seg *seg, enum named_kind kind)
{
	return kind == NAMED_MODELS ? NAMED_MODEL_SLOTS : named_key_slots(seg->hdr->max_api_keys);
}

/* The last one.  It is beside the ring of the others. */
static uint32_t
other_of(const struct seg *seg, enum named_kind kind)
{
	return named_slots(seg, kind) - 1;
}

static struct named_slot *
slot_of(const struct seg *seg, enum named_kind kind, uint32_t slot)
{
	return &seg->named[first_of(kind) + slot];
}

/* Eight bytes at a time; 0 is no name's. */
static uint64_t
hash_of(const char *name, size_t n)
{
	uint64_t hash = n * UINT64_C(0x9e3779b97f4a7c15) | 1;

	for (size_t at = 0; at < n; at += 8) {
		uint64_t word = 0;

		memcpy(&word, name + at, n - at < 8 ? n - at : 8);
		hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
		hash ^= hash >> 29;
	}
	hash *= UINT64_C(0xbf58476d1ce4e5b9);
	hash ^= hash >> 32; /* the last bytes of a name reach the low bits */
	return hash != 0 ? hash : 1;
}

/* The slot with that hash, or a free one if `hash` is 0, in the window from `home` on; that of NAMED_OTHER: none. */
static uint32_t
search(const struct seg *seg, enum named_kind kind, uint64_t home, uint64_t hash)
{
	const uint32_t ring = other_of(seg, kind);
	uint32_t at = (uint32_t)(home % ring);

	for (uint32_t i = 0; i < WINDOW && i < ring; i++) {
		/* Pairs with give()'s release: the counts of a slot that is found are the name's. */
		if (shm_load_acquire(&slot_of(seg, kind, at)->hash) == hash)
			return at;
		at = at + 1 < ring ? at + 1 : 0;
	}
	return ring;
}

static uint32_t
find(const struct seg *seg, enum named_kind kind, const char *name)
{
	const uint64_t hash = hash_of(name, strlen(name));

	return search(seg, kind, hash, hash);
}

struct named_at
named_find(const struct seg *seg, enum named_kind kind, const char *name)
{
	const uint32_t slot = find(seg, kind, name);
	const bool other = slot == other_of(seg, kind);

	return (struct named_at){kind, slot, other ? 0 : hash_of(name, strlen(name))};
}

/* Returns false if the slot is no longer the name's. */
static bool
add(struct seg *seg, const struct named_at *at, enum named_what what, uint64_t n)
{
	uint64_t *word = &seg->named_counts[first_of(at->kind) + at->slot].count[what];
	uint64_t old, new;

	do {
		/* The word before the hash: a word of the next name has a hash that differs.  Pairs with give(). */
		old = shm_load_acquire(word);
		if (at->hash != 0 && shm_load(&slot_of(seg, at->kind, at->slot)->hash) != at->hash)
			return false;
		new = (old & ~COUNT_MASK) | ((old + n) & COUNT_MASK);
	} while (shm_cas(word, old, new) != old);
	return true;
}

void
named_add(struct seg *seg, const struct named_at *at, enum named_what what, uint64_t n)
{
	const struct named_at other = {.kind = at->kind, .slot = other_of(seg, at->kind)};

	if (!add(seg, at, what, n))
		(void)add(seg, &other, what, n);
}

bool
named_read(const struct seg *seg, enum named_kind kind, uint32_t slot, struct named_figures *ret)
{
	const struct named_slot *s = slot_of(seg, kind, slot);
	const struct named_count *c = &seg->named_counts[first_of(kind) + slot];
	const bool other = slot == other_of(seg, kind);

	if (!other && shm_load(&s->hash) == 0) /* a page reads thousands of free slots */
		return false;
	if (other)
		memcpy(ret->name, NAMED_OTHER, sizeof(NAMED_OTHER));
	else
		memcpy(ret->name, s->name, sizeof(ret->name));
	ret->name[NAMED_NAME - 1] = '\0';
	for (enum named_what what = 0; what < NAMED_N; what++)
		ret->count[what] = shm_load(&c->count[what]) & COUNT_MASK;
	/* The master may have given the slot to another name meanwhile: then the hash does not fit.  Pairs with give()'s
	 * exchanges, which come after the former hash is gone. */
	shm_mb();
	return other || shm_load(&s->hash) == hash_of(ret->name, strlen(ret->name));
}

/* --- master --------------------------------------------------------------------------------------- */

static bool
may_have_slot(const char *name)
{
	return strlen(name) < NAMED_NAME && strcmp(name, NAMED_OTHER) != 0;
}

/* Takes back the slots of the names that are gone.  Returns how many names are left. */
static uint32_t
take_back(struct seg *seg, enum named_kind kind, const bool *stays)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < other_of(seg, kind); i++) {
		struct named_slot *s = slot_of(seg, kind, i);

		if (!stays[i])
			shm_store(&s->hash, UINT64_C(0));
		left += stays[i];
	}
	return left;
}

/* The count is 0, and no worker adds to it that has read the word before. */
static void
begin_anew(uint64_t *word)
{
	(void)shm_xchg(word, (shm_load(word) & ~COUNT_MASK) + COUNT_MASK + 1);
}

/* Returns false if there is no room. */
static bool
give(struct seg *seg, enum named_kind kind, const char *name)
{
	const uint64_t hash = hash_of(name, strlen(name));
	const uint32_t at = search(seg, kind, hash, 0);
	struct named_slot *s = slot_of(seg, kind, at);

	if (at == other_of(seg, kind))
		return false;
	/* Pairs with named_read() and add(): the former name's hash is gone before its counts are. */
	for (enum named_what what = 0; what < NAMED_N; what++)
		begin_anew(&seg->named_counts[first_of(kind) + at].count[what]);
	memset(s->name, 0, sizeof(s->name));
	memcpy(s->name, name, strlen(name));
	/* Pairs with search(): who finds the slot finds the counts at 0 or above. */
	shm_store_release(&s->hash, hash);
	return true;
}

void
named_set(struct seg *seg, enum named_kind kind, const char *const *names, size_t n)
{
	const uint32_t other = other_of(seg, kind), most = other / 2;
	bool *stays = mem_array(other + 1, sizeof(*stays));
	uint32_t used;

	for (size_t i = 0; i < n; i++)
		if (may_have_slot(names[i]))
			stays[find(seg, kind, names[i])] = true;
	used = take_back(seg, kind, stays);
	for (size_t i = 0; i < n && used < most; i++)
		if (may_have_slot(names[i]) && find(seg, kind, names[i]) == other)
			used += give(seg, kind, names[i]);
	free(stays);
}

uint32_t
named_mend(struct seg *seg, uint32_t i)
{
	uint32_t bad = 0;

	for (enum named_what what = 0; what < NAMED_N; what++) {
		uint64_t *word = &seg->named_counts[i].count[what];

		if ((shm_load(word) & COUNT_MASK) >= METRIC_TOO_MANY) {
			begin_anew(word);
			bad++;
		}
	}
	return bad;
}
