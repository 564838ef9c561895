/* Pools and their endpoints: lists in the file, an endpoints_file, and what must hold between them.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf_api_key.h"
#include "master/config/conf_connector.h"
#include "master/config/conf_read.h"
#include "master/config/conf_seen.h"
#include "proto/http/http.h"
#include "shm/base/connector_info.h"
#include "shm/base/mem.h"

static const enum role role_unset =
	ROLE_N; /* of an endpoints_file's entry, until role or label says it */

struct conf_pool *
conf_pool_add(struct conf *c)
{
	c->pools = mem_resize(c->pools, c->npools + 1, sizeof(*c->pools));
	memset(&c->pools[c->npools], 0, sizeof(*c->pools));
	return &c->pools[c->npools++];
}

/* Room grows by doubling: lists of tens of thousands are read one by one. */
struct conf_endpoint *
conf_endpoint_add(struct conf_pool *p)
{
	size_t n = p->nendpoints;

	if ((n & (n - 1)) == 0)
		p->endpoints = mem_resize(p->endpoints, n > 0 ? 2 * n : 1, sizeof(*p->endpoints));
	memset(&p->endpoints[n], 0, sizeof(*p->endpoints));
	p->nendpoints++;
	return &p->endpoints[n];
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
	free(p->groups); /* the names are the endpoints' */
	conf_values_free(&conf_pool_keys, p);
}

int
conf_endpoints_set(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *list)
{
	struct conf_pool *p = base;
	struct conf_endpoint *ep;
	yaml_node_t *item;
	int lines[CONF_ENTRY_KEYS] = {0};
	size_t n, mark;

	if (conf_is_list(r, k, list, &n) != 0)
		return -1;
	for (size_t i = 0; (item = conf_item(r, list, i)) != NULL; i++) {
		mark = conf_enter(r, "[%zu]", i);
		ep = conf_endpoint_add(p);
		ep->role = k->type == CONF_T_PREFILL ? ROLE_PREFILL : ROLE_DECODE;
		ep->line = conf_line(item);
		memset(lines, 0, sizeof(lines));
		if (conf_walk(r, &conf_endpoint_keys, ep, item, lines) != 0)
			return -1;
		conf_leave(r, mark);
	}
	return 0;
}

int
conf_dns_set(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *list)
{
	struct conf_pool *p = base;
	struct conf_dns *d;
	yaml_node_t *item;
	int lines[CONF_ENTRY_KEYS];
	size_t n, mark;

	if (conf_is_list(r, k, list, &n) != 0)
		return -1;
	p->dns = mem_array(n + 1, sizeof(*p->dns));
	for (size_t i = 0; (item = conf_item(r, list, i)) != NULL; i++) {
		mark = conf_enter(r, "[%zu]", i);
		d = &p->dns[p->ndns++];
		d->as.line = conf_line(item);
		memset(lines, 0, sizeof(lines));
		if (conf_walk(r, &conf_dns_keys, d, item, lines) != 0)
			return -1;
		if (d->name[0] == '_' && d->port != 0)
			return conf_fail(r, d->as.line,
				"%.100s is the name of SRV records, which say the port: leave out port",
				d->name);
		for (const struct conf_dns *q = p->dns; q < d; q++)
			if (strcasecmp(q->name, d->name) == 0 && q->port == d->port &&
				q->as.role == d->as.role)
				return conf_fail(r, d->as.line,
					"%.100s is there twice, first in line %d", d->name,
					q->as.line);
		conf_leave(r, mark);
	}
	return 0;
}

/* --- the endpoints_file
 * --------------------------------------------------------------------------- */

static int
set_role(struct conf_read *r, const struct conf_pool *p, struct conf_endpoint *ep)
{
	bool pre, dec;

	if ((ep->role == role_unset) == (ep->label == NULL))
		return conf_fail(r, ep->line, "%s: each endpoint has a role or a label",
			ep->label == NULL ? "neither role nor label" : "role and label together");
	if (ep->label == NULL)
		return 0;
	pre = conf_strs_has(p->prefill_labels, p->nprefill_labels, ep->label);
	dec = conf_strs_has(p->decode_labels, p->ndecode_labels, ep->label);
	if (!pre && !dec)
		return conf_fail(r, ep->line,
			"label %.60s is in neither prefill_labels nor decode_labels of pool %s",
			ep->label, p->name);
	ep->role = pre ? ROLE_PREFILL : ROLE_DECODE;
	return 0;
}

static int
walk_file(struct conf_read *r, struct conf_pool *p, yaml_node_t *root)
{
	static const struct conf_key list = {.path = "", .type = CONF_T_PREFILL, .max = 65536};
	struct conf_endpoint *ep;
	yaml_node_t *item;
	int lines[CONF_ENTRY_KEYS];
	size_t n, mark;

	/* An empty file: no endpoints for now.  But one that is watched may be about to be written. */
	if (root == NULL && (r->was == NULL || !p->watch))
		return 0;
	if (root == NULL)
		return conf_fail(
			r, 0, "the file is empty: to remove all endpoints write [], or use SIGHUP");
	if (conf_is_list(r, &list, root, &n) != 0)
		return -1;
	for (size_t i = 0; (item = conf_item(r, root, i)) != NULL; i++) {
		mark = conf_enter(r, "[%zu]", i);
		ep = conf_endpoint_add(p);
		ep->role = role_unset;
		ep->line = conf_line(item);
		memset(lines, 0, sizeof(lines));
		if (conf_walk(r, &conf_file_keys, ep, item, lines) != 0 || set_role(r, p, ep) != 0)
			return -1;
		conf_leave(r, mark);
	}
	return 0;
}

/* A relative name is looked for beside the configuration that holds it. */
char *
conf_beside(const char *file, const char *name)
{
	const char *slash = file != NULL ? strrchr(file, '/') : NULL;

	if (name[0] == '/' || slash == NULL)
		return mem_strdup(name);
	return mem_printf("%.*s/%s", (int)(slash - file), file, name);
}

char *
conf_endpoints_path(const struct conf *conf, const struct conf_pool *pool)
{
	return conf_beside(conf->path, pool->endpoints_file);
}

static int check_endpoints(struct conf_read *r, const struct conf_pool *p);
static int check_all_terms(struct conf_read *r, const struct conf_pool *p);

/* The pool of the configuration with the same text. */
static const struct conf_pool *
pool_before(const struct conf_read *r, const struct conf_pool *p)
{
	return r->was != NULL ? &r->was->pools[p - r->conf->pools] : NULL;
}

static int
take_file_text(struct conf_read *r, struct conf_pool *p, const char *path, int line)
{
	const struct conf_pool *was = pool_before(r, p);
	size_t mark = conf_enter(r, ".endpoints_file");

	if (was != NULL && !p->watch) {
		p->file_text = mem_dup(was->file_text, was->nfile_text);
		p->nfile_text = was->nfile_text;
	} else if (conf_yaml_read(r, path, line, &p->file_text, &p->nfile_text) != 0) {
		return -1;
	}
	conf_leave(r, mark);
	return 0;
}

static int
read_endpoints_file(struct conf_read *r, struct conf_pool *p, int line)
{
	char *path = conf_beside(r->file, p->endpoints_file);
	struct conf_read f = {.file = path, .err = r->err, .conf = r->conf, .was = r->was};
	int rc = take_file_text(r, p, path, line);

	if (rc == 0)
		rc = conf_yaml_load(&f, p->file_text, p->nfile_text);
	if (rc == 0) {
		rc = walk_file(&f, p, yaml_document_get_root_node(&f.doc));
		yaml_document_delete(&f.doc);
		if (rc == 0)
			rc = check_endpoints(&f, p);
		if (rc == 0)
			rc = check_all_terms(&f, p);
	}
	free(path);
	return rc;
}

/* --- checks
 * --------------------------------------------------------------------------------------- */

struct seen {
	struct http_url url;
	const struct conf_endpoint *ep;
};

/* The same place: host without regard to case, port, prefix.  Not the spelling: port 80 may be left
 * out. */
static int
place_cmp(const struct seen *a, const struct seen *b)
{
	int d = (int)a->ep->role - (int)b->ep->role;

	if (d == 0)
		d = strcasecmp(a->url.host, b->url.host);
	if (d == 0)
		d = (int)a->url.port - (int)b->url.port;
	return d != 0 ? d : strcmp(a->url.prefix, b->url.prefix);
}

static int
seen_cmp(const void *va, const void *vb)
{
	const struct seen *a = *(const struct seen *const *)va,
			  *b = *(const struct seen *const *)vb;
	int d = place_cmp(a, b);

	return d != 0 ? d : (a->ep > b->ep) - (a->ep < b->ep);
}

/* No engine twice in one role: it would get twice its share.  Both roles at once is fine. */
static int
check_endpoints(struct conf_read *r, const struct conf_pool *p)
{
	struct seen *all = mem_array(p->nendpoints, sizeof(*all));
	const struct seen **by_place = mem_array(p->nendpoints, sizeof(const struct seen *));
	const char *why;
	int rc = 0;

	for (size_t i = 0; i < p->nendpoints; i++) {
		all[i].ep = &p->endpoints[i];
		if (http_url_parse(p->endpoints[i].url, &all[i].url, &why) != 0)
			abort(); /* its key was accepted */
		by_place[i] = &all[i];
	}
	qsort(by_place, p->nendpoints, sizeof(const struct seen *), seen_cmp);
	for (size_t i = 1; rc == 0 && i < p->nendpoints; i++) {
		const struct conf_endpoint *ep = by_place[i]->ep, *first = by_place[i - 1]->ep;

		if (place_cmp(by_place[i - 1], by_place[i]) != 0)
			continue;
		(void)conf_enter(r, "%s%s", r->path[0] != '\0' ? "." : "", role_name(ep->role));
		rc = conf_fail(r, ep->line, "%.100s is there twice, first in line %d", ep->url,
			first->line);
	}
	free(by_place);
	free(all);
	return rc;
}

/* The line of a key in the connector's map; 0 if it is not given. */
static int
connector_given(const struct conf_read *r, const char *key)
{
	return r->connector_lines[conf_key_row(&conf_connector_keys, key) -
				  conf_connector_keys.key];
}

int
conf_given(const int *lines, const char *key)
{
	return lines != NULL ? lines[conf_key_row(&conf_pool_keys, key) - conf_pool_keys.key] : 0;
}

int
conf_line_of(const struct conf_pool *p, const int *lines, const char *key)
{
	int line = conf_given(lines, key);

	return line != 0 ? line : p->line;
}

static int __attribute__((format(printf, 5, 6))) fail_key(struct conf_read *r,
	const struct conf_pool *p, const int *lines, const char *key, const char *fmt, ...)
{
	char what[CONF_WHAT];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	(void)conf_enter(r, ".%s", key);
	return conf_fail(r, conf_line_of(p, lines, key), "%s", what);
}

#define EJECT_MAX_MS (300 * CONF_SEC)
#define QUEUE_SIZE 100 /* the default of queue_size, where the shared memory has room for it */

/* The defaults that depend on other keys; `engine` is what the pool has, given or not. */
static int
set_computed(struct conf_read *r, struct conf_pool *p, const int *lines, enum engine_kind engine)
{
	const struct connector_info *info = &connector_info[p->connector];
	char what[CONF_WHAT], numbered[32], first_byte[32], eject_max[32];
	const struct {
		const char *key, *value;
	} v[] = {
		{"engine", engine_name(info->engine)},
		{"health_path", engine == ENGINE_SGLANG ? "/ready" : "/health"},
		{"fallback", info->decode_alone ? "direct" : "none"},
		{"timeouts.first_byte", first_byte},
		{"eject_max_time", eject_max},
		{"prefill_policy", policy_name(p->policy)},
		{"decode_policy", policy_name(p->policy)},
		{"name", p->nmodels > 0 ? p->models[0] : numbered},
	};

	if (connector_given(r, "handoff") == 0)
		p->shake.handoff = info->handoff;
	if (connector_given(r, "remote_host") == 0)
		p->shake.remote_host = info->remote_host;
	(void)snprintf(numbered, sizeof(numbered), "pool%zu", r->conf->npools);
	(void)snprintf(first_byte, sizeof(first_byte), "%" PRIu64 "ms", p->timeouts.decode_ms);
	(void)snprintf(eject_max, sizeof(eject_max), "%" PRIu64 "ms",
		p->ejection.time_ms > EJECT_MAX_MS ? p->ejection.time_ms : EJECT_MAX_MS);
	for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++)
		if (conf_given(lines, v[i].key) == 0 &&
			conf_value_set(
				conf_key_row(&conf_pool_keys, v[i].key), p, v[i].value, what) != 0)
			return fail_key(
				r, p, lines, v[i].key, "give the pool a name: %.200s", what);
	return 0;
}

void
conf_pool_compute(const struct conf_pool *p, size_t number, struct conf_pool *ret)
{
	const enum policy_kind policy = ret->policy;
	const uint64_t decode_ms = ret->timeouts.decode_ms, eject_ms = ret->ejection.time_ms;
	struct conf_error err;
	struct conf c = {.npools = number};
	struct conf_read r = {.err = &err, .conf = &c};

	ret->connector = p->connector;
	ret->policy = p->policy;
	ret->timeouts.decode_ms = p->timeouts.decode_ms;
	ret->ejection.time_ms = p->ejection.time_ms;
	ret->models = p->models;
	ret->nmodels = p->nmodels;
	/* a model's name need not be one for a pool */
	(void)set_computed(&r, ret, NULL, p->engine);
	ret->policy = policy;
	ret->timeouts.decode_ms = decode_ms;
	ret->ejection.time_ms = eject_ms;
	ret->models = NULL;
	ret->nmodels = 0;
}

static int
check_labels(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	for (size_t i = 0; i < p->ndecode_labels; i++)
		if (conf_strs_has(p->prefill_labels, p->nprefill_labels, p->decode_labels[i]))
			return fail_key(r, p, lines, "decode_labels",
				"%.100s is also one of prefill_labels", p->decode_labels[i]);
	if (p->endpoints_file == NULL && p->nprefill_labels + p->ndecode_labels > 0)
		return fail_key(r, p, lines,
			p->nprefill_labels > 0 ? "prefill_labels" : "decode_labels",
			"labels without an endpoints_file that uses them");
	return 0;
}

static int
check_rescue(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	if (p->rescue.resume != 0 && p->rescue.retries == 0)
		return fail_key(r, p, lines, "resume",
			"a stream goes on by another try, and retries: 0 allows none");
	if (p->ejection.max_ms < p->ejection.time_ms)
		return fail_key(r, p, lines, "eject_max_time", "is less than eject_time");
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

/* --- endpoints
 * ---------------------------------------------------------------------------------- */

/* Of the endpoints_file, or of prefill and decode. */
static int
check_all_terms(struct conf_read *r, const struct conf_pool *p)
{
	size_t n[ROLE_N] = {0}, mark;

	for (size_t i = 0; i < p->nendpoints; i++) {
		const struct conf_endpoint *ep = &p->endpoints[i];

		if (p->endpoints_file != NULL)
			mark = conf_enter(r, "[%zu]", i);
		else
			mark = conf_enter(r, ".%s[%zu]", role_name(ep->role), n[ep->role]++);
		if (conf_connector_check_endpoint(r, p, ep, false) != 0)
			return -1;
		conf_leave(r, mark);
	}
	return 0;
}

static int
check_found_terms(struct conf_read *r, const struct conf_pool *p)
{
	size_t mark;

	for (size_t i = 0; i < p->ndns; i++) {
		mark = conf_enter(r, ".dns[%zu]", i);
		if (conf_connector_check_endpoint(r, p, &p->dns[i].as, true) != 0)
			return -1;
		conf_leave(r, mark);
	}
	return 0;
}

/* Whether endpoints of this role may come from elsewhere than the lists. */
static bool
has_source(const struct conf_pool *p, enum role role)
{
	for (size_t i = 0; i < p->ndns; i++)
		if (p->dns[i].as.role == role)
			return true;
	return p->endpoints_file != NULL || p->nannounce_networks > 0;
}

static int
check_roles(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	size_t n[ROLE_N + 1] = {0};

	if (p->endpoints_file != NULL && p->nendpoints > 0)
		return fail_key(r, p, lines, "endpoints_file",
			"stands instead of prefill and decode, not beside them");
	for (size_t i = 0; i < p->nendpoints; i++)
		n[p->endpoints[i].role]++;
	for (enum role role = 0; role < ROLE_N; role++)
		if (n[role] == 0 && !has_source(p, role))
			return fail_key(r, p, lines, role_name(role), "pool %s has no %s endpoint",
				p->name, role_name(role));
	return 0;
}

/* True unless there are too many. */
static bool
note_group(struct conf_pool *p, char *group)
{
	if (group == NULL || conf_strs_has(p->groups, p->ngroups, group))
		return true;
	if (p->ngroups == CONF_GROUPS_MAX)
		return false;
	if (p->groups == NULL)
		p->groups = mem_array(CONF_GROUPS_MAX, sizeof(*p->groups));
	p->groups[p->ngroups++] = group;
	return true;
}

static int
note_groups(struct conf_read *r, struct conf_pool *p)
{
	for (size_t i = 0; i < p->nendpoints; i++)
		if (!note_group(p, p->endpoints[i].group))
			return conf_fail(r, p->endpoints[i].line, "more than %d groups in pool %s",
				CONF_GROUPS_MAX, p->name);
	for (size_t i = 0; i < p->ndns; i++)
		if (!note_group(p, p->dns[i].as.group))
			return conf_fail(r, p->dns[i].as.line, "more than %d groups in pool %s",
				CONF_GROUPS_MAX, p->name);
	return 0;
}

static int
check_session(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	for (enum role role = 0; role < ROLE_N; role++)
		if (p->policies[role] == POLICY_SESSION && p->session_header == NULL &&
			p->session_member == NULL)
			return fail_key(r, p, lines, "session_header",
				"policy session of pool %s needs a session_header or a session_member",
				p->name);
	return 0;
}

/* Whether a group, or those without one, has endpoints of both roles. */
static bool
pair_possible(const struct conf_pool *p)
{
	bool has[CONF_GROUPS_MAX + 1][ROLE_N] = {{false}};

	for (size_t i = 0; i < p->nendpoints; i++) {
		const struct conf_endpoint *ep = &p->endpoints[i];
		size_t g = 0;

		while (g < p->ngroups &&
			(ep->group == NULL || strcmp(p->groups[g], ep->group) != 0))
			g++;
		has[g][ep->role] = true;
		if (has[g][ROLE_PREFILL] && has[g][ROLE_DECODE])
			return true;
	}
	return false;
}

/* Where all endpoints are known: a group with both roles must be among them. */
static int
check_pairing(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	if (p->pairing != PAIRING_REQUIRE || p->endpoints_file != NULL || p->ndns > 0 ||
		p->nannounce_networks > 0 || pair_possible(p))
		return 0;
	return fail_key(r, p, lines, "pairing",
		"no group of pool %s has both a prefill and a decode endpoint", p->name);
}

static int
check_sources(struct conf_read *r, const struct conf_pool *p, const int *lines)
{
	if (p->watch && p->endpoints_file == NULL)
		return fail_key(r, p, lines, "watch", "there is no endpoints_file to watch");
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
		return fail_key(r, p, lines, "name",
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
			return fail_key(r, p, lines, "models",
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
	if (p->engine_api_key_file != NULL && r->was != NULL)
		p->api_key = mem_strdup(pool_before(r, p)->api_key);
	else if (p->engine_api_key_file != NULL &&
		 conf_api_key_read(r, p, conf_line_of(p, lines, "engine_api_key_file")) != 0)
		return -1;
	if (p->endpoints_file != NULL
			? read_endpoints_file(r, p, conf_line_of(p, lines, "endpoints_file")) != 0
			: check_endpoints(r, p) != 0 || check_all_terms(r, p) != 0)
		return -1;
	if (check_found_terms(r, p) != 0)
		return -1;
	if (note_groups(r, p) != 0 || check_session(r, p, lines) != 0 ||
		check_pairing(r, p, lines) != 0)
		return -1;
	return check_others(r, p, lines);
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

int
conf_pools_set(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *list)
{
	yaml_node_t *item;
	size_t n, mark;
	int rc = conf_is_list(r, k, list, &n);

	(void)base; /* r->conf */
	for (size_t i = 0; rc == 0 && (item = conf_item(r, list, i)) != NULL; i++) {
		mark = conf_enter(r, "[%zu]", i);
		rc = read_pool(r, item);
		if (rc == 0)
			conf_leave(r, mark);
	}
	conf_seen_free(&r->pool_names);
	conf_seen_free(&r->models);
	return rc;
}
