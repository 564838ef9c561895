/* Pools: reading one, defaults that depend on other keys, and checks of a pool against itself and others. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf_api_key.h"
#include "master/config/conf_connector.h"
#include "master/config/conf_endpoints.h"
#include "master/config/conf_engine_tls.h"
#include "master/config/conf_read.h"
#include "master/config/conf_seen.h"
#include "master/config/conf_tls.h"
#include "proto/tls/client.h"
#include "shm/base/connector_info.h"
#include "shm/base/mem.h"

struct conf_pool *
conf_pool_add(struct conf *c)
{
	c->pools = mem_resize(c->pools, c->npools + 1, sizeof(*c->pools));
	memset(&c->pools[c->npools], 0, sizeof(*c->pools));
	return &c->pools[c->npools++];
}

void
conf_pool_free(struct conf_pool *p)
{
	for (size_t i = 0; i < p->nendpoints; i++)
		conf_values_free(&conf_file_keys, &p->endpoints[i]);
	for (size_t i = 0; i < p->ndns; i++)
		conf_values_free(&conf_dns_keys, &p->dns[i]);
	free(p->endpoints);
	free(p->file_text);
	free(p->dns);
	mem_free_secret(p->api_key);
	conf_engine_tls_free(&p->tls);
	free(p->groups); /* the names are the endpoints' */
	conf_values_free(&conf_pool_keys, p);
}

/* --- checks ----------------------------------------------------------------------------------- */

/* The line of a key in the connector's map; 0 if it is not given. */
static int
connector_given(const struct conf_read *r, const char *key)
{
	return r->connector_lines[conf_key_row(&conf_connector_keys, key) -
				  conf_connector_keys.key];
}

#define EJECT_MAX_MS (300 * CONF_SEC)
#define QUEUE_SIZE 100 /* the default of queue_size, where the shared memory has room for it */

/* The policy of prefill engines that are given none.  Without lines `policy` counts as given where it is not its default. */
static enum policy_kind
prefill_policy(const struct conf_pool *p, const int *lines)
{
	const bool given =
		lines != NULL ? conf_given(lines, "policy") != 0 : p->policy != POLICY_LEAST_LOADED;

	return given ? p->policy : POLICY_CACHE_AWARE;
}

/* The defaults that depend on other keys; `engine` is what the pool has, given or not. */
static int
set_computed(struct conf_read *r, struct conf_pool *p, const int *lines, enum engine_kind engine)
{
	const struct connector_info *info = &connector_info[p->connector];
	char what[CONF_WHAT], numbered[32], eject_max[32];
	const struct {
		const char *key, *value;
	} v[] = {
		{"engine", engine_name(info->engine)},
		{"health_path", engine == ENGINE_SGLANG ? "/ready" : "/health"},
		{"fallback", info->decode_alone ? "direct" : "none"},
		{"eject_max_time", eject_max},
		{"prefill_policy", policy_name(prefill_policy(p, lines))},
		{"decode_policy", policy_name(p->policy)},
		{"name", p->nmodels > 0 ? p->models[0] : numbered},
	};

	if (connector_given(r, "handoff") == 0)
		p->shake.handoff = info->handoff;
	if (connector_given(r, "remote_host") == 0)
		p->shake.remote_host = info->remote_host;
	(void)snprintf(numbered, sizeof(numbered), "pool%zu", r->conf->npools);
	(void)snprintf(eject_max, sizeof(eject_max), "%" PRIu64 "ms",
		p->ejection.time_ms > EJECT_MAX_MS ? p->ejection.time_ms : EJECT_MAX_MS);
	for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++)
		if (conf_given(lines, v[i].key) == 0 &&
			conf_value_set(
				conf_key_row(&conf_pool_keys, v[i].key), p, v[i].value, what) != 0)
			return conf_fail_key(
				r, p, lines, v[i].key, "give the pool a name: %.200s", what);
	return 0;
}

void
conf_pool_compute(const struct conf_pool *p, size_t number, struct conf_pool *ret)
{
	const enum policy_kind policy = ret->policy;
	const uint64_t eject_ms = ret->ejection.time_ms;
	struct conf_error err;
	struct conf c = {.npools = number};
	struct conf_read r = {.err = &err, .conf = &c};

	ret->connector = p->connector;
	ret->policy = p->policy;
	ret->ejection.time_ms = p->ejection.time_ms;
	ret->models = p->models;
	ret->nmodels = p->nmodels;
	/* a model's name need not be one for a pool */
	(void)set_computed(&r, ret, NULL, p->engine);
	ret->policy = policy;
	ret->ejection.time_ms = eject_ms;
	ret->models = NULL;
	ret->nmodels = 0;
}

static int
check_labels(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	for (size_t i = 0; i < p->ndecode_labels; i++)
		if (conf_strs_has(p->prefill_labels, p->nprefill_labels, p->decode_labels[i]))
			return conf_fail_key(r, p, lines, "decode_labels",
				"%.100s is also one of prefill_labels", p->decode_labels[i]);
	if (p->endpoints_file == NULL && p->nprefill_labels + p->ndecode_labels > 0)
		return conf_fail_key(r, p, lines,
			p->nprefill_labels > 0 ? "prefill_labels" : "decode_labels",
			"labels without an endpoints_file that uses them");
	return 0;
}

static int
check_rescue(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	if (p->rescue.resume != 0 && p->rescue.retries == 0)
		return conf_fail_key(r, p, lines, "resume",
			"continuing a stream counts as a retry, and retries: 0 allows none");
	if (p->ejection.max_ms < p->ejection.time_ms)
		return conf_fail_key(r, p, lines, "eject_max_time", "is less than eject_time");
	return 0;
}

int
conf_pool_check_queue(struct conf_read *r, struct conf_pool *p)
{
	const uint32_t slots = r->conf->queue_slots;

	if (p->queue_size_line == 0) {
		p->queue.size = slots < QUEUE_SIZE ? slots : QUEUE_SIZE;
		return 0;
	}
	if (p->queue.size <= slots)
		return 0;
	(void)conf_enter(r, "pools[%zu].queue_size", (size_t)(p - r->conf->pools));
	return conf_fail(r, p->queue_size_line,
		"%u waiting requests are more than shared_memory.queue has room for: write at most %u, or %u there",
		p->queue.size, slots, p->queue.size);
}

/* Whether endpoints of this role may come from elsewhere than the lists. */
static bool
has_source(const struct conf_pool *p, enum role role)
{
	for (size_t i = 0; i < p->ndns; i++)
		if (p->dns[i].as.role == role)
			return true;
	return conf_pool_file(p) != NULL || p->nannounce_networks > 0;
}

static int
check_roles(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	size_t n[ROLE_N + 1] = {0};

	if (p->endpoints_file != NULL && p->fleet_file != NULL)
		return conf_fail_key(
			r, p, lines, "fleet_file", "replaces endpoints_file: leave that out");
	if (conf_pool_file(p) != NULL && p->nendpoints > 0)
		return conf_fail_key(r, p, lines,
			p->fleet_file != NULL ? "fleet_file" : "endpoints_file",
			"replaces prefill and decode: leave these out");
	for (size_t i = 0; i < p->nendpoints; i++)
		n[p->endpoints[i].role]++;
	for (enum role role = 0; role < ROLE_N; role++)
		if (n[role] == 0 && !has_source(p, role))
			return conf_fail_key(r, p, lines, role_name(role),
				"pool %s has no %s endpoint", p->name, role_name(role));
	return 0;
}

static int
check_session(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	for (enum role role = 0; role < ROLE_N; role++)
		if (p->policies[role] == POLICY_SESSION && p->session_header == NULL &&
			p->session_member == NULL)
			return conf_fail_key(r, p, lines, "session_header",
				"policy session of pool %s needs a session_header or a session_member",
				p->name);
	return 0;
}

/* Where all endpoints are known: a group with both roles must be among them. */
static int
check_pairing(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	if (p->pairing != PAIRING_REQUIRE || conf_pool_file(p) != NULL || p->ndns > 0 ||
		p->nannounce_networks > 0 || conf_group_has_both(p))
		return 0;
	return conf_fail_key(r, p, lines, "pairing",
		"no group of pool %s has both a prefill and a decode endpoint", p->name);
}

static int
check_sources(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	if (p->watch && conf_pool_file(p) == NULL)
		return conf_fail_key(r, p, lines, "watch",
			"there is no endpoints_file and no fleet_file to watch");
	return 0;
}

/* No name and no model that an earlier pool has. */
static int
check_others(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	const struct conf_pool *pools = r->conf->pools;
	const size_t own = (size_t)(p - pools) + 1;
	size_t other = conf_seen_add(&r->pool_names, p->name, own);

	if (other != 0)
		return conf_fail_key(r, p, lines, "name",
			"%s is already the name of the pool in line %d", p->name,
			pools[other - 1].line);
	for (size_t i = 0; i < p->nmodels; i++) {
		other = conf_seen_add(&r->models, p->models[i], own);
		if (other == own) {
			(void)conf_enter(r, ".models[%zu]", i);
			return conf_fail(r, conf_line_of(p, lines, "models"),
				"%.80s is in the list twice", p->models[i]);
		}
		if (other != 0)
			return conf_fail_key(r, p, lines, "models",
				"%.100s is already a model of pool %s", p->models[i],
				pools[other - 1].name);
	}
	return 0;
}

int
conf_pool_finish(struct conf_read *r, struct conf_pool *p, const int *lines)
{
	const enum engine_kind engine =
		conf_given(lines, "engine") != 0 ? p->engine : connector_info[p->connector].engine;

	if (conf_defaults(r, &conf_connector_keys, p, r->connector_lines, p->line) != 0)
		return -1;
	if (set_computed(r, p, lines, engine) != 0 || check_labels(r, p, lines) != 0 ||
		conf_connector_check(r, p, lines) != 0 || check_rescue(r, p, lines) != 0 ||
		check_roles(r, p, lines) != 0 || check_sources(r, p, lines) != 0)
		return -1;
	p->queue_size_line = conf_given(lines, "queue_size");
	conf_engine_tls_lines(p, lines);
	if (p->engine_api_key_file != NULL && r->was != NULL)
		p->api_key = mem_strdup(conf_pool_before(r, p)->api_key);
	else if (p->engine_api_key_file != NULL &&
		 conf_api_key_read(r, p, conf_line_of(p, lines, "engine_api_key_file")) != 0)
		return -1;
	if (conf_pool_file(p) != NULL
			? conf_endpoints_file_read(r, p, lines) != 0
			: conf_endpoints_check(r, p) != 0 || conf_endpoints_check_terms(r, p) != 0)
		return -1;
	if (conf_dns_check_terms(r, p) != 0)
		return -1;
	if (conf_groups_note(r, p) != 0 || check_session(r, p, lines) != 0 ||
		check_pairing(r, p, lines) != 0)
		return -1;
	return check_others(r, p, lines);
}

void
conf_wipe_keys(const struct conf *conf)
{
	for (size_t i = 0; i < conf->npools; i++)
		if (conf->pools[i].api_key != NULL)
			explicit_bzero(conf->pools[i].api_key, strlen(conf->pools[i].api_key));
}

void
conf_wipe_certificates(const struct conf *conf)
{
	for (size_t i = 0; i < conf->tls.ncertificates; i++)
		if (conf->tls.certificates[i].key_pem != NULL)
			explicit_bzero(conf->tls.certificates[i].key_pem,
				strlen(conf->tls.certificates[i].key_pem));
	for (size_t i = 0; i < conf->npools; i++) {
		if (conf->pools[i].tls.key_pem != NULL)
			explicit_bzero(
				conf->pools[i].tls.key_pem, strlen(conf->pools[i].tls.key_pem));
		if (conf->pools[i].tls.client != NULL)
			tls_client_wipe(conf->pools[i].tls.client);
	}
}

static int
read_pool(struct conf_read *r, yaml_node_t *item)
{
	struct conf_pool *p = conf_pool_add(r->conf);
	int lines[CONF_ENTRY_KEYS] = {0};

	p->line = conf_line(item);
	memset(r->connector_lines, 0, sizeof(r->connector_lines));
	memset(r->map, 0, sizeof(r->map));
	if (conf_walk(r, &conf_pool_keys, p, item, lines) != 0)
		return -1;
	return conf_pool_finish(r, p, lines);
}

static int
pools_set(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *list)
{
	yaml_node_t *item;
	size_t n, mark;
	int rc = conf_is_list(r, k, list, &n);

	(void)base; /* r->conf */
	for (size_t i = 0; rc == 0 && (item = conf_item(r, list, i)) != NULL; i++) {
		mark = conf_enter_entry(r, i);
		rc = read_pool(r, item);
		if (rc == 0)
			conf_leave(r, mark);
	}
	conf_seen_free(&r->pool_names);
	conf_seen_free(&r->models);
	return rc;
}

/* clang-format off */
conf_reader *const conf_readers[CONF_T_N] = {
	[CONF_T_CERTIFICATES] = conf_certificates_set,
	[CONF_T_CONNECTOR_MAP] = conf_connector_map_set,
	[CONF_T_DNS] = conf_dns_set,
	[CONF_T_POOLS] = pools_set,
	[CONF_T_PREFILL] = conf_endpoints_set,
	[CONF_T_DECODE] = conf_endpoints_set,
};
/* clang-format on */
