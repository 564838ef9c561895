#include "master/topology/beside.h"

#include <string.h>

#include "master/topology/finding.h"
#include "master/topology/ports.h"

static void
check_routers(struct topo_plan *p, const struct topo_plan *other)
{
	const struct topology *t = p->t, *o = other->t;

	for (size_t i = 0; i < t->nhosts; i++)
		for (size_t k = 0; k < o->nhosts; k++)
			if (topo_same_host(&t->hosts[i], &o->hosts[k]) &&
				topo_has_router(t, &t->hosts[i]) &&
				topo_has_router(o, &o->hosts[k]))
				topo_found(p, t->path, t->router.line, "router.hosts",
					"%.60s has the router of %.80s: a host has one pdrouter.yaml",
					t->hosts[i].name, o->path);
}

/* The line of what named the engine's GPUs. */
static int
line_of(const struct topo_engine *e)
{
	return e->override != NULL && e->override->gpus.line != 0 ? e->override->gpus.line
								  : e->group->line;
}

static void
check_gpus(struct topo_plan *p, const struct topo_engine *e, const struct topo_engine *their,
	const char *path)
{
	for (size_t i = 0; i < e->gpus.n; i++)
		for (size_t k = 0; k < their->gpus.n; k++)
			if (e->gpus.v[i] == their->gpus.v[k])
				topo_found(p, p->t->path, line_of(e), e->name,
					"GPU %u of %.60s is that of %.80s of %.80s too: write gpus: [...] "
					"for the host",
					e->gpus.v[i], e->host->name, their->name, path);
}

void
topo_check_beside(struct topo_plan *p, const struct topo_plan *other)
{
	if (strcmp(p->t->name, other->t->name) == 0) {
		topo_found(p, p->t->path, topo_line(p->t, "fleet"), "fleet",
			"%.80s has this name too: the units of both would be the same",
			other->t->path);
		return;
	}
	check_routers(p, other);
	for (size_t i = 0; i < p->nengines; i++)
		for (size_t k = 0; k < other->nengines; k++)
			if (topo_same_host(p->engines[i].host, other->engines[k].host))
				check_gpus(p, &p->engines[i], &other->engines[k], other->t->path);
	topo_ports_beside(p, other);
	topo_findings_sort(p);
}
