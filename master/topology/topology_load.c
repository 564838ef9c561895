#include "master/topology/topology.h"

#include <stdlib.h>
#include <string.h>

#include "master/config/conf_number.h"
#include "master/topology/read.h"
#include "shm/base/mem.h"

#define REPLICAS_MAX 1024
#define LISTEN "0.0.0.0:8000"

/* --- hosts
 * --------------------------------------------------------------------------------------- */

static int
add_gpu(struct conf_read *r, void *base, const char *name, yaml_node_t *node)
{
	struct topo_gpus *g = base;
	const char *text;
	uint64_t v;
	size_t n;

	(void)name;
	if (conf_scalar(r, node, "a GPU's number", &text) != 0)
		return -1;
	n = conf_digits(text, &v);
	if (n == 0 || text[n] != '\0' || v > 1023)
		return conf_fail(
			r, conf_line(node), "%.60s is not a GPU's number, 0 to 1023", text);
	for (size_t i = 0; i < g->n; i++)
		if (g->v[i] == v)
			return conf_fail(r, conf_line(node), "%.60s is in the list twice", text);
	if (g->n == TOPO_GPUS_MAX)
		return conf_fail(r, conf_line(node), "more than %d GPUs", TOPO_GPUS_MAX);
	g->v[g->n++] = (uint16_t)v;
	return 0;
}

/* A list of numbers, or how many there are. */
static int
read_gpus(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	struct topo_gpus *g = (struct topo_gpus *)((char *)base + k->off);
	const char *text;
	uint64_t count;
	size_t n;

	g->line = conf_line(node);
	if (node->type == YAML_SEQUENCE_NODE)
		return topo_read_list(r, node, "a list", add_gpu, g);
	if (conf_scalar(r, node, "a number of GPUs, or a list", &text) != 0)
		return -1;
	n = conf_digits(text, &count);
	if (n == 0 || text[n] != '\0' || count > TOPO_GPUS_MAX)
		return conf_fail(r, g->line,
			"%.60s is not a number of GPUs up to %d, or a list such "
			"as [0, 1]",
			text, TOPO_GPUS_MAX);
	for (; g->n < count; g->n++)
		g->v[g->n] = (uint16_t)g->n;
	return 0;
}

static const struct conf_key host_rows[] = {
	TOPO_KEY("address", TEXT, topo_host, address, 1, 253, NULL,
		"address or name by which engines and routers reach this host"),
	TOPO_OWN("gpus", read_gpus, topo_host, gpus, "(none)", "how many, or a list of numbers"),
	TOPO_KEY("rdma", TEXT, topo_host, rdma, 1, 127, "(none)",
		"its RDMA devices, such as mlx5_0,mlx5_1"),
	TOPO_KEY("group", NAME, topo_host, group, 1, 63, "(none)",
		"rack or NVLink domain, used by pairing"),
};
static const struct conf_keys host_keys = TOPO_ROWS(host_rows);

static int
add_host(struct conf_read *r, void *base, const char *name, yaml_node_t *node)
{
	struct topology *t = base;
	struct topo_host *h;

	t->hosts = mem_resize(t->hosts, t->nhosts + 1, sizeof(*t->hosts));
	h = &t->hosts[t->nhosts++];
	*h = (struct topo_host){.name = mem_strdup(name), .line = conf_line(node)};
	return topo_walk(r, &host_keys, h, node);
}

static int
read_hosts(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	(void)k;
	return topo_read_map(r, node, add_host, base);
}

/* --- groups
 * -------------------------------------------------------------------------------------- */

static const struct conf_key override_rows[] = {
	TOPO_KEY("replica", COUNT, topo_override, replica, 0, REPLICAS_MAX - 1, NULL,
		"the replica's number, from 0"),
	TOPO_KEY("host", TEXT, topo_override, host, 1, 253, "(chosen)", "its host"),
	TOPO_OWN("gpus", read_gpus, topo_override, gpus, "(chosen)", "its GPUs"),
	TOPO_OWN("args", topo_read_texts, topo_override, args, "[]", "behind the group's"),
	TOPO_OWN("env", topo_read_settings, topo_override, env, "[]", "beside the group's"),
	TOPO_OWN("ports", topo_read_ports, topo_override, ports, "[]", "its first ports"),
};
static const struct conf_keys override_keys = TOPO_ROWS(override_rows);

static int
add_override(struct conf_read *r, void *base, const char *name, yaml_node_t *node)
{
	struct topo_group *g = base;
	struct topo_override *o;

	(void)name;
	g->overrides = mem_resize(g->overrides, g->noverrides + 1, sizeof(*o));
	o = &g->overrides[g->noverrides++];
	*o = (struct topo_override){.line = conf_line(node)};
	if (topo_walk(r, &override_keys, o, node) != 0)
		return -1;
	for (size_t i = 0; i + 1 < g->noverrides; i++)
		if (g->overrides[i].replica == o->replica)
			return conf_fail(r, o->line, "replica %u is listed twice", o->replica);
	return 0;
}

static int
read_overrides(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	(void)k;
	return topo_read_list(
		r, node, "a list such as [{replica: 1, host: gpu-2}]", add_override, base);
}

static const struct conf_key group_rows[] = {
	TOPO_KEY("replicas", COUNT, topo_group, replicas, 1, REPLICAS_MAX, "1", "engines"),
	TOPO_KEY("tensor_parallel", COUNT, topo_group, tensor_parallel, 1, TOPO_GPUS_MAX, "1",
		"GPUs of one engine, or of each of its data-parallel ranks"),
	TOPO_KEY("data_parallel", COUNT, topo_group, data_parallel, 1, TOPO_GPUS_MAX, "1",
		"data-parallel ranks of one engine"),
	TOPO_OWN("hosts", topo_read_texts, topo_group, hosts, "[]", "where they run; []: anywhere"),
	TOPO_OWN("args", topo_read_texts, topo_group, args, "[]", "behind the template's command"),
	TOPO_OWN("env", topo_read_settings, topo_group, env, "[]", "environment variables"),
	TOPO_OWN("ports", topo_read_ports, topo_group, ports, "[]", "ports of replica 0"),
	TOPO_OWN("overrides", read_overrides, topo_group, overrides, "[]", "of single replicas"),
};
static const struct conf_keys group_keys = TOPO_ROWS(group_rows);

static int
read_group(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	struct topo_group *g = (struct topo_group *)((char *)base + k->off);

	g->line = conf_line(node);
	return topo_walk(r, &group_keys, g, node);
}

/* --- the router and the root
 * ---------------------------------------------------------------------- */

static const struct conf_key router_rows[] = {
	TOPO_OWN("hosts", topo_read_texts, topo_router, hosts, NULL, "where routers run"),
	TOPO_OWN("listen", topo_read_texts, topo_router, listen, "(" LISTEN ")",
		"addresses for clients"),
	TOPO_KEY("fleet_file", TEXT, topo_router, fleet_file, 1, 4095, "(none)",
		"path of this file there: routers read their engines from it and follow its changes"),
	TOPO_OWN("pool", topo_read_yaml, topo_router, pool, "[]", "other keys of the pool"),
	TOPO_OWN(
		"config", topo_read_yaml, topo_router, config, "[]", "other keys of pdrouter.yaml"),
};
static const struct conf_keys router_keys = TOPO_ROWS(router_rows);

static int
read_router(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	struct topo_router *router = &((struct topology *)base)->router;

	(void)k;
	router->line = conf_line(node);
	if (topo_walk(r, &router_keys, router, node) != 0)
		return -1;
	if (router->listen.n == 0) {
		router->listen = (struct topo_texts){mem_array(1, sizeof(*router->listen.v)), 1};
		router->listen.v[0] = (struct topo_text){mem_strdup(LISTEN), r->file, router->line};
	}
	return 0;
}

static const struct conf_key root_rows[] = {
	TOPO_KEY("fleet", TEXT, topology, name, 1, 255, NULL,
		"the fleet's name; its units carry it"),
	TOPO_KEY("model.path", TEXT, topology, model, 1, 4095, NULL, "what the engines load"),
	TOPO_KEY("model.served_as", TEXT, topology, served_as, 1, 255, "(model.path)",
		"the name that clients use"),
	TOPO_KEY("engine.kind", NAME, topology, engine.kind, 1, 63, NULL,
		"vllm, sglang, or the name of a template of your own"),
	TOPO_KEY("engine.version", TEXT, topology, engine.version, 1, 63, "(unknown)",
		"its version, such as \"0.21\"; decides which connectors it has"),
	TOPO_KEY("engine.venv", TEXT, topology, engine.venv, 1, 4095, "(none)",
		"Python environment that the engine is installed in"),
	TOPO_OWN("engine.command", topo_read_texts, topology, engine.command, "[]",
		"a command line in place of the template's"),
	TOPO_KEY("engine.container", TEXT, topology, engine.container, 1, 1023, "(none)",
		"image that the engine runs in"),
	TOPO_KEY("engine.container_runtime", NAME, topology, engine.runtime, 1, 63, "podman",
		"podman or docker"),
	TOPO_OWN("engine.container_args", topo_read_texts, topology, engine.container_args, "[]",
		"further arguments of the runtime, such as volumes"),
	TOPO_KEY("connector", NAME, topology, connector, 1, 63, "(none)", "how the KV cache moves"),
	TOPO_KEY("port_offset", COUNT, topology, port_offset, 0, 60000, "0",
		"added to each port of the templates: for several fleets on one host"),
	TOPO_OWN("hosts", read_hosts, topology, hosts, NULL, "NAME: {address: ..., gpus: ...}"),
	TOPO_OWN(
		"prefill", read_group, topology, groups[TOPO_PREFILL], "(none)", "prefill engines"),
	TOPO_OWN("decode", read_group, topology, groups[TOPO_DECODE], "(none)", "decode engines"),
	TOPO_OWN("engines", read_group, topology, groups[TOPO_ENGINES], "(none)",
		"engines of a fleet without disaggregation"),
	TOPO_OWN("router", read_router, topology, router, "(none)", "the routers"),
};
static const struct conf_keys root_keys = TOPO_ROWS(root_rows);

/* --- from a file
 * -------------------------------------------------------------------------------- */

int
topo_parse(
	const char *path, const void *text, size_t n, struct topology **ret, struct conf_error *err)
{
	struct topology *t = MEM_NEW(struct topology);
	struct conf_read r = {.err = err};
	int rc;

	t->path = mem_strdup(path);
	t->lines = mem_array(root_keys.n, sizeof(*t->lines));
	r.file = t->path;
	rc = topo_read_document(&r, text, n, &root_keys, t, t->lines);
	if (rc == 0 && t->served_as == NULL)
		t->served_as = mem_strdup(t->model);
	if (rc == 0)
		*ret = t;
	else
		topo_free(&t);
	return rc;
}

int
topo_load(const char *path, struct topology **ret, struct conf_error *err)
{
	char *text;
	size_t n;
	int rc = topo_read_file(path, &text, &n, err);

	if (rc == 0) {
		rc = topo_parse(path, text, n, ret, err);
		free(text);
	}
	return rc;
}

static void
group_free(struct topo_group *g)
{
	for (size_t i = 0; i < g->noverrides; i++) {
		struct topo_override *o = &g->overrides[i];

		free(o->host);
		topo_texts_free(&o->args);
		topo_settings_free(&o->env);
		topo_ports_free(&o->ports);
	}
	free(g->overrides);
	topo_texts_free(&g->hosts);
	topo_texts_free(&g->args);
	topo_settings_free(&g->env);
	topo_ports_free(&g->ports);
}

void
topo_free(struct topology **topology)
{
	struct topology *t = *topology;

	if (t == NULL)
		return;
	for (size_t i = 0; i < t->nhosts; i++) {
		free(t->hosts[i].name);
		conf_values_free(&host_keys, &t->hosts[i]);
	}
	free(t->hosts);
	for (size_t i = 0; i < TOPO_ROLE_N; i++)
		group_free(&t->groups[i]);
	conf_values_free(&router_keys, &t->router);
	topo_texts_free(&t->router.hosts);
	topo_texts_free(&t->router.listen);
	topo_settings_free(&t->router.pool);
	topo_settings_free(&t->router.config);
	topo_texts_free(&t->engine.command);
	topo_texts_free(&t->engine.container_args);
	conf_values_free(&root_keys, t);
	free(t->lines);
	free(t->path);
	free(t);
	*topology = NULL;
}

int
topo_line(const struct topology *t, const char *key)
{
	return t->lines[conf_key_row(&root_keys, key) - root_keys.key];
}
