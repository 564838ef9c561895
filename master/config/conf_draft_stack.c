#include "master/config/conf_draft_stack.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"

#define STACK_PORT "8001" /* of production-stack's router */
#define PROXY_PORT "7500"
#define PEER_INIT_PORT "7300"
#define PEER_ALLOC_PORT "7400"

/* --- --decoder-registry ----------------------------------------------------------------------- */

/* JSON is YAML, but for tabs. */
static int
read_registry(struct conf_draft *d)
{
	const char *given = draft_value(d, FLAG_DECODER_REGISTRY);
	struct conf_read r = {.flag = "--decoder-registry", .err = d->err};
	yaml_node_t *root;
	char *text;
	int rc;

	if (given == NULL)
		return 0;
	text = mem_strdup(given);
	for (char *p = text; *p != '\0'; p++)
		*p = *p == '\t' ? ' ' : *p;
	rc = conf_yaml_load(&r, text, strlen(text));
	free(text);
	d->err->line = 0;
	if (rc != 0)
		return -1;
	d->registry = r.doc;
	d->has_registry = true;
	root = yaml_document_get_root_node(&d->registry);
	if (root == NULL || root->type != YAML_MAPPING_NODE)
		return draft_fail(d, FLAG_DECODER_REGISTRY,
			"is not a JSON object such as {\"http://10.0.1.1:8200\":{\"receiver_host\":...}}");
	return 0;
}

static const char *
text_of(const yaml_node_t *node)
{
	return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : "";
}

/* The value of a mapping's key, or NULL. */
static yaml_node_t *
member(struct conf_draft *d, const yaml_node_t *map, const char *name)
{
	for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
		p++)
		if (strcmp(text_of(yaml_document_get_node(&d->registry, p->key)), name) == 0)
			return yaml_document_get_node(&d->registry, p->value);
	return NULL;
}

/* The same but for a slash at the end, which means nothing. */
static bool
same_url(const char *a, const char *b)
{
	size_t na = strlen(a), nb = strlen(b);

	na -= na > 0 && a[na - 1] == '/';
	nb -= nb > 0 && b[nb - 1] == '/';
	return na == nb && strncmp(a, b, na) == 0;
}

static yaml_node_t *
registered(struct conf_draft *d, const char *url)
{
	yaml_node_t *root = d->has_registry ? yaml_document_get_root_node(&d->registry) : NULL;

	if (root == NULL)
		return NULL;
	for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top;
		p++)
		if (same_url(text_of(yaml_document_get_node(&d->registry, p->key)), url))
			return yaml_document_get_node(&d->registry, p->value);
	return NULL;
}

/* A port or a list of them, as the flags have it: "7300,7301"; the caller frees it. */
static char *
ports_of(struct conf_draft *d, yaml_node_t *node)
{
	char *ports = mem_strdup(text_of(node)), *longer;

	if (node->type != YAML_SEQUENCE_NODE)
		return ports;
	for (yaml_node_item_t *i = node->data.sequence.items.start;
		i < node->data.sequence.items.top; i++) {
		longer = mem_printf("%s%s%s", ports, ports[0] != '\0' ? "," : "",
			text_of(yaml_document_get_node(&d->registry, *i)));
		free(ports);
		ports = longer;
	}
	return ports;
}

static int
put_registered_ports(struct conf_draft *d, const char *url, yaml_node_t *entry, const char *key)
{
	yaml_node_t *node = member(d, entry, key);
	char *ports;
	int rc;

	if (node == NULL)
		return draft_fail(d, FLAG_DECODER_REGISTRY, "%.100s has no %s", url, key);
	ports = ports_of(d, node);
	rc = draft_put_ports(d, FLAG_DECODER_REGISTRY, key, ports);
	free(ports);
	return rc;
}

static int
put_registered(struct conf_draft *d, const char *url, yaml_node_t *entry)
{
	static const char *const known[] = {"receiver_host", "receiver_init_port",
		"receiver_alloc_port", "receiver_query_port"};
	yaml_node_t *host;

	if (entry->type != YAML_MAPPING_NODE)
		return draft_fail(d, FLAG_DECODER_REGISTRY, "%.100s is not an object", url);
	for (yaml_node_pair_t *p = entry->data.mapping.pairs.start;
		p < entry->data.mapping.pairs.top; p++) {
		const char *name = text_of(yaml_document_get_node(&d->registry, p->key));
		size_t i = 0;

		while (i < 4 && strcmp(name, known[i]) != 0)
			i++;
		if (i == 4)
			return draft_fail(d, FLAG_DECODER_REGISTRY,
				"%.100s: %.40s is not a known member", url, name);
		if (i == 3)
			draft_note(d, FLAG_DECODER_REGISTRY,
				"receiver_query_port is not used: KV moves from prefill to decode only");
	}
	host = member(d, entry, "receiver_host");
	if (host != NULL)
		draft_put_text(
			d, FLAG_DECODER_REGISTRY, "      receiver_host: ", text_of(host), "");
	if (put_registered_ports(d, url, entry, "receiver_init_port") != 0)
		return -1;
	return put_registered_ports(d, url, entry, "receiver_alloc_port");
}

/* --- production-stack ------------------------------------------------------------------------- */

enum list { BACKENDS, MODELS, LABELS, PREFILL, DECODE, NLISTS };
static const enum conf_flag list_flags[NLISTS] = {
	[BACKENDS] = FLAG_STATIC_BACKENDS,
	[MODELS] = FLAG_STATIC_MODELS,
	[LABELS] = FLAG_STATIC_MODEL_LABELS,
	[PREFILL] = FLAG_PREFILL_MODEL_LABELS,
	[DECODE] = FLAG_DECODE_MODEL_LABELS,
};

struct stack {
	struct words w[NLISTS];
	enum connector_kind connector;
	const char *policy;
	bool whole; /* every engine serves whole requests */
	/* decode engines that the registry does not name */
	size_t nunregistered;
};

#define ORCHESTRATED "disaggregated_prefill_orchestrated"
#define SHARED "disaggregated_prefill"

static int
choose_logic(struct conf_draft *d, struct stack *s)
{
	/* pdrouter's policy; for the disaggregated logics --load-balancing-strategy sets it */
	static const struct flag_word logics[] = {{SHARED, "", NULL}, {ORCHESTRATED, "", NULL},
		{"roundrobin", "round_robin", NULL}, {"session", "session", NULL},
		{"prefixaware", "cache_aware", NULL}, {"kvaware", "cache_aware", NULL},
		{"load_balanced_kvaware", "cache_aware", NULL},
		{"ttft", NULL, "policy: least_loaded in a configuration file"},
		{"priority", NULL, "pools of their own in a configuration file"}};
	static const struct flag_word strategies[] = {
		{"round_robin", "round_robin", NULL}, {"least_loaded", "least_loaded", NULL}};
	const struct flag_word *w, *strategy = &strategies[0];

	if (draft_value(d, FLAG_ROUTING_LOGIC) == NULL)
		return draft_fail(d, FLAG_ROUTING_LOGIC,
			"is missing: " SHARED ", " ORCHESTRATED
			", roundrobin, session, prefixaware or kvaware");
	if (FIND(d, FLAG_ROUTING_LOGIC, logics, &w) != 0 ||
		(draft_value(d, FLAG_LOAD_BALANCING_STRATEGY) != NULL &&
			FIND(d, FLAG_LOAD_BALANCING_STRATEGY, strategies, &strategy) != 0))
		return -1;
	s->whole = w->ours[0] != '\0';
	s->policy = s->whole ? w->ours : strategy->ours;
	if (strcmp(s->policy, "session") == 0 && draft_value(d, FLAG_SESSION_KEY) == NULL)
		return draft_fail(
			d, FLAG_SESSION_KEY, "is missing: --routing-logic session needs it");
	return 0;
}

static int
choose_connector(struct conf_draft *d, struct stack *s)
{
	static const struct flag_word types[] = {
		{"nixl", "nixl", NULL}, {"lmcache", "lmcache", NULL}};
	const bool orchestrated = strcmp(draft_value(d, FLAG_ROUTING_LOGIC), ORCHESTRATED) == 0;
	const bool proxy = draft_value(d, FLAG_NIXL_PROXY_HOST) != NULL;
	const struct flag_word *type = NULL;

	if (draft_value(d, FLAG_DISAGG_CONNECTOR_TYPE) != NULL &&
		FIND(d, FLAG_DISAGG_CONNECTOR_TYPE, types, &type) != 0)
		return -1;
	s->connector = CONNECTOR_SHARED_STORAGE;
	if (s->whole)
		return 0;
	if (orchestrated && type == &types[1])
		return draft_fail(
			d, FLAG_DISAGG_CONNECTOR_TYPE, "lmcache needs --routing-logic " SHARED);
	if (!orchestrated && type == &types[0] && proxy)
		return draft_fail(d, FLAG_DISAGG_CONNECTOR_TYPE,
			"nixl cannot be used with --nixl-proxy-host, which chooses lmcache");
	if (orchestrated)
		s->connector = CONNECTOR_ORCHESTRATED;
	else if (type == &types[1] || proxy)
		s->connector = CONNECTOR_LMCACHE;
	else if (type == &types[0])
		s->connector = CONNECTOR_NIXL;
	return 0;
}

/* What is given but belongs to another choice. */
static void
note_unused(struct conf_draft *d, const struct stack *s)
{
	static const enum conf_flag lmcache[] = {FLAG_DECODER_REGISTRY, FLAG_DECODER_HOST,
		FLAG_DECODER_INIT_PORT, FLAG_DECODER_ALLOC_PORT, FLAG_NIXL_PEER_HOST,
		FLAG_NIXL_PEER_INIT_PORT, FLAG_NIXL_PEER_ALLOC_PORT, FLAG_NIXL_PROXY_HOST,
		FLAG_NIXL_PROXY_PORT};
	static const enum conf_flag disaggregated[] = {FLAG_LOAD_BALANCING_STRATEGY,
		FLAG_DISAGG_CONNECTOR_TYPE, FLAG_ROUTING_THRESHOLD, FLAG_STATIC_MODEL_LABELS,
		FLAG_PREFILL_MODEL_LABELS, FLAG_DECODE_MODEL_LABELS};
	static const enum conf_flag gateway[] = {
		FLAG_POLICY, FLAG_PREFILL_POLICY, FLAG_DECODE_POLICY};

	for (size_t i = 0; i < sizeof(lmcache) / sizeof(lmcache[0]); i++)
		if (s->connector != CONNECTOR_LMCACHE)
			draft_note_if_given(d, lmcache[i],
				"it belongs to the connector lmcache, which --nixl-proxy-host or "
				"--disagg-connector-type lmcache chooses");
	if (s->connector == CONNECTOR_LMCACHE && draft_value(d, FLAG_NIXL_PROXY_HOST) == NULL)
		draft_note_if_given(d, FLAG_NIXL_PROXY_PORT, "it belongs to --nixl-proxy-host");
	for (size_t i = 0; i < sizeof(disaggregated) / sizeof(disaggregated[0]); i++)
		if (s->whole)
			draft_note_if_given(
				d, disaggregated[i], "every engine serves whole requests");
	if (strcmp(s->policy, "session") != 0)
		draft_note_if_given(d, FLAG_SESSION_KEY, "it belongs to --routing-logic session");
	for (size_t i = 0; i < sizeof(gateway) / sizeof(gateway[0]); i++)
		draft_note_if_given(d, gateway[i], "it belongs to --pd-disaggregation");
	draft_note_if_given(d, FLAG_MAX_CONCURRENT_REQUESTS,
		"it belongs to --pd-disaggregation or --worker-urls");
}

static int
check_label_lists(struct conf_draft *d, const struct words w[NLISTS])
{
	for (enum list l = PREFILL; l <= DECODE; l++)
		for (size_t i = 0; i < w[l].n; i++)
			if (conf_strs_has(w[l].v, i, w[l].v[i]))
				return draft_fail(
					d, list_flags[l], "%.80s is in the list twice", w[l].v[i]);
	for (size_t i = 0; i < w[DECODE].n; i++)
		if (conf_strs_has(w[PREFILL].v, w[PREFILL].n, w[DECODE].v[i]))
			return draft_fail(d, FLAG_DECODE_MODEL_LABELS,
				"%.100s is also one of --prefill-model-labels", w[DECODE].v[i]);
	for (size_t i = 0; i < w[LABELS].n; i++)
		if (!conf_strs_has(w[PREFILL].v, w[PREFILL].n, w[LABELS].v[i]) &&
			!conf_strs_has(w[DECODE].v, w[DECODE].n, w[LABELS].v[i]))
			return draft_fail(d, FLAG_STATIC_MODEL_LABELS,
				"label '%.60s' of %.80s is no prefill and no decode label",
				w[LABELS].v[i], w[BACKENDS].v[i]);
	return 0;
}

static int
read_lists(struct conf_draft *d, struct stack *s)
{
	const enum list last = s->whole ? MODELS : DECODE;

	for (enum list l = BACKENDS; l <= last; l++) {
		if (draft_value(d, list_flags[l]) == NULL)
			return draft_fail(d, list_flags[l], "is missing");
		s->w[l] = draft_split(draft_value(d, list_flags[l]));
	}
	for (enum list l = MODELS; l <= LABELS && l <= last; l++)
		if (s->w[l].n != s->w[BACKENDS].n)
			return draft_fail(d, list_flags[l], "has %zu entries for %zu backends",
				s->w[l].n, s->w[BACKENDS].n);
	return s->whole ? 0 : check_label_lists(d, s->w);
}

static bool
has_role(const struct stack *s, size_t i, enum role role)
{
	const struct words *labels = &s->w[role == ROLE_PREFILL ? PREFILL : DECODE];

	return s->whole || conf_strs_has(labels->v, labels->n, s->w[LABELS].v[i]);
}

/* Decode engines that the registry lacks, and entries that no decode engine has. */
static void
compare_registry(struct conf_draft *d, struct stack *s)
{
	char why[CONF_WHAT];
	yaml_node_t *root;

	for (size_t i = 0; i < s->w[BACKENDS].n; i++)
		if (has_role(s, i, ROLE_DECODE) && registered(d, s->w[BACKENDS].v[i]) == NULL) {
			s->nunregistered++;
			(void)snprintf(why, sizeof(why),
				"does not name %.120s: the ports of the other flags apply, or %s and %s",
				s->w[BACKENDS].v[i], PEER_INIT_PORT, PEER_ALLOC_PORT);
			draft_note_if_given(d, FLAG_DECODER_REGISTRY, why);
		}
	root = d->has_registry ? yaml_document_get_root_node(&d->registry) : NULL;
	for (size_t k = 0; root != NULL; k++) {
		yaml_node_pair_t *p = root->data.mapping.pairs.start + k;
		const char *url;
		size_t i = 0;

		if (p >= root->data.mapping.pairs.top)
			break;
		url = text_of(yaml_document_get_node(&d->registry, p->key));
		while (i < s->w[BACKENDS].n &&
			(!same_url(s->w[BACKENDS].v[i], url) || !has_role(s, i, ROLE_DECODE)))
			i++;
		if (i < s->w[BACKENDS].n)
			continue;
		(void)snprintf(why, sizeof(why), "names %.150s, which is no decode engine", url);
		draft_note(d, FLAG_DECODER_REGISTRY, why);
	}
}

static bool
is_wildcard(const char *host)
{
	return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 ||
	       strcmp(host, "[::]") == 0 || strcmp(host, "*") == 0;
}

/* The first flag of two that is given, and its value; else the second, and the default. */
static const char *
either(const struct conf_draft *d, enum conf_flag a, enum conf_flag b, const char *def,
	enum conf_flag *ret_from)
{
	*ret_from = draft_value(d, a) != NULL ? a : b;
	return draft_value(d, *ret_from) != NULL ? draft_value(d, *ret_from) : def;
}

/*
 * The same for every decode engine that is not in the registry.  A --nixl-peer-host is one host: of
 * several engines each is at its own, as in production-stack's PR 913.
 */
static int
put_unregistered(struct conf_draft *d, const struct stack *s)
{
	const char *peer = draft_value(d, FLAG_NIXL_PEER_HOST), *ports;
	enum conf_flag from;

	if (draft_value(d, FLAG_DECODER_HOST) != NULL)
		draft_put_text(d, FLAG_DECODER_HOST,
			"      receiver_host: ", draft_value(d, FLAG_DECODER_HOST), "");
	else if (peer != NULL && s->nunregistered == 1 && !is_wildcard(peer))
		draft_put_text(d, FLAG_NIXL_PEER_HOST, "      receiver_host: ", peer, "");
	ports = either(d, FLAG_DECODER_INIT_PORT, FLAG_NIXL_PEER_INIT_PORT, PEER_INIT_PORT, &from);
	if (draft_put_ports(d, from, "receiver_init_port", ports) != 0)
		return -1;
	ports = either(
		d, FLAG_DECODER_ALLOC_PORT, FLAG_NIXL_PEER_ALLOC_PORT, PEER_ALLOC_PORT, &from);
	return draft_put_ports(d, from, "receiver_alloc_port", ports);
}

static int
put_receiver(struct conf_draft *d, const struct stack *s, const char *url)
{
	yaml_node_t *entry = registered(d, url);

	if ((entry != NULL ? put_registered(d, url, entry) : put_unregistered(d, s)) != 0)
		return -1;
	return 0;
}

static int
put_backends(struct conf_draft *d, const struct stack *s, const char *model, enum role role)
{
	bool any = false;

	for (size_t i = 0; i < s->w[BACKENDS].n; i++) {
		const char *url = s->w[BACKENDS].v[i];

		if (strcmp(s->w[MODELS].v[i], model) != 0 || !has_role(s, i, role))
			continue;
		if (!any)
			draft_put(d, FLAG_STATIC_BACKENDS, "  %s:", role_name(role));
		any = true;
		draft_put_text(d, FLAG_STATIC_BACKENDS, "    - url: ", url, "");
		if (s->connector == CONNECTOR_LMCACHE && role == ROLE_DECODE &&
			put_receiver(d, s, url) != 0)
			return -1;
	}
	return 0;
}

/* Whether a model's name can be that of its pool. */
static bool
is_name(const char *model)
{
	char what[CONF_WHAT];
	struct conf_pool p = {.name = NULL};
	bool good = conf_value_set(conf_key_row(&conf_pool_keys, "name"), &p, model, what) == 0;

	free(p.name);
	return good;
}

static int
put_pool(struct conf_draft *d, const struct stack *s, const char *model, size_t number)
{
	draft_put(d, FLAG_STATIC_BACKENDS, "- connector: %s", connector_name(s->connector));
	draft_put_text(d, FLAG_STATIC_MODELS, "  models: [", model, "]");
	if (model[0] != '\0' && !is_name(model))
		draft_put(d, FLAG_STATIC_MODELS, "  name: pool%zu", number);
	if (s->connector == CONNECTOR_LMCACHE && draft_value(d, FLAG_NIXL_PROXY_HOST) == NULL)
		draft_put(d, FLAG_DISAGG_CONNECTOR_TYPE, "  lmcache: {ready_messages: 0}");
	draft_put(d, FLAG_ROUTING_LOGIC, "  policy: %s", s->policy);
	if (strcmp(s->policy, "session") == 0)
		draft_put_text(d, FLAG_SESSION_KEY,
			"  session_header: ", draft_value(d, FLAG_SESSION_KEY), "");
	if (draft_put_routes(d, FLAG_ROUTING_LOGIC, s->whole) != 0 ||
		put_backends(d, s, model, ROLE_PREFILL) != 0)
		return -1;
	return put_backends(d, s, model, ROLE_DECODE);
}

/* The address that ZMQ binds: it accepts addresses and no names, but users write localhost. */
static void
put_listener(struct conf_draft *d, const struct stack *s)
{
	const char *host = draft_value(d, FLAG_NIXL_PROXY_HOST),
		   *port = draft_value(d, FLAG_NIXL_PROXY_PORT);
	char *at, *url;

	if (host == NULL || s->connector != CONNECTOR_LMCACHE)
		return;
	at = conf_host_port(strcmp(host, "localhost") == 0 ? "127.0.0.1" : host,
		port != NULL ? port : PROXY_PORT);
	url = mem_printf("tcp://%s", at);
	draft_put_text(d, FLAG_NIXL_PROXY_HOST, "lmcache: {listen: ", url, "}");
	free(url);
	free(at);
}

/* One pool for each model, in the order in which they are first named. */
static int
put_pools(struct conf_draft *d, const struct stack *s)
{
	size_t number = 0;

	draft_put(d, FLAG_STATIC_BACKENDS, "pools:");
	for (size_t i = 0; i < s->w[MODELS].n; i++)
		if (!conf_strs_has(s->w[MODELS].v, i, s->w[MODELS].v[i]) &&
			put_pool(d, s, s->w[MODELS].v[i], ++number) != 0)
			return -1;
	return 0;
}

static size_t
distinct(const struct words *w)
{
	size_t n = 0;

	for (size_t i = 0; i < w->n; i++)
		n += !conf_strs_has(w->v, i, w->v[i]);
	return n;
}

static int
write_stack(struct conf_draft *d, struct stack *s)
{
	const char *discovery = draft_value(d, FLAG_SERVICE_DISCOVERY);

	if (discovery != NULL && strcmp(discovery, "static") != 0)
		return draft_fail(d, FLAG_SERVICE_DISCOVERY,
			"%.60s is not known here: use static, or in a configuration file dns (with the name of a "
			"headless service), endpoints_file or announce_networks",
			discovery[0] != '\0' ? discovery : "Kubernetes");
	if (choose_logic(d, s) != 0 || choose_connector(d, s) != 0 || read_lists(d, s) != 0 ||
		read_registry(d) != 0)
		return -1;
	note_unused(d, s);
	if (s->connector == CONNECTOR_LMCACHE)
		compare_registry(d, s);
	if (s->nunregistered > 1 && draft_value(d, FLAG_DECODER_HOST) == NULL)
		draft_note_if_given(d, FLAG_NIXL_PEER_HOST,
			"there are several decode engines: each LMCache is expected at the host of its engine");
	if (draft_put_root(d, FLAG_STATIC_BACKENDS, STACK_PORT, distinct(&s->w[MODELS]),
		    (s->whole ? 2 : 1) * s->w[BACKENDS].n) != 0)
		return -1;
	put_listener(d, s);
	return put_pools(d, s);
}

int
conf_draft_stack(struct conf_draft *d)
{
	struct stack s = {.nunregistered = 0};
	int rc = write_stack(d, &s);

	for (enum list l = 0; l < NLISTS; l++)
		draft_words_free(&s.w[l]);
	return rc;
}
