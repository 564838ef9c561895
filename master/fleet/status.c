#include "master/fleet/status.h"

#include <event2/buffer.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/facts.h"
#include "master/fleet/keep.h"
#include "master/fleet/siblings.h"
#include "master/fleet/status_json.h"
#include "master/probe/health.h"
#include "master/probe/learn.h"
#include "master/probe/scrape.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/eject.h"
#include "shm/load.h"

#define MODELS_SHOWN 3 /* names in a line for people; the JSON form has all */

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
	KV_OUT,
	TOKENS,
	SCORE,
	RUNNING,
	WAITING,
	KV,
	AGE,
	LAST,
	NOTE,
	NCOLUMNS
};

static const struct {
	const char *title;
	bool right; /* numbers */
	bool rare;  /* left out if no endpoint has any */
} columns[NCOLUMNS] = {
	[POOL] = {"pool", false},
	[ROLE] = {"role", false},
	[URL] = {"url", false},
	[SOURCE] = {"source", false},
	[GROUP] = {"group", false, true},
	[WEIGHT] = {"weight", true, true},
	[STATE] = {"state", false},
	[IN_FLIGHT] = {"in-flight", true},
	[KV_OUT] = {"kv-out", true, true},
	[TOKENS] = {"tokens", true},
	[SCORE] = {"score", true},
	[RUNNING] = {"running", true},
	[WAITING] = {"waiting", true},
	[KV] = {"kv%", true},
	[AGE] = {"age", true},
	[LAST] = {"last failure", false, true},
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
	const char *reason = facts_reason(x);
	const char *unknown = scrape_unknown(&x->ep->engine);
	char said[256], ramp[32] = "", out[64] = "", slow[64] = "", load[96] = "";
	char *models, *note;

	if (x->ep->drained)
		return mem_printf("(drained by pdctl; else %s%s%s)", ep_state_name(x->ep->state),
			reason[0] != '\0' ? ": " : "", reason);
	if (health_reason(&x->ep->engine)[0] != '\0')
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
	if (x->slow)
		(void)snprintf(slow, sizeof(slow),
			"slow: %.1f times its peers' time, share %.0f%%; ", x->slow_times,
			x->share * 100);
	if (unknown[0] != '\0')
		(void)snprintf(load, sizeof(load), "load unknown: %s; ", unknown);
	models = models_text(x);
	note = mem_printf("%s%s%s%s%s%s%s%s%s", reason, reason[0] != '\0' ? "; " : "", out, slow,
		load, ramp, said, said[0] != '\0' ? "; " : "", models);
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

/* "refused 12s ago" */
static char *
last_text(const struct facts *x)
{
	return mem_printf("%s %" PRIu64 "s ago", tally_cause_name(x->last), x->last_age_ms / 1000);
}

static void
add_row(const struct facts *x, void *arg)
{
	char **cell = grid_row(arg);

	cell[POOL] = mem_strdup(x->ep->engine.pool_name);
	cell[ROLE] = mem_strdup(role_name(x->ep->engine.role));
	cell[URL] = mem_strdup(x->ep->engine.url);
	cell[SOURCE] = mem_strdup(x->ep->source);
	cell[STATE] = mem_strdup(facts_state(x));
	if (x->ep->engine.conf != NULL && x->ep->engine.conf->group != NULL)
		cell[GROUP] = mem_strdup(x->ep->engine.conf->group);
	if (x->ep->weight != 0)
		cell[WEIGHT] = mem_printf(
			"%" PRIu32 " (%" PRIu32 ")", x->ep->weight, x->ep->weight_configured);
	else if (x->ep->engine.conf != NULL && x->ep->engine.conf->weight != 1)
		cell[WEIGHT] = mem_printf("%" PRIu32, x->ep->engine.conf->weight);
	cell[NOTE] = note_of(x);
	if (x->kv_outstanding > 0)
		cell[KV_OUT] = mem_printf("%" PRIu32, x->kv_outstanding);
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
	if (x->last != TALLY_GOOD)
		cell[LAST] = last_text(x);
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

/* A line for each pool where requests wait. */
static void
print_queues(struct evbuffer *out, const struct fleet *f)
{
	for (size_t i = 0; i < f->conf->npools; i++) {
		const struct conf_pool *pool = &f->conf->pools[i];
		uint64_t ms;
		const uint32_t n = facts_waiting(f, pool, &ms);

		if (n > 0)
			(void)evbuffer_add_printf(out,
				"pool %s: %" PRIu32 " of %" PRIu32
				" waiting, the first for %.1fs\n",
				pool->name, n, pool->queue.size, (double)ms / 1e3);
	}
}

/* A line for each drain and weight of an endpoint that is away, and one for a state_file that cannot be written. */
static void
print_keep(struct evbuffer *out, const struct fleet *f)
{
	const char *error = keep_error(f->keep);
	const uint64_t now = clock_ms();

	for (const struct away *a = keep_first(f->keep); a != NULL; a = TAILQ_NEXT(a, link)) {
		char weight[32] = "drained";

		if (a->key.weight > 0)
			(void)snprintf(weight, sizeof(weight), "weight %" PRIu32, a->key.weight);
		(void)evbuffer_add_printf(out,
			"%s and away: %s, %s of pool %s, forgotten in %" PRIu64 "s\n", weight,
			a->key.url, role_name(a->key.role), a->key.pool,
			keep_left_ms(a, now) / 1000);
	}
	if (error != NULL && error[0] != '\0')
		(void)evbuffer_add_printf(
			out, "state_file %s cannot be written: %s\n", keep_path(f->keep), error);
}

void
fleet_status(struct fleet *f, struct evbuffer *out, int json)
{
	struct grid g = {0};

	if (json) {
		status_json(f, out);
		return;
	}
	if (f->conf == NULL) {
		(void)evbuffer_add_printf(out, "no configuration yet\n");
		return;
	}
	facts_each(f, add_row, &g);
	print_grid(out, &g);
	print_queues(out, f);
	siblings_print(f, out);
	print_keep(out, f);
}
