/*
 * The command line.  Without -c, the flags of production-stack's router describe the pools, so that
 * its command lines move over unchanged (vllm-project/production-stack,
 * src/vllm_router/parsers/parser.py; the labels came with its PR 777): comma lists where the n-th
 * backend, model and label belong together, labels that mean prefill or decode, host 0.0.0.0 and
 * port 8001 by default.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/conf_read.h"
#include "shm/base/mem.h"

#define FLAG_HOST "0.0.0.0"
#define FLAG_PORT "8001"
#define ROUTING "disaggregated_prefill_orchestrated"

static const struct {
	const char *name;
	size_t off; /* of the argument in struct conf_args */
	const char *arg, *doc;
	bool pools; /* says what the pools are: cannot go with a file */
} flags[] = {
#define A(m) offsetof(struct conf_args, m)
	{"config", A(file), "FILE", "read the configuration from FILE (also -c FILE)", false},
	{"host", A(host), "HOST", "listen there (0.0.0.0; with -c: instead of the file's)", false},
	{"port", A(port), "PORT", "listen there (8001; with -c: instead of the file's)", false},
	{"service-discovery", A(service_discovery), "static", "only static", true},
	{"routing-logic", A(routing_logic), ROUTING, "only that", true},
	{"static-backends", A(static_backends), "URL,URL,...", "the engines", true},
	{"static-models", A(static_models), "MODEL,MODEL,...", "one for each engine", true},
	{"static-model-labels", A(static_model_labels), "LABEL,LABEL,...", "one for each engine",
		true},
	{"prefill-model-labels", A(prefill_model_labels), "LABEL,...", "labels of prefill engines",
		true},
	{"decode-model-labels", A(decode_model_labels), "LABEL,...", "labels of decode engines",
		true},
};
#define NFLAGS (sizeof(flags) / sizeof(flags[0]))
enum { OPT_FIRST = 256, OPT_VERSION = OPT_FIRST + NFLAGS };

static const char **
member(struct conf_args *a, size_t i)
{
	return (const char **)(void *)((char *)a + flags[i].off);
}

static const char *
value(const struct conf_args *a, size_t i)
{
	return *(const char *const *)(const void *)((const char *)a + flags[i].off);
}

static int
fail_flag(struct conf_error *err, const char *flag, const char *what)
{
	struct conf_read r = {.flag = flag, .err = err};

	return conf_fail(&r, 0, "%s", what);
}

static int
take_option(struct conf_args *a, int opt, char **argv, struct conf_error *err)
{
	switch (opt) {
	case 'c':
		a->file = optarg;
		return 0;
	case 't':
		a->check = true;
		return 0;
	case 'h':
		a->help = true;
		return 0;
	case OPT_VERSION:
		a->version = true;
		return 0;
	case ':':
		return fail_flag(err, argv[optind - 1], "needs a value");
	case '?':
		return fail_flag(err, argv[optind - 1], "is not an option, see --help");
	default:
		*member(a, (size_t)(opt - OPT_FIRST)) = optarg;
		return 0;
	}
}

int
conf_args_parse(int argc, char **argv, struct conf_args *ret, struct conf_error *err)
{
	struct option opts[NFLAGS + 3] = {
		{"version", no_argument, NULL, OPT_VERSION},
		{"help", no_argument, NULL, 'h'},
	};
	struct conf_args a = {.file = NULL};
	int opt;

	for (size_t i = 0; i < NFLAGS; i++)
		opts[2 + i] =
			(struct option){flags[i].name, required_argument, NULL, OPT_FIRST + (int)i};
	optind = 0; /* glibc: start afresh */
	while ((opt = getopt_long(argc, argv, ":c:th", opts, NULL)) != -1)
		if (take_option(&a, opt, argv, err) != 0)
			return -1;
	if (optind < argc)
		return fail_flag(err, argv[optind], "is not an option, see --help");
	*ret = a;
	return 0;
}

void
conf_args_help(FILE *out)
{
	(void)fputs("usage: pdrouter -c FILE [-t] [--host HOST] [--port PORT]\n"
		    "       pdrouter FLAGS            as production-stack's router takes them\n\n"
		    "  -t                           check the configuration and exit\n"
		    "  --version, --help\n",
		out);
	for (size_t i = 0; i < NFLAGS; i++)
		(void)fprintf(
			out, "  --%s %s\n        %s\n", flags[i].name, flags[i].arg, flags[i].doc);
}

/* --- flags to pools
 * ------------------------------------------------------------------------------- */

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

enum { BACKENDS, MODELS, LABELS, PREFILL, DECODE, NLISTS };
static const char *const list_flags[NLISTS] = {
	[BACKENDS] = "--static-backends",
	[MODELS] = "--static-models",
	[LABELS] = "--static-model-labels",
	[PREFILL] = "--prefill-model-labels",
	[DECODE] = "--decode-model-labels",
};

static int
set_text(struct conf_read *r, const struct conf_keys *keys, const char *path, void *base,
	const char *text)
{
	char what[CONF_WHAT];

	if (conf_value_set(conf_key_row(keys, path), base, text, what) != 0)
		return conf_fail(r, 0, "%s", what);
	return 0;
}

static int
check_lists(struct conf_read *r, const struct words w[NLISTS])
{
	for (int i = MODELS; i <= LABELS; i++) {
		r->flag = list_flags[i];
		if (w[i].n != w[BACKENDS].n)
			return conf_fail(
				r, 0, "has %zu entries for %zu backends", w[i].n, w[BACKENDS].n);
	}
	for (size_t i = 0; i < w[LABELS].n; i++) {
		r->flag = list_flags[LABELS];
		if (!conf_strs_has(w[PREFILL].v, w[PREFILL].n, w[LABELS].v[i]) &&
			!conf_strs_has(w[DECODE].v, w[DECODE].n, w[LABELS].v[i]))
			return conf_fail(r, 0,
				"label '%.60s' of %.80s is no prefill and no decode label",
				w[LABELS].v[i], w[BACKENDS].v[i]);
	}
	return 0;
}

/* The pool's own keys; its endpoints follow. */
static int
start_pool(
	struct conf_read *r, struct conf_pool *p, const struct words w[NLISTS], const char *model)
{
	int lines[CONF_ENTRY_KEYS] = {0};

	lines[conf_key_row(&conf_pool_keys, "connector") - conf_pool_keys.key] = 1;
	p->connector = CONNECTOR_ORCHESTRATED;
	r->flag = list_flags[MODELS];
	if (conf_defaults(r, &conf_pool_keys, p, lines, 0) != 0 ||
		set_text(r, &conf_pool_keys, "models", p, model) != 0)
		return -1;
	p->policy = POLICY_ROUND_ROBIN;
	for (int i = PREFILL; i <= DECODE; i++) {
		r->flag = list_flags[i];
		for (size_t k = 0; k < w[i].n; k++)
			if (set_text(r, &conf_pool_keys,
				    i == PREFILL ? "prefill_labels" : "decode_labels", p,
				    w[i].v[k]) != 0)
				return -1;
	}
	return 0;
}

static int
add_backend(struct conf_read *r, struct conf_pool *p, const struct words w[NLISTS], size_t i)
{
	struct conf_endpoint *ep = conf_endpoint_add(p);
	int lines[CONF_ENTRY_KEYS] = {1}; /* the first row is the URL: given */

	r->flag = list_flags[BACKENDS];
	if (conf_defaults(r, &conf_endpoint_keys, ep, lines, 0) != 0)
		return -1;
	ep->role = conf_strs_has(w[PREFILL].v, w[PREFILL].n, w[LABELS].v[i]) ? ROLE_PREFILL
									     : ROLE_DECODE;
	ep->label = mem_strdup(w[LABELS].v[i]);
	return set_text(r, &conf_endpoint_keys, "url", ep, w[BACKENDS].v[i]);
}

/* One pool for each model, in the order in which they are first named. */
static int
add_pools(struct conf_read *r, const struct words w[NLISTS])
{
	for (size_t i = 0; i < w[MODELS].n; i++) {
		struct conf_pool *p;

		if (conf_strs_has(w[MODELS].v, i, w[MODELS].v[i]))
			continue;
		p = conf_pool_add(r->conf);
		if (start_pool(r, p, w, w[MODELS].v[i]) != 0)
			return -1;
		for (size_t k = i; k < w[BACKENDS].n; k++)
			if (strcmp(w[MODELS].v[k], w[MODELS].v[i]) == 0 &&
				add_backend(r, p, w, k) != 0)
				return -1;
		r->flag = list_flags[BACKENDS];
		if (conf_pool_finish(r, p, NULL) != 0)
			return -1;
	}
	return 0;
}

/* "host:port", with the brackets an IPv6 literal needs. */
static int
set_listen(struct conf_read *r, const char *host, const char *port)
{
	bool bare = strchr(host, ':') != NULL && host[0] != '[';
	char *text = mem_printf("%s%s%s:%s", bare ? "[" : "", host, bare ? "]" : "", port);
	int rc = set_text(r, &conf_root_keys, "listen", r->conf, text);

	free(text);
	return rc;
}

static int
check_choices(struct conf_read *r, const struct conf_args *a)
{
	r->flag = "--service-discovery";
	if (a->service_discovery != NULL && strcmp(a->service_discovery, "static") != 0)
		return conf_fail(r, 0,
			"%.60s is not known here: static; DNS, files and announcements stand in a configuration file",
			a->service_discovery);
	r->flag = "--routing-logic";
	if (a->routing_logic == NULL)
		return conf_fail(r, 0, "is missing: " ROUTING);
	if (strcmp(a->routing_logic, ROUTING) != 0)
		return conf_fail(r, 0,
			"%.60s is not known here: " ROUTING
			"; other policies stand in a configuration file",
			a->routing_logic);
	return 0;
}

static int
read_flags(struct conf_read *r, const struct conf_args *a)
{
	const char *const lists[NLISTS] = {
		[BACKENDS] = a->static_backends,
		[MODELS] = a->static_models,
		[LABELS] = a->static_model_labels,
		[PREFILL] = a->prefill_model_labels,
		[DECODE] = a->decode_model_labels,
	};
	struct words w[NLISTS] = {{NULL, 0}};
	int *lines = r->conf->key_lines, rc = check_choices(r, a);

	for (int i = 0; rc == 0 && i < NLISTS; i++) {
		r->flag = list_flags[i];
		if (lists[i] == NULL)
			rc = conf_fail(r, 0, "is missing");
		else
			w[i] = split(lists[i]);
	}
	if (rc == 0)
		rc = check_lists(r, w);
	if (rc == 0)
		rc = add_pools(r, w);
	for (int i = 0; i < NLISTS; i++)
		words_free(&w[i]);
	if (rc != 0)
		return -1;
	r->flag = a->port != NULL ? "--port" : "--host";
	if (set_listen(r, a->host != NULL ? a->host : FLAG_HOST,
		    a->port != NULL ? a->port : FLAG_PORT) != 0)
		return -1;
	/* everything that no flag speaks of is at its default: these two have been spoken of */
	lines[conf_key_row(&conf_root_keys, "listen") - conf_root_keys.key] = 1;
	lines[conf_key_row(&conf_root_keys, "pools") - conf_root_keys.key] = 1;
	rc = conf_defaults(r, &conf_root_keys, r->conf, lines, 0);
	memset(lines, 0, conf_root_keys.n * sizeof(*lines));
	r->flag = list_flags[BACKENDS];
	return rc == 0 ? conf_finish(r) : rc;
}

static int
from_flags(const struct conf_args *a, struct conf **ret, struct conf_error *err)
{
	struct conf_read r = {.err = err, .conf = conf_new(NULL)};

	if (read_flags(&r, a) != 0) {
		conf_free(&r.conf);
		return -1;
	}
	*ret = r.conf;
	return 0;
}

/* --host and --port in place of the file's addresses; what is not given stays as in its first. */
static int
override_listen(struct conf *c, const struct conf_args *a, struct conf_error *err)
{
	struct conf_read r = {.flag = a->port != NULL ? "--port" : "--host", .err = err, .conf = c};
	struct conf_listen first = c->listen[0];
	char port[8];
	int rc;

	if (a->host == NULL && a->port == NULL)
		return 0;
	for (size_t i = 0; i < c->nlisten; i++)
		free(c->listen[i].text);
	c->nlisten = 0;
	(void)snprintf(port, sizeof(port), "%u", first.port);
	rc = set_listen(
		&r, a->host != NULL ? a->host : first.host, a->port != NULL ? a->port : port);
	return rc;
}

static int
from_file(const struct conf_args *a, struct conf **ret, struct conf_error *err)
{
	struct conf *c;
	char name[64];

	for (size_t i = 0; i < NFLAGS; i++) {
		(void)snprintf(name, sizeof(name), "--%s", flags[i].name);
		if (flags[i].pools && value(a, i) != NULL)
			return fail_flag(
				err, name, "cannot go with -c: the file says what the pools are");
	}
	if (conf_load(a->file, &c, err) != 0)
		return -1;
	if (override_listen(c, a, err) != 0) {
		conf_free(&c);
		return -1;
	}
	*ret = c;
	return 0;
}

int
conf_again(const struct conf_args *args, const struct conf *was, struct conf **ret,
	struct conf_error *err)
{
	struct conf *c;

	if (conf_reparse(was, &c, err) != 0)
		return -1;
	if (override_listen(c, args, err) != 0) {
		conf_free(&c);
		return -1;
	}
	*ret = c;
	return 0;
}

int
conf_from_args(const struct conf_args *args, struct conf **ret, struct conf_error *err)
{
	if (args->file != NULL)
		return from_file(args, ret, err);
	for (size_t i = 0; i < NFLAGS; i++)
		if (flags[i].pools && value(args, i) != NULL)
			return from_flags(args, ret, err);
	return fail_flag(err, "",
		"no configuration: give -c FILE, or production-stack's flags (see --help)");
}
