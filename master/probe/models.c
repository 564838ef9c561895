#include "master/probe/models.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL /* no library to load */
#include <xxhash.h>

#include "proto/json/json_small.h"
#include "proto/json/json_string.h"
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

/* A model that is being read. */
struct model {
	char *name;
	struct model_card card;
};

struct reading {
	const char **wanted;  /* sorted */
	size_t nwanted, met;  /* of them */
	struct model *models; /* [MODELS_MAX + nwanted] */
	size_t n;
	uint32_t max_context;
};

static struct splice_seg
either(struct splice_seg value, const char *otherwise)
{
	if (value.n > 0 && value.n <= MODELS_VALUE_MAX)
		return value;
	return (struct splice_seg){otherwise, strlen(otherwise)};
}

static char *
card_members(const struct json_model *m)
{
	char id[MODELS_VALUE_MAX] = "null";
	struct splice_seg owner, root, parent;

	if (m->owned_by.n + m->root.n + m->parent.n == 0 && m->max_model_len == 0)
		return mem_strdup("");
	if (json_quote(id, sizeof(id), m->id, strlen(m->id), MODELS_NAME_MAX) == -1)
		memcpy(id, "null", sizeof("null"));
	owner = either(m->owned_by, "\"pdrouter\"");
	root = either(m->root, id);
	parent = either(m->parent, "null");
	return mem_printf("\"owned_by\":%.*s,\"root\":%.*s,\"parent\":%.*s", (int)owner.n, owner.p,
		(int)root.n, root.p, (int)parent.n, parent.p);
}

static int
compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool
is_wanted(const struct reading *r, const char *id)
{
	return bsearch(&id, r->wanted, r->nwanted, sizeof(*r->wanted), compare) != NULL;
}

/* Takes the first MODELS_MAX, and all that are wanted. */
static bool
take(const struct json_model *m, void *arg)
{
	struct reading *r = arg;
	const uint32_t len =
		m->max_model_len < UINT32_MAX ? (uint32_t)m->max_model_len : UINT32_MAX;
	const bool wanted = r->met < r->nwanted && is_wanted(r, m->id);

	r->met += wanted;
	if (is_plain(m->id) && (wanted || r->n < MODELS_MAX))
		r->models[r->n++] = (struct model){mem_strdup(m->id), {card_members(m), len}};
	if (len > r->max_context)
		r->max_context = len;
	return r->n < MODELS_MAX || r->met < r->nwanted;
}

static void
drop(struct reading *r)
{
	for (size_t i = 0; i < r->n; i++) {
		free(r->models[i].name);
		free(r->models[i].card.members);
	}
}

/* Sorts the models, and keeps one of each name. */
static struct model_set
set_of(struct reading *r)
{
	struct model_set set = {.names = mem_array(r->n + 1, sizeof(char *)),
		.cards = mem_array(r->n + 1, sizeof(struct model_card)),
		.max_context = r->max_context};

	qsort(r->models, r->n, sizeof(*r->models), compare); /* the name is the first member */
	for (size_t i = 0; i < r->n; i++) {
		if (set.n > 0 && strcmp(set.names[set.n - 1], r->models[i].name) == 0) {
			free(r->models[i].name);
			free(r->models[i].card.members);
			continue;
		}
		set.names[set.n] = r->models[i].name;
		set.cards[set.n++] = r->models[i].card;
	}
	return set;
}

static const char **
sorted(const char *const *names, size_t n)
{
	const char **v = mem_array(n + 1, sizeof(*v));

	for (size_t i = 0; i < n; i++)
		v[i] = names[i];
	qsort(v, n, sizeof(*v), compare);
	return v;
}

int
models_read(const char *text, size_t len, const char *const *wanted, size_t nwanted,
	struct model_set *ret, size_t *ret_left_out)
{
	struct reading r = {.wanted = sorted(wanted, nwanted), .nwanted = nwanted};
	int total;

	r.models = mem_array(MODELS_MAX + nwanted, sizeof(*r.models));
	total = json_models(text, len, take, &r);
	if (total < 0) {
		drop(&r);
	} else {
		*ret_left_out = (size_t)total - r.n;
		models_clear(ret);
		*ret = set_of(&r);
	}
	free(r.models);
	free(r.wanted);
	return total < 0 ? -1 : (int)ret->n;
}

/* --- the digest -------------------------------------------------------------------------- */

/*
 * vLLM writes the time into each answer, and permissions with ids that are drawn anew.  models_read()
 * asks for no member of these names.  A quotation mark inside a string has a backslash before it, so in
 * JSON the last one of CREATED and PERMISSION ends the name of a member.
 */
#define CREATED "\"created\":"
#define PERMISSION "\"permission\":[{"

static const char *
find(const char *from, const char *end, const char *what)
{
	return memmem(from, (size_t)(end - from), what, strlen(what));
}

/* Without the digits of times. */
static uint64_t
digest_of(const char *from, const char *end, uint64_t digest)
{
	for (const char *at; (at = find(from, end, CREATED)) != NULL;) {
		at += strlen(CREATED);
		digest = XXH3_64bits_withSeed(from, (size_t)(at - from), digest);
		for (from = at; from < end && *from >= '0' && *from <= '9';)
			from++;
	}
	return XXH3_64bits_withSeed(from, (size_t)(end - from), digest);
}

uint64_t
models_digest(const char *text, size_t len, const char *const *wanted, size_t nwanted)
{
	const char *from = text, *end = text + len;
	uint64_t digest = nwanted;

	for (size_t i = 0; i < nwanted; i++)
		digest = XXH3_64bits_withSeed(wanted[i], strlen(wanted[i]) + 1, digest);
	for (const char *at; (at = find(from, end, PERMISSION)) != NULL;) {
		at += strlen(PERMISSION);
		digest = digest_of(from, at, digest);
		/* the first brace is inside the permission, or ends it */
		from = memchr(at, '}', (size_t)(end - at));
		from = from == NULL ? end : from;
	}
	return digest_of(from, end, digest);
}

bool
models_has(const struct model_set *m, const char *name)
{
	return models_card(m, name) != NULL;
}

const struct model_card *
models_card(const struct model_set *m, const char *name)
{
	char **at = m->n == 0 ? NULL : bsearch(&name, m->names, m->n, sizeof(*m->names), compare);

	return at == NULL ? NULL : &m->cards[at - m->names];
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

bool
models_tell_same(const struct model_set *a, const struct model_set *b, const char *name)
{
	static const struct model_card none = {.members = (char *)(uintptr_t) ""};
	const struct model_card *x = models_card(a, name), *y = models_card(b, name);

	x = x == NULL ? &none : x;
	y = y == NULL ? &none : y;
	return x->max_model_len == y->max_model_len && strcmp(x->members, y->members) == 0;
}

void
models_clear(struct model_set *m)
{
	for (size_t i = 0; i < m->n; i++) {
		free(m->names[i]);
		free(m->cards[i].members);
	}
	free(m->names);
	free(m->cards);
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
