#include "master/topology/edit.h"

#include <stdlib.h>
#include <string.h>

#include "master/config/conf_read.h"
#include "master/topology/text.h"

#define KEY "replicas"

/* A fleet file that is being edited. */
struct edit {
	struct conf_read *r;
	const char *text;
	size_t n;
	/* the change: bytes from `at` to `end` are replaced by `put` */
	size_t at, end;
	struct membuf put;
};

/* A position of libyaml counts characters. */
static size_t
byte_of(const struct edit *e, yaml_mark_t mark)
{
	size_t at = 0, left = mark.index;

	for (; at < e->n; at++)
		if (((unsigned char)e->text[at] & 0xc0) != 0x80 && left-- == 0)
			break;
	return at;
}

/* The value of a key of the mapping, or NULL with *ret_first: its first key. */
static yaml_node_t *
value_of(struct conf_read *r, yaml_node_t *map, const char *key, yaml_node_t **ret_first)
{
	const yaml_node_pair_t *p = map->data.mapping.pairs.start;
	yaml_node_t *k;

	*ret_first = NULL;
	for (; p < map->data.mapping.pairs.top; p++) {
		k = yaml_document_get_node(&r->doc, p->key);
		if (*ret_first == NULL)
			*ret_first = k;
		if (k->type == YAML_SCALAR_NODE &&
			strcmp((const char *)k->data.scalar.value, key) == 0)
			return yaml_document_get_node(&r->doc, p->value);
	}
	return NULL;
}

/* How the line at this byte ends. */
static const char *
line_end(const struct edit *e, size_t at)
{
	while (at < e->n && e->text[at] != '\n' && e->text[at] != '\r')
		at++;
	if (at == e->n || e->text[at] == '\n')
		return "\n";
	return at + 1 < e->n && e->text[at + 1] == '\n' ? "\r\n" : "\r";
}

static void
replace_value(struct edit *e, const yaml_node_t *value, uint32_t replicas)
{
	e->at = byte_of(e, value->start_mark);
	e->end = byte_of(e, value->end_mark);
	topo_add(&e->put, "%s%u", e->at == e->end ? " " : "",
		replicas); /* an empty one: behind its colon */
}

/* The new key is the group's first. */
static void
insert_key(struct edit *e, const yaml_node_t *group, const yaml_node_t *first, uint32_t replicas)
{
	bool flow;

	e->at = byte_of(e, group->start_mark);
	flow = e->at < e->n && e->text[e->at] == '{';
	topo_add(&e->put, KEY ": %u", replicas);
	if (!flow) /* a line of its own */
		topo_add(&e->put, "%s%*s", line_end(e, e->at), (int)group->start_mark.column, "");
	else if (first != NULL)
		topo_add(&e->put, ", ");
	if (flow)
		e->at = first != NULL ? byte_of(e, first->start_mark) : e->at + 1;
	e->end = e->at;
}

static int
find_change(struct edit *e, enum topo_role role, uint32_t replicas)
{
	yaml_node_t *root = yaml_document_get_root_node(&e->r->doc), *group, *value, *first;

	if (root == NULL || root->type != YAML_MAPPING_NODE)
		return conf_fail(e->r, 0, "is no fleet file: it has no keys");
	group = value_of(e->r, root, topo_role_name(role), &first);
	(void)conf_enter(e->r, "%s", topo_role_name(role));
	if (group == NULL)
		return conf_fail(e->r, 0, "the fleet has no such group: write it first");
	if (group->type != YAML_MAPPING_NODE)
		return conf_fail(e->r, conf_line(group), "is no group: write {} behind its colon");
	value = value_of(e->r, group, KEY, &first);
	if (value != NULL && value->type != YAML_SCALAR_NODE)
		return conf_fail(e->r, conf_line(value), KEY " is not a number");
	if (value != NULL)
		replace_value(e, value, replicas);
	else
		insert_key(e, group, first, replicas);
	return 0;
}

/* What was written is read again: an odd text must not become another fleet. */
static int
check(struct conf_read *r, const struct membuf *b, enum topo_role role, uint32_t replicas)
{
	struct topology *t = NULL;
	int rc = topo_parse(r->file, b->p, b->n, &t, r->err);

	if (rc == 0 && t->groups[role].replicas != replicas)
		rc = conf_fail(
			r, t->groups[role].line, KEY " cannot be changed here: write it yourself");
	topo_free(&t);
	return rc;
}

int
topo_scale(const char *path, const char *text, size_t n, enum topo_role role, uint32_t replicas,
	struct membuf *out, struct conf_error *err)
{
	struct conf_read r = {.file = path, .err = err};
	struct edit e = {.r = &r, .text = text, .n = n};
	struct membuf b = {.p = NULL};
	int rc = conf_yaml_load(&r, text, n);

	if (rc != 0)
		return rc;
	rc = find_change(&e, role, replicas);
	yaml_document_delete(&r.doc);
	if (rc == 0) {
		membuf_add(&b, text, e.at);
		membuf_add(&b, e.put.p, e.put.n);
		membuf_add(&b, text + e.end, n - e.end);
		rc = check(&r, &b, role, replicas);
	}
	if (rc == 0)
		membuf_add(out, b.p, b.n);
	membuf_free(&b);
	membuf_free(&e.put);
	return rc;
}
