/* Texts, settings and ports of YAML mappings and lists. */
#include "master/topology/read.h"

#include <stdlib.h>
#include <string.h>

#include "master/config/conf_address.h"
#include "master/topology/names.h"
#include "shm/base/mem.h"

#define ENTRIES_MAX 1024 /* of a list or a mapping */

static void *
member_at(const struct conf_key *k, void *base)
{
	return (char *)base + k->off;
}

/* --- lists and mappings
 * ------------------------------------------------------------------------- */

static int
too_many(struct conf_read *r, const yaml_node_t *node)
{
	return conf_fail(
		r, conf_line(node), "has more than %d entries, which is too many", ENTRIES_MAX);
}

int
topo_read_list(
	struct conf_read *r, yaml_node_t *list, const char *wants, topo_entry_fn *fn, void *base)
{
	yaml_node_t *item;
	size_t mark;

	if (list->type != YAML_SEQUENCE_NODE)
		return conf_fail(r, conf_line(list), "%s is needed", wants);
	for (size_t i = 0; (item = conf_item(r, list, i)) != NULL; i++) {
		if (i == ENTRIES_MAX)
			return too_many(r, list);
		mark = conf_enter_entry(r, i);
		if (fn(r, base, NULL, item) != 0)
			return -1;
		conf_leave(r, mark);
	}
	return 0;
}

int
topo_read_map(struct conf_read *r, yaml_node_t *map, topo_entry_fn *fn, void *base)
{
	yaml_node_t *value = NULL;
	const char *name = "";
	size_t mark;
	int more = 1;

	for (size_t i = 0; (more = conf_entry(r, map, i, &name, &value)) == 1; i++) {
		if (i == ENTRIES_MAX)
			return too_many(r, map);
		mark = conf_enter(r, ".%s", name);
		if (fn(r, base, name, value) != 0)
			return -1;
		conf_leave(r, mark);
	}
	return more;
}

/* --- texts
 * --------------------------------------------------------------------------------------- */

static int
no_such_name(struct conf_read *r, const yaml_node_t *node, const char *name, size_t n)
{
	char *names = topo_names_list();

	(void)conf_fail(r, conf_line(node), "%.*s: there is no such name: %s", (int)n, name, names);
	free(names);
	return -1;
}

/* A single value whose ${names} exist. */
static int
read_text(struct conf_read *r, yaml_node_t *node, struct topo_text *ret)
{
	const char *text, *bad;
	size_t n;

	if (conf_scalar(r, node, "a text", &text) != 0)
		return -1;
	bad = topo_names_check(text, &n);
	if (bad != NULL)
		return no_such_name(r, node, bad, n);
	*ret = (struct topo_text){mem_strdup(text), r->file, conf_line(node)};
	return 0;
}

static int
add_text(struct conf_read *r, void *base, const char *name, yaml_node_t *node)
{
	struct topo_texts *v = base;

	(void)name;
	v->v = mem_resize(v->v, v->n + 1, sizeof(*v->v));
	v->v[v->n] = (struct topo_text){.text = NULL};
	return read_text(r, node, &v->v[v->n++]);
}

int
topo_read_texts(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	return topo_read_list(
		r, node, "a list such as [\"a\", \"b\"]", add_text, member_at(k, base));
}

static struct topo_setting *
add_setting(struct topo_settings *v, const char *name)
{
	v->v = mem_resize(v->v, v->n + 1, sizeof(*v->v));
	v->v[v->n] = (struct topo_setting){.name = mem_strdup(name)};
	return &v->v[v->n++];
}

static int
read_setting(struct conf_read *r, void *base, const char *name, yaml_node_t *node)
{
	return read_text(r, node, &add_setting(base, name)->value);
}

int
topo_read_settings(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	return topo_read_map(r, node, read_setting, member_at(k, base));
}

/* --- YAML that is passed on
 * ------------------------------------------------------------------- */

/* A plain word that means the same in flow style. */
static bool
stays_plain(const yaml_node_t *node)
{
	const char *s = (const char *)node->data.scalar.value;

	return node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && s[0] != '\0' &&
	       s[strspn(
		       s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+-")] ==
		       '\0';
}

/* A node in flow style.  The reader has bounded the depth. */
static void
write_node(struct conf_read *r, yaml_node_t *node, FILE *out)
{
	const yaml_node_pair_t *p;
	yaml_node_t *item;

	if (node->type == YAML_SCALAR_NODE) {
		if (stays_plain(node))
			(void)fputs((const char *)node->data.scalar.value, out);
		else
			conf_write_text(out, (const char *)node->data.scalar.value);
		return;
	}
	if (node->type == YAML_SEQUENCE_NODE) {
		(void)fputc('[', out);
		for (size_t i = 0; (item = conf_item(r, node, i)) != NULL; i++) {
			(void)fputs(i > 0 ? ", " : "", out);
			write_node(r, item, out);
		}
		(void)fputc(']', out);
		return;
	}
	(void)fputc('{', out);
	for (p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++) {
		(void)fputs(p > node->data.mapping.pairs.start ? ", " : "", out);
		write_node(r, yaml_document_get_node(&r->doc, p->key), out);
		(void)fputs(": ", out);
		write_node(r, yaml_document_get_node(&r->doc, p->value), out);
	}
	(void)fputc('}', out);
}

static int
read_yaml(struct conf_read *r, void *base, const char *name, yaml_node_t *node)
{
	struct topo_setting *s;
	size_t n;
	FILE *out;

	if (name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")] != '\0')
		return conf_fail(r, conf_line(node), "a key has small letters, digits and _ only");
	s = add_setting(base, name);
	s->value.file = r->file;
	s->value.line = conf_line(node);
	out = open_memstream(&s->value.text, &n);
	if (out == NULL)
		abort(); /* out of memory, as in mem.h */
	write_node(r, node, out);
	(void)fclose(out);
	return 0;
}

int
topo_read_yaml(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	return topo_read_map(r, node, read_yaml, member_at(k, base));
}

/* --- ports
 * --------------------------------------------------------------------------------------- */

/* A key whose only value is `word`. */
static int
read_word(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node,
	const char *word)
{
	const char *text;

	if (conf_scalar(r, node, word, &text) != 0)
		return -1;
	if (strcmp(text, word) != 0)
		return conf_fail(r, conf_line(node), "%.60s is not %s", text, word);
	*(bool *)member_at(k, base) = true;
	return 0;
}

static int
read_each(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	return read_word(r, k, base, node, "rank");
}

static int
read_for(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	return read_word(r, k, base, node, "data_parallel");
}

static const struct conf_key port_rows[] = {
	TOPO_KEY("first", COUNT, topo_port, first, 1, 65535, NULL, "the port of replica 0"),
	TOPO_OWN("each", read_each, topo_port, each_rank, "(engine)", "rank: one for each rank"),
	TOPO_OWN("for", read_for, topo_port, for_data_parallel, "(any)",
		"data_parallel: only where there are several such ranks"),
};
static const struct conf_keys port_keys = TOPO_ROWS(port_rows);

static int
read_port(struct conf_read *r, yaml_node_t *node, struct topo_port *p)
{
	const char *text;

	if (node->type == YAML_MAPPING_NODE)
		return topo_walk(r, &port_keys, p, node);
	if (conf_scalar(r, node, "a port", &text) != 0)
		return -1;
	p->first = conf_port_of(text);
	if (p->first == 0)
		return conf_fail(r, conf_line(node), "%.60s is not a port from 1 to 65535", text);
	return 0;
}

static int
add_port(struct conf_read *r, void *base, const char *name, yaml_node_t *node)
{
	struct topo_ports *v = base;

	if (name[0] == '\0' || name[strspn(name, "abcdefghijklmnopqrstuvwxyz_")] != '\0')
		return conf_fail(
			r, conf_line(node), "the name of a port has small letters and _ only");
	v->v = mem_resize(v->v, v->n + 1, sizeof(*v->v));
	v->v[v->n] = (struct topo_port){.name = mem_strdup(name), .line = conf_line(node)};
	return read_port(r, node, &v->v[v->n++]);
}

int
topo_read_ports(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	return topo_read_map(r, node, add_port, member_at(k, base));
}

/* --- documents
 * ---------------------------------------------------------------------------------- */

int
topo_read_file(const char *path, char **ret, size_t *ret_n, struct conf_error *err)
{
	struct conf_read r = {.file = path, .err = err};

	return conf_yaml_read(&r, path, 0, ret, ret_n);
}

int
topo_walk(struct conf_read *r, const struct conf_keys *keys, void *base, yaml_node_t *node)
{
	int lines[CONF_ENTRY_KEYS] = {0};

	return conf_walk(r, keys, base, node, lines);
}

int
topo_read_document(struct conf_read *r, const void *text, size_t n, const struct conf_keys *keys,
	void *base, int *lines)
{
	yaml_node_t *root;
	int rc;

	if (conf_yaml_load(r, text, n) != 0)
		return -1;
	root = yaml_document_get_root_node(&r->doc);
	rc = root != NULL ? conf_walk(r, keys, base, root, lines)
			  : conf_fail(r, 0, "the file is empty");
	yaml_document_delete(&r->doc);
	return rc;
}

/* --- freeing
 * ------------------------------------------------------------------------------------ */

void
topo_texts_free(struct topo_texts *v)
{
	for (size_t i = 0; i < v->n; i++)
		free(v->v[i].text);
	free(v->v);
}

void
topo_settings_free(struct topo_settings *v)
{
	for (size_t i = 0; i < v->n; i++) {
		free(v->v[i].name);
		free(v->v[i].value.text);
	}
	free(v->v);
}

void
topo_ports_free(struct topo_ports *v)
{
	for (size_t i = 0; i < v->n; i++)
		free(v->v[i].name);
	free(v->v);
}
