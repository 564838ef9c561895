#include "master/topology/source.h"

#include <string.h>

#include "master/topology/plan.h"
#include "master/topology/router_file.h"
#include "master/topology/template_find.h"
#include "master/topology/text.h"
#include "shm/base/mem.h"

/* The group that comes next in the file; TOPO_ROLE_N: none. */
static unsigned
next_group(const struct topology *t, const bool done[TOPO_ROLE_N])
{
	unsigned best = TOPO_ROLE_N;

	for (unsigned role = 0; role < TOPO_ROLE_N; role++)
		if (t->groups[role].line != 0 && !done[role] &&
			(best == TOPO_ROLE_N || t->groups[role].line < t->groups[best].line))
			best = role;
	return best;
}

static void
add_entry(struct membuf *out, const struct topo_engine *e, enum topo_role role)
{
	topo_add(out, "{role: %s, ", topo_role_name(role));
	topo_router_entry(out, e);
	topo_add(out, "}, ");
}

/* One list in flow style, in which a group's engines are in the line of the group. */
static void
write_list(const struct topo_plan *p, struct membuf *out)
{
	bool done[TOPO_ROLE_N] = {false};
	unsigned role;
	int line = 1;

	topo_add(out, "[");
	while ((role = next_group(p->t, done)) != TOPO_ROLE_N) {
		done[role] = true;
		for (; line < p->t->groups[role].line; line++)
			topo_add(out, "\n");
		for (size_t i = 0; i < p->nengines; i++) {
			if (p->engines[i].role != role)
				continue;
			if (role == TOPO_PREFILL || !topo_is_split(p))
				add_entry(out, &p->engines[i], TOPO_PREFILL);
			if (role == TOPO_DECODE || !topo_is_split(p))
				add_entry(out, &p->engines[i], TOPO_DECODE);
		}
	}
	topo_add(out, "]\n");
}

static int
write_source(const struct topo_plan *p, struct conf_fleet *ret, struct conf_error *err)
{
	struct membuf out = {.p = NULL};

	if (p->nfindings > 0) {
		*err = p->findings[0];
		return -1;
	}
	write_list(p, &out);
	*ret = (struct conf_fleet){
		.text = out.p,
		.n = out.n,
		.connector = p->connector != NULL && topo_is_split(p)
				     ? mem_strdup(p->connector->name)
				     : NULL,
	};
	return 0;
}

int
topo_source(const char *path, struct conf_fleet *ret, struct conf_error *err)
{
	struct topo_template *template = NULL;
	struct topology *t = NULL;
	struct topo_plan *p = NULL;
	int rc = topo_load(path, &t, err);

	if (rc == 0)
		rc = topo_template_find(t, NULL, &template, err);
	if (rc == 0) {
		p = topo_plan_engines(t, template);
		rc = write_source(p, ret, err);
	}
	topo_plan_free(&p);
	topo_template_free(&template);
	topo_free(&t);
	return rc;
}
