#include "master/topology/agree.h"

#include <stdlib.h>
#include <string.h>

#include "master/topology/finding.h"
#include "master/topology/read.h"
#include "shm/base/mem.h"

bool
topo_same_flag(const char *a, size_t na, const char *b, size_t n)
{
	if (na != n)
		return false;
	for (size_t i = 0; i < n; i++)
		if (a[i] != b[i] && !(a[i] == '_' && b[i] == '-'))
			return false;
	return true;
}

/* The value of `--flag VALUE` or `--flag=VALUE`, the last one; NULL: not given. */
static const struct topo_text *
flag(const struct topo_texts *argv, const char *name, size_t n, const char **ret)
{
	const struct topo_text *at = NULL;

	for (size_t i = 0; i < argv->n; i++) {
		const char *word = argv->v[i].text;

		if (!topo_same_flag(word, strcspn(word, "="), name, n))
			continue;
		if (word[n] == '=')
			*ret = word + n + 1;
		else if (i + 1 < argv->n)
			*ret = argv->v[i + 1].text;
		else
			continue;
		at = &argv->v[i];
	}
	return at;
}

/* A member of a JSON object; the caller frees it.  NULL: none, or the text is no object. */
static char *
member(const char *json, const char *name)
{
	struct conf_error err;
	struct conf_read r = {.file = "", .err = &err};
	const yaml_node_t *root, *value;
	char *ret = NULL;

	if (conf_yaml_load(&r, json, strlen(json)) != 0)
		return NULL; /* the engine says what is wrong with it */
	root = yaml_document_get_root_node(&r.doc);
	for (const yaml_node_pair_t *p = root != NULL && root->type == YAML_MAPPING_NODE
						 ? root->data.mapping.pairs.start
						 : NULL;
		p != NULL && p < root->data.mapping.pairs.top; p++) {
		const yaml_node_t *key = yaml_document_get_node(&r.doc, p->key);

		value = yaml_document_get_node(&r.doc, p->value);
		if (key->type == YAML_SCALAR_NODE && value->type == YAML_SCALAR_NODE &&
			strcmp((const char *)key->data.scalar.value, name) == 0)
			ret = mem_strdup((const char *)value->data.scalar.value);
	}
	yaml_document_delete(&r.doc);
	return ret;
}

/* What the engine has for one word of `agree`; the caller frees it.  NULL: not given.  *ret_at: where. */
static char *
value_of(const struct topo_engine *e, const char *word, const struct topo_text **ret_at)
{
	const char *dot = strchr(word, '.'), *value;

	if (word[0] != '-') {
		for (size_t i = 0; i < e->env.n; i++)
			if (strcmp(e->env.v[i].name, word) == 0) {
				*ret_at = &e->env.v[i].value;
				return mem_strdup(e->env.v[i].value.text);
			}
		return NULL;
	}
	*ret_at = flag(&e->argv, word, strlen(word), &value);
	if (*ret_at != NULL)
		return mem_strdup(value);
	if (dot == NULL)
		return NULL;
	*ret_at = flag(&e->argv, word, (size_t)(dot - word), &value);
	return *ret_at != NULL ? member(value, dot + 1) : NULL;
}

/* One finding for each word, however many engines there are. */
static void
compare(struct topo_plan *p, const char *word)
{
	const struct topo_engine *first = NULL;
	const struct topo_text *at = NULL;
	char *want = NULL, *have;
	bool differs = false;

	for (size_t i = 0; i < p->nengines && !differs; i++) {
		const struct topo_engine *e = &p->engines[i];

		if (e->argv.n == 0)
			continue; /* not placed, which is a finding already */
		at = NULL;
		have = value_of(e, word, &at);
		if (first == NULL) {
			first = e;
			want = have;
			continue;
		}
		differs = !mem_text_equal(want, have);
		if (differs)
			topo_found(p, p->t->path,
				at != NULL && at->file == p->t->path ? at->line : e->group->line,
				topo_role_name(e->role),
				"%.60s of %.80s is %.60s, that of %.80s is %.60s: %s needs the same",
				word, e->name, have != NULL ? have : "not given", first->name,
				want != NULL ? want : "not given", p->t->connector);
		free(have);
	}
	free(want);
}

void
topo_agree(struct topo_plan *p)
{
	for (size_t i = 0; p->connector != NULL && i < p->connector->agree.n; i++)
		compare(p, p->connector->agree.v[i].text);
}
