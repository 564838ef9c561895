#include "master/health.h"

#include <errno.h>
#include <event2/event.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/endpoint.h"
#include "master/load.h"
#include "master/probe.h"
#include "master/publish.h"
#include "master/resolve.h"
#include "proto/json_small.h"
#include "proto/utf8.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/metrics.h"

/*
 * A round is one judgement: does the endpoint answer?
 *
 *   REST --turn--> [NAME] --addresses--> PATH --2xx--> [MODELS] --names--> good --> REST
 *                     |                  |  ^             |
 *                     |        refused   |  '-- next address of the name
 *                     '------------------+----------------+--> bad --> REST
 *
 * NAME only while no address is known; MODELS only where the pool names no models: before the
 * endpoint may become UP, and again every MODELS_MS.
 *
 * STARTING --1 good--> UP --`fall` bad in a row--> DOWN --`rise` good in a row--> UP
 */
enum step { REST, NAME, PATH, MODELS, STEP_N };
enum standing { STARTING, UP, DOWN };

#define EAGER_MS 250        /* between rounds while STARTING: up soon after its engine is */
#define EAGER_FOR_MS 10000  /* after that an engine is one that loads its weights: ask as usual */
#define RENEW_MS 30000      /* names are looked up again */
#define RENEW_LEAST_MS 1000 /* ... and after a failed round, at most so often */
#define MODELS_MS 30000     /* model lists are asked again: adapters come and go */
#define MODELS_TIMEOUT_MS 3000
/* of a model list: 2,000 entries as vLLM writes them.  It is walked in one turn of the loop. */
#define MODELS_BODY_MAX (1u << 20)
#define HEALTH_BODY_MAX (64u << 10) /* of a health answer; its text means nothing to us */

struct health {
	struct endpoint *ep;
	struct probe *probe;
	struct event *turn, *renew;
	struct lookup *lookup;
	enum step step;
	enum standing standing;
	uint32_t good, bad;                                 /* rounds in a row */
	uint64_t began_ms, round_ms, looked_ms, learned_ms; /* clock_ms(); 0 = never */
	uint64_t interval_ms;                               /* the turn was armed by */
	bool learned;                                       /* the models, since it last was down */
	bool literal;
	struct ep_addr addrs[RESOLVE_MAX];
	size_t naddrs, at, tried; /* at: index of the address asked */
	struct ep_addr asked;
	char reason[192];
};

static void ask(struct health *h);

static const struct conf *
conf_of(const struct health *h)
{
	return h->ep->fleet->conf;
}

static bool
learns(const struct health *h)
{
	return h->ep->pool->nmodels == 0;
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
	return endpoint_wait_ms(h->ep, now, interval);
}

static void
rest(struct health *h)
{
	h->step = REST;
	h->interval_ms = conf_of(h)->health_interval_ms;
	add_timer(h->turn, wait_ms(h));
}

/* A round at once, unless one is under way. */
static void
hurry(struct health *h)
{
	if (h->step == REST)
		add_timer(h->turn, 0);
}

/* --- verdicts ---------------------------------------------------------------------------- */

static void
go_up(struct health *h)
{
	struct endpoint *ep = h->ep;
	char addr[EP_ADDR_TEXT];

	h->standing = UP;
	h->reason[0] = '\0';
	log_info("endpoint up", LOG_S("url", ep->url), LOG_S("role", role_name(ep->role)),
		LOG_S("pool", ep->pool_name), LOG_S("addr", ep_addr_text(&ep->addr, addr)));
	publish_up(ep->fleet->publish, ep);
	scrape_start(ep);
}

static void
go_down(struct health *h)
{
	struct endpoint *ep = h->ep;

	h->standing = DOWN;
	h->learned = false; /* what comes back may be another engine */
	log_warn("endpoint down, no requests go there until it answers again",
		LOG_S("url", ep->url), LOG_S("role", role_name(ep->role)),
		LOG_S("pool", ep->pool_name), LOG_S("reason", h->reason));
	publish_down(ep->fleet->publish, ep);
	scrape_stop(ep);
}

static void
ask_models(struct health *h)
{
	struct endpoint *ep = h->ep;

	h->step = MODELS;
	probe_get(h->probe, &(struct probe_ask){.addr = &h->asked,
				    .authority = ep->authority,
				    .prefix = ep->at.prefix,
				    .path = "/v1/models",
				    .timeout_ms = MODELS_TIMEOUT_MS,
				    .max_body = MODELS_BODY_MAX,
				    .want_body = true});
}

static void
round_good(struct health *h)
{
	struct endpoint *ep = h->ep;

	metric_add(ep->fleet->slab, M_PROBES_OK, 1);
	h->bad = 0;
	h->good++;
	if (!ep_addr_equal(&ep->addr, &h->asked)) {
		ep->addr = h->asked;
		publish_soon(ep->fleet->publish);
	}
	if (h->standing == STARTING || (h->standing == DOWN && h->good >= conf_of(h)->rise))
		go_up(h);
	if (h->standing == UP && learns(h) &&
		(!h->learned || clock_ms() - h->learned_ms >= MODELS_MS))
		ask_models(h);
	else
		rest(h);
}

static void look_up(struct health *h);

static void
round_bad(struct health *h)
{
	struct endpoint *ep = h->ep;

	metric_add(ep->fleet->slab, M_PROBES_FAILED, 1);
	h->good = 0;
	h->bad++;
	if (h->standing == UP && h->bad >= conf_of(h)->fall)
		go_down(h);
	else if (h->standing == STARTING && h->bad == conf_of(h)->fall)
		log_warn("endpoint does not answer yet, still asking", LOG_S("url", ep->url),
			LOG_S("role", role_name(ep->role)), LOG_S("pool", ep->pool_name),
			LOG_S("reason", h->reason));
	rest(h);
	if (!h->literal && clock_ms() - h->looked_ms >= RENEW_LEAST_MS)
		look_up(h);
}

/* --- addresses --------------------------------------------------------------------------- */

static void
on_addresses(const struct ep_addr *addrs, size_t n, const char *error, void *arg)
{
	struct health *h = arg;
	bool still = false;

	add_timer(h->renew, endpoint_wait_ms(h->ep, clock_ms(), RENEW_MS));
	if (n == 0 && h->naddrs == 0)
		reason_set(h, "cannot resolve %s: %s", h->ep->at.host, error);
	if (n > 0) { /* else the old ones stay: a name server may be ill, too */
		memcpy(h->addrs, addrs, n * sizeof(*addrs));
		h->naddrs = n;
		h->at = 0;
		for (size_t i = 0; i < n && !still; i++)
			if (ep_addr_equal(&addrs[i], &h->ep->addr)) {
				h->at = i;
				still = true;
			}
	}
	if (h->step == NAME && h->naddrs > 0)
		ask(h);
	else if (h->step == NAME)
		round_bad(h);
	else if (n > 0 && !still && h->standing == UP)
		hurry(h); /* the name has moved: prove the new address now */
}

static void
look_up(struct health *h)
{
	if (h->lookup != NULL)
		return;
	h->looked_ms = clock_ms();
	resolve_start(h->ep->fleet->resolver, h->ep->at.host, h->ep->at.port, on_addresses, h,
		&h->lookup);
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
		ask(h);
	} else if (h->lookup != NULL || h->looked_ms == 0 ||
		   h->round_ms - h->looked_ms >= RENEW_LEAST_MS) {
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
ask(struct health *h)
{
	struct endpoint *ep = h->ep;
	uint64_t left = time_left(h);

	h->step = PATH;
	h->asked = h->addrs[h->at];
	/* A new connection each time: that the engine still accepts is what workers need to know.
	 */
	probe_get(h->probe, &(struct probe_ask){.addr = &h->asked,
				    .authority = ep->authority,
				    .prefix = ep->at.prefix,
				    .path = ep->pool->health_path,
				    .timeout_ms = left > 0 ? left : conf_of(h)->health_timeout_ms,
				    .max_body = HEALTH_BODY_MAX});
}

/* What the engine says of its refusal, harmless on a terminal; "" if it says nothing. */
static void
error_text(const struct probe_answer *a, char *buf, size_t size)
{
	size_t n;

	buf[0] = '\0';
	if (a->body == NULL || !json_error_message(a->body, a->len, buf, size))
		return;
	for (uint8_t *p = (uint8_t *)buf; *p != '\0'; p += n) {
		n = utf8_seq(p, strlen((char *)p));
		if (utf8_is_control(p))
			memset(p, ' ', n);
	}
}

static bool
is_good(struct health *h, const struct probe_answer *a, const char *path)
{
	char said[100];

	error_text(a, said, sizeof(said));
	if (a->error != 0)
		reason_set(h, "GET %.64s: %s", path, a->why);
	else if (a->status / 100 != 2)
		reason_set(h, "GET %.64s: status %d%s%s", path, a->status,
			said[0] != '\0' ? ": " : "", said);
	return a->error == 0 && a->status / 100 == 2;
}

static void
path_answered(struct health *h, const struct probe_answer *a)
{
	if (is_good(h, a, h->ep->pool->health_path)) {
		if (learns(h) && h->standing != UP && !h->learned)
			ask_models(h);
		else
			round_good(h);
		return;
	}
	h->at = (h->at + 1) % h->naddrs;
	if (++h->tried < h->naddrs && time_left(h) > 0)
		ask(h);
	else
		round_bad(h); /* what timed out leaves its turn to the next address */
}

static bool
learn(struct health *h, const struct probe_answer *a)
{
	struct endpoint *ep = h->ep;
	struct model_set set = {0};
	size_t left_out = 0;
	int n;

	if (!is_good(h, a, "/v1/models"))
		return false;
	n = models_read(a->body, a->len, &set, &left_out);
	if (n <= 0) {
		reason_set(h, "GET /v1/models: %s",
			n == 0 ? "no model in the list" : "not a model list");
		models_clear(&set);
		return false;
	}
	if (models_equal(&set, &ep->models)) {
		models_clear(&set);
		return true;
	}
	if (left_out > 0)
		log_warn("model names left out", LOG_S("url", ep->url), LOG_U("kept", n),
			LOG_U("left_out", left_out));
	models_clear(&ep->models);
	ep->models = set;
	ep->models_number++;
	publish_soon(ep->fleet->publish);
	return true;
}

static void
models_answered(struct health *h, const struct probe_answer *a)
{
	bool ok = learn(h, a);

	h->learned = h->learned || ok;
	h->learned_ms = clock_ms();
	if (h->standing == UP) { /* a refresh; the round itself was good already */
		if (!ok)
			log_debug("model list not read, the former one stays",
				LOG_S("url", h->ep->url), LOG_S("reason", h->reason));
		rest(h);
	} else if (ok) {
		round_good(h);
	} else {
		round_bad(h);
	}
}

static void
on_answer(const struct probe_answer *a, void *arg)
{
	static void (*const answered[STEP_N])(struct health *, const struct probe_answer *) = {
		[PATH] = path_answered,
		[MODELS] = models_answered,
	};
	struct health *h = arg;

	if (a->local) { /* no judgement about the peer */
		fleet_shortage(h->ep->fleet, a->why);
		rest(h);
		return;
	}
	answered[h->step](h, a);
}

/* --- life -------------------------------------------------------------------------------- */

void
health_start(struct endpoint *ep)
{
	struct fleet *f = ep->fleet;
	struct health *h = MEM_NEW(struct health);
	uint64_t interval = f->conf->health_interval_ms;

	ep->health = h;
	h->ep = ep;
	h->began_ms = clock_ms();
	h->probe = probe_new(f->probes, on_answer, h);
	h->turn = event_new(f->base, -1, 0, on_turn, h);
	h->renew = event_new(f->base, -1, 0, on_renew, h);
	h->literal = resolve_literal(ep->at.host, ep->at.port, &h->addrs[0]);
	if (h->literal) {
		h->naddrs = 1;
		ep->addr = h->addrs[0];
	}
	h->interval_ms = interval;
	/* 1 ms apart: the first rounds of a fleet at start do not all fall into one turn of the
	 * loop */
	add_timer(h->turn, ep->number % (interval < EAGER_MS ? interval + 1 : EAGER_MS));
}

void
health_stop(struct endpoint *ep)
{
	struct health *h = ep->health;

	if (h == NULL)
		return;
	resolve_cancel(&h->lookup);
	probe_free(&h->probe);
	event_free(h->turn);
	event_free(h->renew);
	free(h);
	ep->health = NULL;
}

void
health_changed(struct endpoint *ep)
{
	struct health *h = ep->health;

	if (h == NULL || h->step != REST)
		return;
	if (h->standing == UP && learns(h) && !h->learned)
		hurry(h);
	else if (h->interval_ms != ep->fleet->conf->health_interval_ms)
		rest(h); /* not at every reload: a storm of them would put the next round off for
			    ever */
}

const char *
health_reason(const struct endpoint *ep)
{
	return ep->health != NULL ? ep->health->reason : "";
}
