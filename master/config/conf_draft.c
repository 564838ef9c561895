#include "master/config/conf_draft.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"

#define DEFAULT_HOST "0.0.0.0"
#define STACK_PORT "8001"    /* of production-stack's router */
#define GATEWAY_PORT "30000" /* of sglang-router */
#define PROXY_PORT "7500"
#define PEER_INIT_PORT "7300"
#define PEER_ALLOC_PORT "7400"
#define RETRIES_MAX 10     /* of the key retries */
#define STACK_TRIES "5"    /* of --enable-retries, if --max-retries is not given */
#define NEVER "1000000000" /* the highest routing_threshold: more tokens than a body can hold */

/* What a line came from that no flag of the table has written. */
enum { FROM_PORT = FLAG_N, FROM_HOST };

static const char *
value(const struct conf_draft *d, enum conf_flag f)
{
	return d->args->flag[f];
}

static int __attribute__((format(printf, 3, 4)))
fail(struct conf_draft *d, enum conf_flag f, const char *fmt, ...)
{
	char what[CONF_WHAT];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return conf_flag_fail(d->err, f, what);
}

static void
note(struct conf_draft *d, enum conf_flag f, const char *why)
{
	char name[CONF_FLAG_NAME];

	if (d->note != NULL)
		d->note(d->note_arg, conf_flag_name(f, name), why);
}

static void
note_if_given(struct conf_draft *d, enum conf_flag f, const char *why)
{
	if (value(d, f) != NULL)
		note(d, f, why);
}

/* --- lines
 * ------------------------------------------------------------------------------------- */

static void
remember(struct conf_draft *d, int from)
{
	if ((d->nlines & (d->nlines - 1)) == 0)
		d->from = mem_resize(d->from, d->nlines > 0 ? 2 * d->nlines : 1, sizeof(*d->from));
	d->from[d->nlines++] = from;
}

static void __attribute__((format(printf, 3, 4)))
put(struct conf_draft *d, int from, const char *fmt, ...)
{
	va_list ap;

	remember(d, from);
	va_start(ap, fmt);
	(void)vfprintf(d->out, fmt, ap);
	va_end(ap);
	(void)fputc('\n', d->out);
}

/* A line with one text in it, quoted. */
static void
put_text(struct conf_draft *d, int from, const char *before, const char *text, const char *after)
{
	remember(d, from);
	(void)fputs(before, d->out);
	conf_write_text(d->out, text);
	(void)fprintf(d->out, "%s\n", after);
}

static bool
is_number(const char *s)
{
	return s[0] != '\0' && s[strspn(s, "0123456789")] == '\0';
}

typedef int put_fn(struct conf_draft *d, enum conf_flag f, const char *key);

static int
put_number(struct conf_draft *d, enum conf_flag f, const char *key)
{
	if (!is_number(value(d, f)))
		return fail(d, f, "%.60s is not a number", value(d, f));
	put(d, (int)f, "%s: %s", key, value(d, f));
	return 0;
}

/* "30" or "0.25", as Python's int and float take them. */
static int
put_seconds(struct conf_draft *d, enum conf_flag f, const char *key)
{
	const char *s = value(d, f);
	size_t whole = strspn(s, "0123456789"), part = 0;

	if (s[whole] == '.')
		part = strspn(s + whole + 1, "0123456789");
	if (whole == 0 || whole > 9 || part > 3 || s[whole + (part > 0) + part] != '\0')
		return fail(d, f, "%.60s is not a number of seconds such as 30 or 0.25", s);
	if (part == 0)
		put(d, (int)f, "%s: %lus", key, strtoul(s, NULL, 10));
	else
		put(d, (int)f, "%s: %.0fms", key, strtod(s, NULL) * 1000);
	return 0;
}

static int
put_bytes(struct conf_draft *d, enum conf_flag f, const char *key)
{
	if (!is_number(value(d, f)))
		return fail(d, f, "%.60s is not a number of bytes", value(d, f));
	put(d, (int)f, "%s: {max_body: %sB}", key, value(d, f));
	return 0;
}

/* Their words and ours; `instead`: not possible, and what is. */
struct word {
	const char *theirs, *ours, *instead;
};

static int
find_word(struct conf_draft *d, enum conf_flag f, const struct word *words, size_t n,
	const struct word **ret)
{
	char known[CONF_WHAT] = "";
	size_t at = 0;

	for (size_t i = 0; i < n; i++) {
		if (strcmp(words[i].theirs, value(d, f)) == 0) {
			*ret = &words[i];
			return words[i].ours != NULL ? 0
						     : fail(d, f, "%s is not known here: use %s",
							       words[i].theirs, words[i].instead);
		}
		if (words[i].ours != NULL && at < sizeof(known))
			at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s",
				at > 0 ? ", " : "", words[i].theirs);
	}
	return fail(d, f, "%.60s is not known here: %s", value(d, f), known);
}
#define FIND(d, f, words, ret) find_word(d, f, words, sizeof(words) / sizeof((words)[0]), ret)

static int
put_log_level(struct conf_draft *d, enum conf_flag f, const char *key)
{
	static const struct word levels[] = {{"critical", "error", NULL}, {"error", "error", NULL},
		{"warning", "warn", NULL}, {"warn", "warn", NULL}, {"info", "info", NULL},
		{"debug", "debug", NULL}, {"trace", "debug", NULL}};
	const struct word *w;

	if (FIND(d, f, levels, &w) != 0)
		return -1;
	put(d, (int)f, "%s: %s", key, w->ours);
	return 0;
}

static int
put_log_format(struct conf_draft *d, enum conf_flag f, const char *key)
{
	static const struct word formats[] = {{"text", "kv", NULL}, {"json", "json", NULL}};
	const struct word *w;

	if (FIND(d, f, formats, &w) != 0)
		return -1;
	put(d, (int)f, "%s: %s", key, w->ours);
	return 0;
}

static const struct {
	enum conf_flag flag;
	const char *key;
	put_fn *put;
} root_keys[] = {
	{FLAG_LOG_LEVEL, "log_level", put_log_level},
	{FLAG_LOG_FORMAT, "log_format", put_log_format},
	{FLAG_ENGINE_STATS_INTERVAL, "stats_interval", put_seconds},
	{FLAG_STATIC_BACKEND_HEALTH_CHECK_INTERVAL, "health_interval", put_seconds},
	{FLAG_HEALTH_CHECK_INTERVAL_SECS, "health_interval", put_seconds},
	{FLAG_STATIC_BACKEND_HEALTH_CHECK_TIMEOUT, "health_timeout", put_seconds},
	{FLAG_BACKEND_HEALTH_CHECK_TIMEOUT, "health_timeout", put_seconds},
	{FLAG_HEALTH_CHECK_TIMEOUT_SECS, "health_timeout", put_seconds},
	{FLAG_HEALTH_FAILURE_THRESHOLD, "fall", put_number},
	{FLAG_HEALTH_SUCCESS_THRESHOLD, "rise", put_number},
	{FLAG_SHUTDOWN_GRACE_PERIOD_SECS, "drain_timeout", put_seconds},
	{FLAG_MAX_PAYLOAD_SIZE, "limits", put_bytes},
};

/* As much of shared memory as the pools need, where that is more than the default. */
static void
put_memory(struct conf_draft *d, int from, const char *key, size_t need)
{
	char path[64];
	const char *def;

	(void)snprintf(path, sizeof(path), "shared_memory.%s", key);
	def = conf_key_default(conf_key_row(&conf_root_keys, path));
	put(d, from, "  %s: %zu", key,
		need > strtoul(def, NULL, 10) ? need : (size_t)strtoul(def, NULL, 10));
}

static int
put_root(struct conf_draft *d, int from, const char *port, size_t npools, size_t nendpoints)
{
	const struct conf_args *a = d->args;
	char *listen = conf_host_port(
		a->host != NULL ? a->host : DEFAULT_HOST, a->port != NULL ? a->port : port);

	put_text(d, a->port != NULL ? FROM_PORT : FROM_HOST, "listen: [", listen, "]");
	free(listen);
	for (size_t i = 0; i < sizeof(root_keys) / sizeof(root_keys[0]); i++)
		if (value(d, root_keys[i].flag) != NULL &&
			root_keys[i].put(d, root_keys[i].flag, root_keys[i].key) != 0)
			return -1;
	put(d, from, "shared_memory:");
	put_memory(d, from, "max_pools", npools);
	put_memory(d, from, "max_endpoints", nendpoints);
	if (value(d, FLAG_QUEUE_SIZE) != NULL) /* which put_rescue() checks */
		put_memory(
			d, FLAG_QUEUE_SIZE, "queue", strtoul(value(d, FLAG_QUEUE_SIZE), NULL, 10));
	return 0;
}

/* --- keys of every pool
 * ------------------------------------------------------------------------------------- */

/* `tries` includes the first one. */
static int
put_tries(struct conf_draft *d, enum conf_flag f, const char *number, bool tries)
{
	unsigned long n = strtoul(number, NULL, 10);

	if (!is_number(number))
		return fail(d, f, "%.60s is not a number", number);
	n -= tries && n > 0;
	if (n > RETRIES_MAX)
		note(d, f, "retries is 10, the most there are");
	put(d, (int)f, "  retries: %lu", n > RETRIES_MAX ? RETRIES_MAX : n);
	return 0;
}

static int
put_retries(struct conf_draft *d)
{
	const char *tries = value(d, FLAG_MAX_RETRIES);

	if (value(d, FLAG_ENABLE_RETRIES) == NULL)
		note_if_given(d, FLAG_MAX_RETRIES, "it belongs to --enable-retries");
	if (value(d, FLAG_DISABLE_RETRIES) != NULL)
		return put_tries(d, FLAG_DISABLE_RETRIES, "0", false);
	if (value(d, FLAG_RETRY_MAX_RETRIES) != NULL)
		return put_tries(d, FLAG_RETRY_MAX_RETRIES, value(d, FLAG_RETRY_MAX_RETRIES), true);
	if (value(d, FLAG_ENABLE_RETRIES) != NULL)
		return put_tries(d, tries != NULL ? FLAG_MAX_RETRIES : FLAG_ENABLE_RETRIES,
			tries != NULL ? tries : STACK_TRIES, true);
	if (value(d, FLAG_FAILOVER_ATTEMPTS) != NULL)
		return put_tries(
			d, FLAG_FAILOVER_ATTEMPTS, value(d, FLAG_FAILOVER_ATTEMPTS), false);
	return 0;
}

static int
put_failures(struct conf_draft *d, enum conf_flag f, const char *key)
{
	return value(d, FLAG_DISABLE_CIRCUIT_BREAKER) != NULL ? 0 : put_number(d, f, key);
}

static int
put_no_ejection(struct conf_draft *d, enum conf_flag f, const char *key)
{
	put(d, (int)f, "%s: 0", key);
	put(d, (int)f, "  eject_rate: 0");
	return 0;
}

static int
put_request_timeout(struct conf_draft *d, enum conf_flag f, const char *key)
{
	put(d, (int)f, "  timeouts:");
	return put_seconds(d, f, key);
}

/* What happens when engines fail or are full. */
static int
put_rescue(struct conf_draft *d)
{
	static const struct {
		enum conf_flag flag;
		const char *key;
		put_fn *put;
	} keys[] = {
		{FLAG_CB_FAILURE_THRESHOLD, "  eject_failures", put_failures},
		{FLAG_DISABLE_CIRCUIT_BREAKER, "  eject_failures", put_no_ejection},
		{FLAG_CB_TIMEOUT_DURATION_SECS, "  eject_time", put_seconds},
		{FLAG_QUEUE_SIZE, "  queue_size", put_number},
		{FLAG_QUEUE_TIMEOUT_SECS, "  queue_timeout", put_seconds},
		{FLAG_REQUEST_TIMEOUT_SECS, "    request", put_request_timeout},
	};

	if (put_retries(d) != 0)
		return -1;
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (value(d, keys[i].flag) != NULL &&
			keys[i].put(d, keys[i].flag, keys[i].key) != 0)
			return -1;
	return 0;
}

/* --- lists
 * ------------------------------------------------------------------------------------- */

struct words {
	char **v;
	size_t n;
};

static void
words_free(struct words *w)
{
	for (size_t i = 0; i < w->n; i++)
		free(w->v[i]);
	free(w->v);
}

/* "a, b,c" without the blanks; an empty one stays, as "". */
static struct words
split(const char *list)
{
	struct words w = {NULL, 0};
	size_t n;

	for (;;) {
		list += strspn(list, " \t");
		n = strcspn(list, ",");
		w.v = mem_resize(w.v, w.n + 1, sizeof(*w.v));
		w.v[w.n] = mem_strndup(list, n);
		for (size_t k = n; k > 0 && (list[k - 1] == ' ' || list[k - 1] == '\t'); k--)
			w.v[w.n][k - 1] = '\0';
		w.n++;
		if (list[n] == '\0')
			return w;
		list += n + 1;
	}
}

/* "      key: [7300, 7301]" of "7300,7301". */
static int
put_ports(struct conf_draft *d, enum conf_flag f, const char *key, const char *ports)
{
	struct words w = split(ports);
	int rc = 0;

	for (size_t i = 0; i < w.n && rc == 0; i++)
		if (!is_number(w.v[i]))
			rc = fail(d, f, "%.60s is not a port or a list such as 7300,7301", ports);
	if (rc == 0) {
		remember(d, (int)f);
		(void)fprintf(d->out, "      %s: [", key);
		for (size_t i = 0; i < w.n; i++)
			(void)fprintf(d->out, "%s%s", i > 0 ? ", " : "", w.v[i]);
		(void)fputs("]\n", d->out);
	}
	words_free(&w);
	return rc;
}

/* --- --decoder-registry
 * ------------------------------------------------------------------------------------- */

/* JSON is YAML, but for tabs. */
static int
read_registry(struct conf_draft *d)
{
	const char *given = value(d, FLAG_DECODER_REGISTRY);
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
		return fail(d, FLAG_DECODER_REGISTRY,
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
		return fail(d, FLAG_DECODER_REGISTRY, "%.100s has no %s", url, key);
	ports = ports_of(d, node);
	rc = put_ports(d, FLAG_DECODER_REGISTRY, key, ports);
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
		return fail(d, FLAG_DECODER_REGISTRY, "%.100s is not an object", url);
	for (yaml_node_pair_t *p = entry->data.mapping.pairs.start;
		p < entry->data.mapping.pairs.top; p++) {
		const char *name = text_of(yaml_document_get_node(&d->registry, p->key));
		size_t i = 0;

		while (i < 4 && strcmp(name, known[i]) != 0)
			i++;
		if (i == 4)
			return fail(d, FLAG_DECODER_REGISTRY, "%.100s: %.40s is no member of it",
				url, name);
		if (i == 3)
			note(d, FLAG_DECODER_REGISTRY,
				"receiver_query_port is not used: the cache goes one way");
	}
	host = member(d, entry, "receiver_host");
	if (host != NULL)
		put_text(d, FLAG_DECODER_REGISTRY, "      receiver_host: ", text_of(host), "");
	if (put_registered_ports(d, url, entry, "receiver_init_port") != 0)
		return -1;
	return put_registered_ports(d, url, entry, "receiver_alloc_port");
}

/* --- production-stack
 * ------------------------------------------------------------------------------------- */

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
	/* ours: the policy; of the disaggregated ones --load-balancing-strategy says it */
	static const struct word logics[] = {{SHARED, "", NULL}, {ORCHESTRATED, "", NULL},
		{"roundrobin", "round_robin", NULL}, {"session", "session", NULL},
		{"prefixaware", "prefix", NULL},
		{"kvaware", NULL,
			"prefixaware, which finds the cache of a prompt's start by its hash"},
		{"load_balanced_kvaware", NULL,
			"prefixaware, which finds the cache of a prompt's start by its hash"},
		{"ttft", NULL, "policy: least_loaded in a configuration file"},
		{"priority", NULL, "pools of their own in a configuration file"}};
	static const struct word strategies[] = {
		{"round_robin", "round_robin", NULL}, {"least_loaded", "least_loaded", NULL}};
	const struct word *w, *strategy = &strategies[0];

	if (value(d, FLAG_ROUTING_LOGIC) == NULL)
		return fail(d, FLAG_ROUTING_LOGIC,
			"is missing: " SHARED ", " ORCHESTRATED
			", roundrobin, session or prefixaware");
	if (FIND(d, FLAG_ROUTING_LOGIC, logics, &w) != 0 ||
		(value(d, FLAG_LOAD_BALANCING_STRATEGY) != NULL &&
			FIND(d, FLAG_LOAD_BALANCING_STRATEGY, strategies, &strategy) != 0))
		return -1;
	s->whole = w->ours[0] != '\0';
	s->policy = s->whole ? w->ours : strategy->ours;
	if (strcmp(s->policy, "session") == 0 && value(d, FLAG_SESSION_KEY) == NULL)
		return fail(d, FLAG_SESSION_KEY, "is missing: --routing-logic session needs it");
	return 0;
}

static int
choose_connector(struct conf_draft *d, struct stack *s)
{
	static const struct word types[] = {{"nixl", "nixl", NULL}, {"lmcache", "lmcache", NULL}};
	const bool orchestrated = strcmp(value(d, FLAG_ROUTING_LOGIC), ORCHESTRATED) == 0;
	const bool proxy = value(d, FLAG_NIXL_PROXY_HOST) != NULL;
	const struct word *type = NULL;

	if (value(d, FLAG_DISAGG_CONNECTOR_TYPE) != NULL &&
		FIND(d, FLAG_DISAGG_CONNECTOR_TYPE, types, &type) != 0)
		return -1;
	s->connector = CONNECTOR_SHARED_STORAGE;
	if (s->whole)
		return 0;
	if (orchestrated && type == &types[1])
		return fail(
			d, FLAG_DISAGG_CONNECTOR_TYPE, "lmcache goes with --routing-logic " SHARED);
	if (!orchestrated && type == &types[0] && proxy)
		return fail(d, FLAG_DISAGG_CONNECTOR_TYPE,
			"nixl goes without --nixl-proxy-host, which asks for lmcache");
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
			note_if_given(d, lmcache[i],
				"it belongs to the connector lmcache, which --nixl-proxy-host or "
				"--disagg-connector-type lmcache chooses");
	if (s->connector == CONNECTOR_LMCACHE && value(d, FLAG_NIXL_PROXY_HOST) == NULL)
		note_if_given(d, FLAG_NIXL_PROXY_PORT, "it belongs to --nixl-proxy-host");
	for (size_t i = 0; i < sizeof(disaggregated) / sizeof(disaggregated[0]); i++)
		if (s->whole)
			note_if_given(d, disaggregated[i], "every engine serves whole requests");
	if (strcmp(s->policy, "session") != 0)
		note_if_given(d, FLAG_SESSION_KEY, "it belongs to --routing-logic session");
	for (size_t i = 0; i < sizeof(gateway) / sizeof(gateway[0]); i++)
		note_if_given(d, gateway[i], "it belongs to --pd-disaggregation");
	note_if_given(d, FLAG_MAX_CONCURRENT_REQUESTS,
		"it belongs to --pd-disaggregation or --worker-urls");
}

static int
check_label_lists(struct conf_draft *d, const struct words w[NLISTS])
{
	for (enum list l = PREFILL; l <= DECODE; l++)
		for (size_t i = 0; i < w[l].n; i++)
			if (conf_strs_has(w[l].v, i, w[l].v[i]))
				return fail(
					d, list_flags[l], "%.80s is in the list twice", w[l].v[i]);
	for (size_t i = 0; i < w[DECODE].n; i++)
		if (conf_strs_has(w[PREFILL].v, w[PREFILL].n, w[DECODE].v[i]))
			return fail(d, FLAG_DECODE_MODEL_LABELS,
				"%.100s is also one of --prefill-model-labels", w[DECODE].v[i]);
	for (size_t i = 0; i < w[LABELS].n; i++)
		if (!conf_strs_has(w[PREFILL].v, w[PREFILL].n, w[LABELS].v[i]) &&
			!conf_strs_has(w[DECODE].v, w[DECODE].n, w[LABELS].v[i]))
			return fail(d, FLAG_STATIC_MODEL_LABELS,
				"label '%.60s' of %.80s is no prefill and no decode label",
				w[LABELS].v[i], w[BACKENDS].v[i]);
	return 0;
}

static int
read_lists(struct conf_draft *d, struct stack *s)
{
	const enum list last = s->whole ? MODELS : DECODE;

	for (enum list l = BACKENDS; l <= last; l++) {
		if (value(d, list_flags[l]) == NULL)
			return fail(d, list_flags[l], "is missing");
		s->w[l] = split(value(d, list_flags[l]));
	}
	for (enum list l = MODELS; l <= LABELS && l <= last; l++)
		if (s->w[l].n != s->w[BACKENDS].n)
			return fail(d, list_flags[l], "has %zu entries for %zu backends", s->w[l].n,
				s->w[BACKENDS].n);
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
				"does not name %.120s: it has the ports of the other flags, or %s and %s",
				s->w[BACKENDS].v[i], PEER_INIT_PORT, PEER_ALLOC_PORT);
			note_if_given(d, FLAG_DECODER_REGISTRY, why);
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
		note(d, FLAG_DECODER_REGISTRY, why);
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
	*ret_from = value(d, a) != NULL ? a : b;
	return value(d, *ret_from) != NULL ? value(d, *ret_from) : def;
}

/*
 * The same for every decode engine that is not in the registry.  A --nixl-peer-host is one host: of
 * several engines each is at its own, as in production-stack's PR 913.
 */
static int
put_unregistered(struct conf_draft *d, const struct stack *s)
{
	const char *peer = value(d, FLAG_NIXL_PEER_HOST), *ports;
	enum conf_flag from;

	if (value(d, FLAG_DECODER_HOST) != NULL)
		put_text(d, FLAG_DECODER_HOST, "      receiver_host: ", value(d, FLAG_DECODER_HOST),
			"");
	else if (peer != NULL && s->nunregistered == 1 && !is_wildcard(peer))
		put_text(d, FLAG_NIXL_PEER_HOST, "      receiver_host: ", peer, "");
	ports = either(d, FLAG_DECODER_INIT_PORT, FLAG_NIXL_PEER_INIT_PORT, PEER_INIT_PORT, &from);
	if (put_ports(d, from, "receiver_init_port", ports) != 0)
		return -1;
	ports = either(
		d, FLAG_DECODER_ALLOC_PORT, FLAG_NIXL_PEER_ALLOC_PORT, PEER_ALLOC_PORT, &from);
	return put_ports(d, from, "receiver_alloc_port", ports);
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
			put(d, FLAG_STATIC_BACKENDS, "  %s:", role_name(role));
		any = true;
		put_text(d, FLAG_STATIC_BACKENDS, "    - url: ", url, "");
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

static void
put_whole(struct conf_draft *d, enum conf_flag from)
{
	put(d, (int)from, "  routing_threshold: " NEVER);
	put(d, (int)from, "  single_engine_role: decode");
}

static int
put_pool(struct conf_draft *d, const struct stack *s, const char *model, size_t number)
{
	put(d, FLAG_STATIC_BACKENDS, "- connector: %s", connector_name(s->connector));
	put_text(d, FLAG_STATIC_MODELS, "  models: [", model, "]");
	if (model[0] != '\0' && !is_name(model))
		put(d, FLAG_STATIC_MODELS, "  name: pool%zu", number);
	if (s->connector == CONNECTOR_LMCACHE && value(d, FLAG_NIXL_PROXY_HOST) == NULL)
		put(d, FLAG_DISAGG_CONNECTOR_TYPE, "  lmcache: {ready_messages: 0}");
	put(d, FLAG_ROUTING_LOGIC, "  policy: %s", s->policy);
	if (strcmp(s->policy, "session") == 0)
		put_text(d, FLAG_SESSION_KEY, "  session_header: ", value(d, FLAG_SESSION_KEY), "");
	if (s->whole)
		put_whole(d, FLAG_ROUTING_LOGIC);
	else if (value(d, FLAG_ROUTING_THRESHOLD) != NULL &&
		 put_number(d, FLAG_ROUTING_THRESHOLD, "  routing_threshold") != 0)
		return -1;
	if (value(d, FLAG_HEALTH_CHECK_ENDPOINT) != NULL)
		put_text(d, FLAG_HEALTH_CHECK_ENDPOINT,
			"  health_path: ", value(d, FLAG_HEALTH_CHECK_ENDPOINT), "");
	if (put_rescue(d) != 0 || put_backends(d, s, model, ROLE_PREFILL) != 0)
		return -1;
	return put_backends(d, s, model, ROLE_DECODE);
}

/* Where ZMQ binds: it takes addresses and no names, but everybody writes localhost. */
static void
put_listener(struct conf_draft *d, const struct stack *s)
{
	const char *host = value(d, FLAG_NIXL_PROXY_HOST), *port = value(d, FLAG_NIXL_PROXY_PORT);
	char *at, *url;

	if (host == NULL || s->connector != CONNECTOR_LMCACHE)
		return;
	at = conf_host_port(strcmp(host, "localhost") == 0 ? "127.0.0.1" : host,
		port != NULL ? port : PROXY_PORT);
	url = mem_printf("tcp://%s", at);
	put_text(d, FLAG_NIXL_PROXY_HOST, "lmcache: {listen: ", url, "}");
	free(url);
	free(at);
}

/* One pool for each model, in the order in which they are first named. */
static int
put_pools(struct conf_draft *d, const struct stack *s)
{
	size_t number = 0;

	put(d, FLAG_STATIC_BACKENDS, "pools:");
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
draft_stack(struct conf_draft *d, struct stack *s)
{
	const char *discovery = value(d, FLAG_SERVICE_DISCOVERY);

	if (discovery != NULL && strcmp(discovery, "static") != 0)
		return fail(d, FLAG_SERVICE_DISCOVERY,
			"%.60s is not known here: use static, or in a configuration file dns (with the name of a "
			"headless service), endpoints_file or announce_networks",
			discovery[0] != '\0' ? discovery : "Kubernetes");
	if (choose_logic(d, s) != 0 || choose_connector(d, s) != 0 || read_lists(d, s) != 0 ||
		read_registry(d) != 0)
		return -1;
	note_unused(d, s);
	if (s->connector == CONNECTOR_LMCACHE)
		compare_registry(d, s);
	if (s->nunregistered > 1 && value(d, FLAG_DECODER_HOST) == NULL)
		note_if_given(d, FLAG_NIXL_PEER_HOST,
			"there are several decode engines: each LMCache is taken to be at the host of its engine");
	if (put_root(d, FLAG_STATIC_BACKENDS, STACK_PORT, distinct(&s->w[MODELS]),
		    (s->whole ? 2 : 1) * s->w[BACKENDS].n) != 0)
		return -1;
	put_listener(d, s);
	return put_pools(d, s);
}

/* --- sglang-router
 * ------------------------------------------------------------------------------------- */

static int
put_policy(struct conf_draft *d, enum conf_flag f, const char *key)
{
	static const struct word policies[] = {{"cache_aware", "prefix", NULL},
		{"prefix_hash", "prefix", NULL}, {"random", "random", NULL},
		{"round_robin", "round_robin", NULL}, {"power_of_two", "power_of_two", NULL},
		{"manual", NULL, "policy: session and a session_header in a configuration file"},
		{"bucket", NULL, "power_of_two: a prompt's length counts there"}};
	const struct word *w;

	if (FIND(d, f, policies, &w) != 0)
		return -1;
	put(d, (int)f, "  %s: %s", key, w->ours);
	return 0;
}

static int
put_policies(struct conf_draft *d)
{
	if (value(d, FLAG_POLICY) == NULL)
		put(d, FLAG_POLICY, "  policy: prefix");
	else if (put_policy(d, FLAG_POLICY, "policy") != 0)
		return -1;
	if (value(d, FLAG_PREFILL_POLICY) != NULL &&
		put_policy(d, FLAG_PREFILL_POLICY, "prefill_policy") != 0)
		return -1;
	return value(d, FLAG_DECODE_POLICY) != NULL
		       ? put_policy(d, FLAG_DECODE_POLICY, "decode_policy")
		       : 0;
}

/* Requests that each of the decode engines may have of all there may be; 0: there is no limit. */
static int
share_of_all(struct conf_draft *d, enum conf_flag f, unsigned long *ret)
{
	const char *all = value(d, FLAG_MAX_CONCURRENT_REQUESTS);
	unsigned long n = 0;

	*ret = 0;
	if (all == NULL || strcmp(all, "-1") == 0)
		return 0;
	if (!is_number(all))
		return fail(d, FLAG_MAX_CONCURRENT_REQUESTS, "%.60s is not a number, nor -1", all);
	for (size_t i = 0; i < d->args->nurls; i++)
		n += d->args->urls[i].flag == (int)f;
	*ret = n > 0 ? strtoul(all, NULL, 10) / n + (strtoul(all, NULL, 10) % n != 0) : 0;
	return 0;
}

static int
put_urls(struct conf_draft *d, enum conf_flag f, enum role role)
{
	unsigned long most = 0;
	bool any = false;

	if (role == ROLE_DECODE && share_of_all(d, f, &most) != 0)
		return -1;

	for (size_t i = 0; i < d->args->nurls; i++) {
		const struct conf_args_url *u = &d->args->urls[i];

		if (u->flag != (int)f)
			continue;
		if (!any)
			put(d, (int)f, "  %s:", role_name(role));
		any = true;
		put_text(d, (int)f, "    - url: ", u->url, "");
		if (most > 0)
			put(d, FLAG_MAX_CONCURRENT_REQUESTS, "      max_inflight: %lu", most);
		if (u->port == NULL || strcasecmp(u->port, "none") == 0)
			continue;
		if (!is_number(u->port))
			return fail(d, f, "%.60s is not a port or none", u->port);
		put(d, (int)f, "      bootstrap_port: %s", u->port);
	}
	return 0;
}

static int
draft_gateway(struct conf_draft *d)
{
	const bool pd = value(d, FLAG_PD_DISAGGREGATION) != NULL;
	const enum conf_flag from = pd ? FLAG_PD_DISAGGREGATION : FLAG_WORKER_URLS;

	if (value(d, FLAG_ROUTING_LOGIC) != NULL || value(d, FLAG_STATIC_BACKENDS) != NULL)
		return fail(d,
			value(d, FLAG_ROUTING_LOGIC) != NULL ? FLAG_ROUTING_LOGIC
							     : FLAG_STATIC_BACKENDS,
			"belongs to another router than the other flags");
	if (value(d, FLAG_SERVICE_DISCOVERY) != NULL)
		return fail(d, FLAG_SERVICE_DISCOVERY,
			"is not possible here: use dns in a configuration file, with the name of a headless service");
	if (!pd && value(d, FLAG_WORKER_URLS) == NULL)
		return fail(
			d, FLAG_PD_DISAGGREGATION, "is missing: --prefill and --decode need it");
	if (pd)
		note_if_given(d, FLAG_WORKER_URLS,
			"with --pd-disaggregation --prefill and --decode name the engines");
	if (put_root(d, (int)from, GATEWAY_PORT, 1, 2 * d->args->nurls) != 0)
		return -1;
	put(d, (int)from, "pools:");
	put(d, (int)from, "- connector: %s",
		connector_name(pd ? CONNECTOR_SGLANG : CONNECTOR_SHARED_STORAGE));
	put(d, (int)from, "  engine: sglang");
	if (put_policies(d) != 0)
		return -1;
	if (!pd)
		put_whole(d, from);
	else if (value(d, FLAG_ROUTING_THRESHOLD) != NULL &&
		 put_number(d, FLAG_ROUTING_THRESHOLD, "  routing_threshold") != 0)
		return -1;
	if (value(d, FLAG_HEALTH_CHECK_ENDPOINT) != NULL)
		put_text(d, FLAG_HEALTH_CHECK_ENDPOINT,
			"  health_path: ", value(d, FLAG_HEALTH_CHECK_ENDPOINT), "");
	if (put_rescue(d) != 0)
		return -1;
	if (put_urls(d, pd ? FLAG_PREFILL : FLAG_WORKER_URLS, ROLE_PREFILL) != 0)
		return -1;
	return put_urls(d, pd ? FLAG_DECODE : FLAG_WORKER_URLS, ROLE_DECODE);
}

/* --- the whole
 * ------------------------------------------------------------------------------------- */

int
conf_draft_make(struct conf_draft *d, const struct conf_args *args, conf_note_fn *note_fn,
	void *note_arg, struct conf_error *err)
{
	struct stack s = {.nunregistered = 0};
	int rc;

	*d = (struct conf_draft){.args = args, .note = note_fn, .note_arg = note_arg, .err = err};
	d->out = open_memstream(&d->text, &d->ntext);
	assert(d->out != NULL);
	if (args->nurls > 0 || value(d, FLAG_PD_DISAGGREGATION) != NULL)
		rc = draft_gateway(d);
	else
		rc = draft_stack(d, &s);
	(void)fclose(d->out);
	d->out = NULL;
	for (enum list l = 0; l < NLISTS; l++)
		words_free(&s.w[l]);
	return rc;
}

/* The n-th line of the text, from 1 on; its end if there are less. */
static const char *
line_at(const struct conf_draft *d, int n)
{
	const char *p = d->text;

	while (n-- > 1 && *(p += strcspn(p, "\n")) != '\0')
		p++;
	return p;
}

/* The line of an error: that of the key it names, if that stands in the entry that begins there. */
static int
line_of(const struct conf_draft *d, const struct conf_error *err)
{
	const char *dot = strrchr(err->key, '.'), *name = dot != NULL ? dot + 1 : err->key, *p;
	const size_t n = strcspn(name, "[");

	for (int line = err->line; line > 0; line++) {
		p = line_at(d, line);
		p += strspn(p, " ");
		if (line > err->line && (*p == '-' || *p == '\0'))
			break;
		p += strspn(p, "- ");
		if (n > 0 && strncmp(p, name, n) == 0 && p[n] == ':')
			return line;
	}
	return err->line;
}

/* Lines are nothing to who has written none. */
static void
cut_lines(char *what)
{
	static const char *const said[] = {", first in line ", " in line "};
	char *p, *end;

	for (size_t i = 0; i < 2; i++)
		while ((p = strstr(what, said[i])) != NULL) {
			end = p + strlen(said[i]);
			end += strspn(end, "0123456789");
			memmove(p, end, strlen(end) + 1);
		}
}

int
conf_draft_parse(struct conf_draft *d, struct conf **ret, struct conf_error *err)
{
	struct conf_error e;
	struct conf *c;
	size_t line;

	if (conf_parse(NULL, d->text, d->ntext, &c, &e) == 0) {
		memset(c->key_lines, 0, conf_root_keys.n * sizeof(*c->key_lines));
		*ret = c;
		return 0;
	}
	line = (size_t)line_of(d, &e);
	cut_lines(e.what);
	e.line = 0;
	if (line > 0 && line <= d->nlines && d->from[line - 1] < FLAG_N)
		(void)conf_flag_name((enum conf_flag)d->from[line - 1], e.key);
	else if (line > 0 && line <= d->nlines)
		(void)snprintf(e.key, sizeof(e.key), "%s",
			d->from[line - 1] == FROM_PORT ? "--port" : "--host");
	*err = e;
	return -1;
}

void
conf_draft_free(struct conf_draft *d)
{
	if (d->has_registry)
		yaml_document_delete(&d->registry);
	d->has_registry = false;
	free(d->text);
	free(d->from);
	d->text = NULL;
	d->from = NULL;
}
