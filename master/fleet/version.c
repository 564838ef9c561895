#include "master/fleet/version.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf.h"
#include "master/fleet/endpoint.h"
#include "master/fleet/pool_id.h"
#include "master/fleet/rows.h"
#include "shm/api_keys.h"
#include "shm/base/mem.h"
#include "shm/core/seg.h"
#include "shm/table.h"

/* 0 or -ENOSPC.  `cards`: with what engines tell of their models.  `max`: learned names a pool may have
 * in this version. */
static int
fill(const struct fleet *f, const struct version_stamp *stamp, void *arena, bool cards, size_t max)
{
	const struct conf *conf = f->conf;
	bool share = max < SIZE_MAX; /* it was too much once: no lists of single endpoints */
	uint32_t n = 0, i = 0;
	struct table_builder b;
	struct table *t;

	for (size_t k = 0; k < f->norder; k++)
		n += rows_has(f->order[k]);
	t = table_begin(&b, arena, f->seg->arena_bytes, (uint32_t)conf->npools, n);
	if (t == NULL)
		return -ENOSPC;
	t->version = stamp->version;
	t->config = f->config_number;
	t->created_s = stamp->created_s;
	t->foreign_max_age_ms = FOREIGN_SCRAPES * conf->stats_interval_ms;
	t->plan_wait_ms = conf->health_timeout_ms; /* their first answer */
	for (uint32_t k = 0; k < conf->npools; k++) {
		rows_fill_pool(&b, table_pool_at(&b, k), f, &conf->pools[k], max);
		if (cards)
			rows_fill_cards(&b, table_pool_at(&b, k), f, &conf->pools[k]);
	}
	for (size_t k = 0; k < f->norder; k++)
		if (rows_has(f->order[k]))
			rows_fill_endpoint(&b, table_endpoint_at(&b, i++), f->order[k],
				(uint32_t)(f->order[k]->engine.pool - conf->pools), share);
	return table_end(&b);
}

/* Half of the found endpoints that still have a row, the last ones; false if there is none. */
static bool
leave_out_found(const struct fleet *f)
{
	size_t n = 0;

	for (size_t i = 0; i < f->norder; i++)
		n += f->order[i]->engine.found && rows_has(f->order[i]);
	if (n == 0)
		return false;
	n = (n + 1) / 2;
	for (size_t i = f->norder; n > 0; i--)
		if (f->order[i - 1]->engine.found && rows_has(f->order[i - 1])) {
			f->order[i - 1]->no_room = true;
			n--;
		}
	return true;
}

struct version_cut
version_build(const struct fleet *f, const struct version_stamp *stamp, void *arena)
{
	struct version_cut cut = {false, false, false};
	size_t max = SIZE_MAX;

	for (size_t i = 0; i < f->norder; i++)
		f->order[i]->no_room = false;
	while (fill(f, stamp, arena, !cut.cards, max) != 0) {
		if (!cut.cards) {
			cut.cards = true;
			continue;
		}
		cut.names = true;
		if (max == 0) { /* version_check() has seen the configuration's own endpoints fit */
			cut.endpoints = leave_out_found(f);
			assert(cut.endpoints);
		}
		max = max == SIZE_MAX ? 1024 : max / 4;
	}
	return cut;
}

/* --- before a configuration is in force ---------------------------------------------------- */

/* As endpoint_new() would make it, whose texts belong to the configuration. */
static void
try_endpoint(struct fleet *f, struct endpoint *all, const struct conf_pool *pool,
	const struct conf_endpoint *conf)
{
	struct endpoint *ep = &all[f->norder];
	struct engine *e = &ep->engine;
	const char *why;
	int r = http_url_parse(conf->url, &e->at, &why);

	assert(r == 0);
	ep->fleet = f;
	e->pool = pool;
	e->conf = conf;
	e->url = conf->url;
	e->authority = conf->url; /* a part of it, and ":80" is shorter than "http://" */
	/* Versions and KV addresses cannot be left out as names can: as long as they may become. */
	memset(e->runtime.version, 'v', sizeof(e->runtime.version) - 1);
	if (pool->nannounce_networks > 0)
		memset(ep->kv_addr, 'k', sizeof(ep->kv_addr) - 1);
	f->order[f->norder++] = ep;
}

/* Fills a table for trial as if no names had been learned: those can be left out. */
static bool
table_fits(struct seg *seg, const struct conf *conf)
{
	struct fleet f = {.seg = seg, .conf = conf};
	const struct version_stamp stamp = {0};
	/* not zeroed: it has megabytes, and the table zeroes the part that it uses */
	void *arena = mem_resize(NULL, f.seg->arena_bytes, 1);
	struct endpoint *all;
	size_t total = 0;
	int r;

	for (size_t i = 0; i < conf->npools; i++)
		total += conf->pools[i].nendpoints;
	f.pool_ids = mem_array(conf->npools + 1, sizeof(*f.pool_ids));
	f.order = mem_array(total + 1, sizeof(struct endpoint *));
	all = mem_array(total + 1, sizeof(*all));
	for (size_t i = 0; i < conf->npools; i++)
		for (size_t k = 0; k < conf->pools[i].nendpoints; k++)
			try_endpoint(&f, all, &conf->pools[i], &conf->pools[i].endpoints[k]);
	r = fill(&f, &stamp, arena, false, 0);
	free(all);
	free(f.order);
	free(f.pool_ids);
	free(arena);
	return r == 0;
}

/* Of the api_keys_file, whose keys may have many models and pools. */
static bool
keys_fit(const struct seg *seg, const struct conf *conf, struct conf_error *ret)
{
	const size_t bytes = api_keys_bytes(conf->api_keys, conf->napi_keys);

	if (bytes <= seg->keys_arena_bytes)
		return true;
	(void)snprintf(ret->key, sizeof(ret->key), "api_keys_file");
	(void)snprintf(ret->what, sizeof(ret->what),
		"the keys need %zu bytes, there is room for %zu: raise shared_memory.max_api_keys "
		"and restart",
		bytes, seg->keys_arena_bytes);
	return false;
}

int
version_check(const struct fleet *f, const struct conf *conf, struct conf_error *err)
{
	struct seg *seg = f->seg;
	const struct conf_pool *pool = pool_without_id(seg, conf);
	struct conf_error e = {.key = "pools"};

	if (pool != NULL) {
		(void)snprintf(
			e.key, sizeof(e.key), "pools[%zu].name", (size_t)(pool - conf->pools));
		(void)snprintf(e.what, sizeof(e.what),
			"%s is a new name, and all %u of shared_memory.max_pools have been given since the "
			"start: use a former name, or restart",
			pool->name, seg->hdr->max_pools);
	} else if (!table_fits(seg, conf)) {
		pool = conf->pools;
		(void)snprintf(e.what, sizeof(e.what),
			"the endpoint table needs more than its %zu bytes: raise "
			"shared_memory.max_endpoints and restart",
			seg->arena_bytes);
	} else if (!keys_fit(seg, conf, &e)) {
		pool = NULL;
	} else {
		return 0;
	}
	(void)snprintf(e.file, sizeof(e.file), "%s", conf->path != NULL ? conf->path : "");
	e.line = pool != NULL ? pool->line : 0;
	*err = e;
	return -1;
}
