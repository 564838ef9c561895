#include "master/config/conf.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/config/conf_client_keys.h"
#include "master/config/conf_read.h"
#include "master/config/conf_siblings.h"
#include "master/config/conf_engine_tls.h"
#include "master/config/conf_tls.h"
#include "proto/http/http.h"
#include "shm/base/connector_info.h"
#include "shm/base/mem.h"
#include "shm/base/net.h"

#define AUTO_WORKERS_MAX 8
#define STATE_FILE "state.json"
#define LISTEN "0.0.0.0:8000"
#define LMCACHE_LISTEN "tcp://*:7500" /* the port of LMCache's own examples (protocols.md 4.3) */

const char *
conf_error_text(const struct conf_error *err, char *buf, size_t size)
{
	char line[16] = "";

	if (err->line > 0)
		(void)snprintf(line, sizeof(line), ":%d", err->line);
	(void)snprintf(buf, size, "%s%s%s%s%s%s", err->file, err->file[0] != '\0' ? line : "",
		err->file[0] != '\0' ? ": " : "", err->key, err->key[0] != '\0' ? ": " : "",
		err->what);
	return buf;
}

struct conf *
conf_new(const char *path)
{
	struct conf *c = MEM_NEW(struct conf);

	c->path = mem_strdup(path);
	c->key_lines = mem_array(conf_root_keys.n, sizeof(*c->key_lines));
	return c;
}

void
conf_free(struct conf **conf)
{
	struct conf *c = *conf;

	if (c == NULL)
		return;
	for (size_t i = 0; i < c->npools; i++)
		conf_pool_free(&c->pools[i]);
	for (size_t i = 0; i < c->nlisten; i++)
		free(c->listen[i].text);
	for (size_t i = 0; i < c->nadmin_listen; i++)
		free(c->admin_listen[i].text);
	conf_values_free(&conf_root_keys, c);
	conf_client_keys_free(c);
	conf_siblings_wipe(c);
	free(c->siblings_key);
	free(c->pools);
	free(c->listen);
	free(c->admin_listen);
	conf_tls_free(&c->tls);
	free(c->proxies);
	free(c->notifier_key);
	free(c->key_lines);
	free(c->path);
	free(c->text);
	free(c);
	*conf = NULL;
}

static uint32_t
usable_cpus(void)
{
	cpu_set_t set;
	long n;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		return (uint32_t)CPU_COUNT(&set);
	n = sysconf(
		_SC_NPROCESSORS_ONLN); /* more CPUs than the set has bits: far more than we take */
	return n > 0 ? (uint32_t)n : 1;
}

/* 0 where the default holds. */
static int
key_line(const struct conf *c, const char *key)
{
	return c->key_lines[conf_key_row(&conf_root_keys, key) - conf_root_keys.key];
}

static int
fail_root(struct conf_read *r, const char *key, const char *or_key, const char *what)
{
	int line = key_line(r->conf, key);

	if (line == 0)
		line = key_line(r->conf, or_key);
	(void)conf_enter(r, "%s", key);
	return conf_fail(r, line, "%s", what);
}

static bool
has_decode(const struct conf_pool *p)
{
	for (size_t i = 0; i < p->nendpoints; i++)
		if (p->endpoints[i].role == ROLE_DECODE)
			return true;
	for (size_t i = 0; i < p->ndns; i++)
		if (p->dns[i].as.role == ROLE_DECODE)
			return true;
	return false;
}

static bool
waits_for_messages(const struct conf_pool *p)
{
	return connector_info[p->connector].needs == CONNECTOR_NEEDS_RECEIVER &&
	       p->shake.ready_messages != 0 && has_decode(p);
}

/* An lmcache pool that waits for ready messages needs a listener: LMCache's usual port by default. */
static int
set_lmcache_listen(struct conf_read *r)
{
	struct conf *c = r->conf;

	for (size_t i = 0; i < c->npools && c->lmcache_listen == NULL; i++) {
		if (!waits_for_messages(&c->pools[i]))
			continue;
		if (key_line(c, "lmcache.listen") != 0)
			return fail_root(r, "lmcache.listen", "pools",
				"an lmcache pool waits for ready messages, but none can arrive: write an address "
				"such as tcp://*:7500, or lmcache: {ready_messages: 0} in the pool");
		c->lmcache_listen = mem_strdup(LMCACHE_LISTEN);
	}
	return 0;
}

/*
 * The first of systemd's state directories, if the unit has one.  A reload compares this default with the
 * path of the start, so it is set before conf_diff() keeps that path.
 */
static void
set_state_file(struct conf *c)
{
	const char *directory = getenv("STATE_DIRECTORY");

	if (key_line(c, "state_file") == 0 && directory != NULL && directory[0] == '/')
		c->state_file =
			mem_printf("%.*s/" STATE_FILE, (int)strcspn(directory, ":"), directory);
}

static void
append(char **text, const char *word)
{
	char *longer = mem_printf("%s%s ", *text, word != NULL ? word : "-");

	free(*text);
	*text = longer;
}

static uint32_t
larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* The ranks that publish, of an endpoint of that pool. */
static uint32_t
ranks_of(const struct conf_pool *p, const struct conf_endpoint *e)
{
	if (p->kv_events == NULL && e->kv_events == NULL)
		return 0;
	return e->dp_ranks > 1 ? e->dp_ranks : 1;
}

/* An endpoint that announces itself has one. */
static uint32_t
kv_event_ranks(const struct conf *c)
{
	uint32_t most = 0;

	for (size_t i = 0; i < c->npools; i++) {
		const struct conf_pool *p = &c->pools[i];

		if (p->kv_events != NULL && most == 0)
			most = 1;
		for (size_t k = 0; k < p->nendpoints; k++)
			most = larger(most, ranks_of(p, &p->endpoints[k]));
		for (size_t k = 0; k < p->ndns; k++)
			most = larger(most, ranks_of(p, &p->dns[k].as));
	}
	return most;
}

/* What a notifier is born with; another one takes its place when this changes. */
static void
set_notifier_key(struct conf *c)
{
	free(c->notifier_key);
	c->notifier_key = NULL;
	c->kv_event_ranks = kv_event_ranks(c);
	if (c->lmcache_listen == NULL && c->announce_listen == NULL && c->kv_event_ranks == 0 &&
		c->siblings_listen == NULL)
		return;
	c->notifier_key =
		mem_printf("%" PRIu64 " %" PRIu32 " ", c->announce_forget_ms, c->kv_event_ranks);
	append(&c->notifier_key, c->lmcache_listen);
	append(&c->notifier_key, c->announce_listen);
	for (size_t i = 0; i < c->nlmcache_networks; i++)
		append(&c->notifier_key, c->lmcache_networks[i]);
	append(&c->notifier_key, NULL);
	append(&c->notifier_key, c->siblings_listen);
	for (size_t i = 0; i < c->nsiblings_routers; i++)
		append(&c->notifier_key, c->siblings_routers[i]);
	append(&c->notifier_key, NULL);
	for (size_t i = 0; i < c->nsiblings_networks; i++)
		append(&c->notifier_key, c->siblings_networks[i]);
	append(&c->notifier_key, NULL);
	for (size_t i = 0; i < c->npools; i++)
		for (size_t k = 0; k < c->pools[i].nannounce_networks; k++)
			append(&c->notifier_key, c->pools[i].announce_networks[k]);
}

/* As read: add_network() has checked them. */
static void
set_proxies(struct conf *c)
{
	free(c->proxies);
	c->proxies = mem_array(c->nproxy_networks, sizeof(*c->proxies));
	c->nproxies = c->nproxy_networks;
	for (size_t i = 0; i < c->nproxies; i++)
		(void)net_parse(c->proxy_networks[i], &c->proxies[i]);
}

/* Two sockets cannot have one file. */
static int
check_admin_listen(struct conf_read *r)
{
	const struct conf *c = r->conf;

	for (size_t i = 0; i < c->nadmin_listen; i++) {
		const char *path = conf_listen_path(&c->admin_listen[i]);

		if (path != NULL && c->control_socket != NULL &&
			strcmp(path, c->control_socket) == 0)
			return fail_root(r, "admin.listen", "control_socket",
				"has the path of the control_socket: set another one");
	}
	return 0;
}

/* A size that is not given grows with the need. */
static int
check_limits(struct conf_read *r)
{
	struct conf *c = r->conf;
	char what[CONF_WHAT];

	if (c->live.max_buffered < c->live.max_body && key_line(c, "limits.max_buffered") != 0)
		return fail_root(r, "limits.max_buffered", "limits.max_body",
			"is less than limits.max_body: no request of that size could be read");
	if (c->live.max_buffered < c->live.max_body)
		c->live.max_buffered = c->live.max_body;
	if (c->cors_credentials != 0 && conf_strs_has(c->cors_origins, c->ncors_origins, "*"))
		return fail_root(r, "cors.credentials", "cors.origins",
			"needs origins by name: browsers refuse it with *");
	if (c->proxy_protocol != 0 && c->nproxy_networks == 0)
		return fail_root(r, "client.proxy_protocol", "client.proxy_networks",
			"has no effect without client.proxy_networks: set those too");
	if (c->live.client_burst > 0 && c->live.client_rate.n == 0)
		return fail_root(r, "client.burst", "client.rate",
			"has no effect without client.rate: set client.rate too");
	if (c->watch != 0 && c->api_keys_file[DOOR_CLIENTS] == NULL &&
		c->api_keys_file[DOOR_OPERATORS] == NULL)
		return fail_root(r, "watch", "api_keys_file",
			"has no effect without api_keys_file or admin.api_keys_file: a pool has a `watch` of its own");
	if (c->api_keys_file[DOOR_OPERATORS] != NULL && c->nadmin_listen == 0)
		return fail_root(r, "admin.api_keys_file", "admin.listen",
			"has no effect without admin.listen: set that too");
	if (c->napi_keys > c->max_api_keys) {
		(void)snprintf(what, sizeof(what),
			"%zu keys in the api_keys_file and the admin.api_keys_file are more than %u: write %zu or more",
			c->napi_keys, c->max_api_keys, c->napi_keys);
		return fail_root(r, "shared_memory.max_api_keys", "api_keys_file", what);
	}
	for (size_t i = 0; i < c->npools; i++)
		if (conf_pool_check_queue(r, &c->pools[i]) != 0)
			return -1;
	return 0;
}

/* The exporter looks up no names: it could make no system call for them. */
static int
check_tracing(struct conf_read *r)
{
	const char *url = r->conf->trace_otlp, *why = NULL;
	struct http_url parsed;
	unsigned char ip[16];

	if (url == NULL)
		return 0;
	if (http_url_is_tls(url))
		why = "https is not spoken: name a collector on this host, which can speak it";
	else if (http_url_parse(url, &parsed, &why) == 0 &&
		 inet_pton(parsed.ipv6 ? AF_INET6 : AF_INET, parsed.host, ip) != 1)
		why = "needs an address such as http://127.0.0.1:4318, not a host name";
	return why == NULL ? 0 : fail_root(r, "tracing.otlp", "tracing.otlp", why);
}

int
conf_finish(struct conf_read *r)
{
	struct conf *c = r->conf;
	char what[CONF_WHAT];
	size_t n = 0;

	if (set_lmcache_listen(r) != 0 || check_limits(r) != 0 || check_admin_listen(r) != 0 ||
		check_tracing(r) != 0)
		return -1;
	set_notifier_key(c);
	set_proxies(c);
	if (c->workers_auto) {
		c->workers = usable_cpus();
		c->workers = c->workers > AUTO_WORKERS_MAX ? AUTO_WORKERS_MAX : c->workers;
		c->workers = c->workers > c->max_workers ? c->max_workers : c->workers;
	}
	for (size_t i = 0; i < c->npools; i++)
		n += c->pools[i].nendpoints;
	if (c->workers > c->max_workers) {
		(void)snprintf(what, sizeof(what), "%u workers are more than %u: write %u or more",
			c->workers, c->max_workers, c->workers);
		return fail_root(r, "shared_memory.max_workers", "workers", what);
	}
	if (c->npools > c->max_pools) {
		(void)snprintf(what, sizeof(what), "%zu pools are more than %u: write %zu or more",
			c->npools, c->max_pools, c->npools);
		return fail_root(r, "shared_memory.max_pools", "pools", what);
	}
	for (size_t i = 0; i < c->npools; i++)
		if (c->pools[i].nannounce_networks > 0 && c->announce_listen == NULL)
			return fail_root(r, "announce.listen", "pools",
				"a pool has announce_networks, but engines can announce themselves "
				"nowhere: write an address such as tcp://*:30001");
	if (n > c->max_endpoints) {
		(void)snprintf(what, sizeof(what),
			"%zu endpoints in all pools are more than %u: write %zu or more", n,
			c->max_endpoints, n);
		return fail_root(r, "shared_memory.max_endpoints", "pools", what);
	}
	return 0;
}

int
conf_listen_default(struct conf *c, char what[CONF_WHAT])
{
	return conf_value_set(conf_key_row(&conf_root_keys, "listen"), c, LISTEN, what);
}

/* Clients come in somewhere; in plain only where that is meant, once TLS is. */
static int
set_listen(struct conf_read *r, int root_line)
{
	struct conf *c = r->conf;
	char what[CONF_WHAT];

	if (c->nlisten + c->tls.nlisten > 0)
		return 0;
	if (key_line(c, "listen") != 0)
		return fail_root(r, "listen", "listen", "is empty: it needs at least 1");
	if (conf_listen_default(c, what) == 0)
		return 0;
	(void)conf_enter(r, "listen"); /* another key has that address, too */
	return conf_fail(r, root_line, "the default " LISTEN ": %s", what);
}

static int
read_document(struct conf_read *r)
{
	yaml_node_t *root = yaml_document_get_root_node(&r->doc);

	if (root == NULL)
		return conf_fail(r, 0, "the file is empty");
	if (conf_walk(r, &conf_root_keys, r->conf, root, r->conf->key_lines) != 0 ||
		conf_client_keys_read(r) != 0 || conf_siblings_read(r, r->conf->key_lines) != 0)
		return -1;
	set_state_file(r->conf);
	if (set_listen(r, conf_line(root)) != 0 || conf_finish(r) != 0)
		return -1;
	if (conf_tls_finish(r, r->conf->key_lines) != 0)
		return -1;
	return conf_engine_tls_finish(r);
}

static int
read_text(struct conf_read *r, const void *text, size_t n, struct conf **ret)
{
	int rc;

	r->readers = conf_readers;
	if (conf_yaml_load(r, text, n) != 0)
		return -1;
	r->conf = conf_new(r->file);
	rc = read_document(r);
	yaml_document_delete(&r->doc);
	if (rc == 0)
		*ret = r->conf;
	else
		conf_free(&r->conf);
	return rc;
}

int
conf_parse(const char *path, const void *text, size_t n, struct conf **ret, struct conf_error *err)
{
	struct conf_read r = {.file = path, .err = err};

	return read_text(&r, text, n, ret);
}

int
conf_parse_fleet(const char *path, const void *text, size_t n, const struct conf_fleet *engines,
	struct conf **ret, struct conf_error *err)
{
	struct conf_read r = {.file = path, .engines = engines, .err = err};

	return read_text(&r, text, n, ret);
}

int
conf_reparse(const struct conf *was, conf_fleet_fn *fleet_reader, struct conf **ret,
	struct conf_error *err)
{
	struct conf_read r = {
		.file = was->path, .fleet_reader = fleet_reader, .err = err, .was = was};
	struct conf *c;

	if (read_text(&r, was->text, was->ntext, &c) != 0)
		return -1;
	c->text = mem_dup(was->text, was->ntext);
	c->ntext = was->ntext;
	if (c->workers_auto) { /* with `auto`, another number of CPUs is no change of the configuration */
		c->workers_auto = false;
		c->workers = was->workers;
	}
	c->live.max_connections = was->live.max_connections;
	*ret = c;
	return 0;
}

int
conf_load_file(
	const char *path, conf_fleet_fn *fleet_reader, struct conf **ret, struct conf_error *err)
{
	struct conf_read r = {.file = path, .fleet_reader = fleet_reader, .err = err};
	char *text;
	size_t n;
	int rc;

	if (conf_yaml_read(&r, path, 0, &text, &n) != 0)
		return -1;
	rc = read_text(&r, text, n, ret);
	if (rc == 0) {
		(*ret)->text = text;
		(*ret)->ntext = n;
	} else {
		free(text);
	}
	return rc;
}

int
conf_load(const char *path, struct conf **ret, struct conf_error *err)
{
	return conf_load_file(path, NULL, ret, err);
}
