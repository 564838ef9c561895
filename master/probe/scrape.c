#include "master/probe/scrape.h"

#include <stdio.h>
#include <stdlib.h>

#include "master/probe/belief.h"
#include "master/probe/engine.h"
#include "master/probe/probe.h"
#include "master/probe/turns.h"
#include "proto/wire/prom.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/load.h"
#include "shm/prefix.h"
#include "shm/view.h"
#include "shm/metrics.h"

#define TIMEOUT_MS 3000 /* a loaded engine renders its page late; a later page is of no use */
/* Interval for an engine without the page (SGLang without --enable-metrics). */
#define ABSENT_MS 30000
#define RATE_MS 1000 /* tokens per second are of a time that is not shorter */
#define RATE_OLD 3   /* so many intervals after the last page they are not known */
#define FIRST_MS 100 /* the first scrapes of a fleet are spread over this time */

struct scrape {
	struct engine *engine;
	struct probe *probe;
	struct turn turn;
	struct prom_page *page; /* NULL: nothing of it has come */
	/* of other engines; own copies: a reload may come while a page is read */
	char running[128], waiting[128];
	/* highest number of this router's requests there since the page was requested */
	uint32_t sent;
	uint32_t
		siblings; /* the largest number that other routers said that they have there (shm/sibling_load.h) */
	uint64_t turnover;    /* ep_turnover() when it was */
	uint32_t former;      /* the figure of the scrape before this one */
	uint64_t interval_ms; /* the turn was armed by */
	uint32_t counted;     /* the load of others that counts, of the last page */
	uint32_t often;       /* so many scrapes more follow soon */
	struct belief belief;
	char unknown
		[64]; /* why the load is unknown; "": it is known.  The change has been logged */
	bool absent;  /* the page is not there (404) */
	/* its engine's counter of tokens, by its role, at two pages; at_ms 0: none */
	struct tokens_at {
		uint64_t tokens, at_ms;
	} tokens, former_tokens;
};

static void
rest_for(struct scrape *s, uint64_t ms)
{
	s->interval_ms = s->engine->prober->conf->stats_interval_ms;
	turn_after(&s->turn, ms);
}

/* The one place that counts the engines that are scraped often. */
static void
set_often(struct scrape *s, uint32_t often)
{
	s->engine->prober->often += (often > 0) - (s->often > 0);
	s->often = often;
}

static void
rest(struct scrape *s)
{
	const struct prober *p = s->engine->prober;
	uint64_t interval = p->conf->stats_interval_ms;

	if (s->absent)
		interval = ABSENT_MS;
	else if (s->often > 0)
		interval = scrape_often_ms(interval, p->often);
	rest_for(s, engine_wait_ms(s->engine, clock_ms(), interval));
}

static void
note_sent(struct scrape *s)
{
	const struct seg *seg = s->engine->prober->seg;
	/* Only what is reserved is sent: of an idle endpoint no worker's row needs to be read. */
	const uint32_t slot = s->engine->slot,
		       sent = load_count(seg, slot) == 0 ? 0 : load_sent_sum(seg, slot);
	const struct sibling_load siblings = sibling_load_get(seg, slot, clock_ms());

	s->sent = sent > s->sent ? sent : s->sent;
	s->siblings = siblings.requests > s->siblings ? siblings.requests : s->siblings;
}

static void
on_piece(const char *data, size_t n, void *arg)
{
	struct scrape *s = arg;
	struct prom_names names = {.running = s->running[0] != '\0' ? s->running : NULL,
		.waiting = s->waiting[0] != '\0' ? s->waiting : NULL};

	if (s->page == NULL) {
		s->page = mem_resize(NULL, 1, sizeof(*s->page));
		prom_begin(s->page, &names);
		note_sent(s); /* the engine has rendered this piece by now */
	}
	prom_feed(s->page, data, n);
}

static void
copy_name(char name[128], const char *configured)
{
	if (configured == NULL)
		name[0] = '\0';
	else
		(void)snprintf(name, 128, "%s", configured);
}

static void
on_turn(void *arg)
{
	struct scrape *s = arg;
	struct engine *e = s->engine;

	copy_name(s->running, e->pool->metric_running);
	copy_name(s->waiting, e->pool->metric_waiting);
	s->turnover = ep_turnover(e->prober->seg, e->slot);
	s->sent = s->siblings = 0;
	note_sent(s);
	probe_get(s->probe, &(struct probe_request){.addr = &e->addr,
				    .authority = e->authority,
				    .prefix = e->at.prefix,
				    .path = "/metrics",
				    .https = e->at.tls,
				    .tls = engine_tls(e),
				    .host = e->at.host,
				    .memory = &e->memory,
				    .api_key = engine_key(e),
				    .timeout_ms = TIMEOUT_MS,
				    .max_body = PROBE_BODY_MAX,
				    .piece = on_piece,
				    .keep = true});
}

/* NaN, negative and absurd figures come from engines, too. */
static uint32_t
count_of(double v)
{
	return !(v > 0) ? 0 : v < EP_FOREIGN_MAX ? (uint32_t)v : EP_FOREIGN_MAX;
}

/*
 * The foreign part of the engine's load.  The engine took its figures at some moment between our
 * request and its answer.  The largest number of this router's requests seen in that time is
 * subtracted.  So a request of this router that began or ended meanwhile never counts as foreign
 * load, which would turn traffic away from this engine for a whole interval.  The opposite error,
 * foreign load hidden by new requests of this router, is harmless: the router's own count already
 * has those.
 *
 * A request of this router that began and ended between two samples was never seen.  If there was
 * none, the result is exact.  Else the smaller of this figure and the former one counts: such a
 * request is in one of them, real foreign load is in both.
 */
static uint32_t
foreign(struct scrape *s, const struct ep_scrape *figures)
{
	uint64_t all = (uint64_t)figures->running + figures->waiting, known;
	uint32_t former = s->former, now;

	note_sent(s);
	known = (uint64_t)s->sent +
		s->siblings; /* those of other routers count by what these say */
	all = all > known ? all - known : 0;
	now = all < EP_FOREIGN_MAX ? (uint32_t)all : EP_FOREIGN_MAX;
	s->former = now;
	if (s->turnover == ep_turnover(s->engine->prober->seg, s->engine->slot))
		return now;
	return now < former ? now : former;
}

/* Of two pages that lie RATE_MS or more apart. */
static void
note_tokens(struct scrape *s, const struct ep_scrape *figures)
{
	const struct tokens_at now = {s->engine->role == ROLE_PREFILL ? figures->prompt_tokens
								      : figures->generated_tokens,
		figures->at_ms};

	if (!figures->has_tokens || now.tokens < s->tokens.tokens) { /* the engine has restarted */
		s->tokens = s->former_tokens = (struct tokens_at){0};
		if (!figures->has_tokens)
			return;
	}
	if (s->tokens.at_ms != 0 && now.at_ms - s->tokens.at_ms < RATE_MS)
		return;
	s->former_tokens = s->tokens;
	s->tokens = now;
}

/* Returns NULL, or why the figures are not believed. */
static const char *
publish_figures(struct scrape *s, const struct prom_load *load)
{
	struct seg *seg = s->engine->prober->seg;
	const uint32_t slot = s->engine->slot;
	struct ep_scrape figures = {.running = count_of(load->running),
		.waiting = count_of(load->waiting),
		.has_tokens = load->has_tokens,
		.prompt_tokens = (uint64_t)load->prompt_tokens,
		.generated_tokens = (uint64_t)load->generated_tokens,
		.at_ms = clock_ms()};
	uint32_t counts;
	const char *why;

	if (load->has_kv_usage && load->kv_usage > 0)
		figures.kv_usage_ppm =
			load->kv_usage < 1 ? (uint32_t)(load->kv_usage * 1e6) : 1000000;
	why = belief_in(&s->belief,
		&(struct belief_scrape){.figures = &figures,
			.foreign = foreign(s, &figures),
			.ours = s->sent,
			.exact = s->turnover == ep_turnover(seg, slot)},
		&counts);
	figures.absurd = why != NULL;
	if (counts != s->counted)
		set_often(s, SCRAPE_OFTEN_FOR);
	s->counted = counts;
	load_foreign_set(seg, slot, counts, figures.at_ms);
	ep_scrape_set(seg, slot, &figures);
	note_tokens(s, &figures);
	return why;
}

/* A start later than all before is a new process's.  Any other one is another process's behind the same
 * address: two of them in turn must not pass for restarts without end. */
static void
note_start(struct engine *e, double start_s)
{
	const double former_s = e->start_s;

	if (!(start_s > 0))
		return;
	e->start_s = start_s;
	if (start_s <= e->latest_s)
		return;
	e->latest_s = start_s;
	if (former_s > 0 && e->look_again != NULL)
		e->look_again(e, "a later process_start_time_seconds");
}

static const char *
read_figures(struct scrape *s)
{
	struct prom_load load = {0};
	const bool any = s->page != NULL && prom_end(s->page, &load, NULL) == 0;

	note_start(s->engine, load.start_s);
	if (load.capacity > 0)
		prefix_capacity_set(
			s->engine->prober->seg, s->engine->slot, (uint64_t)load.capacity);
	if (!any || !(load.has_running || load.has_waiting))
		return s->running[0] != '\0' || s->waiting[0] != '\0'
			       ? "no figure of the configured load_metrics"
			       : "no load figure of a known name";
	/* half of a load would pass for a whole one */
	if (s->running[0] != '\0' && !load.has_running)
		return "no figure of the configured load_metrics.running";
	if (s->waiting[0] != '\0' && !load.has_waiting)
		return "no figure of the configured load_metrics.waiting";
	return publish_figures(s, &load);
}

/* NULL if the page was read and is believed, else why not. */
static const char *
read_page(struct scrape *s, const struct probe_answer *a)
{
	s->absent = a->error == 0 && a->status == 404;
	if (a->error != 0)
		return a->why;
	if (s->absent)
		return "status 404: no such page, scraped again every 30 s";
	if (probe_key_refused(a))
		return "engine refuses our key: see the pool's engine_api_key_file";
	if (a->status != 200)
		return "status other than 200";
	return read_figures(s);
}

static void
on_answer(const struct probe_answer *a, void *arg)
{
	struct scrape *s = arg;
	struct engine *e = s->engine;
	const char *why;

	if (s->often > 0)
		set_often(s, s->often - 1);
	why = read_page(s, a);
	free(s->page);
	s->page = NULL;
	if (a->local)
		engine_shortage(e, a->why);
	if (why != NULL)
		metric_add(e->prober->slab, M_SCRAPES_FAILED, 1);
	if (why != NULL && s->unknown[0] == '\0')
		log_warn("load of endpoint unknown, only own requests count", LOG_S("url", e->url),
			LOG_S("role", role_name(e->role)), LOG_S("pool", e->pool_name),
			LOG_S("reason", why));
	if (why == NULL && s->unknown[0] != '\0')
		log_info("load of endpoint known again", LOG_S("url", e->url),
			LOG_S("role", role_name(e->role)), LOG_S("pool", e->pool_name));
	s->unknown[0] = '\0';
	if (why != NULL)
		(void)snprintf(s->unknown, sizeof(s->unknown), "%s", why);
	rest(s);
}

void
scrape_start(struct engine *e)
{
	struct scrape *s = MEM_NEW(struct scrape);

	scrape_stop(e);
	s->engine = e;
	s->probe = probe_new(e->prober->env, on_answer, s);
	turn_init(&s->turn, e->prober->turns, on_turn, s);
	e->scrape = s;
	rest_for(s, e->number % FIRST_MS);
}

void
scrape_stop(struct engine *e)
{
	struct scrape *s = e->scrape;

	if (s == NULL)
		return;
	set_often(s, 0);
	probe_free(&s->probe);
	turn_cancel(&s->turn);
	free(s->page);
	free(s);
	e->scrape = NULL;
}

void
scrape_now(struct engine *e)
{
	struct scrape *s = e->scrape;

	if (s != NULL && !probe_busy(s->probe))
		rest_for(s, 0);
}

void
scrape_changed(struct engine *e)
{
	struct scrape *s = e->scrape;

	/* only then: a storm of reloads would put the next scrape off for ever */
	if (s != NULL && !probe_busy(s->probe) &&
		s->interval_ms != e->prober->conf->stats_interval_ms)
		rest(s);
}

const char *
scrape_unknown(const struct engine *e)
{
	return e->scrape != NULL ? e->scrape->unknown : "";
}

bool
scrape_tokens_s(const struct engine *e, double *ret)
{
	const struct scrape *s = e->scrape;
	uint64_t interval_ms;

	if (s == NULL || s->former_tokens.at_ms == 0)
		return false;
	interval_ms = e->prober->conf->stats_interval_ms;
	if (interval_ms < RATE_MS)
		interval_ms = RATE_MS;
	if (clock_ms() - s->tokens.at_ms > RATE_OLD * interval_ms)
		return false;
	*ret = (double)(s->tokens.tokens - s->former_tokens.tokens) * 1e3 /
	       (double)(s->tokens.at_ms - s->former_tokens.at_ms);
	return true;
}
