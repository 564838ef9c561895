/* A configuration as the YAML that amounts to it: what differs from the defaults. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf_read.h"
#include "shm/base/mem.h"

/* Where the next key goes. */
struct place {
	FILE *out;
	int indent;
	bool dash;        /* it is the first of a list's entry */
	char section[32]; /* "limits", or "" */
};

static void
fill_defaults(const struct conf_keys *keys, void *base)
{
	char what[CONF_WHAT];

	for (size_t i = 0; i < keys->n; i++) {
		const char *def = conf_key_default(&keys->key[i]);

		if (def != NULL && strcmp(def, "[]") != 0)
			(void)conf_value_set(&keys->key[i], base, def, what);
	}
}

static void
write_name(struct place *p, int deeper, const char *name, size_t n)
{
	(void)fprintf(p->out, "%*s%s%.*s:", p->indent + deeper - (p->dash ? 2 : 0), "",
		p->dash ? "- " : "", (int)n, name);
	p->dash = false;
}

/* The start of a key's line; a section is opened with its first key. */
static void
start_line(struct place *p, const char *path)
{
	const char *dot = strchr(path, '.');
	size_t n = dot != NULL ? (size_t)(dot - path) : 0;

	if (n > 0 && (strlen(p->section) != n || strncmp(p->section, path, n) != 0)) {
		write_name(p, 0, path, n);
		(void)fputc('\n', p->out);
	}
	(void)snprintf(p->section, sizeof(p->section), "%.*s", (int)n, path);
	path = dot != NULL ? dot + 1 : path;
	write_name(p, dot != NULL ? 2 : 0, path, strlen(path));
	(void)fputc(' ', p->out);
}

/* File names are relative to the configuration that contains them, and the place of this output
 * is unknown. */
static void
write_path(FILE *out, const struct conf *c, const char *name)
{
	char *path = conf_beside(c->path, name), full[PATH_MAX];

	conf_write_text(out, realpath(path, full) != NULL ? full : path);
	free(path);
}

static void
write_key(struct place *p, const struct conf_key *k, const void *base)
{
	start_line(p, k->path);
	conf_value_write(k, base, p->out);
	(void)fputc('\n', p->out);
}

static void
write_file(struct place *p, const struct conf_key *k, const struct conf *c, const void *base)
{
	start_line(p, k->path);
	write_path(p->out, c, *(char *const *)((const char *)base + k->off));
	(void)fputc('\n', p->out);
}

/* One entry of prefill, decode or dns: {url: "http://p", weight: 2} */
static void
write_entry(FILE *out, const struct conf_keys *keys, const void *entry, const void *def)
{
	bool first = true;

	(void)fputs("      - {", out);
	for (size_t i = 0; i < keys->n; i++) {
		const struct conf_key *k = &keys->key[i];

		if (k->def != NULL && conf_value_equal(k, entry, def))
			continue;
		(void)fprintf(out, "%s%s: ", first ? "" : ", ", k->path);
		conf_value_write(k, entry, out);
		first = false;
	}
	(void)fputs("}\n", out);
}

static void
write_endpoints(struct place *p, const struct conf_pool *pool, enum role role)
{
	struct conf_endpoint def = {.url = NULL};
	bool any = false;

	fill_defaults(&conf_endpoint_keys, &def);
	for (size_t i = 0; i < pool->nendpoints && conf_pool_file(pool) == NULL; i++) {
		if (pool->endpoints[i].role != role)
			continue;
		if (!any)
			(void)fprintf(p->out, "    %s:\n", role_name(role));
		any = true;
		write_entry(p->out, &conf_endpoint_keys, &pool->endpoints[i], &def);
	}
	conf_values_free(&conf_endpoint_keys, &def);
}

static void
write_dns(struct place *p, const struct conf_pool *pool)
{
	struct conf_dns def = {.name = NULL};

	fill_defaults(&conf_dns_keys, &def);
	if (pool->ndns > 0)
		(void)fputs("    dns:\n", p->out);
	for (size_t i = 0; i < pool->ndns; i++)
		write_entry(p->out, &conf_dns_keys, &pool->dns[i], &def);
	conf_values_free(&conf_dns_keys, &def);
}

/* The map of the pool's connector, with the keys that are not at their defaults. */
static void
write_map(struct place *p, const struct conf_pool *pool, const struct conf_pool *def)
{
	bool any = false;

	for (size_t i = 0; i < conf_connector_keys.n; i++) {
		const struct conf_key *k = &conf_connector_keys.key[i];

		if (conf_value_equal(k, pool, def))
			continue;
		if (!any)
			(void)fprintf(p->out, "    %s:\n", connector_name(pool->connector));
		any = true;
		(void)fprintf(p->out, "      %s: ", k->path);
		conf_value_write(k, pool, p->out);
		(void)fputc('\n', p->out);
	}
}

static void
write_pool(FILE *out, const struct conf *c, const struct conf_pool *pool, size_t number)
{
	struct place p = {.out = out, .indent = 4, .dash = true};
	struct conf_pool def = {.name = NULL};

	fill_defaults(&conf_pool_keys, &def);
	fill_defaults(&conf_connector_keys, &def);
	conf_pool_compute(pool, number, &def);
	for (size_t i = 0; i < conf_pool_keys.n; i++) {
		const struct conf_key *k = &conf_pool_keys.key[i];

		if (k->def != NULL && conf_value_equal(k, pool, &def))
			continue;
		if (k->type == CONF_T_FILE)
			write_file(&p, k, c, pool);
		else
			write_key(&p, k, pool);
	}
	write_map(&p, pool, &def);
	write_endpoints(&p, pool, ROLE_PREFILL);
	write_endpoints(&p, pool, ROLE_DECODE);
	write_dns(&p, pool);
	conf_values_free(&conf_pool_keys, &def);
}

static void
write_certificates(struct place *p, const struct conf *c, const struct conf_key *k)
{
	start_line(p, k->path);
	(void)fputc('[', p->out);
	for (size_t i = 0; i < c->tls.ncertificates; i++) {
		(void)fputs(i > 0 ? ", {cert: " : "{cert: ", p->out);
		write_path(p->out, c, c->tls.certificates[i].cert);
		(void)fputs(", key: ", p->out);
		write_path(p->out, c, c->tls.certificates[i].key);
		(void)fputc('}', p->out);
	}
	(void)fputs("]\n", p->out);
}

static void
write_root_key(struct place *p, const struct conf *c, const struct conf_key *k)
{
	if (k->type == CONF_T_CERTIFICATES)
		write_certificates(p, c, k);
	else if (k->type == CONF_T_FILE && *(char *const *)((const char *)c + k->off) != NULL)
		write_file(p, k, c, c);
	else
		write_key(p, k, c);
}

void
conf_write(const struct conf *c, FILE *out)
{
	struct place p = {.out = out};
	struct conf *def = conf_new(NULL);
	char what[CONF_WHAT];

	fill_defaults(&conf_root_keys, def);
	if (c->tls.nlisten == 0)
		(void)conf_listen_default(def, what);
	for (size_t i = 0; i < conf_root_keys.n; i++) {
		const struct conf_key *k = &conf_root_keys.key[i];
		bool automatic = k->type == CONF_T_WORKERS && c->workers_auto;

		if (k->type != CONF_T_POOLS && !automatic && !conf_value_equal(k, c, def))
			write_root_key(&p, c, k);
	}
	(void)fputs("pools:\n", out);
	for (size_t i = 0; i < c->npools; i++)
		write_pool(out, c, &c->pools[i], i + 1);
	conf_free(&def);
}
