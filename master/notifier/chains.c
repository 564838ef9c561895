#include "master/notifier/chains.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/kv_events.h"
#include "shm/base/mem.h"
#include "shm/base/prefix_key.h"
#include "shm/core/seg.h"
#include "shm/prefix.h"

#define SHARE 4 /* of the index's bytes */
#define BYTES_MAX (UINT64_C(1) << 28)
#define WAYS 4
#define UNITS_MAX 8192 /* before the last cut */
#define SALT_MAX 256   /* bytes with the quotes; of longer salts blocks are not followed */

/* The bucket is chosen by one part of the block's name, which is `name` by another. */
struct block {
	uint64_t digest;
	uint32_t name;
	uint32_t number; /* of blocks up to its end; 0: none stands here */
};

/* The newest first: stored last, or the parent of one that was. */
struct set {
	struct block block[WAYS];
};

struct chains {
	struct seg *seg;
	struct prefix_secret secret;
	uint64_t lives;
	uint64_t cuts[UNITS_MAX / 64]; /* a bit for each unit behind which prompts are cut */
	uint32_t last;                 /* of these */
	uint32_t nsets;
	bool forgets; /* a block has lost its place to another one */
	struct set *sets;
};

uint64_t
chains_bytes(const struct seg *seg)
{
	const uint64_t bytes =
		(uint64_t)seg->hdr->prefix_buckets * sizeof(struct prefix_bucket) / SHARE;

	return bytes < BYTES_MAX ? bytes : BYTES_MAX;
}

struct chains *
chains_new(struct seg *seg)
{
	struct chains *c;
	uint32_t at = 0;

	if (seg->hdr->prefix_buckets == 0)
		return NULL;
	c = MEM_NEW(struct chains);
	c->seg = seg;
	prefix_secret_make(&c->secret, seg->hdr->prefix_seed);
	for (uint32_t i = 0; i < PREFIX_CUTS; i++) {
		at += prefix_unit_step(at);
		assert(at < UNITS_MAX);
		c->cuts[at / 64] |= UINT64_C(1) << at % 64;
	}
	c->last = at;
	c->nsets = (uint32_t)(chains_bytes(seg) / sizeof(struct set));
	c->nsets = c->nsets > 0 ? c->nsets : 1;
	/* zeroed pages that are taken as they are used */
	c->sets = mem_array(c->nsets, sizeof(*c->sets));
	return c;
}

void
chains_free(struct chains **pc)
{
	if (*pc != NULL)
		free((*pc)->sets);
	free(*pc);
	*pc = NULL;
}

uint64_t
chains_life(struct chains *c)
{
	return ++c->lives;
}

/* --- blocks that are known ---------------------------------------------------------------------- */

/* Names of two engines, or of two lives, are different: one engine finds no block of another. */
static uint64_t
name_of(const struct chains *c, const struct chains_engine *e, uint64_t hash)
{
	const uint64_t name[2] = {e->life, hash};

	return prefix_root(&c->secret, e->ep, name, sizeof(name));
}

static struct set *
set_of(const struct chains *c, uint64_t name)
{
	return &c->sets[(name >> 32) * c->nsets >> 32];
}

/* WAYS: it is not known. */
static uint32_t
way_of(const struct set *s, uint64_t name)
{
	uint32_t k = 0;

	while (k < WAYS && (s->block[k].number == 0 || s->block[k].name != (uint32_t)name))
		k++;
	return k;
}

static void
put_first(struct set *s, uint32_t k, struct block b)
{
	for (; k > 0; k--)
		s->block[k] = s->block[k - 1];
	s->block[0] = b;
}

/* In place of the same one, else of one that was removed, else of the one that was not used for longest. */
static void
remember(struct chains *c, uint64_t name, uint64_t digest, uint32_t number)
{
	struct set *s = set_of(c, name);
	uint32_t k = way_of(s, name);

	if (k == WAYS)
		for (k = 0; k < WAYS - 1 && s->block[k].number != 0;)
			k++;
	c->forgets |= s->block[k].number != 0 && s->block[k].name != (uint32_t)name;
	put_first(s, k, (struct block){digest, (uint32_t)name, number});
}

/* Whether prompts are cut behind so many blocks. */
static bool
is_cut(const struct chains *c, uint32_t number, uint32_t unit)
{
	const uint32_t at = number / unit;

	return number % unit == 0 && at <= c->last && (c->cuts[at / 64] >> at % 64 & 1) != 0;
}

/* --- events ------------------------------------------------------------------------------------- */

struct salt {
	const char *p;
	size_t n;
};

/* The cache_salt as a body has it; *ret: room for it.  False: the digests cannot be known. */
static bool
salt_of(const struct kv_event *event, char room[SALT_MAX], struct salt *ret)
{
	const struct msgpack_text *salt = NULL;

	*ret = (struct salt){"", 0};
	if (event->nextra > KV_EVENT_EXTRA_MAX)
		return false;
	for (unsigned i = 0; i < event->nextra; i++) {
		const struct msgpack_text *t = &event->extra[i];

		if (event->adapter_name.p != NULL && t->n == event->adapter_name.n &&
			memcmp(t->p, event->adapter_name.p, t->n) == 0)
			continue;
		if (salt != NULL)
			return false;
		salt = t;
	}
	if (salt == NULL)
		return true;
	if (salt->n + 2 > SALT_MAX)
		return false;
	room[0] = room[salt->n + 1] = '"';
	memcpy(room + 1, salt->p, salt->n);
	*ret = (struct salt){room, salt->n + 2};
	return true;
}

/* What the digests of a prompt's first block begin with. */
static bool
root_of(const struct chains *c, const struct chains_engine *e, const struct kv_event *event,
	uint64_t *ret)
{
	const struct msgpack_text *name = &event->adapter_name;
	struct salt salt;
	char room[SALT_MAX];

	if (event->adapter && name->p == NULL) /* a number of the engine's own */
		return false;
	if (!salt_of(event, room, &salt))
		return false;
	*ret = prefix_ids_root(&c->secret,
		event->adapter ? prefix_ids_model(&c->secret, name->p, name->n) : e->root, "", 0,
		salt.p, salt.n);
	return true;
}

/* What is known up to the end of the block before those stored. */
static bool
before(struct chains *c, const struct chains_engine *e, const struct kv_event *event,
	struct block *ret)
{
	struct set *s;
	uint64_t name;
	uint32_t k;

	*ret = (struct block){.number = 0};
	if (event->first)
		return root_of(c, e, event, &ret->digest);
	name = name_of(c, e, event->parent);
	s = set_of(c, name);
	k = way_of(s, name);
	if (k == WAYS)
		return false;
	*ret = s->block[k];
	put_first(s, k, *ret); /* a system prompt is stored once, and is the parent of many */
	return ret->number < UINT32_MAX;
}

static bool
read_ids(struct kv_list *from, uint32_t ids[], uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!kv_events_id(from, &ids[i]))
			return false;
	return true;
}

static bool
stored(struct chains *c, const struct chains_engine *e, const struct kv_event *event)
{
	const uint32_t block = event->block_tokens, unit = prefix_unit_blocks(block);
	struct kv_list hashes = event->hashes, from = event->ids;
	uint32_t ids[PREFIX_BLOCK_MAX];
	struct block b;
	uint64_t hash;

	if (from.n != event->blocks * block || !before(c, e, event, &b))
		return false;
	while (b.number < UINT32_MAX && read_ids(&from, ids, block) &&
		kv_events_hash(&hashes, &hash)) {
		const uint64_t name = name_of(c, e, hash);

		b.digest = prefix_block(&c->secret, b.digest, ids, block);
		b.number++;
		remember(c, name, b.digest, b.number);
		if (is_cut(c, b.number, unit))
			prefix_stored(c->seg, b.digest, e->row, e->ep);
	}
	return true;
}

/* False: the words of some may be left. */
static bool
removed(struct chains *c, const struct chains_engine *e, const struct kv_event *event)
{
	const uint32_t unit = prefix_unit_blocks(e->block);
	struct kv_list hashes = event->hashes;
	uint64_t hash;
	bool all = true;

	while (kv_events_hash(&hashes, &hash)) {
		const uint64_t name = name_of(c, e, hash);
		struct set *s = set_of(c, name);
		const uint32_t k = way_of(s, name);

		if (k == WAYS) {
			all = all && !c->forgets; /* if none was forgotten, it never had a word */
			continue;
		}
		if (is_cut(c, s->block[k].number, unit))
			prefix_removed(c->seg, s->block[k].digest, e->row, e->ep);
		s->block[k].number = 0;
	}
	return all;
}

bool
chains_take(struct chains *c, struct chains_engine *e, const struct kv_event *event)
{
	if (!event->counts)
		return false;
	if (event->kind == KV_EVENT_STORED && event->block_tokens <= PREFIX_BLOCK_MAX)
		return stored(c, e, event);
	if (event->kind == KV_EVENT_REMOVED && e->block != 0 && !removed(c, e, event))
		e->stale = true;
	return false;
}
