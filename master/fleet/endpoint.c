#include "master/fleet/endpoint.h"

#include <assert.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "master/probe/health.h"
#include "master/probe/scrape.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/metrics.h"

struct endpoint *
endpoint_new(struct fleet *f, const struct conf_pool *pool, const struct conf_endpoint *conf)
{
	struct endpoint *ep = MEM_NEW(struct endpoint);

	ep->fleet = f;
	engine_init(&ep->engine, &f->prober, pool, conf, f->made++);
	return ep;
}

void
endpoint_free(struct endpoint **pep)
{
	struct endpoint *ep = *pep;

	if (ep == NULL)
		return;
	health_stop(&ep->engine);
	scrape_stop(&ep->engine);
	engine_fini(&ep->engine);
	free(ep);
	*pep = NULL;
}

struct endpoint *
endpoint_of_engine(struct engine *e)
{
	return (struct endpoint *)(void *)((char *)e - offsetof(struct endpoint, engine));
}

/* --- its weight --------------------------------------------------------------------------- */

uint32_t
endpoint_weight(const struct endpoint *ep)
{
	return ep->weight != 0 ? ep->weight : ep->engine.conf->weight;
}

void
endpoint_log_weight(const struct endpoint *ep, const char *msg)
{
	log_info(msg, LOG_S("url", ep->engine.url), LOG_S("role", role_name(ep->engine.role)),
		LOG_S("pool", ep->engine.pool_name), LOG_U("weight", endpoint_weight(ep)),
		LOG_U("configured", ep->engine.conf->weight));
}

void
endpoint_check_weight(struct endpoint *ep)
{
	if (ep->weight == 0 || ep->weight_configured == ep->engine.conf->weight)
		return;
	ep->weight = 0;
	endpoint_log_weight(
		ep, "weight of pdctl ended: the configuration has another one than before");
}

/* --- draining endpoints: a tree, since one reload may drop hundreds and add as many -------- */

static int
compare_key(const void *pa, const void *pb)
{
	const struct engine *a = &((const struct endpoint *)pa)->engine,
			    *b = &((const struct endpoint *)pb)->engine;
	int r = strcmp(a->url, b->url);

	if (r == 0)
		r = strcmp(a->pool_name, b->pool_name);
	return r != 0 ? r : (a->role > b->role) - (a->role < b->role);
}

void
endpoint_draining_add(struct endpoint *ep)
{
	struct fleet *f = ep->fleet;
	struct endpoint **at;

	do
		at = tsearch(ep, &f->draining_by_key, compare_key);
	while (at == NULL && mem_give_up_reserve());
	assert(at != NULL && *at == ep);
	TAILQ_INSERT_TAIL(&f->draining, ep, link);
	metric_gauge_add(f->slab, G_DRAINING, 1);
}

void
endpoint_draining_remove(struct endpoint *ep)
{
	struct fleet *f = ep->fleet;

	metric_gauge_add(f->slab, G_DRAINING, -1);
	TAILQ_REMOVE(&f->draining, ep, link);
	(void)tdelete(ep, &f->draining_by_key, compare_key);
}

struct endpoint *
endpoint_draining_find(const struct fleet *f, const struct endpoint *key)
{
	struct endpoint **at = tfind(key, &f->draining_by_key, compare_key);

	return at != NULL ? *at : NULL;
}
