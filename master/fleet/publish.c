#include "master/fleet/publish.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "master/config/conf.h"
#include "master/fleet/ejected.h"
#include "master/fleet/endpoint.h"
#include "master/fleet/waiters.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/eject.h"
#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/core/rcu.h"
#include "shm/core/seg.h"

#define HOST_TEXT 300      /* of a URL, with brackets */
#define MOONCAKE_PORT 8998 /* of its bootstrap server, unless configured (protocols.md 8.2) */
#define POLL_MS 10         /* while readers are waited for: a section lasts microseconds */
#define LATER_MS 100
#define DRAIN_POLL_MS 200 /* while only reservations are: they last as long as requests */
#define TOLD_MAX 64       /* endpoints that drained at once and have a line of the log each */

/*
 * Life of an endpoint's slot:
 *
 *   free --publish_slot (tag + 1)--> STARTING, UP, DOWN --publish_drop--> DRAINING
 *    ^                                  ^                                  |  |
 *    |                                  '-----------publish_revive---------'  | next publication:
 *    |                                  '-----------publish_revive---------.  v dropped
 *    '--grace period of the last table that had it is over, and count is 0-- dropped
 */
struct publish {
	struct fleet *fleet;
	struct rcu_writer *writer;
	struct event *soon, *poll;
	bool dirty;    /* what stands in the current table is not what should */
	bool deferred; /* logged: no arena was free */
	bool crowded;  /* logged: not all learned names fitted */
	bool shorn;    /* logged: not even all endpoints did */
	bool *used;    /* [max_endpoints] slot is somebody's */
	/* no slot below it is free: hundreds are looked for in one reload */
	uint32_t lowest;
	uint32_t *ids; /* [npools of the configuration] number of the name */
	uint64_t version, created_s;
};

static void on_soon(evutil_socket_t fd, short what, void *arg);
static void on_poll(evutil_socket_t fd, short what, void *arg);

struct publish *
publish_new(struct fleet *f)
{
	struct publish *p = MEM_NEW(struct publish);

	p->fleet = f;
	p->writer = rcu_writer_new(f->seg);
	p->soon = event_new(f->base, -1, 0, on_soon, p);
	p->poll = event_new(f->base, -1, 0, on_poll, p);
	p->used = mem_array(f->seg->hdr->max_endpoints, sizeof(*p->used));
	assert(p->soon != NULL && p->poll != NULL);
	return p;
}

void
publish_free(struct publish **pp)
{
	struct publish *p = *pp;

	if (p == NULL)
		return;
	rcu_writer_free(&p->writer);
	event_free(p->soon);
	event_free(p->poll);
	free(p->used);
	free(p->ids);
	free(p);
	*pp = NULL;
}

const struct rcu_writer *
publish_writer(const struct publish *p)
{
	return p->writer;
}

/* --- numbers of pools -------------------------------------------------------------------- */

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

/* A name keeps its number for the life of the segment: metric rows are added up by it. */
static uint32_t
pool_id(struct seg *seg, const struct conf_pool *pool)
{
	uint32_t id = find_id(seg, pool->name);
	char *at = seg_pool_name(seg, id);

	assert(id < seg->hdr->max_pools && strlen(pool->name) < SEG_POOL_NAME);
	if (at[0] ==
		'\0') /* before the table that names it is published, so readers see it whole */
		memcpy(at, pool->name, strlen(pool->name) + 1);
	return id;
}

void
publish_config(struct publish *p)
{
	const struct conf *conf = p->fleet->conf;

	p->ids = mem_resize(p->ids, conf->npools + 1, sizeof(*p->ids));
	for (size_t i = 0; i < conf->npools; i++)
		p->ids[i] = pool_id(p->fleet->seg, &conf->pools[i]);
}

static uint32_t
id_of(const struct publish *p, const struct conf_pool *pool)
{
	return p->ids[pool - p->fleet->conf->pools];
}

/* --- slots ------------------------------------------------------------------------------- */

static void
tell_drained(const struct endpoint *ep, size_t n)
{
	log_write(n > TOLD_MAX ? LOG_L_DEBUG : LOG_L_INFO, "endpoint drained",
		(const struct log_field[]){LOG_S("url", ep->url),
			LOG_S("role", role_name(ep->role)), LOG_S("pool", ep->pool_name)},
		3);
}

/* Frees what has drained: its slot, then itself.  True if any. */
static bool
free_drained(struct publish *p)
{
	struct fleet *f = p->fleet;
	size_t n = 0;

	for (struct endpoint *ep = TAILQ_FIRST(&f->draining), *next; ep != NULL; ep = next) {
		next = TAILQ_NEXT(ep, link);
		if (!ep->dropped || !rcu_passed(p->writer, ep->cookie) ||
			load_count(f->seg, ep->slot) != 0)
			continue;
		tell_drained(ep, ++n);
		ep_state_set(f->seg, ep->slot, EP_EMPTY);
		p->used[ep->slot] = false;
		p->lowest = ep->slot < p->lowest ? ep->slot : p->lowest;
		fleet_draining_remove(f, ep);
		endpoint_free(&ep);
	}
	if (n > TOLD_MAX)
		log_info("more endpoints drained than the log names", LOG_U("endpoints", n));
	return n > 0;
}

static uint32_t
find_free(struct publish *p)
{
	uint32_t max = p->fleet->seg->hdr->max_endpoints;

	while (p->lowest < max && p->used[p->lowest])
		p->lowest++;
	return p->lowest < max ? p->lowest : ENDPOINT_NO_SLOT;
}

/* What its health or configuration says; of a drained one it is only remembered. */
static void
say(struct publish *p, struct endpoint *ep, enum ep_state state, bool ramps)
{
	struct seg *seg = p->fleet->seg;

	ep->state = state;
	if (ep->drained)
		ep_state_drain(seg, ep->slot);
	else if (ramps && ep->pool->slow_start_ms > 0)
		ep_state_recovered(seg, ep->slot, clock_ms());
	else
		ep_state_set(seg, ep->slot, state);
	/* for a place, or to hear that there is none any more */
	waiters_call(p->fleet->waiters);
}

bool
publish_slot(struct publish *p, struct endpoint *ep)
{
	uint32_t slot = find_free(p);

	if (slot == ENDPOINT_NO_SLOT && free_drained(p))
		slot = find_free(p);
	if (slot == ENDPOINT_NO_SLOT)
		return false;
	p->used[slot] = true;
	ep->slot = slot;
	ep_slot_begin(p->fleet->seg, slot);
	say(p, ep, EP_STARTING, false);
	return true;
}

void
publish_drop(struct publish *p, struct endpoint *ep)
{
	ep->up_wanted = false;
	ep->dropped = false;
	ep->drained = false;
	say(p, ep, EP_DRAINING, false);
}

void
publish_revive(struct publish *p, struct endpoint *ep)
{
	ep->dropped = false;
	say(p, ep, EP_STARTING, false);
}

/* --- state words ------------------------------------------------------------------------- */

/* A worker that sees UP must find address and models of that endpoint in its table. */
static bool
row_is_right(const struct endpoint *ep)
{
	return ep->in_table && ep->addr.family != 0 && ep_addr_equal(&ep->table_addr, &ep->addr) &&
	       ep->table_models == ep->models_number;
}

/* A first start is at full weight: all engines of a fleet start at once, and none is to be spared. */
static void
say_up(struct publish *p, struct endpoint *ep)
{
	say(p, ep, EP_UP, ep->state == EP_DOWN);
}

void
publish_up(struct publish *p, struct endpoint *ep)
{
	if (row_is_right(ep)) {
		say_up(p, ep);
		return;
	}
	ep->up_wanted = true;
	publish_soon(p);
}

void
publish_down(struct publish *p, struct endpoint *ep)
{
	ep->up_wanted = false;
	say(p, ep, EP_DOWN, false);
	ejected_trim(p->fleet, rcu_current(p->writer));
}

void
publish_drain(struct publish *p, struct endpoint *ep)
{
	if (ep->drained)
		return;
	ep->drained = true;
	if (ep->slot == ENDPOINT_NO_SLOT)
		return;
	say(p, ep, ep->state, false);
	ejected_trim(p->fleet, rcu_current(p->writer));
}

void
publish_undrain(struct publish *p, struct endpoint *ep)
{
	if (!ep->drained)
		return;
	ep->drained = false;
	if (ep->slot == ENDPOINT_NO_SLOT)
		return;
	(void)eject_clear(
		p->fleet->seg, ep->slot, false, clock_ms()); /* its operator has seen to it */
	say(p, ep, ep->state, ep->state == EP_UP);
}

/* --- building a version ------------------------------------------------------------------ */

static bool
has_row(const struct endpoint *ep)
{
	return ep->slot != ENDPOINT_NO_SLOT && !ep->no_room;
}

/* Of a pool without models of its own: what its endpoints serve, down ones too (a model whose
 * engines are all down is unavailable, not unknown). */
static void
fill_learned(struct table_builder *b, struct table_pool *tp, const struct fleet *f,
	const struct conf_pool *pool, size_t max)
{
	const struct model_set **sets = mem_array(f->norder + 1, sizeof(const struct model_set *));
	const char **names;
	size_t nsets = 0, n;

	for (size_t i = 0; i < f->norder; i++)
		if (f->order[i]->pool == pool && has_row(f->order[i]))
			sets[nsets++] = &f->order[i]->models;
	names = models_union(sets, nsets, max, &n);
	tp->nmodels = (uint32_t)n;
	tp->models = table_strv(b, names, n);
	free(names);
	free(sets);
}

static const char *
or_empty(const char *s)
{
	return s != NULL ? s : "";
}

static void
fill_pool(struct table_builder *b, struct table_pool *tp, const struct publish *p,
	const struct conf_pool *pool, size_t max)
{
	tp->name = table_str(b, pool->name);
	tp->id = id_of(p, pool);
	tp->connector = pool->connector;
	tp->pairing = pool->pairing;
	tp->session_header = table_str(b, or_empty(pool->session_header));
	tp->session_member = table_str(b, or_empty(pool->session_member));
	tp->groups = table_strv(b, (const char *const *)pool->groups, pool->ngroups);
	tp->prefix_bytes = pool->prefix_bytes;
	tp->slow_start_ms = pool->slow_start_ms;
	for (enum role role = 0; role < ROLE_N; role++) {
		tp->policy[role] = pool->policies[role];
		tp->load[role] = pool->loads[role];
	}
	tp->shake = pool->shake;
	tp->timeouts = pool->timeouts;
	tp->rescue = pool->rescue;
	tp->ejection = pool->ejection;
	tp->queue = pool->queue;
	tp->priority_header = table_str(b, or_empty(pool->priority_header));
	if (pool->nmodels == 0) {
		fill_learned(b, tp, p->fleet, pool, max);
		return;
	}
	tp->nmodels = (uint32_t)pool->nmodels;
	tp->models = table_strv(b, (const char *const *)pool->models, pool->nmodels);
}

/* The engines of a pool mostly serve the same names: one list is enough then. */
static void
fill_endpoint_models(struct table_builder *b, struct table_endpoint *te, const struct endpoint *ep,
	const struct table_pool *tp, bool share)
{
	struct model_set all = {.n = tp->nmodels};

	if (ep->pool->nmodels > 0 || ep->models.n == 0 || tp->models == NULL)
		return;
	te->nmodels = tp->nmodels;
	te->models = tp->models;
	if (share || all.n == ep->models.n) /* the union has no name less than this one */
		return;
	te->nmodels = (uint32_t)ep->models.n;
	te->models = table_strv(b, (const char *const *)ep->models.names, ep->models.n);
}

/* The endpoint's own host for an address that has only a port, in brackets if it is an IPv6 literal. */
static const char *
host_of(const struct endpoint *ep, char buf[static HOST_TEXT])
{
	(void)snprintf(buf, HOST_TEXT, ep->at.ipv6 ? "[%s]" : "%s", ep->at.host);
	return buf;
}

static void
fill_ports(char *at, size_t size, const char *key, const struct conf_ports *ports)
{
	size_t n = (size_t)snprintf(at, size, ",\"%s\":[", key);

	for (uint32_t i = 0; i < ports->n; i++)
		n += (size_t)snprintf(
			at + n, size - n, "%s%u", i > 0 ? "," : "", (unsigned)ports->port[i]);
	(void)snprintf(at + n, size - n, "]");
}

/* What the prefill engine is told of a decode engine's LMCache: ports always as lists (protocols.md 4.1).
 * A configured host is one: it holds nothing that JSON would escape. */
static const char *
disagg_spec(struct table_builder *b, const struct endpoint *ep)
{
	const struct conf_endpoint *conf = ep->conf;
	char text[HOST_TEXT + 128 + 2 * CONF_PORTS_MAX * sizeof("65535,")], host[HOST_TEXT];

	if (conf->receiver_init_port.n == 0)
		return table_str(b, "");
	(void)snprintf(text, sizeof(text), "\"receiver_host\":\"%s\"",
		conf->receiver_host != NULL ? conf->receiver_host : host_of(ep, host));
	fill_ports(text + strlen(text), sizeof(text) - strlen(text), "receiver_init_port",
		&conf->receiver_init_port);
	fill_ports(text + strlen(text), sizeof(text) - strlen(text), "receiver_alloc_port",
		&conf->receiver_alloc_port);
	return table_str(b, text);
}

static const char *
kv_addr(struct table_builder *b, const struct endpoint *ep)
{
	const char *given = ep->conf->kv_addr;
	char text[HOST_TEXT + 8], host[HOST_TEXT];

	if (given == NULL)
		return table_str(b, ep->kv_addr);
	if (given[0] != ':')
		return table_str(b, given);
	(void)snprintf(text, sizeof(text), "%s%.7s", host_of(ep, host), given);
	return table_str(b, text);
}

/* Configured values win over learned ones. */
static void
fill_runtime(struct table_builder *b, struct table_endpoint *te, const struct endpoint *ep)
{
	const struct conf_endpoint *conf = ep->conf;
	char host[HOST_TEXT];

	te->bootstrap_host = te->host; /* no copy of it unless it needs brackets */
	if (conf->bootstrap_host != NULL || ep->at.ipv6)
		te->bootstrap_host = table_str(
			b, conf->bootstrap_host != NULL ? conf->bootstrap_host : host_of(ep, host));
	te->bootstrap_port =
		conf->bootstrap_port != 0 ? conf->bootstrap_port : ep->runtime.bootstrap_port;
	if (te->bootstrap_port == 0 && ep->pool->connector == CONNECTOR_MOONCAKE &&
		ep->role == ROLE_PREFILL)
		te->bootstrap_port = MOONCAKE_PORT;
	te->max_context = ep->runtime.max_context;
	te->version = table_str(b, ep->runtime.version);
	te->kv_addr = kv_addr(b, ep);
	te->disagg_spec = disagg_spec(b, ep);
	te->notices =
		(uint8_t)(conf->notices == NOTICES_BY_PORTS ? (int32_t)conf->receiver_init_port.n
							    : conf->notices);
	te->dp_ranks = conf->dp_ranks;
}

/*
 * The number of a group's name within its pool: its place among the distinct ones, from 1 on.  The
 * configuration has at most TABLE_GROUPS - 1 (conf_pools.c).
 */
static uint32_t
group_number(const struct conf_pool *pool, const char *group)
{
	uint32_t n = 0;

	while (group != NULL && n < pool->ngroups)
		if (strcmp(pool->groups[n++], group) == 0)
			return n;
	return 0;
}

static void
fill_endpoint(struct table_builder *b, struct table_endpoint *te, const struct endpoint *ep,
	uint32_t pool_row, bool share)
{
	te->slot = ep->slot;
	te->tag = (uint32_t)ep_tag(ep->fleet->seg, ep->slot);
	te->pool = pool_row;
	te->role = ep->role;
	te->max_inflight = ep->conf->max_inflight;
	te->weight = ep->conf->weight;
	te->group = group_number(ep->pool, ep->conf->group);
	te->addr = ep->addr;
	te->url = table_str(b, ep->url);
	te->authority = table_str(b, ep->authority);
	te->host = table_str(b, ep->at.host);
	te->prefix = table_str(b, ep->at.prefix);
	fill_runtime(b, te, ep);
	fill_endpoint_models(b, te, ep, table_pool_at(b, pool_row), share);
}

/* 0 or -ENOSPC.  `max`: learned names a pool may have in this version. */
static int
fill(const struct publish *p, void *arena, size_t max)
{
	const struct fleet *f = p->fleet;
	const struct conf *conf = f->conf;
	bool share = max < SIZE_MAX; /* it was too much once: no lists of single endpoints */
	uint32_t n = 0, i = 0;
	struct table_builder b;
	struct table *t;

	for (size_t k = 0; k < f->norder; k++)
		n += has_row(f->order[k]);
	t = table_begin(&b, arena, f->seg->arena_bytes, (uint32_t)conf->npools, n);
	if (t == NULL)
		return -ENOSPC;
	t->version = p->version + 1;
	t->config = f->config_number;
	t->created_s = p->created_s;
	t->foreign_max_age_ms = FOREIGN_SCRAPES * conf->stats_interval_ms;
	t->plan_wait_ms = conf->health_timeout_ms; /* their first answer */
	for (uint32_t k = 0; k < conf->npools; k++)
		fill_pool(&b, table_pool_at(&b, k), p, &conf->pools[k], max);
	for (size_t k = 0; k < f->norder; k++)
		if (has_row(f->order[k]))
			fill_endpoint(&b, table_endpoint_at(&b, i++), f->order[k],
				(uint32_t)(f->order[k]->pool - conf->pools), share);
	return table_end(&b);
}

/* Half of the found endpoints that still have a row, the last ones; false if there is none. */
static bool
leave_out_found(const struct fleet *f)
{
	size_t n = 0;

	for (size_t i = 0; i < f->norder; i++)
		n += f->order[i]->found && has_row(f->order[i]);
	if (n == 0)
		return false;
	n = (n + 1) / 2;
	for (size_t i = f->norder; n > 0; i--)
		if (f->order[i - 1]->found && has_row(f->order[i - 1])) {
			f->order[i - 1]->no_room = true;
			n--;
		}
	return true;
}

/*
 * Engines with thousands of adapters must not keep a new configuration from taking effect: rather
 * fewer of their names, or none.  Nor must name servers that name engines at great length: then rather
 * without some of those.
 */
static void
fill_somehow(struct publish *p, void *arena)
{
	const struct fleet *f = p->fleet;
	size_t max = SIZE_MAX;
	bool crowded, shorn = false;
	int r;

	for (size_t i = 0; i < f->norder; i++)
		f->order[i]->no_room = false;
	r = fill(p, arena, max);
	crowded = r != 0;
	while (r != 0) {
		if (max == 0) { /* publish_check() has seen the configuration's own fit */
			shorn = leave_out_found(f);
			assert(shorn);
		}
		max = max == SIZE_MAX ? 1024 : max / 4;
		r = fill(p, arena, max);
	}
	if (crowded && !p->crowded)
		log_warn(
			"learned model names do not fit into the endpoint table, some are left out",
			LOG_U("bytes", f->seg->arena_bytes));
	if (shorn && !p->shorn)
		log_error(
			"found endpoints do not fit into the endpoint table, some are left out: raise "
			"shared_memory.max_endpoints and restart",
			LOG_U("bytes", f->seg->arena_bytes));
	p->crowded = crowded;
	p->shorn = shorn;
}

/* --- before that ------------------------------------------------------------------------- */

/* The first pool whose name would get no number, or NULL. */
static const struct conf_pool *
nameless(const struct seg *seg, const struct conf *conf)
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

/* As endpoint_new() would make it, of borrowed text. */
static void
try_endpoint(struct fleet *f, struct endpoint *all, const struct conf_pool *pool,
	const struct conf_endpoint *conf)
{
	struct endpoint *ep = &all[f->norder];
	const char *why;
	int r = http_url_parse(conf->url, &ep->at, &why);

	assert(r == 0);
	ep->fleet = f;
	ep->pool = pool;
	ep->conf = conf;
	ep->url = conf->url;
	ep->authority = conf->url; /* a part of it, and ":80" is shorter than "http://" */
	/* these cannot be left out as names can: as long as they may become */
	memset(ep->runtime.version, 'v', sizeof(ep->runtime.version) - 1);
	if (pool->nannounce_networks > 0)
		memset(ep->kv_addr, 'k', sizeof(ep->kv_addr) - 1);
	f->order[f->norder++] = ep;
}

/* Fills a table for trial as if no names had been learned: those can be left out. */
static bool
table_fits(const struct publish *p, const struct conf *conf)
{
	struct fleet f = {.seg = p->fleet->seg, .conf = conf};
	struct publish trial = {.fleet = &f};
	/* not zeroed: megabytes, of which the table takes and zeroes what it needs */
	void *arena = mem_resize(NULL, f.seg->arena_bytes, 1);
	struct endpoint *all;
	size_t total = 0;
	int r;

	for (size_t i = 0; i < conf->npools; i++)
		total += conf->pools[i].nendpoints;
	trial.ids = mem_array(conf->npools + 1, sizeof(*trial.ids));
	f.order = mem_array(total + 1, sizeof(struct endpoint *));
	all = mem_array(total + 1, sizeof(*all));
	for (size_t i = 0; i < conf->npools; i++)
		for (size_t k = 0; k < conf->pools[i].nendpoints; k++)
			try_endpoint(&f, all, &conf->pools[i], &conf->pools[i].endpoints[k]);
	r = fill(&trial, arena, 0);
	free(all);
	free(f.order);
	free(trial.ids);
	free(arena);
	return r == 0;
}

int
publish_check(const struct publish *p, const struct conf *conf, struct conf_error *err)
{
	const struct seg *seg = p->fleet->seg;
	const struct conf_pool *pool = nameless(seg, conf);
	struct conf_error e = {.key = "pools"};

	if (pool != NULL) {
		(void)snprintf(
			e.key, sizeof(e.key), "pools[%zu].name", (size_t)(pool - conf->pools));
		(void)snprintf(e.what, sizeof(e.what),
			"%s is a new name, and all %u of shared_memory.max_pools have been given since the "
			"start: use a former name, or restart",
			pool->name, seg->hdr->max_pools);
	} else if (!table_fits(p, conf)) {
		pool = conf->pools;
		(void)snprintf(e.what, sizeof(e.what),
			"the endpoint table needs more than its %zu bytes: raise "
			"shared_memory.max_endpoints and restart",
			seg->arena_bytes);
	} else {
		return 0;
	}
	(void)snprintf(e.file, sizeof(e.file), "%s", conf->path != NULL ? conf->path : "");
	e.line = pool->line;
	*err = e;
	return -1;
}

/* --- publication ------------------------------------------------------------------------- */

static void
note_rows(struct publish *p, uint64_t cookie)
{
	struct fleet *f = p->fleet;
	struct endpoint *ep;

	for (size_t i = 0; i < f->norder; i++) {
		ep = f->order[i];
		ep->in_table = has_row(ep);
		ep->table_addr = ep->addr;
		ep->table_models = ep->models_number;
		if (ep->up_wanted && row_is_right(ep)) {
			ep->up_wanted = false;
			say_up(p, ep);
		}
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
publish_try(struct publish *p)
{
	uint64_t cookie;
	void *arena;

	(void)rcu_poll(p->writer);
	arena = rcu_arena_get(p->writer);
	if (arena == NULL) {
		if (!p->deferred)
			log_debug("publication waits: readers hold all former tables",
				LOG_U("config", p->fleet->config_number));
		p->deferred = true;
		return;
	}
	p->dirty = p->deferred = false;
	if (p->created_s == 0)
		p->created_s = (uint64_t)time(NULL);
	fill_somehow(p, arena);
	p->version++;
	cookie = rcu_cookie(p->writer); /* of the table that is current until the next line */
	rcu_publish(p->writer, arena);
	metric_add(p->fleet->slab, M_PUBLISHED, 1);
	note_rows(p, cookie);
	waiters_call(p->fleet->waiters);
}

/* Nothing to wait for, no timer: an idle master sleeps. */
static void
arm(struct publish *p)
{
	bool readers = p->dirty || rcu_poll(p->writer) > 0;
	struct timeval tv = clock_tv(readers ? POLL_MS : DRAIN_POLL_MS);

	if (readers || !TAILQ_EMPTY(&p->fleet->draining))
		(void)event_add(p->poll, &tv);
	else
		(void)event_del(p->poll);
}

void
publish_poll(struct publish *p)
{
	(void)rcu_poll(p->writer);
	(void)free_drained(p);
	if (fleet_fill_slots(p->fleet))
		p->dirty = true;
	if (p->dirty)
		publish_try(p);
	arm(p);
	/* the last of these calls comes when nobody reads an older table: arm() has asked */
	ejected_trim(p->fleet, rcu_current(p->writer));
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
