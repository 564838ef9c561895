#include "master/topology/template.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "master/topology/read.h"
#include "shm/base/mem.h"

static const struct conf_key part_rows[] = {
	TOPO_OWN("args", topo_read_texts, topo_part, args, "[]", "arguments behind the command"),
	TOPO_OWN("env", topo_read_settings, topo_part, env, "[]", "environment variables"),
	TOPO_OWN("ports", topo_read_ports, topo_part, ports, "[]", "ports of replica 0"),
	TOPO_OWN("file", topo_read_texts, topo_part, file, "[]", "lines of one more file"),
	TOPO_OWN("endpoint", topo_read_settings, topo_part, endpoint, "[]",
		"keys of the engine's entry in the router's pool"),
};
static const struct conf_keys part_keys = TOPO_ROWS(part_rows);

static int
read_part(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	return topo_walk(r, &part_keys, (char *)base + k->off, node);
}

/* --- connectors
 * ---------------------------------------------------------------------------------- */

static const struct {
	const char *name, *wants;
} tp_rules[TOPO_TP_N] = {
	[TOPO_TP_ANY] = {"any", "anything"},
	[TOPO_TP_EQUAL] = {"equal", "the same for both roles"},
	[TOPO_TP_DECODE_MULTIPLE] = {"decode_multiple", "decode's to be a multiple of prefill's"},
	[TOPO_TP_MULTIPLE] = {"multiple", "one to be a multiple of the other"},
};

const char *
topo_tp_refuses(enum topo_tp_rule rule, uint32_t prefill, uint32_t decode)
{
	bool fits[TOPO_TP_N] = {
		[TOPO_TP_ANY] = true,
		[TOPO_TP_EQUAL] = prefill == decode,
		[TOPO_TP_DECODE_MULTIPLE] = decode % prefill == 0,
		[TOPO_TP_MULTIPLE] = decode % prefill == 0 || prefill % decode == 0,
	};

	return fits[rule] ? NULL : tp_rules[rule].wants;
}

static int
read_tp_rule(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	const char *text;

	(void)k;
	if (conf_scalar(r, node, "a rule", &text) != 0)
		return -1;
	for (unsigned i = 0; i < TOPO_TP_N; i++)
		if (strcmp(text, tp_rules[i].name) == 0) {
			((struct topo_connector *)base)->tensor_parallel = i;
			return 0;
		}
	return conf_fail(r, conf_line(node),
		"%.60s is not a rule: any, equal, decode_multiple, multiple", text);
}

static const struct conf_key disk_rows[] = {
	TOPO_KEY("variable", TEXT, topo_disk, variable, 1, 127, NULL, "holds the path"),
	TOPO_KEY("scheme", TEXT, topo_disk, scheme, 1, 63, NULL, "such as file://"),
	TOPO_KEY("size", TEXT, topo_disk, size, 1, 127, "(unknown)", "variable with the GiB"),
};
static const struct conf_keys disk_keys = TOPO_ROWS(disk_rows);

static int
add_disk(struct conf_read *r, void *base, const char *name, yaml_node_t *node)
{
	struct topo_connector *c = base;

	(void)name;
	c->disks = mem_resize(c->disks, c->ndisks + 1, sizeof(*c->disks));
	c->disks[c->ndisks] = (struct topo_disk){.variable = NULL};
	return topo_walk(r, &disk_keys, &c->disks[c->ndisks++], node);
}

static int
read_disks(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	(void)k;
	return topo_read_list(r, node, "a list of variables", add_disk, base);
}

static const struct conf_key connector_rows[] = {
	TOPO_KEY("name", NAME, topo_connector, name, 1, 63, NULL, "as the pool's connector"),
	TOPO_OWN("also", topo_read_texts, topo_connector, also, "[]",
		"connectors of the router whose engines are the same"),
	TOPO_KEY("since", TEXT, topo_connector, since, 1, 63, "(any)",
		"first version of the engine"),
	TOPO_KEY(
		"until", TEXT, topo_connector, until, 1, 63, "(any)", "last version of the engine"),
	TOPO_OWN("tensor_parallel", read_tp_rule, topo_connector, tensor_parallel, "(any)",
		"any, equal, decode_multiple or multiple"),
	TOPO_KEY("one_router", BOOL, topo_connector, one_router, 0, 0, "false",
		"true: the engines report to one router"),
	TOPO_KEY("no_data_parallel", BOOL, topo_connector, no_data_parallel, 0, 0, "false",
		"true: it cannot tell data-parallel ranks apart"),
	TOPO_OWN("all", read_part, topo_connector, all, "(none)", "for both roles"),
	TOPO_OWN("prefill", read_part, topo_connector, prefill, "(none)", "for prefill engines"),
	TOPO_OWN("decode", read_part, topo_connector, decode, "(none)", "for decode engines"),
	TOPO_OWN("rdma", read_part, topo_connector, rdma, "(none)", "on hosts with an RDMA device"),
	TOPO_OWN("pool", topo_read_settings, topo_connector, pool, "[]",
		"keys of the router's pool"),
	TOPO_OWN("router", topo_read_settings, topo_connector, router, "[]",
		"keys of the router's top level"),
	TOPO_OWN("router_ports", topo_read_ports, topo_connector, router_ports, "[]",
		"ports that the router listens on"),
	TOPO_OWN("needs_env", topo_read_texts, topo_connector, needs_env, "[]",
		"variables that the fleet file must set"),
	TOPO_OWN("disks", read_disks, topo_connector, disks, "[]", "KV caches on a disk"),
	TOPO_OWN("agree", topo_read_texts, topo_connector, agree, "[]",
		"flags and variables with one value in all engines"),
};
static const struct conf_keys connector_keys = TOPO_ROWS(connector_rows);

static int
add_connector(struct conf_read *r, void *base, const char *name, yaml_node_t *node)
{
	struct topo_template *t = base;

	(void)name;
	t->connectors = mem_resize(t->connectors, t->nconnectors + 1, sizeof(*t->connectors));
	t->connectors[t->nconnectors] = (struct topo_connector){.line = conf_line(node)};
	return topo_walk(r, &connector_keys, &t->connectors[t->nconnectors++], node);
}

static int
read_connectors(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	(void)k;
	return topo_read_list(r, node, "a list of connectors", add_connector, base);
}

long
topo_version_cmp(const char *version, const char *bound)
{
	char *v_end, *b_end;
	long d = 0;

	while (d == 0 && isdigit((unsigned char)*bound)) {
		d = strtol(version, &v_end, 10) - strtol(bound, &b_end, 10);
		version = *v_end == '.' ? v_end + 1 : v_end;
		bound = *b_end == '.' ? b_end + 1 : b_end;
	}
	return d;
}

bool
topo_is_connector(const struct topo_connector *c, const char *name)
{
	bool yes = strcmp(c->name, name) == 0;

	for (size_t i = 0; !yes && i < c->also.n; i++)
		yes = strcmp(c->also.v[i].text, name) == 0;
	return yes;
}

const struct topo_connector *
topo_connector(const struct topo_template *t, const char *name, const char *version)
{
	for (size_t i = 0; i < t->nconnectors; i++) {
		const struct topo_connector *c = &t->connectors[i];

		if (topo_is_connector(c, name) &&
			(c->since == NULL || topo_version_cmp(version, c->since) >= 0) &&
			(c->until == NULL || topo_version_cmp(version, c->until) <= 0))
			return c;
	}
	return NULL;
}

/* --- containers
 * ---------------------------------------------------------------------------------- */

static const struct conf_key container_rows[] = {
	TOPO_KEY("name", NAME, topo_container, name, 1, 63, NULL, "as engine.container_runtime"),
	TOPO_OWN("command", topo_read_texts, topo_container, command, NULL, "the runtime's"),
	TOPO_OWN("gpus", topo_read_texts, topo_container, gpus, "[]", "engines with planned GPUs"),
	TOPO_OWN("rdma", topo_read_texts, topo_container, rdma, "[]", "hosts with RDMA devices"),
	TOPO_OWN("model", topo_read_texts, topo_container, model, "[]", "models that are a path"),
	TOPO_OWN("file", topo_read_texts, topo_container, file, "[]", "engines with a file"),
	TOPO_KEY("variable", TEXT, topo_container, variable, 1, 63, NULL,
		"flag that hands a variable over"),
	TOPO_OWN("image", topo_read_texts, topo_container, image, NULL, "image and program"),
	TOPO_OWN("cleanup", topo_read_texts, topo_container, cleanup, "[]",
		"a command that removes a container that was left"),
	TOPO_OWN("unit", topo_read_texts, topo_container, unit, "[]", "lines for [Service]"),
};
static const struct conf_keys container_keys = TOPO_ROWS(container_rows);

static int
add_container(struct conf_read *r, void *base, const char *name, yaml_node_t *node)
{
	struct topo_template *t = base;

	(void)name;
	t->containers = mem_resize(t->containers, t->ncontainers + 1, sizeof(*t->containers));
	t->containers[t->ncontainers] = (struct topo_container){.name = NULL};
	return topo_walk(r, &container_keys, &t->containers[t->ncontainers++], node);
}

static int
read_containers(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	(void)k;
	return topo_read_list(r, node, "a list of container runtimes", add_container, base);
}

const struct topo_container *
topo_container(const struct topo_template *t, const char *name)
{
	for (size_t i = 0; i < t->ncontainers; i++)
		if (strcmp(t->containers[i].name, name) == 0)
			return &t->containers[i];
	return NULL;
}

static void
container_free(struct topo_container *c)
{
	conf_values_free(&container_keys, c);
	topo_texts_free(&c->command);
	topo_texts_free(&c->gpus);
	topo_texts_free(&c->rdma);
	topo_texts_free(&c->model);
	topo_texts_free(&c->file);
	topo_texts_free(&c->image);
	topo_texts_free(&c->cleanup);
	topo_texts_free(&c->unit);
}

/* --- the root
 * ------------------------------------------------------------------------------------ */

static const struct conf_key template_rows[] = {
	TOPO_OWN("command", topo_read_texts, topo_template, command, NULL, "the command line"),
	TOPO_KEY("program", TEXT, topo_template, program, 1, 255, "(none)",
		"in containers, in place of the command's first word"),
	TOPO_OWN("same_flags", topo_read_settings, topo_template, same_flags, "[]",
		"other names of flags of the template"),
	TOPO_KEY("since", TEXT, topo_template, since, 1, 63, "(any)",
		"first version of the engine that knows the command line"),
	TOPO_KEY("version_path", TEXT, topo_template, version_path, 1, 255, "/version",
		"of an engine's answer with a member `version`"),
	TOPO_OWN("containers", read_containers, topo_template, containers, "[]",
		"how a container runtime runs an engine"),
	TOPO_KEY("needs_gpus", BOOL, topo_template, needs_gpus, 0, 0, "false",
		"true: hosts must have GPUs"),
	TOPO_KEY("needs_version", BOOL, topo_template, needs_version, 0, 0, "false",
		"true: the fleet file must name the version"),
	TOPO_OWN("all", read_part, topo_template, all, "(none)", "for every engine"),
	TOPO_OWN("prefill", read_part, topo_template, prefill, "(none)", "for prefill engines"),
	TOPO_OWN("decode", read_part, topo_template, decode, "(none)", "for decode engines"),
	TOPO_OWN("engines", read_part, topo_template, engines, "(none)", "without disaggregation"),
	TOPO_OWN("venv", read_part, topo_template, venv, "(none)",
		"for engines that run from engine.venv, without a container"),
	TOPO_OWN("gpus", read_part, topo_template, gpus, "(none)",
		"for engines whose GPUs are planned"),
	TOPO_OWN("data_parallel", read_part, topo_template, data_parallel, "(none)",
		"for engines with several data-parallel ranks"),
	TOPO_OWN(
		"pool", topo_read_settings, topo_template, pool, "[]", "keys of the router's pool"),
	TOPO_OWN("router", topo_read_settings, topo_template, router, "[]",
		"keys of the router's top level"),
	TOPO_OWN("connectors", read_connectors, topo_template, connectors, "[]",
		"what each connector adds"),
};
static const struct conf_keys template_keys = TOPO_ROWS(template_rows);

int
topo_template_parse(const char *path, const void *text, size_t n, struct topo_template **ret,
	struct conf_error *err)
{
	struct topo_template *t = MEM_NEW(struct topo_template);
	struct conf_read r = {.err = err};
	int lines[CONF_ENTRY_KEYS] = {0}, rc;

	t->path = mem_strdup(path);
	r.file = t->path;
	rc = topo_read_document(&r, text, n, &template_keys, t, lines);
	if (rc == 0)
		*ret = t;
	else
		topo_template_free(&t);
	return rc;
}

int
topo_template_load(const char *path, struct topo_template **ret, struct conf_error *err)
{
	char *text;
	size_t n;
	int rc = topo_read_file(path, &text, &n, err);

	if (rc == 0) {
		rc = topo_template_parse(path, text, n, ret, err);
		free(text);
	}
	return rc;
}

static void
part_free(struct topo_part *p)
{
	topo_texts_free(&p->args);
	topo_settings_free(&p->env);
	topo_ports_free(&p->ports);
	topo_texts_free(&p->file);
	topo_settings_free(&p->endpoint);
}

static void
connector_free(struct topo_connector *c)
{
	conf_values_free(&connector_keys, c);
	topo_texts_free(&c->also);
	part_free(&c->all);
	part_free(&c->prefill);
	part_free(&c->decode);
	part_free(&c->rdma);
	topo_settings_free(&c->pool);
	topo_settings_free(&c->router);
	topo_ports_free(&c->router_ports);
	topo_texts_free(&c->needs_env);
	topo_texts_free(&c->agree);
	for (size_t i = 0; i < c->ndisks; i++)
		conf_values_free(&disk_keys, &c->disks[i]);
	free(c->disks);
}

void
topo_template_free(struct topo_template **template)
{
	struct topo_template *t = *template;

	if (t == NULL)
		return;
	for (size_t i = 0; i < t->nconnectors; i++)
		connector_free(&t->connectors[i]);
	free(t->connectors);
	for (size_t i = 0; i < t->ncontainers; i++)
		container_free(&t->containers[i]);
	free(t->containers);
	conf_values_free(&template_keys, t);
	part_free(&t->all);
	part_free(&t->prefill);
	part_free(&t->decode);
	part_free(&t->engines);
	part_free(&t->venv);
	part_free(&t->gpus);
	part_free(&t->data_parallel);
	topo_texts_free(&t->command);
	topo_settings_free(&t->same_flags);
	topo_settings_free(&t->pool);
	topo_settings_free(&t->router);
	free(t->path);
	free(t);
	*template = NULL;
}
