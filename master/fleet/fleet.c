#include "master/fleet/fleet.h"

#include <assert.h>
#include <event2/event.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/announced.h"
#include "master/fleet/discover.h"
#include "master/fleet/dns.h"
#include "master/fleet/endpoint.h"
#include "master/probe/health.h"
#include "master/probe/load.h"
#include "master/probe/probe.h"
#include "master/fleet/publish.h"
#include "master/probe/resolve.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/core/seg.h"

#define SHORTAGE_LOG_MS 10000
#define HELD_MAX (128u << 20) /* bytes of answers that are being read, of all engines together */
/* Endpoints of one reload that have a line of the log each; of more a line says how many. */
#define TOLD_MAX 64

struct fleet *
fleet_new(struct event_base *base, struct seg *seg)
{
	struct fleet *f = MEM_NEW(struct fleet);

	f->base = base;
	f->seg = seg;
	f->slab = seg_slab(seg, SLOT_MASTER(seg));
	TAILQ_INIT(&f->live);
	TAILQ_INIT(&f->draining);
	f->probes = probe_env_new(base, HELD_MAX);
	f->resolver = resolver_new(base);
	f->discover = discover_new();
	f->dns = dns_new(f);
	f->publish = publish_new(f);
	return f;
}

static void
free_list(struct endpoint_list *list)
{
	struct endpoint *ep;

	while ((ep = TAILQ_FIRST(list)) != NULL) {
		TAILQ_REMOVE(list, ep, link);
		endpoint_free(&ep);
	}
}

void
fleet_free(struct fleet **pf)
{
	struct fleet *f = *pf;

	if (f == NULL)
		return;
	free_list(&f->live);
	while (!TAILQ_EMPTY(&f->draining)) {
		struct endpoint *ep = TAILQ_FIRST(&f->draining);

		fleet_draining_remove(f, ep);
		endpoint_free(&ep);
	}
	publish_free(&f->publish);
	announced_free(&f->announced);
	dns_free(&f->dns);
	discover_free(&f->discover);
	resolver_free(&f->resolver);
	probe_env_free(&f->probes);
	free(f->order);
	free(f);
	*pf = NULL;
}

/* --- a configuration --------------------------------------------------------------------- */

/* One reload: what becomes of the endpoints, for the log. */
struct fold {
	struct fleet *fleet;
	size_t added, again, removed, changed;
	size_t configured;  /* so far; they are reported before the found ones */
	size_t found_slots; /* that found ones have */
};

static void
tell(const struct fold *fo, const char *msg, const struct endpoint *ep, struct log_field more)
{
	size_t n = fo->added + fo->again + fo->removed + fo->changed;

	log_write(n > TOLD_MAX ? LOG_L_DEBUG : LOG_L_INFO, msg,
		(const struct log_field[]){LOG_S("url", ep->url),
			LOG_S("role", role_name(ep->role)), LOG_S("pool", ep->pool_name), more},
		more.key != NULL ? 4 : 3);
}

static void
tell_all(const struct fold *fo)
{
	if (fo->added + fo->again + fo->removed + fo->changed > TOLD_MAX)
		log_info("more endpoints than the log names", LOG_U("added", fo->added),
			LOG_U("added_again", fo->again), LOG_U("removed", fo->removed),
			LOG_U("changed", fo->changed));
}

static int
compare_key(const void *pa, const void *pb)
{
	const struct endpoint *a = pa, *b = pb;
	int r = strcmp(a->url, b->url);

	if (r == 0)
		r = strcmp(a->pool_name, b->pool_name);
	return r != 0 ? r : (a->role > b->role) - (a->role < b->role);
}

/* A tree, since a reload may find hundreds draining and add as many.  NULL if it is not there. */
static struct endpoint *
find_draining(struct fleet *f, const struct discover_event *ev)
{
	const struct endpoint key = {
		.url = ev->endpoint->url, .pool_name = ev->pool->name, .role = ev->endpoint->role};
	struct endpoint **at = tfind(&key, &f->draining_by_key, compare_key);

	return at != NULL ? *at : NULL;
}

/* changed_places(): the one before it has a slot of the same key. */
static bool
waits_for_itself(struct fleet *f, const struct endpoint *ep)
{
	return tfind(ep, &f->draining_by_key, compare_key) != NULL;
}

void
fleet_draining_remove(struct fleet *f, struct endpoint *ep)
{
	metric_gauge_add(f->slab, G_DRAINING, -1);
	TAILQ_REMOVE(&f->draining, ep, link);
	(void)tdelete(ep, &f->draining_by_key, compare_key);
}

static void
draining_add(struct fleet *f, struct endpoint *ep)
{
	struct endpoint **at = tsearch(ep, &f->draining_by_key, compare_key);

	assert(at != NULL && *at == ep); /* the key was found and revived otherwise */
	TAILQ_INSERT_TAIL(&f->draining, ep, link);
	metric_gauge_add(f->slab, G_DRAINING, 1);
}

/*
 * The slots that configured endpoints leave over are taken: this found one has none then, or a fleet
 * that was found would keep a configured endpoint waiting for ever.
 */
static bool
is_beyond(const struct fold *fo, const struct discover_event *ev)
{
	return ev->found && fo->found_slots + fo->configured >= fo->fleet->seg->hdr->max_endpoints;
}

/* Its health begins in fleet_apply(), when all of the new configuration stands. */
static struct endpoint *
added(struct fold *fo, const struct discover_event *ev)
{
	struct fleet *f = fo->fleet;
	struct endpoint *ep = is_beyond(fo, ev) ? NULL : find_draining(f, ev);

	if (ep == NULL) {
		ep = endpoint_new(f, ev->pool, ev->endpoint);
		fo->added++;
		tell(fo, "endpoint added", ep, LOG_S("source", ev->source));
	} else {
		fleet_draining_remove(f, ep);
		publish_revive(f->publish, ep);
		fo->again++;
		tell(fo, "endpoint added again before it had drained", ep, (struct log_field){0});
	}
	TAILQ_INSERT_TAIL(&f->live, ep, link);
	return ep;
}

static void
removed(struct fold *fo, struct endpoint *ep)
{
	struct fleet *f = fo->fleet;

	health_stop(ep);
	scrape_stop(ep);
	TAILQ_REMOVE(&f->live, ep, link);
	fo->removed++;
	tell(fo, "endpoint removed", ep,
		LOG_U("in_flight",
			ep->slot == ENDPOINT_NO_SLOT ? 0 : load_count(f->seg, ep->slot)));
	if (ep->slot == ENDPOINT_NO_SLOT) {
		endpoint_free(&ep);
		return;
	}
	ep->pool = NULL;
	ep->conf = NULL;
	ep->source = NULL;
	draining_add(f, ep);
	publish_drop(f->publish, ep);
}

/*
 * One that gives its slot to others drains, and another one waits in its place, without a slot as long
 * as that drains: at most one of a key has a slot and is live, or drains.
 */
static struct endpoint *
changed_places(struct fold *fo, const struct discover_event *ev, struct endpoint *ep)
{
	const bool has_slot = ep->slot != ENDPOINT_NO_SLOT, drained = ep->drained;

	if (is_beyond(fo, ev) ? !has_slot : has_slot || find_draining(fo->fleet, ev) == NULL)
		return ep;
	removed(fo, ep);
	ep = added(fo, ev);
	if (drained) /* it is configured as before: its operator's word holds */
		publish_drain(fo->fleet->publish, ep);
	return ep;
}

static void *
on_discover(const struct discover_event *ev, void *arg)
{
	struct fold *fo = arg;
	struct fleet *f = fo->fleet;
	struct endpoint *ep = ev->object;

	if (ev->what == DISCOVER_REMOVED) {
		removed(fo, ep);
		return NULL;
	}
	if (ev->what == DISCOVER_ADDED) {
		ep = added(fo, ev);
	} else if (ev->what == DISCOVER_CHANGED) {
		fo->changed++;
		tell(fo, "endpoint changed", ep, LOG_U("max_inflight", ev->endpoint->max_inflight));
	}
	if (ev->what != DISCOVER_ADDED)
		ep = changed_places(fo, ev, ep);
	ep->pool = ev->pool;
	ep->conf = ev->endpoint;
	ep->source = ev->source;
	ep->found = ev->found;
	(void)snprintf(ep->kv_addr, sizeof(ep->kv_addr), "%s", ev->kv_addr);
	f->order[f->norder++] = ep;
	fo->configured += !ev->found;
	fo->found_slots += ev->found && ep->slot != ENDPOINT_NO_SLOT;
	return ep;
}

bool
fleet_fill_slots(struct fleet *f)
{
	bool any = false;

	for (size_t i = 0; i < f->norder; i++) {
		struct endpoint *ep = f->order[i];

		if (ep->slot != ENDPOINT_NO_SLOT || waits_for_itself(f, ep))
			continue;
		if (!publish_slot(f->publish, ep)) /* nor is there one for those behind it */
			break;
		health_start(ep);
		any = true;
	}
	return any;
}

int
fleet_check(const struct fleet *f, const struct conf *conf, struct conf_error *err)
{
	return publish_check(f->publish, conf, err);
}

/* One line for all: an exchange of a full fleet leaves out hundreds for as long as requests run. */
static void
tell_waiting(const struct fleet *f)
{
	const struct endpoint *first = NULL;
	size_t n = 0;

	for (size_t i = f->norder; i-- > 0;)
		if (f->order[i]->slot == ENDPOINT_NO_SLOT) {
			first = f->order[i];
			n++;
		}
	if (first != NULL)
		log_warn("endpoints left out until others have drained: max_endpoints are in use",
			LOG_U("endpoints", n), LOG_S("first", first->url),
			LOG_U("max_endpoints", f->seg->hdr->max_endpoints));
}

/* All that is known of endpoints now, into the two lists and `order`. */
static void
fold(struct fleet *f)
{
	struct fold fo = {.fleet = f};

	f->order = mem_resize(
		f->order, discover_most(f->discover, f->conf) + 1, sizeof(struct endpoint *));
	f->norder = 0;
	discover_fold(f->discover, f->conf, on_discover, &fo);
	tell_all(&fo);
}

/* Those with a slot are probed. */
static void
begin(struct fleet *f)
{
	for (size_t i = 0; i < f->norder; i++)
		if (f->order[i]->slot != ENDPOINT_NO_SLOT && f->order[i]->health == NULL)
			health_start(f->order[i]); /* revived */
	(void)fleet_fill_slots(f);
	tell_waiting(f);
}

void
fleet_apply(struct fleet *f, const struct conf *conf, uint64_t config_number)
{
	f->conf = conf;
	f->config_number = config_number;
	dns_apply(f->dns);
	fold(f);
	publish_config(f->publish);
	for (size_t i = 0; i < f->norder; i++) {
		health_changed(f->order[i]);
		scrape_changed(f->order[i]);
	}
	begin(f);
	publish_now(f->publish);
	if (f->announced != NULL)
		announced_changed(f->announced);
}

void
fleet_found(
	struct fleet *f, const char *pool, const char *source, const struct found *list, size_t n)
{
	if (!discover_found(f->discover, pool, source, list, n) || f->conf == NULL)
		return;
	fold(f);
	begin(f);
	publish_soon(f->publish);
}

void
fleet_hear(struct fleet *f, int wake_fd)
{
	f->announced = announced_new(f, wake_fd);
}

void
fleet_waiters(struct fleet *f, struct waiters *ws)
{
	f->waiters = ws;
}

void
fleet_worker_reaped(struct fleet *f)
{
	publish_poll(f->publish);
}

void
fleet_shortage(struct fleet *f, const char *why)
{
	uint64_t now = clock_ms();

	if (f->shortage_ms != 0 && now - f->shortage_ms < SHORTAGE_LOG_MS)
		return;
	f->shortage_ms = now;
	log_error(
		"engines cannot be probed for want of something on this machine, their states stay",
		LOG_S("reason", why));
}

/* --- one endpoint ------------------------------------------------------------------------ */

struct endpoint *
endpoint_new(struct fleet *f, const struct conf_pool *pool, const struct conf_endpoint *conf)
{
	struct endpoint *ep = MEM_NEW(struct endpoint);
	const char *why;
	int r = http_url_parse(conf->url, &ep->at, &why);

	assert(r == 0); /* conf.c let it through by the same function */
	ep->fleet = f;
	ep->url = mem_strdup(conf->url);
	ep->pool_name = mem_strdup(pool->name);
	ep->authority =
		mem_printf(ep->at.ipv6 ? "[%s]:%u" : "%s:%u", ep->at.host, (unsigned)ep->at.port);
	ep->role = conf->role;
	ep->number = f->made++;
	ep->slot = ENDPOINT_NO_SLOT;
	return ep;
}

void
endpoint_free(struct endpoint **pep)
{
	struct endpoint *ep = *pep;

	if (ep == NULL)
		return;
	health_stop(ep);
	scrape_stop(ep);
	models_clear(&ep->models);
	free(ep->url);
	free(ep->pool_name);
	free(ep->authority);
	free(ep);
	*pep = NULL;
}

uint64_t
endpoint_wait_ms(const struct endpoint *ep, uint64_t now_ms, uint64_t interval_ms)
{
	/* Multiples of the golden ratio's fraction, in 2^-32: any run of endpoints is spread
	 * evenly. */
	uint32_t fraction = (uint32_t)(ep->number * 2654435769u);
	uint64_t phase = (interval_ms * fraction) >> 32;
	uint64_t wait = interval_ms - (now_ms + interval_ms - phase) % interval_ms;

	return wait < interval_ms / 2 ? wait + interval_ms : wait;
}

const struct rcu_writer *
fleet_writer(const struct fleet *f)
{
	return publish_writer(f->publish);
}
