/*
 * The packed words of a client's entry; quota.c writes them, check.c checks them:
 *
 *	last	hash:44 | life:16 | way:3 | pending:1	of the set: the entry assigned last
 *	key	hash:44 | life:16 | 0:4			of the entry
 *	held	life:16 | requests:16 | name:32		of the entry; the name as in load_word.h
 *
 *	life     bound:1 | number:15
 *
 * An entry belongs to its key while both its words show the same life, and the life is bound.  Each set numbers
 * its own lives.  A free entry shows the number of its last life: so no two states of `held` without requests are
 * equal, and a late CAS fails.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/load_word.h"

#define QUOTA_LIFE_BITS 16
#define QUOTA_LIFE_BOUND (UINT64_C(1) << (QUOTA_LIFE_BITS - 1))
#define QUOTA_HELD_BITS 16
#define QUOTA_HELD_MAX ((UINT32_C(1) << QUOTA_HELD_BITS) - 1)
#define QUOTA_PENDING UINT64_C(1)

static inline uint64_t
quota_key(uint64_t hash, uint64_t life)
{
	return hash << 20 | life << 4;
}

static inline uint64_t
quota_key_hash(uint64_t key)
{
	return key >> 20;
}

/* Of a key, and of `last`. */
static inline uint64_t
quota_key_life(uint64_t key)
{
	return key >> 4 & BITS(QUOTA_LIFE_BITS);
}

static inline uint64_t
quota_last(uint64_t key, uint32_t way)
{
	return key | (uint64_t)way << 1 | QUOTA_PENDING;
}

static inline uint32_t
quota_last_way(uint64_t last)
{
	return last >> 1 & 7;
}

static inline uint64_t
quota_last_key(uint64_t last)
{
	return last & ~BITS(4);
}

static inline uint64_t
quota_held_life(uint64_t held)
{
	return held >> (64 - QUOTA_LIFE_BITS);
}

static inline uint32_t
quota_held_count(uint64_t held)
{
	return word_count(held) & QUOTA_HELD_MAX;
}

/* An entry of that life without requests. */
static inline uint64_t
quota_held_idle(uint64_t life)
{
	return life << (64 - QUOTA_LIFE_BITS);
}

static inline bool
quota_free(uint64_t held)
{
	return (quota_held_life(held) & QUOTA_LIFE_BOUND) == 0;
}

static inline bool
quota_bound(uint64_t key, uint64_t held)
{
	return !quota_free(held) && quota_held_life(held) == quota_key_life(key);
}
