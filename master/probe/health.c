#include "master/probe/health.h"

#include <errno.h>
#include <event2/event.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/probe/engine.h"
#include "master/probe/learn.h"
#include "master/probe/scrape.h"
#include "master/probe/probe.h"
#include "master/probe/resolve.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/metrics.h"

/*
 * One round finds out whether the engine answers.
 *
 *   REST --turn--> [NAME] --addresses--> PATH --2xx--> [LEARN] --gate open--> good --> REST
 *                     |                  |  ^             |
 *                     |        refused   |  '-- next address of the name
 *                     '------------------+----------------+--> bad --> REST
 *
 * NAME: only while no address is known.  LEARN: only while the engine is not UP and learn_gated().
 * learn.c runs all other queries beside these rounds, so they delay no round.
 *
 * STARTING --1 good--> UP --`fall` bad in a row--> DOWN --`rise` good in a row--> UP
 *
 * The room above sees an engine that is STARTING after `fall` bad rounds as down.
 */
enum step { REST, NAME, PATH, LEARN };
enum standing { STARTING, UP, DOWN };

#define EAGER_MS 250       /* between rounds while STARTING: an engine is up soon after its start */
#define EAGER_FOR_MS 10000 /* later the engine is loading weights: probe at the usual interval */
#define RENEW_MS 30000     /* between two lookups of a name */
#define RENEW_LEAST_MS 1000         /* between two lookups after failed rounds */
#define HEALTH_BODY_MAX (64u << 10) /* of a health answer, whose text is not used */

struct health {
	struct engine *engine;
	struct probe *probe;
	struct learn *learn;
	struct event *turn, *renew;
	struct lookup *lookup;
	enum step step;
	enum standing standing;
	uint32_t good, bad;                     /* rounds in a row */
	uint64_t began_ms, round_ms, lookup_ms; /* clock_ms(); 0 = never */
	uint64_t interval_ms;                   /* the turn was armed by */
	bool literal;
	struct ep_addr addrs[RESOLVE_MAX];
	size_t naddrs, at, tried; /* at: index of the probed address */
	struct ep_addr probed;
	char reason[192];
};

static void send_probe(struct health *h);

static const struct conf *
conf_of(const struct health *h)
{
	return h->engine->prober->conf;
}

static void
reason_set(struct health *h, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(h->reason, sizeof(h->reason), fmt, ap);
	va_end(ap);
}

static void
add_timer(struct event *ev, uint64_t ms)
{
	struct timeval tv = clock_tv(ms);

	(void)event_add(ev, &tv);
}

/* --- between rounds ---------------------------------------------------------------------- */

static uint64_t
wait_ms(const struct health *h)
{
	uint64_t now = clock_ms(), interval = conf_of(h)->health_interval_ms;

	if (h->standing == STARTING && now - h->began_ms < EAGER_FOR_MS)
		return interval < EAGER_MS ? interval : EAGER_MS;
	return engine_wait_ms(h->engine, now, interval);
}

static void
rest(struct health *h)
{
	h->step = REST;
	h->interval_ms = conf_of(h)->health_interval_ms;
	add_timer(h->turn, wait_ms(h));
}

/* Starts a round now, unless one is running. */
static void
round_now(struct health *h)
{
	if (h->step == REST)
		add_timer(h->turn, 0);
}

/* --- outcomes ---------------------------------------------------------------------------- */

static void
go_up(struct health *h)
{
	struct engine *e = h->engine;
	char addr[EP_ADDR_TEXT];

	h->standing = UP;
	h->reason[0] = '\0';
	log_info("endpoint up", LOG_S("url", e->url), LOG_S("role", role_name(e->role)),
		LOG_S("pool", e->pool_name), LOG_S("addr", ep_addr_text(&e->addr, addr)));
	e->prober->ops->up(e);
	scrape_start(e);
}

static void
go_down(struct health *h)
{
	struct engine *e = h->engine;

	h->standing = DOWN;
	learn_forget(h->learn);
	log_warn("endpoint down, no requests go there until it answers again", LOG_S("url", e->url),
		LOG_S("role", role_name(e->role)), LOG_S("pool", e->pool_name),
		LOG_S("reason", h->reason));
	e->prober->ops->down(e);
	scrape_stop(e);
}

/* One good round may still bring the engine up, but no request waits for it any more. */
static void
give_up_waiting(struct health *h)
{
	struct engine *e = h->engine;

	log_warn("endpoint does not answer yet, still probing", LOG_S("url", e->url),
		LOG_S("role", role_name(e->role)), LOG_S("pool", e->pool_name),
		LOG_S("reason", h->reason));
	e->prober->ops->down(e);
}

static void
round_good(struct health *h)
{
	struct engine *e = h->engine;

	metric_add(e->prober->slab, M_PROBES_OK, 1);
	h->bad = 0;
	h->good++;
	if (!ep_addr_equal(&e->addr, &h->probed)) {
		e->addr = h->probed;
		e->prober->ops->changed(e, false);
		if (h->standing == UP)
			learn_forget(h->learn);
	}
	if (h->standing == STARTING || (h->standing == DOWN && h->good >= conf_of(h)->rise))
		go_up(h);
	else if (h->standing == UP)
		e->prober->ops->answered(e);
	if (h->standing == UP)
		learn_up(h->learn);
	rest(h);
}

static void look_up(struct health *h);

static void
round_bad(struct health *h)
{
	struct engine *e = h->engine;

	metric_add(e->prober->slab, M_PROBES_FAILED, 1);
	h->good = 0;
	h->bad++;
	if (h->standing == UP && h->bad >= conf_of(h)->fall)
		go_down(h);
	else if (h->standing == STARTING && h->bad == conf_of(h)->fall)
		give_up_waiting(h);
	rest(h);
	if (!h->literal && clock_ms() - h->lookup_ms >= RENEW_LEAST_MS)
		look_up(h);
}

/* --- addresses --------------------------------------------------------------------------- */

static void
on_addresses(const struct ep_addr *addrs, size_t n, const char *error, void *arg)
{
	struct health *h = arg;
	bool still = false;

	add_timer(h->renew, engine_wait_ms(h->engine, clock_ms(), RENEW_MS));
	if (n == 0 && h->naddrs == 0)
		reason_set(h, "cannot resolve %s: %s", h->engine->at.host, error);
	if (n > 0) { /* else the old ones stay: the name server may be failing */
		memcpy(h->addrs, addrs, n * sizeof(*addrs));
		h->naddrs = n;
		h->at = 0;
		for (size_t i = 0; i < n && !still; i++)
			if (ep_addr_equal(&addrs[i], &h->engine->addr)) {
				h->at = i;
				still = true;
			}
	}
	if (h->step == NAME && h->naddrs > 0)
		send_probe(h);
	else if (h->step == NAME)
		round_bad(h);
	else if (n > 0 && !still && h->standing == UP)
		round_now(h); /* the name has moved: probe the new address now */
}

static void
look_up(struct health *h)
{
	if (h->lookup != NULL)
		return;
	h->lookup_ms = clock_ms();
	resolve_start(h->engine->prober->resolver, h->engine->at.host, h->engine->at.port,
		on_addresses, h, &h->lookup);
}

static void
on_renew(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	look_up(arg);
}

/* --- a round ----------------------------------------------------------------------------- */

static void
on_turn(evutil_socket_t fd, short what, void *arg)
{
	struct health *h = arg;

	(void)fd;
	(void)what;
	h->round_ms = clock_ms();
	h->tried = 0;
	if (h->naddrs > 0) {
		send_probe(h);
	} else if (h->lookup != NULL || h->lookup_ms == 0 ||
		   h->round_ms - h->lookup_ms >= RENEW_LEAST_MS) {
		h->step = NAME;
		look_up(h);
	} else {
		round_bad(h);
	}
}

static uint64_t
time_left(const struct health *h)
{
	uint64_t spent = clock_ms() - h->round_ms, whole = conf_of(h)->health_timeout_ms;

	return spent < whole ? whole - spent : 0;
}

static void
send_probe(struct health *h)
{
	struct engine *e = h->engine;
	uint64_t left = time_left(h);

	h->step = PATH;
	h->probed = h->addrs[h->at];
	/* A new connection each time: that the engine still accepts is what workers need to know.
	 */
	probe_get(h->probe, &(struct probe_request){.addr = &h->probed,
				    .authority = e->authority,
				    .prefix = e->at.prefix,
				    .path = e->pool->health_path,
				    .api_key = e->pool->api_key,
				    .timeout_ms = left > 0 ? left : conf_of(h)->health_timeout_ms,
				    .max_body = HEALTH_BODY_MAX});
}

static void
path_answered(struct health *h, const struct probe_answer *a)
{
	if (probe_good(a, h->engine->pool->health_path, h->reason, sizeof(h->reason))) {
		if (h->standing != UP && learn_gated(h->learn)) {
			h->step = LEARN;
			learn_gate(h->learn, &h->probed);
		} else {
			round_good(h);
		}
		return;
	}
	h->at = (h->at + 1) % h->naddrs;
	if (++h->tried < h->naddrs && time_left(h) > 0) {
		send_probe(h);
		return;
	}
	if (h->standing == DOWN)
		learn_forget(h->learn); /* another engine may come back */
	round_bad(h);                   /* what timed out leaves its turn to the next address */
}

static void
on_answer(const struct probe_answer *a, void *arg)
{
	struct health *h = arg;

	if (a->local) { /* this says nothing about the engine */
		engine_shortage(h->engine, a->why);
		rest(h);
		return;
	}
	path_answered(h, a);
}

static void
on_learned(const char *why, bool local, void *arg)
{
	struct health *h = arg;

	if (local) {
		rest(h);
	} else if (why == NULL) {
		round_good(h);
	} else {
		reason_set(h, "%s", why);
		round_bad(h);
	}
}

/* --- life -------------------------------------------------------------------------------- */

void
health_start(struct engine *e)
{
	struct prober *p = e->prober;
	struct health *h = MEM_NEW(struct health);
	uint64_t interval = p->conf->health_interval_ms;

	e->health = h;
	h->engine = e;
	h->began_ms = clock_ms();
	h->probe = probe_new(p->env, on_answer, h);
	h->learn = learn_new(e, on_learned, h);
	h->turn = event_new(p->base, -1, 0, on_turn, h);
	h->renew = event_new(p->base, -1, 0, on_renew, h);
	h->literal = resolve_literal(e->at.host, e->at.port, &h->addrs[0]);
	if (h->literal) {
		h->naddrs = 1;
		e->addr = h->addrs[0];
	}
	h->interval_ms = interval;
	/* 1 ms apart: the first rounds of a fleet at start do not all fall into one turn of the
	 * loop */
	add_timer(h->turn, e->number % (interval < EAGER_MS ? interval + 1 : EAGER_MS));
}

void
health_stop(struct engine *e)
{
	struct health *h = e->health;

	if (h == NULL)
		return;
	resolve_cancel(&h->lookup);
	probe_free(&h->probe);
	learn_free(&h->learn);
	event_free(h->turn);
	event_free(h->renew);
	free(h);
	e->health = NULL;
}

void
health_changed(struct engine *e)
{
	struct health *h = e->health;

	if (h == NULL || h->step != REST)
		return;
	if (h->standing == UP)
		learn_up(h->learn);
	if (h->interval_ms != e->prober->conf->health_interval_ms)
		rest(h); /* not at every reload: a storm of them would put the next round off for
			    ever */
}

const char *
health_reason(const struct engine *e)
{
	return e->health != NULL ? e->health->reason : "";
}
