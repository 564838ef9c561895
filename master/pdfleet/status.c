#include "master/pdfleet/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/pdfleet/complain.h"
#include "master/pdfleet/host.h"
#include "master/pdfleet/http_get.h"
#include "master/pdfleet/members.h"
#include "master/pdfleet/owned.h"
#include "master/pdfleet/router_unit.h"
#include "master/pdfleet/routers.h"
#include "proto/json/json_small.h"
#include "shm/base/mem.h"

#define EXIT_DIFFERS 3
#define HTTP_OK 200

/* What is looked at, and what has been found. */
struct look {
	const struct topo_plan *plan;
	const struct runner *runner;
	struct routers routers;
	bool differs;
};

/* A line below that of the unit: what is not as the fleet file says. */
static __attribute__((format(printf, 2, 3))) void
differs(struct look *l, const char *fmt, ...)
{
	va_list ap;

	l->differs = true;
	(void)printf("    differs: ");
	va_start(ap, fmt);
	(void)vprintf(fmt, ap);
	va_end(ap);
	(void)printf("\n");
}

static void
compare_files(struct look *l, const struct topo_files *files)
{
	for (size_t i = 0; i < files->n; i++) {
		enum owned_state state = owned_look(&files->v[i], l->plan->t->name);

		if (state == OWNED_UNKNOWN)
			differs(l, "/%s: %s", files->v[i].path, strerror(errno));
		else if (state != OWNED_SAME)
			differs(l, "write /%s", files->v[i].path);
	}
}

/* The last line that a unit wrote before it ended. */
static void
show_last_line(const struct look *l, const char *unit)
{
	struct membuf b = {.p = NULL};

	if (l->runner->ops->last(l->runner, unit, 1, &b) == 0 && b.n > 0)
		(void)printf("    | %.*s\n", (int)(b.p[b.n - 1] == '\n' ? b.n - 1 : b.n), b.p);
	membuf_free(&b);
}

/* --- an engine
 * ----------------------------------------------------------------------------------- */

/* What an engine says about itself. */
struct engine_says {
	int health; /* a status, or -1 */
	char model[JSON_ID_MAX], version[64];
	bool has_model; /* `wanted` is among the models */
	const char *wanted;
};

static bool
see_model(const struct json_model *m, void *arg)
{
	struct engine_says *s = arg;

	if (s->model[0] == '\0')
		(void)snprintf(s->model, sizeof(s->model), "%s", m->id);
	s->has_model = s->has_model || strcmp(m->id, s->wanted) == 0;
	return true;
}

static struct engine_says
ask_engine(const struct look *l, const char *url)
{
	struct engine_says s = {.wanted = l->plan->t->served_as};
	struct membuf b = {.p = NULL};

	s.health = http_get(url, l->routers.health_path, NULL);
	if (s.health == -1)
		return s; /* do not wait for it again */
	if (http_get(url, "/v1/models", &b) == HTTP_OK)
		(void)json_models(b.p, b.n, see_model, &s);
	b.n = 0;
	if (http_get(url, l->plan->template->version_path, &b) == HTTP_OK)
		(void)json_member_text(b.p, b.n, "version", s.version, sizeof(s.version));
	membuf_free(&b);
	return s;
}

static void
compare_engine(struct look *l, const struct engine_says *s)
{
	const char *version = l->plan->t->engine.version;

	if (s->health == -1)
		differs(l, "it does not answer");
	else if (s->health != HTTP_OK)
		differs(l, "its health is %d", s->health);
	if (s->model[0] != '\0' && !s->has_model)
		differs(l, "it serves %s, the file says %s", s->model, s->wanted);
	if (s->version[0] != '\0' && version != NULL && topo_version_cmp(s->version, version) != 0)
		differs(l, "its version is %s, the file says %s", s->version, version);
}

static void
show_gpus(const struct topo_engine *e)
{
	(void)printf("  gpus %s", e->gpus.n == 0 ? "-" : "");
	for (size_t i = 0; i < e->gpus.n; i++)
		(void)printf("%s%u", i > 0 ? "," : "", e->gpus.v[i]);
}

/* NULL: what the control socket says counts. */
static const char *const views[] = {
	[ROUTERS_NONE] = NULL,
	[ROUTERS_UP] = "up",
	[ROUTERS_DRAINED] = "draining",
	[ROUTERS_SILENT] = NULL,
	[ROUTERS_DOWN] = "down",
};

static void
show_running(struct look *l, const struct member *m)
{
	const struct engine_says s = ask_engine(l, m->url);
	const struct router_left left = routers_left_at(&l->routers, m->url);
	const enum routers_view view = routers_see(&l->routers, m->url);
	const bool gone = left.use == ROUTER_USE_GONE;
	const char *word = gone || views[view] == NULL ? router_use_name(left.use) : views[view];

	(void)printf("  %s", s.health == HTTP_OK ? "healthy" : "unhealthy");
	if (word != NULL)
		(void)printf("  router %s", word);
	if (left.use != ROUTER_USE_UNKNOWN)
		(void)printf("  in-flight %lu", left.requests);
	if (m->engine != NULL)
		show_gpus(m->engine);
	(void)printf("  model %s  version %s\n", s.model[0] != '\0' ? s.model : "-",
		s.version[0] != '\0' ? s.version : "-");
	compare_engine(l, &s);
	if (gone)
		differs(l, "the router does not know it");
	if (view == ROUTERS_DOWN)
		differs(l, "a router takes it for down");
}

static void
show_member(struct look *l, const struct member *m)
{
	bool runs = m->status.state == UNIT_RUNNING && m->url != NULL;
	struct words spare;

	(void)printf("%s  %s", m->name, unit_state_name(m->status.state));
	if (runs)
		show_running(l, m);
	else
		(void)printf("\n");
	if (m->status.state == UNIT_FAILED)
		show_last_line(l, m->unit);
	if (change_words[m->change].differs != NULL)
		differs(l, "%s", change_words[m->change].differs);
	compare_files(l, &m->files);
	spare = member_spare_files(l->runner, l->plan->t->name, m);
	for (size_t i = 0; i < spare.n; i++)
		differs(l, "remove %s", spare.v[i]);
	words_free(&spare);
}

/* --- the host
 * ------------------------------------------------------------------------------------ */

static void
show_router(struct look *l, const struct router_unit *u)
{
	if (u->files.n == 0 && u->change == ROUTER_NONE)
		return; /* the fleet file has none here, and there is none */
	(void)printf(ROUTER_UNIT "  %s\n", unit_state_name(u->status.state));
	if (u->status.state == UNIT_FAILED)
		show_last_line(l, ROUTER_UNIT);
	if (router_words[u->change].differs != NULL)
		differs(l, "%s", router_words[u->change].differs);
	compare_files(l, &u->files);
}

int
status_show(const struct topo_plan *p, const struct runner *r, const char *host)
{
	const struct members_options o = {.keep_drains = true}; /* a drain is no difference */
	const struct topo_host *h = host_find(p->t, host);
	struct look l = {.plan = p, .runner = r};
	struct members members = {.v = NULL};
	struct router_unit router = {.plan = p};
	int rc;

	if (h == NULL)
		return 1;
	l.routers = routers_of(p, h);
	rc = router_unit_look(p, h, r, &l.routers, &router);
	if (rc == 0)
		rc = members_look(p, h, r, &l.routers, &o, &members);
	if (rc == 0)
		show_router(&l, &router);
	for (size_t i = 0; rc == 0 && i < members.n; i++)
		show_member(&l, &members.v[i]);
	members_free(&members);
	router_unit_free(&router);
	routers_free(&l.routers);
	if (rc != 0 || fflush(stdout) != 0)
		return 1;
	return l.differs ? EXIT_DIFFERS : 0;
}

/* --- logs
 * ---------------------------------------------------------------------------------------- */

int
status_logs(const struct topo_plan *p, const struct runner *r, const char *name)
{
	char *unit = NULL;
	struct unit_status status = {.state = UNIT_ABSENT};

	if (strcmp(name, ROUTER_UNIT) == 0)
		unit = mem_strdup(ROUTER_UNIT);
	for (size_t i = 0; unit == NULL && i < p->nengines; i++)
		if (member_is_named(p->engines[i].name, p->t->name, name))
			unit = mem_printf(TOPO_UNIT "%s", p->engines[i].name);
	if (unit == NULL)
		(void)fprintf(stderr, "%s: no engine is named %s; the router is " ROUTER_UNIT "\n",
			p->t->path, name);
	else if (r->ops->status(r, unit, &status) == 0 && status.state == UNIT_ABSENT)
		(void)complain("%s is not on this host", unit);
	else if (status.state != UNIT_ABSENT)
		(void)r->ops->follow(r, unit, RUNNER_LOG_LINES); /* returns on failure only */
	free(unit);
	return 1;
}
