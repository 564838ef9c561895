/*
 * One block after the other in the arena: the table, its keys, the slots, then lists and texts.
 */
#include "shm/api_keys.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "shm/base/hex.h"
#include "shm/core/arena.h"

/* Text of a key: the names of its models and pools, with a pointer to each.  An arena is sized by the average. */
#define KEY_TEXT 256

static size_t
slots_for(size_t n)
{
	size_t slots = 1;

	while (slots < 2 * n)
		slots *= 2;
	return slots;
}

/* Without lists and texts. */
static size_t
rows_bytes(size_t n)
{
	return arena_round_up(sizeof(struct api_keys)) +
	       n * arena_round_up(sizeof(struct api_key)) +
	       arena_round_up(slots_for(n) * sizeof(uint32_t));
}

size_t
api_keys_arena_bytes(uint32_t max_keys)
{
	return rows_bytes(max_keys) + (size_t)max_keys * KEY_TEXT;
}

static size_t
list_bytes(char *const *v, size_t n)
{
	size_t bytes = n * sizeof(char *);

	for (size_t i = 0; i < n; i++)
		bytes += arena_round_up(strlen(v[i]) + 1);
	return bytes;
}

size_t
api_keys_bytes(const struct conf_api_key *keys, size_t n)
{
	size_t bytes = rows_bytes(n);

	for (size_t i = 0; i < n; i++)
		bytes += list_bytes(keys[i].models, keys[i].nmodels) +
			 list_bytes(keys[i].pools, keys[i].npools);
	return bytes;
}

/* --- building --------------------------------------------------------------------------------- */

/* The text was checked when it was read. */
static void
read_sha256(const char *text, unsigned char *ret)
{
	uint64_t byte = 0;

	for (size_t i = 0; i < CONF_SHA256; i++) {
		(void)hex_read(text + 2 * i, 2, &byte);
		ret[i] = (unsigned char)byte;
	}
}

static void
fill_key(struct arena *a, struct api_key *k, const struct conf_api_key *conf)
{
	read_sha256(conf->sha256, k->sha256);
	memcpy(k->name, conf->name, strlen(conf->name) + 1);
	k->door = (uint8_t)conf->door;
	k->terms = conf->terms;
	k->nmodels = (uint32_t)conf->nmodels;
	k->npools = (uint32_t)conf->npools;
	k->models = arena_strv(a, (const char *const *)conf->models, conf->nmodels);
	k->pools = arena_strv(a, (const char *const *)conf->pools, conf->npools);
}

/* A SHA-256 is as good as random: no further hash is needed. */
static uint32_t
home(const struct api_keys *t, const unsigned char *sha256)
{
	uint64_t first;

	memcpy(&first, sha256, sizeof(first));
	return (uint32_t)first & (t->nslots - 1);
}

int
api_keys_build(void *arena, size_t size, const struct conf_api_key *keys, size_t n,
	const bool needed[DOOR_N])
{
	struct arena a;
	struct api_keys *t;
	struct api_key *rows;
	uint32_t *slots;

	if (api_keys_bytes(keys, n) > size)
		return -ENOSPC;
	arena_begin(&a, arena, size);
	t = arena_take(&a, sizeof(*t)); /* this and all that follows fits */
	t->n = (uint32_t)n;
	t->nslots = (uint32_t)slots_for(n);
	memcpy(t->needed, needed, sizeof(t->needed));
	t->keys = rows = arena_take(&a, n * sizeof(*rows));
	t->slots = slots = arena_take(&a, t->nslots * sizeof(*slots));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at;

		fill_key(&a, &rows[i], &keys[i]);
		for (at = home(t, rows[i].sha256); slots[at] != 0;)
			at = (at + 1) & (t->nslots - 1);
		slots[at] = i + 1;
	}
	t->used = a.used;
	t->checksum = arena_checksum(t, t->used, offsetof(struct api_keys, checksum));
	return 0;
}

bool
api_keys_intact(const struct api_keys *t, size_t arena_bytes)
{
	static_assert(
		offsetof(struct api_keys, checksum) % ARENA_ALIGN == 0, "a whole word is left out");

	return arena_intact(
		t, t->used, sizeof(*t), arena_bytes, offsetof(struct api_keys, checksum));
}

/* --- looking up ------------------------------------------------------------------------------- */

/* No branch and no early end: all bytes are read, wherever two differ. */
static bool
same(const unsigned char a[CONF_SHA256], const unsigned char b[CONF_SHA256])
{
	uint64_t x[CONF_SHA256 / 8], y[CONF_SHA256 / 8], differ = 0;

	memcpy(x, a, CONF_SHA256);
	memcpy(y, b, CONF_SHA256);
	for (size_t i = 0; i < CONF_SHA256 / 8; i++)
		differ |= x[i] ^ y[i];
	return differ == 0;
}

const struct api_key *
api_keys_find(const struct api_keys *t, enum door door, const unsigned char sha256[CONF_SHA256])
{
	for (uint32_t at = home(t, sha256); t->slots[at] != 0; at = (at + 1) & (t->nslots - 1)) {
		const struct api_key *k = &t->keys[t->slots[at] - 1];

		if (same(k->sha256, sha256) && k->door == door)
			return k;
	}
	return NULL;
}

/* A name with `*` at its end stands for all that begin so. */
static bool
matches(const char *pattern, const char *name)
{
	const size_t n = strlen(pattern);

	if (n > 0 && pattern[n - 1] == '*')
		return strncmp(pattern, name, n - 1) == 0;
	return strcmp(pattern, name) == 0;
}

bool
api_key_has_model(const struct api_key *k, const char *model)
{
	for (uint32_t i = 0; i < k->nmodels; i++)
		if (matches(k->models[i], model))
			return true;
	return k->nmodels == 0;
}

bool
api_key_has_pool(const struct api_key *k, const char *pool)
{
	for (uint32_t i = 0; i < k->npools; i++)
		if (strcmp(k->pools[i], pool) == 0)
			return true;
	return k->npools == 0;
}
