#include "master/models.h"

#include <stdlib.h>
#include <string.h>

#include "proto/json_small.h"
#include "proto/utf8.h"
#include "shm/base/mem.h"

struct reading {
	struct model_set set;
	size_t left_out;
};

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

		if (n == 0 || *p < 0x20 || *p == 0x7f)
			return false;
		p += n;
		left -= n;
	}
	return true;
}

static void
take(const char *id, void *arg)
{
	struct reading *r = arg;

	if (r->set.n == MODELS_MAX || !is_plain(id))
		r->left_out++;
	else
		r->set.names[r->set.n++] = mem_strdup(id);
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
	struct reading r = {.set.names = mem_array(MODELS_MAX, sizeof(char *))};

	if (json_model_ids(text, len, take, &r) < 0) {
		models_clear(&r.set);
		return -1;
	}
	sort_unique(&r.set);
	r.set.names = mem_resize(r.set.names, r.set.n + 1, sizeof(char *));
	models_clear(ret);
	*ret = r.set;
	if (ret_left_out != NULL)
		*ret_left_out = r.left_out;
	return (int)r.set.n;
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
