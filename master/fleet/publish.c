#include "master/fleet/publish.h"

#include <assert.h>
#include <event2/event.h>
#include <stdlib.h>
#include <time.h>

#include "master/fleet/ejected.h"
#include "master/fleet/endpoint.h"
#include "master/fleet/kv_sources.h"
#include "master/fleet/siblings.h"
#include "master/fleet/rows.h"
#include "master/fleet/slots.h"
#include "master/fleet/state.h"
#include "master/fleet/version.h"
#include "master/fleet/waiters.h"
#include "shm/api_keys.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/core/rcu.h"
#include "shm/core/seg.h"
#include "shm/metrics.h"
#include "shm/named.h"
#include "shm/table.h"

#define POLL_MS 10 /* while readers are waited for: a section lasts microseconds */
#define LATER_MS 100
#define DRAIN_POLL_MS 200 /* while only reservations are: they last as long as requests */

struct publish {
	struct fleet *fleet;
	struct event *soon, *poll;
	bool dirty;             /* the current table is out of date */
	bool deferred;          /* logged: no arena was free */
	struct version_cut cut; /* of the current table; logged */
	struct version_stamp stamp;
	uint64_t config;      /* number of the configuration of the current table */
	uint64_t cookie;      /* of the table before the current one */
	uint64_t keys_config; /* number of the configuration of the current keys */
};

static void on_soon(evutil_socket_t fd, short what, void *arg);
static void on_poll(evutil_socket_t fd, short what, void *arg);

struct publish *
publish_new(struct fleet *f)
{
	struct publish *p = MEM_NEW(struct publish);

	p->fleet = f;
	p->soon = event_new(f->base, -1, 0, on_soon, p);
	p->poll = event_new(f->base, -1, 0, on_poll, p);
	assert(p->soon != NULL && p->poll != NULL);
	return p;
}

void
publish_free(struct publish **pp)
{
	struct publish *p = *pp;

	if (p == NULL)
		return;
	event_free(p->soon);
	event_free(p->poll);
	free(p);
	*pp = NULL;
}

/* The timer of publish_poll().  Nothing to wait for, no timer: an idle master sleeps. */
static void
arm(struct publish *p)
{
	bool readers = p->dirty || rcu_poll(p->fleet->writer) > 0;
	struct timeval tv = clock_tv(readers ? POLL_MS : DRAIN_POLL_MS);

	if (readers || !TAILQ_EMPTY(&p->fleet->draining))
		(void)event_add(p->poll, &tv);
	else
		(void)event_del(p->poll);
}

/* --- up and down --------------------------------------------------------------------------- */

static bool
row_is_right(const struct endpoint *ep)
{
	const struct engine *e = &ep->engine;

	return ep->in_table && e->addr.family != 0 && ep_addr_equal(&ep->table_addr, &e->addr) &&
	       ep->table_models == e->models_number;
}

/*
 * F1: a worker that sees UP finds address and models of that endpoint in its table.  So UP is stored
 * when the current table has them, and no worker reads a former table any more.
 */
static bool
all_see_row(const struct publish *p, const struct endpoint *ep)
{
	return row_is_right(ep) && rcu_passed(p->fleet->writer, p->cookie);
}

/* A first start is at full weight: all engines of a fleet start at once, none is to be spared. */
static void
up_now(struct endpoint *ep)
{
	ep->up_wanted = false;
	state_set(ep, EP_UP, ep->state == EP_DOWN || ep->was_up);
	ep->was_up = true;
}

void
publish_up(struct publish *p, struct endpoint *ep)
{
	if (all_see_row(p, ep)) {
		up_now(ep);
		return;
	}
	ep->up_wanted = true;
	if (row_is_right(ep))
		arm(p);
	else
		publish_soon(p);
}

/* Endpoints that were up before their rows were seen. */
static void
up_seen(const struct publish *p)
{
	const struct fleet *f = p->fleet;

	for (size_t i = 0; i < f->norder; i++)
		if (f->order[i]->up_wanted && all_see_row(p, f->order[i]))
			up_now(f->order[i]);
}

static void
out(struct publish *p, struct endpoint *ep, enum ep_state state)
{
	ep->up_wanted = false;
	state_set(ep, state, false);
	ejected_trim(p->fleet);
}

void
publish_down(struct publish *p, struct endpoint *ep)
{
	out(p, ep, EP_DOWN);
}

void
publish_unlearned(struct publish *p, struct endpoint *ep)
{
	out(p, ep, EP_STARTING);
}

void
publish_misconfigured(struct publish *p, struct endpoint *ep)
{
	out(p, ep, EP_MISCONFIGURED);
}

/* --- publication ------------------------------------------------------------------------- */

static void
note_rows(struct fleet *f, uint64_t cookie)
{
	struct endpoint *ep;

	for (size_t i = 0; i < f->norder; i++) {
		ep = f->order[i];
		ep->in_table = rows_has(ep);
		ep->table_addr = ep->engine.addr;
		ep->table_models = ep->engine.models_number;
	}
	TAILQ_FOREACH(ep, &f->draining, link)
	{
		if (ep->dropped)
			continue;
		ep->in_table = false;
		ep->dropped = true;
		ep->cookie = cookie;
	}
}

static void
log_cut(struct publish *p, struct version_cut cut)
{
	if (cut.cards && !p->cut.cards)
		log_warn(
			"what engines report of their models does not fit into the endpoint table: "
			"/v1/models lists names only",
			LOG_U("bytes", p->fleet->seg->arena_bytes));
	if (cut.names && !p->cut.names)
		log_warn(
			"learned model names do not fit into the endpoint table, some are left out",
			LOG_U("bytes", p->fleet->seg->arena_bytes));
	if (cut.endpoints && !p->cut.endpoints)
		log_error(
			"found endpoints do not fit into the endpoint table, some are left out: raise "
			"shared_memory.max_endpoints and restart",
			LOG_U("bytes", p->fleet->seg->arena_bytes));
	p->cut = cut;
}

/* Before a worker can see them: their requests are counted from the first one on. */
static void
name_keys(struct seg *seg, const struct conf *conf)
{
	const char **names = mem_array(conf->napi_keys + 1, sizeof(*names));
	size_t n = 0;

	for (size_t i = 0; i < conf->napi_keys; i++)
		if (conf->api_keys[i].door == DOOR_CLIENTS)
			names[n++] = conf->api_keys[i].name;
	named_set(seg, NAMED_KEYS, names, n);
	free(names);
}

static void
name_models(struct seg *seg, const struct table *t)
{
	const char **names;
	size_t n = 0;

	for (uint32_t i = 0; i < t->npools; i++)
		n += t->pools[i].nmodels;
	names = mem_array(n + 1, sizeof(*names));
	n = 0;
	for (uint32_t i = 0; i < t->npools; i++)
		for (uint32_t k = 0; k < t->pools[i].nmodels; k++)
			names[n++] = t->pools[i].models[k];
	named_set(seg, NAMED_MODELS, names, n);
	free(names);
}

/* The keys of clients and operators, where the configuration is another one.  False: no arena is free. */
static bool
publish_keys(struct publish *p)
{
	struct fleet *f = p->fleet;
	const struct conf *conf = f->conf;
	const bool needed[DOOR_N] = {
		[DOOR_CLIENTS] = conf->api_keys_file[DOOR_CLIENTS] != NULL,
		[DOOR_OPERATORS] = conf->api_keys_file[DOOR_OPERATORS] != NULL,
	};
	void *arena = NULL;
	int r;

	if (p->keys_config == f->config_number)
		return true;
	if (needed[DOOR_CLIENTS] || needed[DOOR_OPERATORS]) {
		arena = rcu_keys_arena_get(f->writer);
		if (arena == NULL)
			return false;
		r = api_keys_build(
			arena, f->seg->keys_arena_bytes, conf->api_keys, conf->napi_keys, needed);
		assert(r == 0); /* version_check() has seen them fit */
	}
	name_keys(f->seg, conf);
	rcu_publish_keys(f->writer, arena);
	p->keys_config = f->config_number;
	return true;
}

static void
publish_try(struct publish *p)
{
	struct fleet *f = p->fleet;
	void *arena;

	(void)rcu_poll(f->writer);
	arena = publish_keys(p) ? rcu_arena_get(f->writer) : NULL;
	if (arena == NULL) {
		if (!p->deferred)
			log_debug("a new endpoint table waits: workers still read all former ones",
				LOG_U("config", f->config_number));
		p->deferred = true;
		return;
	}
	p->dirty = p->deferred = false;
	if (p->stamp.created_s == 0)
		p->stamp.created_s = (uint64_t)time(NULL);
	p->stamp.version++;
	log_cut(p, version_build(f, &p->stamp, arena));
	name_models(f->seg, arena);
	p->cookie = rcu_cookie(f->writer); /* of the table that is current until the next line */
	rcu_publish(f->writer, arena);
	p->config = f->config_number;
	kv_sources_publish(f);
	siblings_publish(f);
	metric_add(f->slab, M_PUBLISHED, 1);
	note_rows(f, p->cookie);
	waiters_wake(f->waiters);
}

void
publish_poll(struct publish *p)
{
	(void)rcu_poll(p->fleet->writer);
	slots_reap(p->fleet);
	if (slots_fill(p->fleet))
		p->dirty = true;
	if (p->dirty)
		publish_try(p);
	up_seen(p);
	arm(p);
	/* the last of these calls comes when no reader holds an older table: arm() has checked */
	ejected_trim(p->fleet);
}

void
publish_now(struct publish *p)
{
	p->dirty = true;
	(void)event_del(p->soon);
	publish_poll(p);
}

void
publish_soon(struct publish *p)
{
	struct timeval now = {0};

	p->dirty = true;
	(void)event_add(p->soon, &now);
}

void
publish_later(struct publish *p)
{
	struct timeval tv = clock_tv(LATER_MS);

	if (!event_pending(p->soon, EV_TIMEOUT, NULL))
		(void)event_add(p->soon, &tv);
}

uint64_t
publish_config(const struct publish *p)
{
	return p->config;
}

static void
on_soon(evutil_socket_t fd, short what, void *arg)
{
	struct publish *p = arg;

	(void)fd;
	(void)what;
	p->dirty = true;
	publish_poll(p);
}

static void
on_poll(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	publish_poll(arg);
}
