#include "master/probe/models.h"

#include <stdlib.h>
#include <string.h>

#include "proto/json/json_small.h"
#include "proto/json/utf8.h"
#include "shm/base/mem.h"

/* A name goes into log lines, tables and answers: nothing that could break a line. */
static bool
is_plain(const char *name)
{
	const uint8_t *p = (const uint8_t *)name;
	size_t left = strlen(name);

	if (left == 0 || left > MODELS_NAME_MAX)
		return false;
	while (left > 0) {
		size_t n = utf8_seq(p, left);

		if (n == 0 || utf8_is_control(p))
			return false;
		p += n;
		left -= n;
	}
	return true;
}

static void
take(const struct json_model *m, void *arg)
{
	struct model_set *set = arg;

	if (is_plain(m->id))
		set->names[set->n++] = mem_strdup(m->id);
	if (m->max_model_len > set->max_context)
		set->max_context =
			m->max_model_len < UINT32_MAX ? (uint32_t)m->max_model_len : UINT32_MAX;
}

static int
compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void
sort_unique(struct model_set *m)
{
	size_t n = 0;

	qsort(m->names, m->n, sizeof(*m->names), compare);
	for (size_t i = 0; i < m->n; i++) {
		if (n > 0 && strcmp(m->names[n - 1], m->names[i]) == 0)
			free(m->names[i]);
		else
			m->names[n++] = m->names[i];
	}
	m->n = n;
}

int
models_read(const char *text, size_t len, struct model_set *ret, size_t *ret_left_out)
{
	struct model_set set = {.names = mem_array(MODELS_MAX, sizeof(char *))};
	int total;

	total = json_models(text, len, MODELS_MAX, take, &set);
	if (total < 0) {
		models_clear(&set);
		return -1;
	}
	if (ret_left_out != NULL)
		*ret_left_out = (size_t)total - set.n;
	sort_unique(&set);
	set.names = mem_resize(set.names, set.n + 1, sizeof(char *));
	models_clear(ret);
	*ret = set;
	return (int)set.n;
}

bool
models_has(const struct model_set *m, const char *name)
{
	return m->n > 0 && bsearch(&name, m->names, m->n, sizeof(*m->names), compare) != NULL;
}

bool
models_equal(const struct model_set *a, const struct model_set *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->names[i], b->names[i]) != 0)
			return false;
	return true;
}

void
models_clear(struct model_set *m)
{
	for (size_t i = 0; i < m->n; i++)
		free(m->names[i]);
	free(m->names);
	*m = (struct model_set){0};
}

const char **
models_union(const struct model_set *const *sets, size_t nsets, size_t max, size_t *ret_n)
{
	size_t total = 0, n = 0;
	const char **all;

	for (size_t i = 0; i < nsets; i++)
		total += sets[i]->n;
	all = mem_array(total + 1, sizeof(*all));
	for (size_t i = 0, k = 0; i < nsets; i++)
		for (size_t j = 0; j < sets[i]->n; j++)
			all[k++] = sets[i]->names[j];
	qsort(all, total, sizeof(*all), compare);
	for (size_t i = 0; i < total && n < max; i++)
		if (n == 0 || strcmp(all[n - 1], all[i]) != 0)
			all[n++] = all[i];
	*ret_n = n;
	return all;
}
