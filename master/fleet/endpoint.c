#include "master/fleet/endpoint.h"

#include <assert.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "master/probe/health.h"
#include "master/probe/scrape.h"
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
