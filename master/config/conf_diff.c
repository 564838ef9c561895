/* What a reload changes, from the table's classes. */
#include <string.h>

#include "master/config/conf_client_keys.h"
#include "master/config/conf_engine_tls.h"
#include "master/config/conf_siblings.h"

static void
keep_restart_keys(
	const struct conf *old, struct conf *next, conf_kept_fn *kept, void *arg, int *classes)
{
	for (size_t i = 0; i < conf_root_keys.n; i++) {
		const struct conf_key *k = &conf_root_keys.key[i];

		if (k->class != CONF_RESTART || conf_value_equal(k, old, next))
			continue;
		*classes |= CONF_RESTART;
		conf_value_copy(k, old, next);
		if (kept != NULL)
			kept(arg, k->path, next->key_lines[i]);
	}
}

/* The same file may have another secret than at the start: digests of prompts are in memory since then. */
static void
keep_siblings_key(
	const struct conf *old, struct conf *next, conf_kept_fn *kept, void *arg, int *classes)
{
	const struct conf_key *k = conf_key_row(&conf_root_keys, "siblings.secret_file");

	if (conf_value_equal(k, old, next) && !conf_siblings_key_equal(old, next)) {
		*classes |= CONF_RESTART;
		if (kept != NULL)
			kept(arg, k->path, next->key_lines[k - conf_root_keys.key]);
	}
	conf_siblings_key_copy(old, next);
}

int
conf_diff(const struct conf *old, struct conf *next, conf_kept_fn *kept, void *arg,
	struct conf_error *err)
{
	struct conf_read r = {.file = next->path, .err = err, .conf = next};
	int classes = 0;

	keep_siblings_key(old, next, kept, arg, &classes);
	keep_restart_keys(old, next, kept, arg, &classes);
	if (conf_finish(&r) != 0)
		return -1;
	for (size_t i = 0; i < conf_root_keys.n; i++)
		if (!conf_value_equal(&conf_root_keys.key[i], old, next))
			classes |= (int)conf_root_keys.key[i].class;
	if (!conf_client_keys_equal(old, next)) /* the same file may have other rows than before */
		classes |= CONF_LIVE;
	if (!conf_engine_tls_equal(old, next)) /* workers inherit it */
		classes |= CONF_GENERATION;
	return classes;
}
