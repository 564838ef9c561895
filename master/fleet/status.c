#include "master/fleet/status.h"

#include <event2/buffer.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/probe/health.h"
#include "master/probe/learn.h"
#include "proto/json/utf8.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/busy.h"
#include "shm/eject.h"
#include "shm/load.h"
#include "shm/look.h"
#include "shm/queue.h"
#include "shm/core/seg.h"

#define MODELS_SHOWN 3 /* names in a line for people; the JSON form has all */

/* What one line says. */
struct facts {
	const struct endpoint *ep;
	const char *state;
	bool has_slot, scraped;
	int ramp; /* percent of its slow start; -1: it is at full weight */
	enum eject_state eject;
	uint64_t eject_left_ms; /* until it is due, or the most its trial still has */
	bool busy;
	uint64_t busy_left_ms; /* the same of a busy endpoint */
	uint32_t in_flight, tokens;
	uint64_t score, tag, age_ms;
	struct ep_scrape scrape;
	const char *const *models;
	size_t nmodels;
};

/* As worker/schedule/policy.h weighs it. */
static int
ramp_of(const struct fleet *f, const struct endpoint *ep, uint64_t now)
{
	uint64_t from = ep_look(f->seg, ep->engine.slot, now, 0).ramp_from_ms;
	uint64_t whole = ep->engine.pool != NULL ? ep->engine.pool->slow_start_ms : 0;

	if (ep_state_get(f->seg, ep->engine.slot) != EP_UP || from == 0 || now >= from + whole)
		return -1;
	return now > from ? (int)((now - from) * 100 / whole) : 0;
}

static struct facts
facts_of(const struct fleet *f, const struct endpoint *ep, uint64_t now)
{
	struct facts x = {.ep = ep, .state = "waiting", .ramp = -1};

	x.models = (const char *const *)ep->engine.models.names;
	x.nmodels = ep->engine.models.n;
	if (ep->engine.pool != NULL && ep->engine.pool->nmodels > 0) {
		x.models = (const char *const *)ep->engine.pool->models;
		x.nmodels = ep->engine.pool->nmodels;
	}
	x.has_slot = ep->engine.slot != ENGINE_NO_SLOT;
	if (!x.has_slot)
		return x;
	x.state = ep_state_name(ep_state_get(f->seg, ep->engine.slot));
	x.ramp = ramp_of(f, ep, now);
	x.eject = eject_look(f->seg, ep->engine.slot, now, &x.eject_left_ms);
	x.busy = busy_is(f->seg, ep->engine.slot);
	x.busy_left_ms = busy_left(f->seg, ep->engine.slot, now);
	x.tag = ep_tag(f->seg, ep->engine.slot);
	x.in_flight = load_count(f->seg, ep->engine.slot);
	x.tokens = load_tokens(f->seg, ep->engine.slot);
	/* as the workers do: figures that missed three scrapes say nothing */
	x.score = load_score(
		f->seg, ep->engine.slot, now, FOREIGN_SCRAPES * f->conf->stats_interval_ms);
	x.scrape = ep_scrape_get(f->seg, ep->engine.slot);
	x.scraped = x.scrape.at_ms != 0;
	x.age_ms = now > x.scrape.at_ms ? now - x.scrape.at_ms : 0;
	return x;
}

static void
for_each(struct fleet *f, void (*fn)(const struct facts *, void *), void *arg)
{
	uint64_t now = clock_ms();
	struct facts x;

	for (size_t i = 0; i < f->norder; i++) {
		x = facts_of(f, f->order[i], now);
		fn(&x, arg);
	}
	for (struct endpoint *ep = TAILQ_FIRST(&f->draining); ep != NULL;
		ep = TAILQ_NEXT(ep, link)) {
		x = facts_of(f, ep, now);
		fn(&x, arg);
	}
}

static const char *
or_empty(const char *s)
{
	return s != NULL ? s : "";
}

/* --- for people -------------------------------------------------------------------------- */

enum column {
	POOL,
	ROLE,
	URL,
	SOURCE,
	GROUP,
	WEIGHT,
	STATE,
	IN_FLIGHT,
	TOKENS,
	SCORE,
	RUNNING,
	WAITING,
	KV,
	AGE,
	NOTE,
	NCOLUMNS
};

static const struct {
	const char *title;
	bool right; /* numbers */
	bool rare;  /* left out where nobody has any */
} columns[NCOLUMNS] = {
	[POOL] = {"pool", false},
	[ROLE] = {"role", false},
	[URL] = {"url", false},
	[SOURCE] = {"source", false},
	[GROUP] = {"group", false, true},
	[WEIGHT] = {"weight", true, true},
	[STATE] = {"state", false},
	[IN_FLIGHT] = {"in-flight", true},
	[TOKENS] = {"tokens", true},
	[SCORE] = {"score", true},
	[RUNNING] = {"running", true},
	[WAITING] = {"waiting", true},
	[KV] = {"kv%", true},
	[AGE] = {"age", true},
	[NOTE] = {"models or reason", false},
};

struct grid {
	char *(*rows)[NCOLUMNS];
	size_t n, room;
	int width[NCOLUMNS]; /* 0: left out */
};

static char **
grid_row(struct grid *g)
{
	if (g->n == g->room) {
		g->room = g->room == 0 ? 64 : g->room * 2;
		g->rows = mem_resize(g->rows, g->room, sizeof(*g->rows));
	}
	memset(g->rows[g->n], 0, sizeof(*g->rows));
	return g->rows[g->n++];
}

static char *
models_text(const struct facts *x)
{
	char buf[512] = "-";
	size_t at = 0;

	for (size_t i = 0; i < x->nmodels && i < MODELS_SHOWN && at < sizeof(buf); i++)
		at += (size_t)snprintf(
			buf + at, sizeof(buf) - at, "%s%.128s", i > 0 ? "," : "", x->models[i]);
	if (x->nmodels > MODELS_SHOWN)
		return mem_printf("%s,... %zu in all", buf, x->nmodels);
	return mem_strdup(buf);
}

static char *
note_of(const struct facts *x)
{
	const char *reason = health_reason(&x->ep->engine);
	char said[256], ramp[32] = "", out[64] = "";
	char *models, *note;

	if (x->ep->drained)
		return mem_printf("(drained by pdctl; else %s%s%s)", ep_state_name(x->ep->state),
			reason[0] != '\0' ? ": " : "", reason);
	if (reason[0] != '\0')
		return mem_printf("(%s)", reason);
	(void)learn_contradiction(&x->ep->engine, said, sizeof(said));
	if (x->ramp >= 0)
		(void)snprintf(ramp, sizeof(ramp), "slow start %d%%; ", x->ramp);
	if (x->eject != EJECT_IN)
		(void)snprintf(out, sizeof(out), "%s, %.1fs left; ", eject_state_name(x->eject),
			(double)x->eject_left_ms / 1e3);
	else if (x->busy)
		(void)snprintf(
			out, sizeof(out), "no room, %.1fs left; ", (double)x->busy_left_ms / 1e3);
	models = models_text(x);
	note = mem_printf("%s%s%s%s%s", out, ramp, said, said[0] != '\0' ? "; " : "", models);
	free(models);
	return note;
}

/* "3", or "3/4" where max_inflight is 4. */
static char *
in_flight_text(const struct facts *x)
{
	uint32_t most = x->ep->engine.conf != NULL ? x->ep->engine.conf->max_inflight : 0;

	return most != 0 ? mem_printf("%" PRIu32 "/%" PRIu32, x->in_flight, most)
			 : mem_printf("%" PRIu32, x->in_flight);
}

static const char *
state_text(const struct facts *x)
{
	if (strcmp(x->state, ep_state_name(EP_UP)) != 0)
		return x->state;
	return x->eject != EJECT_IN ? "ejected" : x->busy ? "busy" : x->state;
}

static void
add_row(const struct facts *x, void *arg)
{
	char **cell = grid_row(arg);

	cell[POOL] = mem_strdup(x->ep->engine.pool_name);
	cell[ROLE] = mem_strdup(role_name(x->ep->engine.role));
	cell[URL] = mem_strdup(x->ep->engine.url);
	cell[SOURCE] = mem_strdup(x->ep->source);
	cell[STATE] = mem_strdup(state_text(x));
	if (x->ep->engine.conf != NULL && x->ep->engine.conf->group != NULL)
		cell[GROUP] = mem_strdup(x->ep->engine.conf->group);
	if (x->ep->engine.conf != NULL && x->ep->engine.conf->weight != 1)
		cell[WEIGHT] = mem_printf("%" PRIu32, x->ep->engine.conf->weight);
	cell[NOTE] = note_of(x);
	if (x->has_slot) {
		cell[IN_FLIGHT] = in_flight_text(x);
		cell[TOKENS] = mem_printf("%" PRIu32, x->tokens);
		cell[SCORE] = mem_printf("%" PRIu64, x->score);
	}
	if (x->scraped) {
		cell[RUNNING] = mem_printf("%" PRIu32, x->scrape.running);
		cell[WAITING] = mem_printf("%" PRIu32, x->scrape.waiting);
		cell[KV] = mem_printf("%.1f", (double)x->scrape.kv_usage_ppm / 1e4);
		cell[AGE] = mem_printf("%.1fs", (double)x->age_ms / 1e3);
	}
	for (size_t c = 0; c < NCOLUMNS; c++)
		if (cell[c] == NULL)
			cell[c] = mem_strdup("-");
}

static bool
left_out(const struct grid *g, size_t c)
{
	for (size_t r = 0; r < g->n; r++)
		if (strcmp(g->rows[r][c], "-") != 0)
			return false;
	return columns[c].rare;
}

static void
measure(struct grid *g)
{
	for (size_t c = 0; c < NCOLUMNS; c++) {
		g->width[c] = 0;
		if (left_out(g, c))
			continue;
		g->width[c] = (int)strlen(columns[c].title);
		for (size_t r = 0; r < g->n; r++)
			if ((int)strlen(g->rows[r][c]) > g->width[c])
				g->width[c] = (int)strlen(g->rows[r][c]);
	}
	g->width[NOTE] = 1; /* the last one: no blanks behind it */
}

static void
put_cell(struct evbuffer *out, const struct grid *g, size_t c, const char *text)
{
	if (g->width[c] == 0)
		return;
	(void)evbuffer_add_printf(out, "%s%*s%s", c > 0 ? "  " : "",
		columns[c].right ? g->width[c] : -g->width[c], text, c + 1 == NCOLUMNS ? "\n" : "");
}

static void
print_grid(struct evbuffer *out, struct grid *g)
{
	measure(g);
	for (size_t c = 0; c < NCOLUMNS; c++)
		put_cell(out, g, c, columns[c].title);
	for (size_t r = 0; r < g->n; r++)
		for (size_t c = 0; c < NCOLUMNS; c++) {
			put_cell(out, g, c, g->rows[r][c]);
			free(g->rows[r][c]);
		}
	free(g->rows);
}

/* --- for programs ------------------------------------------------------------------------ */

static void
put_json(struct evbuffer *out, const char *key, const char *text)
{
	const uint8_t *p = (const uint8_t *)text;
	size_t left = strlen(text);

	(void)evbuffer_add_printf(out, "%s\"", key);
	while (left > 0) {
		size_t n = utf8_seq(p, left);

		if (n == 0)
			(void)evbuffer_add(out, UTF8_REPLACEMENT, strlen(UTF8_REPLACEMENT));
		else if (n == 1 && (*p < 0x20 || *p == '"' || *p == '\\'))
			(void)evbuffer_add_printf(out, "\\u%04x", (unsigned)*p);
		else
			(void)evbuffer_add(out, p, n);
		p += n > 0 ? n : 1;
		left -= n > 0 ? n : 1;
	}
	(void)evbuffer_add(out, "\"", 1);
}

static void
put_load(struct evbuffer *out, const struct facts *x)
{
	if (x->has_slot)
		(void)evbuffer_add_printf(out,
			",\"slot\":%" PRIu32 ",\"tag\":%" PRIu64 ",\"in_flight\":%" PRIu32
			",\"prompt_tokens\":%" PRIu32 ",\"score\":%" PRIu64,
			x->ep->engine.slot, x->tag, x->in_flight, x->tokens, x->score);
	else
		(void)evbuffer_add_printf(out,
			",\"slot\":null,\"tag\":null,\"in_flight\":0,\"prompt_tokens\":0,\"score\":null");
	if (x->scraped)
		(void)evbuffer_add_printf(out,
			",\"running\":%" PRIu32 ",\"waiting\":%" PRIu32
			",\"kv_usage\":%.6f,\"scrape_age_ms\":%" PRIu64,
			x->scrape.running, x->scrape.waiting, (double)x->scrape.kv_usage_ppm / 1e6,
			x->age_ms);
	else
		(void)evbuffer_add_printf(out, ",\"running\":null,\"waiting\":null,\"kv_usage\":"
					       "null,\"scrape_age_ms\":null");
}

/* What is in force, configured or learned, as publish.c puts it in the table. */
static void
put_runtime(struct evbuffer *out, const struct endpoint *ep)
{
	const struct runtime *rt = &ep->engine.runtime;
	uint32_t port = ep->engine.conf != NULL && ep->engine.conf->bootstrap_port != 0
				? ep->engine.conf->bootstrap_port
				: rt->bootstrap_port;
	char said[256];

	put_json(out, ",\"version\":", rt->version);
	put_json(out, ",\"mode\":", rt->mode);
	(void)evbuffer_add_printf(out, ",\"bootstrap_port\":%" PRIu32 ",\"max_context\":%" PRIu32,
		port, rt->max_context);
	put_json(out, ",\"contradiction\":", learn_contradiction(&ep->engine, said, sizeof(said)));
}

struct json_out {
	struct evbuffer *out;
	size_t n;
};

static void
add_object(const struct facts *x, void *arg)
{
	struct json_out *j = arg;
	char addr[EP_ADDR_TEXT];

	put_json(j->out, j->n++ > 0 ? ",\n{\"pool\":" : "\n{\"pool\":", x->ep->engine.pool_name);
	put_json(j->out, ",\"role\":", role_name(x->ep->engine.role));
	put_json(j->out, ",\"url\":", x->ep->engine.url);
	if (x->ep->source != NULL)
		put_json(j->out, ",\"source\":", x->ep->source);
	else
		(void)evbuffer_add_printf(j->out, ",\"source\":null");
	put_json(j->out, ",\"state\":", x->state);
	if (x->ep->drained)
		put_json(j->out, ",\"drained\":true,\"else\":", ep_state_name(x->ep->state));
	else
		(void)evbuffer_add_printf(j->out, ",\"drained\":false");
	put_json(j->out, ",\"addr\":", ep_addr_text(&x->ep->engine.addr, addr));
	if (x->ep->engine.conf != NULL) {
		put_json(j->out, ",\"group\":", or_empty(x->ep->engine.conf->group));
		(void)evbuffer_add_printf(j->out,
			",\"weight\":%" PRIu32 ",\"max_inflight\":%" PRIu32,
			x->ep->engine.conf->weight, x->ep->engine.conf->max_inflight);
	}
	put_load(j->out, x);
	if (x->ramp >= 0)
		(void)evbuffer_add_printf(j->out, ",\"slow_start_percent\":%d", x->ramp);
	(void)evbuffer_add_printf(j->out,
		",\"ejected\":\"%s\",\"ejected_left_ms\":%" PRIu64
		",\"busy\":%s,\"busy_left_ms\":%" PRIu64,
		eject_state_name(x->eject), x->eject_left_ms, x->busy ? "true" : "false",
		x->busy_left_ms);
	put_runtime(j->out, x->ep);
	put_json(j->out, ",\"reason\":", health_reason(&x->ep->engine));
	(void)evbuffer_add_printf(j->out, ",\"models\":[");
	for (size_t i = 0; i < x->nmodels; i++)
		put_json(j->out, i > 0 ? "," : "", x->models[i]);
	(void)evbuffer_add_printf(j->out, "]}");
}

/* Requests that wait for a place, of all workers, and how long the one that has waited longest. */
static uint32_t
waiting_in(const struct fleet *f, const struct conf_pool *pool, uint64_t *ret_ms)
{
	uint64_t since_ms, now = clock_ms();
	uint32_t n = 0;

	*ret_ms = 0;
	for (uint32_t id = 0; id < f->seg->hdr->max_pools; id++)
		if (strcmp(seg_pool_name(f->seg, id), pool->name) == 0) {
			n = queue_waiting(f->seg, id, &since_ms);
			*ret_ms = n > 0 && now > since_ms ? now - since_ms : 0;
			break;
		}
	return n;
}

/* A line for each pool where requests wait. */
static void
print_queues(struct evbuffer *out, const struct fleet *f)
{
	for (size_t i = 0; i < f->conf->npools; i++) {
		const struct conf_pool *pool = &f->conf->pools[i];
		uint64_t ms;
		const uint32_t n = waiting_in(f, pool, &ms);

		if (n > 0)
			(void)evbuffer_add_printf(out,
				"pool %s: %" PRIu32 " of %" PRIu32
				" waiting, the first for %.1fs\n",
				pool->name, n, pool->queue.size, (double)ms / 1e3);
	}
}

static void
put_pools(struct evbuffer *out, const struct fleet *f)
{
	const struct conf *conf = f->conf;

	for (size_t i = 0; i < conf->npools; i++) {
		const struct conf_pool *pool = &conf->pools[i];
		uint64_t ms;
		const uint32_t n = waiting_in(f, pool, &ms);

		put_json(out, i > 0 ? ",\n{\"name\":" : "\n{\"name\":", pool->name);
		put_json(out, ",\"connector\":", connector_name(pool->connector));
		put_json(out, ",\"pairing\":", pairing_name(pool->pairing));
		for (enum role role = 0; role < ROLE_N; role++)
			(void)evbuffer_add_printf(out,
				",\"%s\":{\"policy\":\"%s\",\"load\":\"%s\"}", role_name(role),
				policy_name(pool->policies[role]), load_name(pool->loads[role]));
		(void)evbuffer_add_printf(out,
			",\"queue\":{\"waiting\":%" PRIu32 ",\"size\":%" PRIu32
			",\"oldest_ms\":%" PRIu64 "}}",
			n, pool->queue.size, ms);
	}
}

void
fleet_status(struct fleet *f, struct evbuffer *out, int json)
{
	struct json_out j = {.out = out};
	struct grid g = {0};

	if (f->conf == NULL) { /* nothing configured yet */
		(void)evbuffer_add_printf(
			out, json ? "{\"config\":0,\"pools\":[],\"endpoints\":[]}\n"
				  : "no configuration yet\n");
		return;
	}
	if (json) {
		(void)evbuffer_add_printf(
			out, "{\"config\":%" PRIu64 ",\"pools\":[", f->config_number);
		put_pools(out, f);
		(void)evbuffer_add_printf(out, "],\n\"endpoints\":[");
		for_each(f, add_object, &j);
		(void)evbuffer_add_printf(out, "]}\n");
		return;
	}
	for_each(f, add_row, &g);
	print_grid(out, &g);
	print_queues(out, f);
}
