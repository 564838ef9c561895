/*
 * The table of the keys of clients and operators: what a worker looks a key up in.  Immutable once published, replaced whole.
 *
 * Writer: the master builds a table in a free arena (api_keys_build), then rcu_publish_keys()es it.
 * Readers: workers, between rcu_enter() and rcu_leave(); they copy out what they keep.
 * The table has the SHA-256 of each key, and no key.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/base/conf.h"

struct api_key {
	unsigned char sha256[CONF_SHA256];
	char name[CONF_KEY_NAME + 1];
	uint8_t door; /* enum door: whose key it is */
	struct conf_key_terms terms;
	uint32_t nmodels, npools; /* 0: all */
	const char *const *models;
	const char *const *pools;
};

struct api_keys {
	uint32_t n;
	uint32_t nslots; /* a power of two, at most half of them in use */
	const struct api_key *keys;
	/* open addressing with linear probing by the first bytes of the SHA-256: index into keys + 1; 0: free */
	const uint32_t *slots;
	bool needed[DOOR_N]; /* who comes through that door needs a key */
	uint64_t checksum;   /* of the used bytes */
	uint64_t used;
};

/* Bytes of an arena for so many keys: their rows and a share of text for each (shm/README). */
size_t api_keys_arena_bytes(uint32_t max_keys);
/* Bytes that these keys take. */
size_t api_keys_bytes(const struct conf_api_key *keys, size_t n);
/* Builds the table at the start of the arena.  0, or -ENOSPC: it does not fit. */
int api_keys_build(void *arena, size_t size, const struct conf_api_key *keys, size_t n,
	const bool needed[DOOR_N]);
/* False if the table's bytes differ from those that api_keys_build() left. */
bool api_keys_intact(const struct api_keys *t, size_t arena_bytes);

/* The key of that door with this SHA-256, or NULL.  The comparison takes the same time wherever two differ. */
const struct api_key *api_keys_find(
	const struct api_keys *t, enum door door, const unsigned char sha256[CONF_SHA256]);
/* Whether the key may use a model, or a pool. */
bool api_key_has_model(const struct api_key *k, const char *model);
bool api_key_has_pool(const struct api_key *k, const char *pool);
