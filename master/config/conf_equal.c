/* Whether the pools of two configurations are equal, by the rows of their tables. */
#include "master/config/conf_read.h"
#include "shm/base/mem.h"

static bool
rows_equal(const struct conf_keys *keys, const void *a, const void *b)
{
	for (size_t i = 0; i < keys->n; i++)
		if (!conf_value_equal(&keys->key[i], a, b))
			return false;
	return true;
}

static bool
dns_equal(const struct conf_pool *a, const struct conf_pool *b)
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

bool
conf_pools_equal(const struct conf *a, const struct conf *b)
{
	if (a->npools != b->npools)
		return false;
	for (size_t i = 0; i < a->npools; i++) {
		if (!rows_equal(&conf_pool_keys, &a->pools[i], &b->pools[i]) ||
			!rows_equal(&conf_connector_keys, &a->pools[i], &b->pools[i]))
			return false;
		if (!endpoints_equal(&a->pools[i], &b->pools[i]) ||
			!dns_equal(&a->pools[i], &b->pools[i]) ||
			/* the same file may hold another key than before */
			!mem_text_equal(a->pools[i].api_key, b->pools[i].api_key))
			return false;
	}
	return true;
}
