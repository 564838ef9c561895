#include "master/topology/router_file.h"

#include <stdlib.h>
#include <string.h>

#include "master/topology/text.h"

/* A fleet without disaggregation: its engines are listed in both roles, and no prompt is long enough for a
 * prefill leg.  Nothing moves between them, so the connector is one that asks nothing of engines. */
#define ALONE_CONNECTOR "shared_storage"
#define ALONE_KEY "routing_threshold"
#define ALONE_VALUE "1000000000"

#define CONTROL_KEY "control_socket"

/* The template's keys where the user has not written the same one, then the user's. */
static void
settings(struct membuf *out, const char *indent, const struct topo_settings *ours,
	const struct topo_settings *users)
{
	for (size_t i = 0; i < ours->n; i++)
		if (topo_setting(users, ours->v[i].name) == NULL)
			topo_add(out, "%s%s: %s\n", indent, ours->v[i].name, ours->v[i].value.text);
	for (size_t i = 0; i < users->n; i++)
		topo_add(out, "%s%s: %s\n", indent, users->v[i].name, users->v[i].value.text);
}

static void
endpoints(const struct topo_plan *p, struct membuf *out, enum topo_role role)
{
	topo_add(out, "    %s:\n", topo_role_name(role));
	for (size_t i = 0; i < p->nengines; i++) {
		if (topo_is_split(p) && p->engines[i].role != role)
			continue;
		topo_add(out, "      - {");
		topo_router_entry(out, &p->engines[i]);
		topo_add(out, "}\n");
	}
}

static void
listen_on(const struct topo_texts *listen, struct membuf *out)
{
	topo_add(out, "listen: [");
	for (size_t i = 0; i < listen->n; i++) {
		topo_add(out, "%s", i > 0 ? ", " : "");
		topo_add_yaml(out, listen->v[i].text);
	}
	topo_add(out, "]\n");
}

void
topo_router_head(const struct topo_plan *p, const char *control, struct membuf *out)
{
	const struct topology *t = p->t;

	topo_add(out, TOPO_HEAD "\n", t->name);
	listen_on(&t->router.listen, out);
	if (control != NULL && topo_setting(&t->router.config, CONTROL_KEY) == NULL) {
		topo_add(out, CONTROL_KEY ": ");
		topo_add_yaml(out, control);
		topo_add(out, "\n");
	}
	settings(out, "", &p->router, &t->router.config);
	topo_add(out, "pools:\n  - name: ");
	topo_add_yaml(out, t->name);
	topo_add(out, "\n    models: [");
	topo_add_yaml(out, t->served_as);
	topo_add(out, "]\n    connector: %s\n",
		p->connector != NULL && topo_is_split(p) ? p->t->connector : ALONE_CONNECTOR);
	if (!topo_is_split(p) && topo_setting(&t->router.pool, ALONE_KEY) == NULL)
		topo_add(out, "    " ALONE_KEY ": " ALONE_VALUE "\n");
	settings(out, "    ", &p->pool, &t->router.pool);
}

void
topo_router_file(const struct topo_plan *p, struct membuf *out)
{
	const struct topology *t = p->t;

	topo_router_head(p, p->paths->control, out);
	if (t->router.fleet_file == NULL) {
		endpoints(p, out, TOPO_PREFILL);
		endpoints(p, out, TOPO_DECODE);
		return;
	}
	topo_add(out, "    fleet_file: ");
	topo_add_yaml(out, t->router.fleet_file);
	topo_add(out, "\n%s",
		topo_setting(&t->router.pool, "watch") != NULL ? "" : "    watch: true\n");
}

struct conf *
topo_router_conf(const struct topo_plan *p, struct conf_error *err)
{
	struct membuf text = {.p = NULL};
	struct conf_fleet engines = topo_endpoints(p);
	struct conf *conf = NULL;

	topo_router_file(p, &text);
	(void)conf_parse_fleet("pdrouter.yaml", text.p, text.n, &engines, &conf, err);
	free(engines.text);
	free(engines.connector);
	membuf_free(&text);
	return conf;
}
