/* What a pool's connector requires of its configuration: the connector's own map of keys, and
 * its endpoints. */
#include "master/config/conf_connector.h"

#include <stdio.h>
#include <string.h>

#include "shm/base/connector_info.h"

/* --- the map of keys -------------------------------------------------------------------------- */

static bool
owns(const struct connector_info *info, const char *key)
{
	for (const char *const *k = info->keys; *k != NULL; k++)
		if (strcmp(*k, key) == 0)
			return true;
	return false;
}

/* The connectors whose map has the key: "lmcache", "sglang and mooncake". */
static const char *
owners(const char *key, char buf[CONF_WHAT])
{
	size_t n = 0, left = 0;

	for (size_t c = 0; c < CONNECTOR_N; c++)
		left += owns(&connector_info[c], key);
	buf[0] = '\0';
	for (size_t c = 0; c < CONNECTOR_N && left > 0; c++) {
		if (!owns(&connector_info[c], key))
			continue;
		left--;
		n += (size_t)snprintf(buf + n, CONF_WHAT - n, "%s%s", connector_info[c].name,
			left == 0   ? ""
			: left == 1 ? " and "
				    : ", ");
	}
	return buf;
}

static const struct connector_info *
info_of_map(const struct conf_key *map)
{
	for (size_t c = 0; c < CONNECTOR_N; c++)
		if (strcmp(connector_info[c].name, map->path) == 0)
			return &connector_info[c];
	return NULL;
}

/* Only keys that belong to this map: other keys of the table mean nothing to this connector. */
static int
check_names(struct conf_read *r, const struct connector_info *info, yaml_node_t *map)
{
	char list[CONF_WHAT];

	for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
		p++) {
		yaml_node_t *node = yaml_document_get_node(&r->doc, p->key);
		const char *name = (const char *)node->data.scalar.value;

		if (node->type != YAML_SCALAR_NODE ||
			conf_key_row(&conf_connector_keys, name) == NULL || owns(info, name))
			continue;
		(void)conf_enter(r, ".%s", name);
		return conf_fail(r, conf_line(node),
			"is not used by the connector %s: it belongs to %.150s", info->name,
			owners(name, list));
	}
	return 0;
}

int
conf_connector_map_set(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *map)
{
	const struct connector_info *info = info_of_map(k);
	const yaml_node_pair_t *first;
	yaml_node_t *node;

	if (map->type == YAML_MAPPING_NODE) {
		if (check_names(r, info, map) != 0)
			return -1;
		first = map->data.mapping.pairs.start;
		node = first < map->data.mapping.pairs.top
			       ? yaml_document_get_node(&r->doc, first->key)
			       : NULL;
		r->map[info - connector_info].key =
			node != NULL ? (const char *)node->data.scalar.value : "";
		r->map[info - connector_info].line = conf_line(node != NULL ? node : map);
	}
	return conf_walk_given(r, &conf_connector_keys, base, map, r->connector_lines);
}

/* The pool has no map but that of its own connector. */
static int
check_maps(struct conf_read *r, const struct conf_pool *p)
{
	for (size_t c = 0; c < CONNECTOR_N; c++) {
		if (r->map[c].line == 0 || c == p->connector)
			continue;
		(void)conf_enter(r, ".%s%s%s", connector_info[c].name,
			r->map[c].key[0] != '\0' ? "." : "", r->map[c].key);
		return conf_fail(r, r->map[c].line,
			"is a key of the connector %s, but the connector of this pool is %s",
			connector_info[c].name, connector_name(p->connector));
	}
	return 0;
}

/* --- what the connector allows ---------------------------------------------------------------- */

static int
line_of(const struct conf_read *r, const char *key)
{
	return r->connector_lines[conf_key_row(&conf_connector_keys, key) -
				  conf_connector_keys.key];
}

static int
check_handoff(struct conf_read *r, const struct conf_pool *p)
{
	const struct connector_info *info = &connector_info[p->connector];
	unsigned owner = 0;

	if (line_of(r, "handoff") == 0 || (info->handoffs >> p->shake.handoff & 1) != 0)
		return 0;
	while (owner < CONNECTOR_N - 1 &&
		(connector_info[owner].handoffs >> p->shake.handoff & 1) == 0)
		owner++;
	(void)conf_enter(r, ".%s.handoff", info->name);
	return conf_fail(r, line_of(r, "handoff"), "%s belongs to the connector %s, not to %s",
		handoff_name(p->shake.handoff), connector_info[owner].name, info->name);
}

int
conf_connector_check(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	static const char *const of_alone[] = {"routing_threshold", "allow_route_header"};
	const struct connector_info *info = &connector_info[p->connector];

	if (check_maps(r, p) != 0 || check_handoff(r, p) != 0)
		return -1;
	if (info->one_engine && p->engine != info->engine) {
		(void)conf_enter(r, ".engine");
		return conf_fail(r, conf_line_of(p, lines, "engine"),
			"the connector %s needs engines of %s", info->name,
			info->engine == ENGINE_SGLANG ? "SGLang" : "vLLM");
	}
	for (size_t i = 0; i < 2 && !info->decode_alone; i++) {
		if (conf_given(lines, of_alone[i]) == 0)
			continue;
		(void)conf_enter(r, ".%s", of_alone[i]);
		return conf_fail(r, conf_given(lines, of_alone[i]),
			"cannot be used with the connector %s: its decode engines cannot serve a request alone",
			info->name);
	}
	if (p->shake.disaggregate_agent_paths != 0 &&
		(!info->agent_paths || p->shake.handoff == HANDOFF_DISAGG_PREFILL_RESP)) {
		(void)conf_enter(r, ".disaggregate_agent_paths");
		return conf_fail(r, conf_line_of(p, lines, "disaggregate_agent_paths"),
			"cannot be used with the connector %s%s: two engines serve chat and completions alone",
			info->name,
			p->shake.handoff == HANDOFF_DISAGG_PREFILL_RESP ? " and this handoff" : "");
	}
	if (p->rescue.fallback == FALLBACK_DIRECT && !info->decode_alone) {
		(void)conf_enter(r, ".fallback");
		return conf_fail(r, conf_line_of(p, lines, "fallback"),
			"decode engines of the connector %s cannot serve without a prefill engine: write none",
			info->name);
	}
	if (info->needs == CONNECTOR_NEEDS_RECEIVER && p->nannounce_networks > 0) {
		(void)conf_enter(r, ".announce_networks");
		return conf_fail(r, conf_line_of(p, lines, "announce_networks"),
			"announcements do not contain the ports of LMCache: list the engines instead");
	}
	return 0;
}

/* --- endpoints, whatever source they come from ------------------------------------------------ */

static int
fail_term(struct conf_read *r, const struct conf_endpoint *ep, const char *key, const char *what)
{
	(void)conf_enter(r, ".%s", key);
	return conf_fail(r, ep->line, "%s", what);
}

static int
fail_foreign(struct conf_read *r, const struct conf_pool *p, const struct conf_endpoint *ep,
	const char *key, enum connector_needs needs)
{
	unsigned owner = 0;

	while (owner < CONNECTOR_N - 1 && connector_info[owner].needs != needs)
		owner++;
	(void)conf_enter(r, ".%s", key);
	return conf_fail(r, ep->line, "is not used by the connector %s: it belongs to %s",
		connector_name(p->connector), connector_info[owner].name);
}

/* The first key with an address of a decode engine's LMCache, or NULL. */
static const char *
receiver_term(const struct conf_endpoint *ep)
{
	if (ep->receiver_host != NULL)
		return "receiver_host";
	if (ep->receiver_init_port.n > 0)
		return "receiver_init_port";
	return ep->receiver_alloc_port.n > 0 ? "receiver_alloc_port" : NULL;
}

static int
check_receiver(struct conf_read *r, const struct conf_endpoint *ep)
{
	char what[CONF_WHAT];

	if (ep->receiver_init_port.n == 0 || ep->receiver_alloc_port.n == 0)
		return fail_term(r, ep,
			ep->receiver_init_port.n == 0 ? "receiver_init_port"
						      : "receiver_alloc_port",
			"the connector lmcache needs the ports where this engine's LMCache listens, one for each rank");
	if (ep->receiver_init_port.n == ep->receiver_alloc_port.n)
		return 0;
	(void)snprintf(what, sizeof(what),
		"%u ports, but receiver_init_port has %u: one each for a rank",
		(unsigned)ep->receiver_alloc_port.n, (unsigned)ep->receiver_init_port.n);
	return fail_term(r, ep, "receiver_alloc_port", what);
}

int
conf_connector_check_endpoint(
	struct conf_read *r, const struct conf_pool *p, const struct conf_endpoint *ep, bool named)
{
	const enum connector_needs needs = connector_info[p->connector].needs;
	const char *term = receiver_term(ep);

	if (term != NULL && needs != CONNECTOR_NEEDS_RECEIVER)
		return fail_foreign(r, p, ep, term, CONNECTOR_NEEDS_RECEIVER);
	if (term != NULL && ep->role != ROLE_DECODE)
		return fail_term(
			r, ep, term, "belongs to decode engines: the prefill engine sends there");
	if (ep->kv_addr != NULL && needs != CONNECTOR_NEEDS_KV_ADDR)
		return fail_foreign(r, p, ep, "kv_addr", CONNECTOR_NEEDS_KV_ADDR);
	if (needs == CONNECTOR_NEEDS_RECEIVER && ep->role == ROLE_DECODE)
		return check_receiver(r, ep);
	if (needs != CONNECTOR_NEEDS_KV_ADDR)
		return 0;
	if (ep->kv_addr == NULL && p->nannounce_networks == 0)
		return fail_term(r, ep, "kv_addr",
			"the connector p2p_nccl needs the address of this engine's KV transfers, such as :21001, or announce_networks");
	if (named && ep->kv_addr != NULL && ep->kv_addr[0] != ':')
		return fail_term(r, ep, "kv_addr",
			"names one address, but the DNS name may have several: write the port alone, such as :21001");
	return 0;
}
