/*
 * Completion flags.  A slot's word is gen:48 | left:8 | state:8; beside it lies the nonce.
 *
 *	FREE --arm (worker)--> ARMED --left notices (notifier)--> READY
 *	  ^------------- free (worker), gen+1 at reap (master) ----+
 *
 * While a slot is FREE only its worker writes it: the notifier counts ARMED slots alone.  A word
 * never goes back to an earlier gen, so an id that was given out once never fits again.
 */
#include "shm/flags.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/core/atomic.h"
#include "shm/core/suspect.h"
#include "shm/base/hex.h"
#include "shm/base/mem.h"
#include "shm/base/rnd.h"

enum flag_state { FLAG_FREE, FLAG_ARMED, FLAG_READY };

#define RANDOM_BITS 48       /* of a nonce; above them is the instance */
#define RESTORED_AT_ONCE 512 /* all that there may be within a minute, the usual 4096 within 4 s */
#define GEN_MASK ((UINT64_C(1) << 48) - 1)

static uint64_t
word_make(uint64_t gen, uint8_t left, enum flag_state state)
{
	return gen << 16 | (uint64_t)left << 8 | (uint64_t)state;
}

static uint64_t
word_gen(uint64_t word)
{
	return word >> 16;
}

static uint8_t
word_left(uint64_t word)
{
	return (uint8_t)(word >> 8);
}

static enum flag_state
word_state(uint64_t word)
{
	return (enum flag_state)(word & 0xff);
}

static enum flag_state
slot_state(const struct seg *seg, uint32_t worker, uint32_t slot)
{
	return word_state(shm_load(&seg_flag(seg, worker, slot)->word));
}

struct flag_set {
	struct seg *seg;
	uint32_t worker;
	uint32_t nfree;
	uint32_t restored; /* flag_restore() has come so far */
	/* [flags_per_worker] word_make() of each slot without its notices, as we left it */
	uint64_t *known;
	uint64_t *nonces; /* [flags_per_worker] of those that are armed */
	uint32_t free[];  /* stack of slot numbers: the last one freed is in the cache */
};

/* Between a free flag and ours: gen and state.  READY is ARMED without notices. */
static uint64_t
without_notices(uint64_t word)
{
	return word_make(
		word_gen(word), 0, word_state(word) == FLAG_READY ? FLAG_ARMED : word_state(word));
}

struct flag_set *
flag_set_new(struct seg *seg, uint32_t worker)
{
	const uint32_t n = seg->hdr->flags_per_worker;
	struct flag_set *fs = mem_zero(sizeof(*fs) + n * sizeof(fs->free[0]));

	fs->seg = seg;
	fs->worker = worker;
	fs->known = mem_array(n, sizeof(*fs->known));
	fs->nonces = mem_array(n, sizeof(*fs->nonces));
	while (fs->nfree < n) {
		const uint32_t slot = n - 1 - fs->nfree;

		uint64_t *word = &seg_flag(seg, worker, slot)->word;

		/* the slot's former process was reaped: flag_reap() */
		fs->known[slot] = word_make(word_gen(shm_load(word)), 0, FLAG_FREE);
		if (suspect(SUSPECT_FLAGS, slot, shm_load(word) != fs->known[slot]))
			(void)shm_xchg(word, fs->known[slot]);
		fs->free[fs->nfree++] = slot;
	}
	return fs;
}

void
flag_set_free(struct flag_set **fs)
{
	if (*fs != NULL) {
		free((*fs)->known);
		free((*fs)->nonces);
	}
	free(*fs);
	*fs = NULL;
}

bool
flag_arm(struct flag_set *fs, uint8_t notices, struct flag_ref *ret)
{
	struct flag_slot *f;
	uint64_t gen;

	assert(notices > 0);
	if (fs->nfree == 0)
		return false;
	ret->worker = fs->worker;
	ret->slot = fs->free[--fs->nfree];
	f = seg_flag(fs->seg, fs->worker, ret->slot);
	gen = (word_gen(fs->known[ret->slot]) + 1) & GEN_MASK;
	fs->known[ret->slot] = word_make(gen, 0, FLAG_ARMED);
	ret->gen = gen;
	ret->nonce =
		(uint64_t)fs->seg->hdr->instance << RANDOM_BITS | rnd_u64() >> (64 - RANDOM_BITS);
	fs->nonces[ret->slot] = ret->nonce;
	shm_store(&f->nonce, ret->nonce);
	/* The nonce before the gen it belongs to.  Pairs with flag_notify()'s acquire load. */
	shm_store_release(&f->word, word_make(gen, notices, FLAG_ARMED));
	return true;
}

bool
flag_is_ready(const struct flag_set *fs, const struct flag_ref *ref)
{
	return shm_load(&seg_flag(fs->seg, ref->worker, ref->slot)->word) ==
	       word_make(ref->gen, 0, FLAG_READY);
}

void
flag_free(struct flag_set *fs, const struct flag_ref *ref)
{
	uint64_t old;

	assert(ref->worker == fs->worker);
	/* an exchange, since the notifier may be counting this word down right now (I1) */
	old = shm_xchg(&seg_flag(fs->seg, ref->worker, ref->slot)->word,
		word_make(ref->gen, 0, FLAG_FREE));
	(void)suspect(SUSPECT_FLAGS, ref->slot,
		word_gen(old) != ref->gen || word_state(old) == FLAG_FREE);
	fs->known[ref->slot] = word_make(ref->gen, 0, FLAG_FREE);
	fs->free[fs->nfree++] = ref->slot;
}

void
flag_collect(struct flag_set *fs, void (*fn)(uint32_t slot, void *arg), void *arg)
{
	uint64_t *ready = seg_ready(fs->seg, fs->worker);

	for (uint32_t i = 0; i < fs->seg->hdr->flags_per_worker / 64; i++) {
		uint64_t bits;

		/*
		 * A plain read first, to leave quiet words alone: for a bit set after it, an
		 * eventfd write follows.  Pairs with flag_notify(), whose caller writes the eventfd
		 * after the bit.
		 */
		if (shm_load(&ready[i]) == 0)
			continue;
		/* A full barrier between bit and word: a bit seen here means that READY is seen
		 * below.  Pairs with flag_notify(), which sets READY first. */
		for (bits = shm_xchg(&ready[i], 0); bits != 0; bits &= bits - 1) {
			const uint32_t slot = i * 64 + (uint32_t)__builtin_ctzll(bits);

			if (slot_state(fs->seg, fs->worker, slot) == FLAG_READY)
				fn(slot, arg);
		}
	}
}

/* The flag is as this worker has left it, but for notices that were counted since. */
static bool
is_as_left(const struct flag_set *fs, uint32_t slot)
{
	const struct flag_slot *f = seg_flag(fs->seg, fs->worker, slot);
	const uint64_t word = shm_load(&f->word);
	bool used;

	return without_notices(word) == fs->known[slot] &&
	       flag_sound(fs->seg, fs->worker, slot, &used) &&
	       (word_state(word) != FLAG_ARMED || shm_load(&f->nonce) == fs->nonces[slot]);
}

static void
restore(struct flag_set *fs, uint32_t slot)
{
	struct seg *seg = fs->seg;
	uint64_t *word = &seg_flag(seg, fs->worker, slot)->word;
	const uint64_t known = fs->known[slot];

	if (!suspect(SUSPECT_FLAGS, slot, !is_as_left(fs, slot)))
		return;
	if (word_state(known) == FLAG_FREE) {
		(void)shm_xchg(word, known);
		return;
	}
	/* Its notices are lost: the request continues as if all had come. */
	(void)shm_xchg(word, word_make(word_gen(known), 0, FLAG_READY));
	shm_or(&seg_ready(seg, fs->worker)[slot / 64], UINT64_C(1) << slot % 64);
}

void
flag_restore(struct flag_set *fs)
{
	const uint32_t n = fs->seg->hdr->flags_per_worker;
	const uint32_t end =
		fs->restored + RESTORED_AT_ONCE < n ? fs->restored + RESTORED_AT_ONCE : n;

	for (uint32_t slot = fs->restored; slot < end; slot++)
		if (shm_load(&seg_flag(fs->seg, fs->worker, slot)->word) != fs->known[slot])
			restore(fs, slot);
	fs->restored = end < n ? end : 0;
}

uint32_t
flag_armed(const struct flag_set *fs)
{
	return fs->seg->hdr->flags_per_worker - fs->nfree;
}

enum flag_notice
flag_notify(struct seg *seg, const struct flag_ref *ref)
{
	struct flag_slot *f = seg_flag(seg, ref->worker, ref->slot);
	/* Pairs with flag_arm()'s release: the nonce we compare is of this gen or a later one. */
	uint64_t seen = shm_load_acquire(&f->word), old;
	uint8_t left;

	do {
		if (word_gen(seen) != ref->gen || word_state(seen) != FLAG_ARMED)
			return FLAG_STALE;
		if (shm_load(&f->nonce) != ref->nonce)
			return FLAG_WRONG_NONCE;
		left = (uint8_t)(word_left(seen) - 1);
		old = seen;
		seen = shm_cas(&f->word, old,
			word_make(ref->gen, left, left > 0 ? FLAG_ARMED : FLAG_READY));
	} while (seen != old);
	if (left > 0)
		return FLAG_COUNTED;
	/* READY before the bit: both are full barriers.  Pairs with flag_collect()'s exchange. */
	shm_or(&seg_ready(seg, ref->worker)[ref->slot / 64], UINT64_C(1) << ref->slot % 64);
	return FLAG_READY_NOW;
}

void
flag_kick_all(struct seg *seg)
{
	const size_t n = (size_t)SLOT_WORKERS(seg) * (seg->hdr->flags_per_worker / 64);

	for (size_t i = 0; i < n; i++)
		shm_or(&seg->ready[i], UINT64_MAX);
}

bool
flag_clear(struct seg *seg, uint32_t worker, uint32_t slot)
{
	uint64_t *word = &seg_flag(seg, worker, slot)->word;
	const uint64_t gen = word_gen(shm_load(word)); /* the notifier never changes it */
	const uint64_t old = shm_xchg(word, word_make((gen + 1) & GEN_MASK, 0, FLAG_FREE));

	return word_state(old) != FLAG_FREE;
}

uint32_t
flag_reap(struct seg *seg, uint32_t worker)
{
	uint32_t armed = 0;

	for (uint32_t slot = 0; slot < seg->hdr->flags_per_worker; slot++)
		armed += flag_clear(seg, worker, slot);
	return armed;
}

bool
flag_sound(const struct seg *seg, uint32_t worker, uint32_t slot, bool *ret_used)
{
	const uint64_t word = shm_load(&seg_flag(seg, worker, slot)->word);
	const enum flag_state state = word_state(word);

	*ret_used = state != FLAG_FREE;
	/* only an armed flag waits for notices, and a used slot has a gen */
	return state <= FLAG_READY && (word_left(word) > 0) == (state == FLAG_ARMED) &&
	       (state == FLAG_FREE || word_gen(word) > 0);
}

/* "%02x-%04x-%012x-%016x": worker, slot, gen, nonce.  One form, so no two texts name one flag. */
static const struct field {
	uint8_t at, digits;
} fields[] = {{0, 2}, {3, 4}, {8, 12}, {21, 16}};
#define ID_TEXT 37
static_assert(ID_TEXT < FLAG_ID_LEN, "text and NUL");

void
flag_id_format(const struct flag_ref *ref, char out[FLAG_ID_LEN])
{
	(void)snprintf(out, FLAG_ID_LEN, "%02x-%04x-%012" PRIx64 "-%016" PRIx64,
		ref->worker & 0xffu, ref->slot & 0xffffu, ref->gen & GEN_MASK, ref->nonce);
}

static bool
read_fields(const char *text, size_t len, uint64_t v[4])
{
	if (len != ID_TEXT)
		return false;
	for (size_t i = 0; i < 4; i++) {
		if (i > 0 && text[fields[i].at - 1] != '-')
			return false;
		if (!hex_read(text + fields[i].at, fields[i].digits, &v[i]))
			return false;
	}
	return true;
}

bool
flag_id_instance(const char *text, size_t len, uint32_t *ret)
{
	uint64_t v[4];

	if (!read_fields(text, len, v))
		return false;
	*ret = (uint32_t)(v[3] >> RANDOM_BITS);
	return true;
}

bool
flag_id_parse(const struct seg *seg, const char *text, size_t len, struct flag_ref *ret)
{
	uint64_t v[4];

	if (!read_fields(text, len, v))
		return false;
	if (v[0] >= SLOT_WORKERS(seg) || v[1] >= seg->hdr->flags_per_worker)
		return false;
	*ret = (struct flag_ref){(uint32_t)v[0], (uint32_t)v[1], v[2], v[3]};
	return true;
}
