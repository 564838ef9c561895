/* A fleet without a configuration file: pools and endpoints from short calls, and a segment to
 * publish in. */
#pragma once
#pragma GCC diagnostic ignored "-Wunused-function" /* not every test file needs all */
#include <criterion/criterion.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/fleet.h"
#include "shm/base/conf.h"
#include "shm/base/mem.h"
#include "shm/load.h"
#include "shm/restart.h"
#include "shm/core/rcu.h"
#include "shm/core/seg.h"

static struct event_base *base;
static struct seg *seg;
static struct fleet *fleet;
static struct conf *confs[64]; /* every one ever applied, freed at the end */
static size_t nconfs;
static char *name_servers[1]; /* of the configurations to be made */
static size_t nname_servers;

static struct conf *
conf_make(void)
{
	struct conf *c = MEM_NEW(struct conf);

	c->stats_interval_ms = 50;
	c->health_interval_ms = 50;
	c->health_timeout_ms = 200;
	c->rise = 2;
	c->fall = 3;
	c->dns_servers = name_servers;
	c->ndns_servers = nname_servers;
	c->pools = mem_array(16, sizeof(*c->pools));
	confs[nconfs++] = c;
	return c;
}

static struct conf_pool *
conf_pool(struct conf *c, const char *name, const char *model)
{
	struct conf_pool *p = &c->pools[c->npools++];

	p->name = mem_strdup(name);
	p->health_path = mem_strdup("/health");
	p->shake.ready_messages = READY_BY_PORTS;
	p->endpoints = mem_array(2048, sizeof(*p->endpoints));
	p->models = mem_array(1, sizeof(*p->models));
	if (model != NULL)
		p->models[p->nmodels++] = mem_strdup(model);
	return p;
}

static void
conf_endpoint(struct conf_pool *p, enum role role, const char *url)
{
	p->endpoints[p->nendpoints++] =
		(struct conf_endpoint){.url = mem_strdup(url), .role = role};
}

static void
conf_drop(struct conf *c)
{
	for (size_t i = 0; i < c->npools; i++) {
		struct conf_pool *p = &c->pools[i];

		for (size_t k = 0; k < p->nendpoints; k++)
			free(p->endpoints[k].url);
		for (size_t k = 0; k < p->nmodels; k++)
			free(p->models[k]);
		free(p->name);
		free(p->health_path);
		free(p->endpoints);
		free(p->models);
	}
	free(c->pools);
	free(c);
}

static void
fleet_setup(uint32_t max_endpoints, uint32_t max_pools)
{
	struct seg_sizes sizes = {.max_workers = 2,
		.max_endpoints = max_endpoints,
		.max_pools = max_pools,
		.flags_per_worker = 64};

	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	base = event_base_new();
	fleet = fleet_new(base, seg);
}

static void
fleet_teardown(void)
{
	fleet_free(&fleet);
	event_base_free(base);
	seg_free(&seg);
	while (nconfs > 0)
		conf_drop(confs[--nconfs]);
}

static void
apply(struct conf *c)
{
	fleet_apply(fleet, c, nconfs);
}

/* The endpoint of the current table with this URL, or NULL.  Copies nothing: the arena stays as
 * long as nothing is published. */
static const struct table_endpoint *
row_of(const char *url)
{
	const struct table *t = rcu_enter(seg, 0);
	const struct table_endpoint *found = NULL;

	cr_assert_not_null(t);
	for (uint32_t i = 0; i < t->nendpoints && found == NULL; i++)
		if (strcmp(t->endpoints[i].url, url) == 0)
			found = &t->endpoints[i];
	rcu_leave(seg, 0);
	return found;
}

static const struct table *
table_now(void)
{
	const struct table *t = rcu_enter(seg, 0);

	rcu_leave(seg, 0);
	return t;
}

static struct endpoint *
endpoint_of(const char *url)
{
	for (size_t i = 0; i < fleet->norder; i++)
		if (strcmp(fleet->order[i]->engine.url, url) == 0)
			return fleet->order[i];
	return NULL;
}
