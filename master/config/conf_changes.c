/* What differs between two configurations, key by key, and what a reload does with each difference. */
#include <stdlib.h>
#include <string.h>

#include "master/config/conf_client_keys.h"
#include "master/config/conf_engine_tls.h"
#include "master/config/conf_read.h"
#include "master/config/conf_siblings.h"
#include "master/config/conf_tls.h"
#include "shm/base/mem.h"

struct report {
	FILE *out;
	struct conf_cost cost;
};

static const char *cost_name(enum conf_class class)
{
	return class == CONF_LIVE         ? "live"
	       : class == CONF_GENERATION ? "new generation"
					  : "restart";
}

static void
count(struct report *r, enum conf_class class)
{
	r->cost.live += class == CONF_LIVE;
	r->cost.generation += class == CONF_GENERATION;
	r->cost.restart += class == CONF_RESTART;
	(void)fprintf(r->out, " (%s)\n", cost_name(class));
}

/* "limits.max_body: 64MiB -> 1MiB (live)", the key behind `where` */
static void
put_change(struct report *r, const char *where, const struct conf_key *k, const void *old,
	const void *next)
{
	(void)fprintf(r->out, "%s%s: ", where, k->path);
	conf_value_write(k, old, r->out);
	(void)fputs(" -> ", r->out);
	conf_value_write(k, next, r->out);
	count(r, k->class);
}

static bool
is_list_of_maps(const struct conf_key *k)
{
	return conf_repr(k) == CONF_LIST && k->type != CONF_T_LISTEN;
}

static void
compare_rows(struct report *r, const char *where, const struct conf_keys *keys, const void *old,
	const void *next)
{
	for (size_t i = 0; i < keys->n; i++)
		if (!is_list_of_maps(&keys->key[i]) && !conf_value_equal(&keys->key[i], old, next))
			put_change(r, where, &keys->key[i], old, next);
}

/* A part of a pool that is there, gone or other as a whole. */
static void
put_part(struct report *r, const char *where, const char *what)
{
	(void)fprintf(r->out, "%s: %s", where, what);
	count(r, CONF_LIVE);
}

/* --- endpoints ---------------------------------------------------------------------------- */

static int
compare_endpoint(const void *pa, const void *pb)
{
	const struct conf_endpoint *a = *(const struct conf_endpoint *const *)pa,
				   *b = *(const struct conf_endpoint *const *)pb;
	int r = strcmp(a->url, b->url);

	return r != 0 ? r : (int)a->role - (int)b->role;
}

/* Pointers to a pool's endpoints, sorted; the caller frees them. */
static const struct conf_endpoint **
sorted(const struct conf_pool *p)
{
	const struct conf_endpoint **v =
		mem_array(p->nendpoints + 1, sizeof(struct conf_endpoint *));

	for (size_t i = 0; i < p->nendpoints; i++)
		v[i] = &p->endpoints[i];
	qsort(v, p->nendpoints, sizeof(*v), compare_endpoint);
	return v;
}

static char *
endpoint_name(const char *pool, const struct conf_endpoint *e)
{
	return mem_printf("%s.%s[%s]", pool, role_name(e->role), e->url);
}

static void
put_endpoint(struct report *r, const char *pool, const struct conf_endpoint *e, const char *what)
{
	char *where = endpoint_name(pool, e);

	put_part(r, where, what);
	free(where);
}

static void
compare_terms(struct report *r, const char *pool, const struct conf_endpoint *old,
	const struct conf_endpoint *next)
{
	char *where = endpoint_name(pool, next), *member = mem_printf("%s.", where);

	compare_rows(r, member, &conf_file_keys, old, next);
	free(where);
	free(member);
}

/* A walk over both sorted lists at once. */
static void
compare_endpoints(struct report *r, const char *pool, const struct conf_pool *old,
	const struct conf_pool *next)
{
	const struct conf_endpoint **a = sorted(old), **b = sorted(next);
	size_t i = 0, k = 0;

	while (i < old->nendpoints || k < next->nendpoints) {
		int c = i == old->nendpoints    ? 1
			: k == next->nendpoints ? -1
						: compare_endpoint(&a[i], &b[k]);

		if (c < 0)
			put_endpoint(r, pool, a[i++], "removed");
		else if (c > 0)
			put_endpoint(r, pool, b[k++], "added");
		else
			compare_terms(r, pool, a[i++], b[k++]);
	}
	free(a);
	free(b);
}

/* --- pools -------------------------------------------------------------------------------- */

static void
put_pool(struct report *r, const struct conf_pool *p, const char *what)
{
	char *where = mem_printf("pools[%s]", p->name);

	put_part(r, where, what);
	free(where);
}

static void
put_tls(struct report *r, const char *where, const struct conf_engine_tls *old,
	const struct conf_engine_tls *next)
{
	(void)fprintf(r->out, "%s.tls: %s", where,
		old->client == NULL    ? "its engines speak TLS now"
		: next->client == NULL ? "its engines speak TLS no more"
				       : "other files, or one that has changed");
	count(r, CONF_GENERATION);
}

static void
compare_pool(struct report *r, const struct conf_pool *old, const struct conf_pool *next)
{
	char *where = mem_printf("pools[%s]", next->name), *member = mem_printf("%s.", where),
	     *map = mem_printf("%s.%s.", where, connector_name(next->connector)),
	     *dns = mem_printf("%s.dns", where);

	compare_rows(r, member, &conf_pool_keys, old, next);
	if (old->connector == next->connector)
		compare_rows(r, map, &conf_connector_keys, old, next);
	compare_endpoints(r, where, old, next);
	if (!conf_dns_equal(old, next))
		put_part(r, dns, "changed");
	if (!mem_text_equal(old->api_key, next->api_key) &&
		mem_text_equal(old->engine_api_key_file, next->engine_api_key_file))
		put_part(r, where, "another key in its engine_api_key_file");
	if (!conf_engine_tls_texts_equal(&old->tls, &next->tls))
		put_tls(r, where, &old->tls, &next->tls);
	free(where);
	free(member);
	free(map);
	free(dns);
}

/* --- keys of clients ---------------------------------------------------------------------- */

static bool
same_key(const struct conf_api_key *a, const struct conf_api_key *b)
{
	return a->door == b->door && strcmp(a->name, b->name) == 0;
}

/* NULL: there is none of this name. */
static const struct conf_api_key *
key_named(const struct conf *c, const struct conf_api_key *k)
{
	for (size_t i = 0; i < c->napi_keys; i++)
		if (same_key(&c->api_keys[i], k))
			return &c->api_keys[i];
	return NULL;
}

static void
put_client_key(struct report *r, const struct conf_api_key *k, const char *what)
{
	char *where = mem_printf("%s[%s]", conf_api_keys_key(k->door), k->name);

	put_part(r, where, what);
	free(where);
}

static void
compare_client_keys(struct report *r, const struct conf *old, const struct conf *next)
{
	const struct conf_api_key *was;

	for (size_t i = 0; i < next->napi_keys; i++) {
		const struct conf_api_key *k = &next->api_keys[i];

		/* mostly in the same row: a file has thousands */
		was = i < old->napi_keys && same_key(&old->api_keys[i], k) ? &old->api_keys[i]
									   : key_named(old, k);
		if (was == NULL)
			put_client_key(r, k, "added");
		else if (!conf_client_key_equal(was, k))
			put_client_key(r, k, "changed");
	}
	for (size_t i = 0; i < old->napi_keys; i++)
		if ((i >= next->napi_keys || !same_key(&next->api_keys[i], &old->api_keys[i])) &&
			key_named(next, &old->api_keys[i]) == NULL)
			put_client_key(r, &old->api_keys[i], "removed");
}

/* --- certificates ------------------------------------------------------------------------- */

/* By name they are a value; what their files hold is not shown. */
static void
compare_certificates(struct report *r, const struct conf *old, const struct conf *next)
{
	const struct conf_key *k = conf_key_row(&conf_root_keys, "tls.certificates");

	if (!conf_tls_names_equal(&old->tls, &next->tls))
		put_change(r, "", k, old, next);
	else if (!conf_tls_files_equal(&old->tls, &next->tls)) {
		(void)fprintf(r->out, "%s: a file of tls has changed", k->path);
		count(r, k->class);
	}
}

/* The file by its name is a value; what it holds is not shown. */
static void
compare_secrets(struct report *r, const struct conf *old, const struct conf *next)
{
	const struct conf_key *k = conf_key_row(&conf_root_keys, "siblings.secret_file");

	if (!conf_value_equal(k, old, next) || conf_siblings_key_equal(old, next))
		return;
	(void)fprintf(r->out, "%s: another secret in this file", k->path);
	count(r, k->class);
}

struct conf_cost
conf_changes(const struct conf *old, const struct conf *next, FILE *out)
{
	struct report r = {.out = out};
	const struct conf_pool *was;

	compare_rows(&r, "", &conf_root_keys, old, next);
	compare_client_keys(&r, old, next);
	compare_certificates(&r, old, next);
	compare_secrets(&r, old, next);
	for (size_t i = 0; i < next->npools; i++) {
		was = conf_pool_named(old, next->pools[i].name);
		if (was != NULL)
			compare_pool(&r, was, &next->pools[i]);
		else
			put_pool(&r, &next->pools[i], "added");
	}
	for (size_t i = 0; i < old->npools; i++)
		if (conf_pool_named(next, old->pools[i].name) == NULL)
			put_pool(&r, &old->pools[i], "removed");
	return r.cost;
}
