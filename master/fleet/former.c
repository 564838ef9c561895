#include "master/fleet/former.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/linger.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/load.h"

/* The former engines of one role of a pool. */
struct former {
	TAILQ_ENTRY(former) link;
	struct formers *all;
	char *pool, key[DISCOVER_KEY]; /* its source's name */
	struct lingering linger;
	struct found *list; /* while formers_apply() runs */
	size_t n;
};

struct formers {
	struct fleet *fleet;
	found_fn *found;
	TAILQ_HEAD(former_list, former) list;
};

static void
former_free(struct former *x)
{
	TAILQ_REMOVE(&x->all->list, x, link);
	linger_fini(&x->linger);
	free(x->list);
	free(x->pool);
	free(x);
}

static void
on_over(void *arg)
{
	struct former *x = arg;

	x->all->found(x->all->fleet, x->pool, x->key, NULL, 0);
	former_free(x);
}

static struct former *
former_of(struct formers *fs, const char *pool, enum role role)
{
	struct former *x;

	TAILQ_FOREACH(x, &fs->list, link)
	if (x->linger.role == role && strcmp(x->pool, pool) == 0)
		return x;
	x = MEM_NEW(struct former);
	x->all = fs;
	x->pool = mem_strdup(pool);
	(void)snprintf(x->key, sizeof(x->key), DISCOVER_FORMER ":%s", role_name(role));
	linger_init(&x->linger, fs->fleet, x->pool, role, on_over, x);
	TAILQ_INSERT_TAIL(&fs->list, x, link);
	return x;
}

/* --- which ones can still serve ----------------------------------------------------------- */

static bool
has_source(const struct conf_pool *p, enum role role)
{
	for (size_t i = 0; i < p->nendpoints; i++)
		if (p->endpoints[i].role == role)
			return true;
	for (size_t i = 0; i < p->ndns; i++)
		if (p->dns[i].as.role == role)
			return true;
	return p->nannounce_networks > 0;
}

static bool
same_requests(const struct conf_pool *a, const struct conf_pool *b)
{
	if (a->connector != b->connector || a->engine != b->engine || a->nmodels != b->nmodels)
		return false;
	for (size_t i = 0; i < a->nmodels; i++)
		if (strcmp(a->models[i], b->models[i]) != 0)
			return false;
	return true;
}

static bool
can_serve(const struct fleet *f, const struct endpoint *ep)
{
	const struct engine *e = &ep->engine;
	const struct conf_pool *pool = conf_pool_named(f->conf, e->pool_name);

	return e->slot != ENGINE_NO_SLOT && ep_state_get(f->seg, e->slot) == EP_UP &&
	       pool != NULL && same_requests(e->pool, pool) && has_source(pool, e->role) &&
	       (!e->at.tls || pool->tls.client != NULL);
}

/* --- a configuration ---------------------------------------------------------------------- */

static void
on_leaving(void *object, void *arg)
{
	const struct endpoint *ep = object;
	struct formers *fs = arg;
	struct former *x;
	struct found *f;

	if (!can_serve(fs->fleet, ep))
		return;
	x = former_of(fs, ep->engine.pool_name, ep->engine.role);
	x->list = mem_resize(x->list, x->n + 1, sizeof(*x->list));
	f = &x->list[x->n++];
	*f = (struct found){.as = *ep->engine.conf};
	f->as.url = ep->engine.url;
	(void)snprintf(f->kv_addr, sizeof(f->kv_addr), "%s", ep->kv_addr);
}

/* False: others are up in their place, or none leaves. */
static bool
begin(struct former *x)
{
	struct targets former = {.v = mem_array(x->n + 1, sizeof(*former.v))};

	for (size_t i = 0; i < x->n; i++)
		former.v[former.n++] = (struct target){.url = mem_strdup(x->list[i].as.url)};
	linger_begin(&x->linger, &former);
	if (x->linger.leaving.n == 0)
		return false;
	(void)discover_found(x->all->fleet->discover, x->pool, x->key, x->list, x->n);
	log_info("all engines of a role or of a model are replaced: the former ones serve until "
		 "others are up",
		LOG_S("pool", x->pool), LOG_S("role", role_name(x->linger.role)),
		LOG_U("endpoints", x->n));
	return true;
}

void
formers_apply(struct formers *fs)
{
	struct fleet *f = fs->fleet;
	struct former *x, *next;

	TAILQ_FOREACH(x, &fs->list, link)
	(void)discover_found(f->discover, x->pool, x->key, NULL, 0);
	discover_leaving(f->discover, f->conf, on_leaving, fs);
	for (x = TAILQ_FIRST(&fs->list); x != NULL; x = next) {
		next = TAILQ_NEXT(x, link);
		if (!begin(x)) {
			former_free(x);
			continue;
		}
		free(x->list);
		x->list = NULL;
		x->n = 0;
	}
}

struct formers *
formers_new(struct fleet *f, found_fn *found)
{
	struct formers *fs = MEM_NEW(struct formers);

	fs->fleet = f;
	fs->found = found;
	TAILQ_INIT(&fs->list);
	return fs;
}

void
formers_free(struct formers **pfs)
{
	struct formers *fs = *pfs;

	if (fs == NULL)
		return;
	while (!TAILQ_EMPTY(&fs->list))
		former_free(TAILQ_FIRST(&fs->list));
	free(fs);
	*pfs = NULL;
}
