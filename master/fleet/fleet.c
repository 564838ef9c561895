#include "master/fleet/fleet.h"

#include <assert.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/fleet/announced.h"
#include "master/fleet/discover.h"
#include "master/fleet/dns.h"
#include "master/fleet/ejected.h"
#include "master/fleet/endpoint.h"
#include "master/fleet/former.h"
#include "master/fleet/keep.h"
#include "master/fleet/outlier.h"
#include "master/fleet/pool_id.h"
#include "master/fleet/publish.h"
#include "master/fleet/slots.h"
#include "master/fleet/state.h"
#include "master/fleet/version.h"
#include "master/probe/health.h"
#include "master/probe/probe.h"
#include "master/probe/resolve.h"
#include "master/probe/scrape.h"
#include "master/probe/turns.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/core/rcu.h"
#include "shm/core/seg.h"
#include "shm/blame.h"
#include "shm/load.h"
#include "shm/refusal.h"
#include "shm/restart.h"

#define HELD_MAX (128u << 20) /* bytes of answers that are being read, of all engines together */
/* Endpoints of one reload that have a log line each; one line counts the others. */
#define LOGGED_MAX 64

/* --- what the probes report --------------------------------------------------------------- */

static void
on_up(struct engine *e)
{
	struct endpoint *ep = endpoint_of_engine(e);

	ejected_up(ep);
	outlier_up(ep);
	publish_up(ep->fleet->publish, ep);
}

static void
on_down(struct engine *e)
{
	struct endpoint *ep = endpoint_of_engine(e);

	publish_down(ep->fleet->publish, ep);
}

static void
on_accepted(struct engine *e)
{
	ejected_probed(endpoint_of_engine(e));
}

static void
on_unlearned(struct engine *e)
{
	struct endpoint *ep = endpoint_of_engine(e);

	publish_unlearned(ep->fleet->publish, ep);
}

static void
on_misconfigured(struct engine *e)
{
	struct endpoint *ep = endpoint_of_engine(e);

	publish_misconfigured(ep->fleet->publish, ep);
}

static void
on_restarted(struct engine *e)
{
	restart_begin(e->prober->seg, e->slot);
	refusal_begin(e->prober->seg, e->slot);
	blame_begin(e->prober->seg, e->slot);
}

static void
on_changed(struct engine *e, bool later)
{
	struct publish *p = endpoint_of_engine(e)->fleet->publish;

	if (later)
		publish_later(p);
	else
		publish_soon(p);
}

static const struct probe_ops on_probe = {
	.up = on_up,
	.down = on_down,
	.accepted = on_accepted,
	.unlearned = on_unlearned,
	.misconfigured = on_misconfigured,
	.restarted = on_restarted,
	.changed = on_changed,
};

/* --- the whole ---------------------------------------------------------------------------- */

struct fleet *
fleet_new(struct event_base *base, struct seg *seg)
{
	struct fleet *f = MEM_NEW(struct fleet);

	f->base = base;
	f->seg = seg;
	f->slab = seg_slab(seg, SLOT_MASTER(seg));
	TAILQ_INIT(&f->live);
	TAILQ_INIT(&f->draining);
	f->writer = rcu_writer_new(seg);
	f->prober = (struct prober){.seg = seg,
		.slab = f->slab,
		.env = probe_env_new(base, HELD_MAX),
		.turns = turns_new(base),
		.resolver = resolver_new(base),
		.ops = &on_probe};
	f->discover = discover_new();
	f->dns = dns_new(f, fleet_found);
	f->formers = formers_new(f, fleet_found);
	f->slots = slots_new(f);
	f->publish = publish_new(f);
	f->keep = keep_new(f);
	f->outlier = outlier_new(f);
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

		endpoint_draining_remove(ep);
		endpoint_free(&ep);
	}
	keep_free(&f->keep);
	outlier_free(&f->outlier);
	publish_free(&f->publish);
	if (f->wake != NULL)
		event_free(f->wake);
	announced_free(&f->announced);
	dns_free(&f->dns);
	formers_free(&f->formers);
	discover_free(&f->discover);
	resolver_free(&f->prober.resolver);
	probe_env_free(&f->prober.env);
	turns_free(&f->prober.turns);
	slots_free(&f->slots);
	rcu_writer_free(&f->writer);
	free(f->pool_ids);
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
log_change(const struct fold *fo, const char *msg, const struct endpoint *ep, struct log_field more)
{
	size_t n = fo->added + fo->again + fo->removed + fo->changed;

	log_write(n > LOGGED_MAX ? LOG_L_DEBUG : LOG_L_INFO, msg,
		(const struct log_field[]){LOG_S("url", ep->engine.url),
			LOG_S("role", role_name(ep->engine.role)),
			LOG_S("pool", ep->engine.pool_name), more},
		more.key != NULL ? 4 : 3);
}

static void
log_rest(const struct fold *fo)
{
	if (fo->added + fo->again + fo->removed + fo->changed > LOGGED_MAX)
		log_info("more endpoints changed than are logged one by one",
			LOG_U("added", fo->added), LOG_U("added_again", fo->again),
			LOG_U("removed", fo->removed), LOG_U("changed", fo->changed));
}

/* NULL if there is none. */
static struct endpoint *
find_draining(const struct fleet *f, const struct discover_event *ev)
{
	const struct endpoint key = {.engine = {.url = ev->endpoint->url,
					     .pool_name = ev->pool->name,
					     .role = ev->endpoint->role}};

	return endpoint_draining_find(f, &key);
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

/* Its probes begin in fleet_apply(), when the whole new configuration is applied. */
static struct endpoint *
added(struct fold *fo, const struct discover_event *ev)
{
	struct fleet *f = fo->fleet;
	struct endpoint *ep = is_beyond(fo, ev) ? NULL : find_draining(f, ev);

	if (ep == NULL) {
		ep = endpoint_new(f, ev->pool, ev->endpoint);
		fo->added++;
		log_change(fo, "endpoint added", ep, LOG_S("source", ev->source));
	} else {
		endpoint_draining_remove(ep);
		slots_revive(ep);
		fo->again++;
		log_change(fo, "endpoint added again before it had drained", ep,
			(struct log_field){0});
	}
	TAILQ_INSERT_TAIL(&f->live, ep, link);
	if (keep_back(f->keep, ep))
		state_drain(ep);
	return ep;
}

static void
removed(struct fold *fo, struct endpoint *ep)
{
	struct fleet *f = fo->fleet;

	health_stop(&ep->engine);
	scrape_stop(&ep->engine);
	TAILQ_REMOVE(&f->live, ep, link);
	keep_away(f->keep, ep);
	fo->removed++;
	log_change(fo, "endpoint removed", ep,
		LOG_U("in_flight", ep->engine.slot == ENGINE_NO_SLOT
					   ? 0
					   : load_count(f->seg, ep->engine.slot)));
	if (ep->engine.slot == ENGINE_NO_SLOT) {
		endpoint_free(&ep);
		return;
	}
	ep->engine.pool = NULL;
	ep->engine.conf = NULL;
	ep->source = NULL;
	endpoint_draining_add(ep);
	slots_drop(ep);
}

/*
 * One that gives its slot to others drains, and another one waits in its place, without a slot as long
 * as that drains: at most one of a key has a slot and is live, or drains.
 */
static struct endpoint *
trade_slot(struct fold *fo, const struct discover_event *ev, struct endpoint *ep)
{
	const bool has_slot = ep->engine.slot != ENGINE_NO_SLOT, drained = ep->drained;
	const uint32_t weight = ep->weight, configured = ep->weight_configured;

	if (is_beyond(fo, ev) ? !has_slot : has_slot || find_draining(fo->fleet, ev) == NULL)
		return ep;
	removed(fo, ep);
	ep = added(fo, ev);
	/* it is configured as before: its operator's word holds */
	if (drained)
		state_drain(ep);
	ep->weight = weight;
	ep->weight_configured = configured;
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
		log_change(fo, "endpoint changed", ep,
			LOG_U("max_inflight", ev->endpoint->max_inflight));
	}
	if (ev->what != DISCOVER_ADDED)
		ep = trade_slot(fo, ev, ep);
	ep->engine.pool = ev->pool;
	ep->engine.conf = ev->endpoint;
	ep->source = ev->source;
	ep->engine.found = ev->found;
	endpoint_check_weight(ep);
	(void)snprintf(ep->kv_addr, sizeof(ep->kv_addr), "%s", ev->kv_addr);
	f->order[f->norder++] = ep;
	fo->configured += !ev->found;
	fo->found_slots += ev->found && ep->engine.slot != ENGINE_NO_SLOT;
	return ep;
}

int
fleet_check(const struct fleet *f, const struct conf *conf, struct conf_error *err)
{
	return version_check(f, conf, err);
}

/* One line for all: an exchange of a full fleet leaves out hundreds for as long as requests run. */
static void
log_left_out(const struct fleet *f)
{
	const struct endpoint *first = NULL;
	size_t n = 0;

	for (size_t i = f->norder; i-- > 0;)
		if (f->order[i]->engine.slot == ENGINE_NO_SLOT) {
			first = f->order[i];
			n++;
		}
	if (first != NULL)
		log_warn("endpoints left out until others have drained: max_endpoints are in use",
			LOG_U("endpoints", n), LOG_S("first", first->engine.url),
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
	log_rest(&fo);
}

/* Those with a slot are probed. */
static void
begin(struct fleet *f)
{
	for (size_t i = 0; i < f->norder; i++)
		if (f->order[i]->engine.slot != ENGINE_NO_SLOT &&
			f->order[i]->engine.health == NULL)
			health_start(&f->order[i]->engine); /* revived */
	(void)slots_fill(f);
	log_left_out(f);
}

void
fleet_apply(struct fleet *f, const struct conf *conf, uint64_t config_number)
{
	f->conf = f->prober.conf = conf;
	f->config_number = config_number;
	dns_apply(f->dns);
	formers_apply(f->formers);
	fold(f);
	pool_ids_assign(f);
	for (size_t i = 0; i < f->norder; i++) {
		health_changed(&f->order[i]->engine);
		scrape_changed(&f->order[i]->engine);
	}
	begin(f);
	publish_now(f->publish);
	keep_changed(f->keep);
	if (f->announced != NULL)
		announced_changed(f->announced);
}

bool
fleet_published(const struct fleet *f)
{
	return publish_config(f->publish) == f->config_number;
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
	keep_changed(f->keep);
}

void
fleet_keep(struct fleet *f, const char *path)
{
	keep_file(f->keep, path);
}

/* Engines whose requests have met the sign of a restart are looked at.  Returns their number. */
static size_t
take_doubts(struct fleet *f)
{
	size_t n = 0;

	for (size_t i = 0; i < f->norder; i++) {
		struct engine *e = &f->order[i]->engine;

		if (e->slot != ENGINE_NO_SLOT && restart_take(f->seg, e->slot)) {
			health_doubt(e);
			n++;
		}
	}
	return n;
}

/*
 * A worker has met the sign of a restart, or the notifier an announcement.  Signs may come with each request
 * that fails, and reading all announcements takes half a millisecond.  If both have come, the announcement
 * is read within a second (announced.c).
 */
static void
on_wake(evutil_socket_t fd, short what, void *arg)
{
	struct fleet *f = arg;
	uint64_t n;

	(void)what;
	(void)!read(fd, &n, sizeof(n));
	if (take_doubts(f) == 0)
		announced_changed(f->announced);
}

void
fleet_hear(struct fleet *f, int wake_fd)
{
	f->announced = announced_new(f, fleet_found);
	f->wake = event_new(f->base, wake_fd, EV_READ | EV_PERSIST, on_wake, f);
	assert(f->wake != NULL);
	(void)event_add(f->wake, NULL);
}

void
fleet_waiters(struct fleet *f, struct waiters *ws)
{
	f->waiters = ws;
}

void
fleet_worker_reaped(struct fleet *f)
{
	(void)take_doubts(
		f); /* it may have died before it wrote the eventfd, and no other worker will */
	publish_poll(f->publish);
}

const struct rcu_writer *
fleet_writer(const struct fleet *f)
{
	return f->writer;
}

/* --- upgrades ----------------------------------------------------------------------------- */

void
fleet_pass_drains(const struct fleet *f, struct membuf *out)
{
	keep_pass(f->keep, out);
}

int
fleet_state_lock(const struct fleet *f)
{
	return keep_lock(f->keep);
}

bool
fleet_state_is_settled(const struct fleet *f)
{
	return keep_is_settled(f->keep);
}

void
fleet_sigchld(struct fleet *f)
{
	keep_sigchld(f->keep);
}

void
fleet_hold_state(struct fleet *f, bool hold)
{
	keep_hold(f->keep, hold);
	if (f->announced != NULL)
		announced_hold(f->announced, hold);
}

bool
fleet_state_is_held(const struct fleet *f)
{
	return keep_is_held(f->keep);
}

void
fleet_leave_state(struct fleet *f)
{
	keep_leave(f->keep);
}

void
fleet_take_drains(struct fleet *f, const struct membuf *text)
{
	keep_take(f->keep, text);
}

void
fleet_take_state(struct fleet *f, const char *path, int lock)
{
	keep_take_file(f->keep, path, lock);
}

void
fleet_pass_announced(const struct fleet *f, void (*fn)(const char *line, void *arg), void *arg)
{
	announced_pass(f->announced, fn, arg);
}

void
fleet_take_announced(struct fleet *f, const char *line)
{
	announced_take(f->announced, line);
}

bool
fleet_is_settled(const struct fleet *f)
{
	if (!dns_is_settled(f->dns))
		return false;
	for (size_t i = 0; i < f->norder; i++)
		if (f->order[i]->engine.slot != ENGINE_NO_SLOT && f->order[i]->state == EP_STARTING)
			return false;
	return true;
}
