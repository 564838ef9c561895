#include "master/topology/render.h"

#include <stdlib.h>
#include <string.h>

#include "master/topology/router_file.h"
#include "master/topology/text.h"

#define HEAD "# Written by pdctl fleet for the fleet %s: change the fleet file instead.\n"
#define MODE 0644u

static void
put(struct topo_files *f, char *path, struct membuf *bytes)
{
	f->v = mem_resize(f->v, f->n + 1, sizeof(*f->v));
	f->v[f->n++] = (struct topo_file){path, MODE, bytes->p, bytes->n};
	*bytes = (struct membuf){.p = NULL};
}

static void
environment(const struct topo_plan *p, const struct topo_engine *e, struct topo_files *f)
{
	struct membuf b = {.p = NULL};

	topo_add(&b, HEAD, p->t->name);
	for (size_t i = 0; i < e->env.n; i++) {
		topo_add(&b, "%s=", e->env.v[i].name);
		topo_add_env(&b, e->env.v[i].value.text);
		topo_add(&b, "\n");
	}
	put(f, mem_printf("%s%s.env", p->paths->fleet + 1, e->name), &b);
}

static void
unit(const struct topo_plan *p, const struct topo_engine *e, struct topo_files *f)
{
	struct membuf b = {.p = NULL};

	topo_add(&b, HEAD, p->t->name);
	topo_add(&b, "[Unit]\nDescription=%s engine %u of the fleet %s\n\n[Service]\n",
		topo_role_name(e->role), e->replica, p->t->name);
	topo_add(&b, "EnvironmentFile=%s%s.env\nExecStart=", p->paths->fleet, e->name);
	for (size_t i = 0; i < e->argv.n; i++) {
		topo_add(&b, "%s", i > 0 ? " " : "");
		topo_add_exec(&b, e->argv.v[i].text);
	}
	topo_add(&b, "\n");
	put(f, mem_printf("%s" TOPO_UNIT "%s" TOPO_DROP_IN, p->paths->units + 1, e->name), &b);
}

/* The one more file that some connectors need, such as LMCache's. */
static void
own_file(const struct topo_plan *p, const struct topo_engine *e, struct topo_files *f)
{
	struct membuf b = {.p = NULL};

	if (e->file.n == 0)
		return;
	topo_add(&b, HEAD, p->t->name);
	for (size_t i = 0; i < e->file.n; i++)
		topo_add(&b, "%s\n", e->file.v[i].text);
	put(f, mem_printf("%s%s.yaml", p->paths->fleet + 1, e->name), &b);
}

struct topo_files
topo_render(const struct topo_plan *p, const struct topo_host *h)
{
	struct topo_files f = {.v = NULL};
	struct membuf b = {.p = NULL};

	for (size_t i = 0; i < p->nengines; i++) {
		if (p->engines[i].host != h)
			continue;
		environment(p, &p->engines[i], &f);
		own_file(p, &p->engines[i], &f);
		unit(p, &p->engines[i], &f);
	}
	for (size_t i = 0; i < p->t->router.hosts.n; i++)
		if (strcmp(p->t->router.hosts.v[i].text, h->name) == 0) {
			topo_router_file(p, &b);
			put(&f, mem_strdup(p->paths->router + 1), &b);
			break;
		}
	return f;
}

void
topo_files_free(struct topo_files *f)
{
	for (size_t i = 0; i < f->n; i++) {
		free(f->v[i].path);
		free(f->v[i].bytes);
	}
	free(f->v);
	*f = (struct topo_files){.v = NULL};
}
