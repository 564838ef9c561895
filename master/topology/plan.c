#include "master/topology/plan.h"

#include <stdlib.h>

#include "master/topology/agree.h"
#include "master/topology/check.h"
#include "master/topology/compose.h"
#include "master/topology/finding.h"
#include "master/topology/overrule.h"
#include "master/topology/place.h"
#include "master/topology/ports.h"
#include "master/topology/read.h"
#include "shm/base/mem.h"

static void
add_engines(struct topo_plan *p, enum topo_role role)
{
	const struct topo_group *g = &p->t->groups[role];

	if (g->line == 0)
		return;
	p->engines = mem_resize(p->engines, p->nengines + g->replicas, sizeof(*p->engines));
	for (uint32_t i = 0; i < g->replicas; i++)
		p->engines[p->nengines++] = (struct topo_engine){
			.role = role,
			.replica = i,
			.name = mem_printf("%s-%s-%u", p->t->name, topo_role_name(role), i),
			.group = g,
			.override = topo_override(g, i),
		};
}

static const struct topo_connector *
connector_of(const struct topology *t, const struct topo_template *template)
{
	if (t->connector == NULL || t->groups[TOPO_PREFILL].line == 0 ||
		(t->engine.version == NULL && template->needs_version != 0))
		return NULL;
	return topo_connector(
		template, t->connector, t->engine.version != NULL ? t->engine.version : "");
}

const struct topo_paths topo_paths_system = {
	.fleet = "/etc/pdrouter/fleet/",
	.units = "/etc/systemd/system/",
	.router = "/etc/pdrouter/pdrouter.yaml",
};

/* All but the check of pdrouter.yaml. */
static struct topo_plan *
plan_engines(const struct topology *t, const struct topo_template *template,
	const struct topo_paths *paths)
{
	struct topo_plan *p = MEM_NEW(struct topo_plan);

	p->t = t;
	p->paths = paths;
	p->template = template;
	p->connector = connector_of(t, template);
	if (t->engine.container != NULL)
		p->container = topo_container(template, t->engine.runtime);
	for (unsigned role = 0; role < TOPO_ROLE_N; role++)
		add_engines(p, role);
	topo_check_names(p);
	topo_check_hosts(p);
	topo_check_roles(p);
	topo_check_router(p);
	topo_place(p);
	topo_ports_plan(p);
	topo_ports_check(p);
	if (t->connector == NULL ||
		p->connector != NULL) /* else the ports of its names are unknown */
		topo_compose(p);
	topo_agree(p);
	topo_overrule(p);
	topo_findings_sort(p);
	return p;
}

struct topo_plan *
topo_plan_make_at(const struct topology *t, const struct topo_template *template,
	const struct topo_paths *paths)
{
	struct topo_plan *p = plan_engines(t, template, paths);

	if (p->nfindings == 0)
		topo_check_router_file(p);
	return p;
}

struct topo_plan *
topo_plan_make(const struct topology *t, const struct topo_template *template)
{
	return topo_plan_make_at(t, template, &topo_paths_system);
}

struct topo_plan *
topo_plan_engines(const struct topology *t, const struct topo_template *template)
{
	return plan_engines(t, template, &topo_paths_system);
}

void
topo_plan_free(struct topo_plan **plan)
{
	struct topo_plan *p = *plan;

	if (p == NULL)
		return;
	for (size_t i = 0; i < p->nengines; i++) {
		free(p->engines[i].name);
		topo_texts_free(&p->engines[i].argv);
		topo_texts_free(&p->engines[i].file);
		topo_texts_free(&p->engines[i].cleanup);
		topo_settings_free(&p->engines[i].env);
		topo_settings_free(&p->engines[i].endpoint);
	}
	free(p->engines);
	topo_settings_free(&p->pool);
	topo_settings_free(&p->router);
	free(p->findings);
	free(p);
	*plan = NULL;
}
