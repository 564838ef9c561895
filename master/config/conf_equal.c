/* Whether two members are equal, and the pools of two configurations, by the rows of their tables. */
#include <string.h>

#include "master/config/conf_address.h"
#include "master/config/conf_read.h"
#include "master/config/conf_tls.h"
#include "shm/base/mem.h"

static const void *
cmember(const struct conf_key *k, const void *base)
{
	return (const char *)base + k->off;
}

static bool
listen_equal(const struct conf_key *k, const void *a, const void *b)
{
	const struct conf_listen *la = *(struct conf_listen *const *)cmember(k, a),
				 *lb = *(struct conf_listen *const *)cmember(k, b);
	const size_t n = *(const size_t *)((const char *)a + k->noff);

	if (n != *(const size_t *)((const char *)b + k->noff))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!conf_listen_same(&la[i], &lb[i]))
			return false;
	return true;
}

static bool
strs_equal(const struct conf_key *k, const void *a, const void *b)
{
	char *const *va = *(char **const *)cmember(k, a), *const *vb =
								  *(char **const *)cmember(k, b);
	size_t n = *(const size_t *)((const char *)a + k->noff);

	if (n != *(const size_t *)((const char *)b + k->noff))
		return false;
	for (size_t i = 0; i < n; i++)
		if (strcmp(va[i], vb[i]) != 0)
			return false;
	return true;
}

static bool
ports_equal(const struct conf_ports *a, const struct conf_ports *b)
{
	return a->n == b->n && memcmp(a->port, b->port, a->n * sizeof(a->port[0])) == 0;
}

/* None is none, whatever the time. */
static bool
rate_equal(const struct conf_rate *a, const struct conf_rate *b)
{
	return a->n == b->n && (a->n == 0 || a->per_s == b->per_s);
}

/* The same file may hold another certificate than before. */
static bool
certificates_equal(const struct conf *a, const struct conf *b)
{
	return conf_tls_names_equal(&a->tls, &b->tls) && conf_tls_files_equal(&a->tls, &b->tls);
}

static bool pools_equal(const struct conf *a, const struct conf *b);

bool
conf_value_equal(const struct conf_key *k, const void *a, const void *b)
{
	switch (conf_repr(k)) {
	case CONF_U32:
	case CONF_WORD:
		return *(const uint32_t *)cmember(k, a) == *(const uint32_t *)cmember(k, b);
	case CONF_U64:
		return *(const uint64_t *)cmember(k, a) == *(const uint64_t *)cmember(k, b);
	case CONF_RATE:
		return rate_equal(cmember(k, a), cmember(k, b));
	case CONF_SHORT:
		return strcmp(cmember(k, a), cmember(k, b)) == 0;
	case CONF_PORTS:
		return ports_equal(cmember(k, a), cmember(k, b));
	case CONF_STR:
		return mem_text_equal(*(char *const *)cmember(k, a), *(char *const *)cmember(k, b));
	case CONF_STRS:
		return strs_equal(k, a, b);
	case CONF_LIST:
		break;
	}
	if (k->type == CONF_T_LISTEN)
		return listen_equal(k, a, b);
	if (k->type == CONF_T_CERTIFICATES)
		return certificates_equal(a, b);
	if (k->type == CONF_T_POOLS)
		return pools_equal(a, b);
	return true; /* endpoints and dns: compared once per pool, by pools_equal() */
}

static bool
rows_equal(const struct conf_keys *keys, const void *a, const void *b)
{
	for (size_t i = 0; i < keys->n; i++)
		if (!conf_value_equal(&keys->key[i], a, b))
			return false;
	return true;
}

bool
conf_dns_equal(const struct conf_pool *a, const struct conf_pool *b)
{
	if (a->ndns != b->ndns)
		return false;
	for (size_t i = 0; i < a->ndns; i++)
		for (size_t k = 0; k < conf_dns_keys.n; k++)
			if (!conf_value_equal(&conf_dns_keys.key[k], &a->dns[i], &b->dns[i]))
				return false;
	return true;
}

static bool
endpoints_equal(const struct conf_pool *a, const struct conf_pool *b)
{
	if (a->nendpoints != b->nendpoints)
		return false;
	for (size_t i = 0; i < a->nendpoints; i++)
		for (size_t k = 0; k < conf_file_keys.n; k++)
			if (!conf_value_equal(
				    &conf_file_keys.key[k], &a->endpoints[i], &b->endpoints[i]))
				return false;
	return true;
}

static bool
pools_equal(const struct conf *a, const struct conf *b)
{
	if (a->npools != b->npools)
		return false;
	for (size_t i = 0; i < a->npools; i++) {
		if (!rows_equal(&conf_pool_keys, &a->pools[i], &b->pools[i]) ||
			!rows_equal(&conf_connector_keys, &a->pools[i], &b->pools[i]))
			return false;
		if (!endpoints_equal(&a->pools[i], &b->pools[i]) ||
			!conf_dns_equal(&a->pools[i], &b->pools[i]) ||
			/* the same file may hold another key than before */
			!mem_text_equal(a->pools[i].api_key, b->pools[i].api_key))
			return false;
	}
	return true;
}
