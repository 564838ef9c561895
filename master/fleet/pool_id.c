#include "master/fleet/pool_id.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "shm/base/mem.h"
#include "shm/core/seg.h"

/* The number of a name, or the free one it would get; max_pools if there is neither. */
static uint32_t
find_id(const struct seg *seg, const char *name)
{
	for (uint32_t id = 0; id < seg->hdr->max_pools; id++) {
		const char *at = seg_pool_name(seg, id);

		if (at[0] == '\0' || strcmp(at, name) == 0)
			return id;
	}
	return seg->hdr->max_pools;
}

static uint32_t
pool_id(struct seg *seg, const struct conf_pool *pool)
{
	uint32_t id = find_id(seg, pool->name);
	char *at = seg_pool_name(seg, id);

	assert(id < seg->hdr->max_pools && strlen(pool->name) < SEG_POOL_NAME);
	/* Written before the table that names the pool is published, so readers see it whole. */
	if (at[0] == '\0')
		memcpy(at, pool->name, strlen(pool->name) + 1);
	return id;
}

void
pool_ids_assign(struct fleet *f)
{
	const struct conf *conf = f->conf;

	f->pool_ids = mem_resize(f->pool_ids, conf->npools + 1, sizeof(*f->pool_ids));
	for (size_t i = 0; i < conf->npools; i++)
		f->pool_ids[i] = pool_id(f->seg, &conf->pools[i]);
}

uint32_t
pool_id_of(const struct fleet *f, const struct conf_pool *pool)
{
	return f->pool_ids[pool - f->conf->pools];
}

const struct conf_pool *
pool_without_id(const struct seg *seg, const struct conf *conf)
{
	uint32_t nfree = 0;

	for (uint32_t id = 0; id < seg->hdr->max_pools; id++)
		nfree += seg_pool_name(seg, id)[0] == '\0';
	for (size_t i = 0; i < conf->npools; i++) {
		uint32_t id = find_id(seg, conf->pools[i].name);
		bool known = id < seg->hdr->max_pools && seg_pool_name(seg, id)[0] != '\0';

		if (!known && nfree-- == 0)
			return &conf->pools[i];
	}
	return NULL;
}
