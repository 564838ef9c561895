#include "tests/engine/prefix.h"

#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "tests/engine/publish.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

struct block {
	uint64_t hash;
	TAILQ_ENTRY(block) by_use;
	struct block *chain;
};

TAILQ_HEAD(block_head, block);

struct prefix {
	struct block *blocks, **buckets;
	struct block_head by_use; /* the first was used last */
	uint64_t cap, used, mask, block_tokens;
	uint64_t *hashes; /* of one prompt's blocks */
	uint64_t max_hashes;
	struct sim *sim;
};

struct prefix *
prefix_new(struct sim *sim)
{
	uint64_t nbuckets = 1;
	struct prefix *x;

	if (sim->o.cache_blocks == 0)
		return NULL;
	x = calloc(1, sizeof(*x));
	if (x == NULL)
		abort();
	x->sim = sim;
	x->cap = (uint64_t)sim->o.cache_blocks;
	x->block_tokens = (uint64_t)sim->o.block_size;
	while (nbuckets < x->cap)
		nbuckets *= 2;
	x->mask = nbuckets - 1;
	x->blocks = calloc(x->cap, sizeof(*x->blocks));
	x->buckets = calloc(nbuckets, sizeof(struct block *));
	if (x->blocks == NULL || x->buckets == NULL)
		abort();
	TAILQ_INIT(&x->by_use);
	return x;
}

void
prefix_free(struct prefix **px)
{
	struct prefix *x = *px;

	*px = NULL;
	if (x == NULL)
		return;
	free(x->hashes);
	free(x->buckets);
	free(x->blocks);
	free(x);
}

static struct block **
slot_of(struct prefix *x, uint64_t hash)
{
	struct block **at = &x->buckets[(hash ^ hash >> 32) & x->mask];

	while (*at != NULL && (*at)->hash != hash)
		at = &(*at)->chain;
	return at;
}

static void
use(struct prefix *x, struct block *b)
{
	TAILQ_REMOVE(&x->by_use, b, by_use);
	TAILQ_INSERT_HEAD(&x->by_use, b, by_use);
}

/* A block for another hash: a fresh one, or the one that was not used for the longest time. */
static struct block *
take(struct prefix *x)
{
	struct block *b, **at;

	if (x->used < x->cap)
		return &x->blocks[x->used++];
	b = TAILQ_LAST(&x->by_use, block_head);
	count(x->sim, CTR_blocks_evicted);
	publish_removed(x->sim->publish, b->hash);
	at = slot_of(x, b->hash);
	*at = b->chain;
	TAILQ_REMOVE(&x->by_use, b, by_use);
	return b;
}

/* Fills x->hashes with those of the first blocks of the prompt; returns how many there are. */
static uint64_t
hash_blocks(struct prefix *x, const struct prefix_prompt *p, uint64_t ntokens)
{
	uint64_t n = ntokens / x->block_tokens, i, k, h = p->root;

	if (n > x->cap)
		n = x->cap;
	if (n > x->max_hashes) {
		x->hashes = realloc(x->hashes, n * sizeof(*x->hashes));
		if (x->hashes == NULL)
			abort();
		x->max_hashes = n;
	}
	for (i = 0; i < n; i++) {
		for (k = 0; k < x->block_tokens; k++)
			h = text_mix(h, p->ids[i * x->block_tokens + k]);
		x->hashes[i] = h;
	}
	return n;
}

uint64_t
prefix_find(struct prefix *x, const struct prefix_prompt *p)
{
	uint64_t n = p->nids == 0 ? 0 : hash_blocks(x, p, p->nids - 1), found = 0;

	while (found < n && *slot_of(x, x->hashes[found]) != NULL)
		found++;
	for (n = found; n > 0; n--)
		use(x, *slot_of(x, x->hashes[n - 1]));
	return found * x->block_tokens;
}

/* n blocks of the prompt from the block `first` on are new. */
static void
tell_stored(struct prefix *x, const struct prefix_prompt *p, uint64_t first, uint64_t n)
{
	if (n > 0)
		publish_stored(x->sim->publish, first > 0 ? x->hashes[first - 1] : 0,
			&x->hashes[first], n, p, first * x->block_tokens);
}

void
prefix_store(struct prefix *x, const struct prefix_prompt *p)
{
	uint64_t n = hash_blocks(x, p, p->nids), i, fresh = 0;

	for (i = 0; i < n; i++) {
		struct block *b = *slot_of(x, x->hashes[i]);

		if (b != NULL) {
			use(x, b);
			tell_stored(x, p, i - fresh, fresh);
			fresh = 0;
			continue;
		}
		fresh++;
		count(x->sim, CTR_blocks_stored);
		b = take(x);
		*b = (struct block){.hash = x->hashes[i]};
		*slot_of(x, b->hash) = b;
		TAILQ_INSERT_HEAD(&x->by_use, b, by_use);
	}
	tell_stored(x, p, n - fresh, fresh);
	publish_batch(x->sim->publish);
	for (i = n; i > 0; i--)
		use(x, *slot_of(x, x->hashes[i - 1]));
}

void
prefix_clear(struct prefix *x)
{
	memset(x->buckets, 0, (x->mask + 1) * sizeof(struct block *));
	TAILQ_INIT(&x->by_use);
	x->used = 0;
	publish_cleared(x->sim->publish);
	publish_batch(x->sim->publish);
}

uint64_t
prefix_blocks(const struct prefix *x)
{
	return x->used;
}
