#include "master/load.h"

#include <event2/event.h>
#include <stdlib.h>

#include "master/endpoint.h"
#include "master/probe.h"
#include "proto/prom.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/load.h"
#include "shm/metrics.h"

#define TIMEOUT_MS 3000 /* a loaded engine renders its page late; an older one is of no use */
/* An engine without the page (SGLang without --enable-metrics) is asked so often. */
#define ABSENT_MS 30000
#define FIRST_MS 100          /* the first one comes soon; a fleet's spread over this */
#define FOREIGN_MAX 0xffffffu /* the word's 24 bits (shm/layout.h) */

struct scrape {
	struct endpoint *ep;
	struct probe *probe;
	struct event *turn;
	uint32_t sent;        /* this router's requests there when the page was asked for */
	uint64_t interval_ms; /* the turn was armed by */
	bool failing;         /* that has been logged */
	bool absent;          /* the page is not there (404) */
};

static void
turn_after(struct scrape *s, uint64_t ms)
{
	struct timeval tv = clock_tv(ms);

	s->interval_ms = s->ep->fleet->conf->stats_interval_ms;
	(void)event_add(s->turn, &tv);
}

static void
rest(struct scrape *s)
{
	uint64_t interval = s->absent ? ABSENT_MS : s->ep->fleet->conf->stats_interval_ms;

	turn_after(s, endpoint_wait_ms(s->ep, clock_ms(), interval));
}

static void
on_turn(evutil_socket_t fd, short what, void *arg)
{
	struct scrape *s = arg;
	struct endpoint *ep = s->ep;

	(void)fd;
	(void)what;
	s->sent = load_sent_sum(ep->fleet->seg, ep->slot);
	probe_get(s->probe, &(struct probe_ask){.addr = &ep->addr,
				    .authority = ep->authority,
				    .prefix = ep->at.prefix,
				    .path = "/metrics",
				    .timeout_ms = TIMEOUT_MS,
				    .max_body = PROBE_BODY_MAX,
				    .want_body = true,
				    .keep = true});
}

/* NaN, negative and absurd figures come from engines, too. */
static uint32_t
count_of(double v)
{
	return !(v > 0) ? 0 : v < FOREIGN_MAX ? (uint32_t)v : FOREIGN_MAX;
}

/*
 * What of the engine's figures is not ours.  The engine took them at some moment between our
 * question and its answer, when our share was neither exactly what it was before nor what it is
 * after.  The larger of the two is subtracted: requests of ours that began or ended meanwhile then
 * never look like somebody else's load, which would turn traffic away from this engine for a whole
 * interval.  The other error, foreign load hidden by what began within those few milliseconds, is
 * harmless: our own count already has it.  Without such a coincidence the two are equal and the
 * result is exact.
 */
static uint32_t
foreign(const struct scrape *s, const struct ep_scrape *figures)
{
	uint32_t after = load_sent_sum(s->ep->fleet->seg, s->ep->slot);
	uint32_t ours = after > s->sent ? after : s->sent;
	uint64_t all = (uint64_t)figures->running + figures->waiting;

	all = all > ours ? all - ours : 0;
	return all < FOREIGN_MAX ? (uint32_t)all : FOREIGN_MAX;
}

static void
publish_figures(struct scrape *s, const struct prom_load *load)
{
	struct seg *seg = s->ep->fleet->seg;
	uint64_t now = clock_ms();
	struct ep_scrape figures = {.running = count_of(load->running),
		.waiting = count_of(load->waiting),
		.at_ms = now};

	if (load->has_kv_usage && load->kv_usage > 0)
		figures.kv_usage_ppm =
			load->kv_usage < 1 ? (uint32_t)(load->kv_usage * 1e6) : 1000000;
	load_foreign_set(seg, s->ep->slot, foreign(s, &figures), now);
	ep_scrape_set(seg, s->ep->slot, &figures);
}

/* NULL if the page was read, else why not. */
static const char *
read_page(struct scrape *s, const struct probe_answer *a)
{
	struct prom_load load;

	s->absent = a->error == 0 && a->status == 404;
	if (a->error != 0)
		return a->why;
	if (s->absent)
		return "status 404: no such page, asked again every 30 s";
	if (a->status != 200)
		return "status other than 200";
	if (prom_read_load(a->body, a->len, &load, NULL) != 0)
		return "no load figure of a known name";
	publish_figures(s, &load);
	return NULL;
}

static void
on_answer(const struct probe_answer *a, void *arg)
{
	struct scrape *s = arg;
	struct endpoint *ep = s->ep;
	const char *why = read_page(s, a);

	if (a->local)
		fleet_shortage(ep->fleet, a->why);
	if (why != NULL)
		metric_add(ep->fleet->slab, M_SCRAPES_FAILED, 1);
	if (why != NULL && !s->failing)
		log_warn("load of endpoint unknown, choosing by own requests alone",
			LOG_S("url", ep->url), LOG_S("reason", why));
	if (why == NULL && s->failing)
		log_info("load of endpoint known again", LOG_S("url", ep->url));
	s->failing = why != NULL;
	rest(s);
}

void
scrape_start(struct endpoint *ep)
{
	struct scrape *s = MEM_NEW(struct scrape);

	scrape_stop(ep);
	s->ep = ep;
	s->probe = probe_new(ep->fleet->probes, on_answer, s);
	s->turn = event_new(ep->fleet->base, -1, 0, on_turn, s);
	ep->scrape = s;
	turn_after(s, ep->number % FIRST_MS);
}

void
scrape_stop(struct endpoint *ep)
{
	struct scrape *s = ep->scrape;

	if (s == NULL)
		return;
	probe_free(&s->probe);
	event_free(s->turn);
	free(s);
	ep->scrape = NULL;
}

void
scrape_changed(struct endpoint *ep)
{
	struct scrape *s = ep->scrape;

	/* only then: a storm of reloads would put the next scrape off for ever */
	if (s != NULL && !probe_busy(s->probe) &&
		s->interval_ms != ep->fleet->conf->stats_interval_ms)
		rest(s);
}
