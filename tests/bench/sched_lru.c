#include "tests/bench/sched_lru.h"

#include <stdlib.h>

#include "shm/base/mem.h"

struct lru_node {
	uint32_t id, chain;
	uint32_t newer, older;
};

void
lru_init(struct lru *l, uint32_t size)
{
	uint32_t heads = 1;

	while (heads < size)
		heads *= 2;
	*l = (struct lru){.size = size, .mask = heads - 1, .newest = LRU_NONE, .oldest = LRU_NONE};
	l->heads = mem_array(heads, sizeof(*l->heads));
	for (uint32_t i = 0; i < heads; i++)
		l->heads[i] = LRU_NONE;
	l->nodes = mem_array(size, sizeof(*l->nodes));
}

void
lru_fini(struct lru *l)
{
	free(l->heads);
	free(l->nodes);
	*l = (struct lru){0};
}

static uint32_t *
head_of(const struct lru *l, uint32_t id)
{
	return &l->heads[(id * 2654435769u >> 8) & l->mask];
}

static uint32_t
find(const struct lru *l, uint32_t id)
{
	uint32_t i = *head_of(l, id);

	while (i != LRU_NONE && l->nodes[i].id != id)
		i = l->nodes[i].chain;
	return i;
}

static void
unlink_age(struct lru *l, uint32_t i)
{
	const struct lru_node *e = &l->nodes[i];

	*(e->newer == LRU_NONE ? &l->newest : &l->nodes[e->newer].older) = e->older;
	*(e->older == LRU_NONE ? &l->oldest : &l->nodes[e->older].newer) = e->newer;
}

static void
make_newest(struct lru *l, uint32_t i)
{
	l->nodes[i].newer = LRU_NONE;
	l->nodes[i].older = l->newest;
	*(l->newest == LRU_NONE ? &l->oldest : &l->nodes[l->newest].newer) = i;
	l->newest = i;
}

/* Evicts the oldest block and returns its node. */
static uint32_t
evict(struct lru *l)
{
	const uint32_t i = l->oldest;
	uint32_t *at = head_of(l, l->nodes[i].id);

	while (*at != i)
		at = &l->nodes[*at].chain;
	*at = l->nodes[i].chain;
	unlink_age(l, i);
	return i;
}

static void
touch(struct lru *l, uint32_t id)
{
	uint32_t i = find(l, id);

	if (i != LRU_NONE) {
		unlink_age(l, i);
	} else {
		i = l->n < l->size ? l->n++ : evict(l);
		l->nodes[i].id = id;
		l->nodes[i].chain = *head_of(l, id);
		*head_of(l, id) = i;
	}
	make_newest(l, i);
}

uint32_t
lru_match(const struct lru *l, const uint32_t *ids, uint32_t n)
{
	uint32_t k = 0;

	while (k < n && find(l, ids[k]) != LRU_NONE)
		k++;
	return k;
}

uint32_t
lru_take(struct lru *l, const uint32_t *ids, uint32_t n)
{
	const uint32_t hit = lru_match(l, ids, n), kept = n < l->size ? n : l->size;

	/* those that are there first: a new block of this prompt evicts none of them */
	for (uint32_t k = hit; k > 0; k--)
		touch(l, ids[k - 1]);
	for (uint32_t k = kept; k > 0; k--)
		touch(l, ids[k - 1]);
	return hit;
}
