#include "master/config/conf_client_keys.h"

#include <stdlib.h>
#include <string.h>

#include "master/config/conf_seen.h"
#include "shm/base/mem.h"

/* What has been read so far, by row. */
struct seen {
	struct conf_seen *names, *digests;
};

/* The files, by who needs their keys. */
static const struct {
	const char *key; /* that names the file */
	const struct conf_keys *rows;
} files[DOOR_N] = {
	[DOOR_CLIENTS] = {"api_keys_file", &conf_client_key_keys},
	[DOOR_OPERATORS] = {"admin.api_keys_file", &conf_admin_key_keys},
};

char *
conf_api_keys_path(const struct conf *c, enum door door)
{
	return conf_beside(c->path, c->api_keys_file[door]);
}

const char *
conf_api_keys_key(enum door door)
{
	return files[door].key;
}

void
conf_client_keys_free(struct conf *c)
{
	for (size_t i = 0; i < c->napi_keys; i++)
		conf_values_free(&conf_client_key_keys, &c->api_keys[i]);
	free(c->api_keys);
	for (enum door door = 0; door < DOOR_N; door++)
		free(c->api_keys_text[door].p);
}

bool
conf_client_key_equal(const struct conf_api_key *a, const struct conf_api_key *b)
{
	for (size_t i = 0; i < conf_client_key_keys.n; i++)
		if (!conf_value_equal(&conf_client_key_keys.key[i], a, b))
			return false;
	return a->door == b->door;
}

bool
conf_client_keys_equal(const struct conf *a, const struct conf *b)
{
	if (a->napi_keys != b->napi_keys)
		return false;
	for (size_t i = 0; i < a->napi_keys; i++)
		if (!conf_client_key_equal(&a->api_keys[i], &b->api_keys[i]))
			return false;
	return true;
}

static int
line_of(const struct conf_api_key *k, const int *lines, const char *key)
{
	const struct conf_keys *rows = files[k->door].rows;

	return lines[conf_key_row(rows, key) - rows->key];
}

/* A pool that is not there is a mistake: the key could use nothing. */
static int
check_pools(struct conf_read *r, const struct conf *c, const struct conf_api_key *k, int line)
{
	for (size_t i = 0; i < k->npools; i++)
		if (conf_pool_named(c, k->pools[i]) == NULL) {
			(void)conf_enter(r, ".pools[%zu]", i);
			return conf_fail(r, line, "no pool has the name %.80s", k->pools[i]);
		}
	return 0;
}

static int
check_unique(struct conf_read *r, const struct conf *c, struct seen *seen, const int *lines)
{
	const size_t own = c->napi_keys;
	const struct conf_api_key *k = &c->api_keys[own - 1];
	size_t other = conf_seen_add(&seen->names, k->name, own);

	if (other != 0) {
		(void)conf_enter(r, ".name");
		return conf_fail(r, line_of(k, lines, "name"),
			"%s is already the name of the key in line %d", k->name,
			c->api_keys[other - 1].line);
	}
	other = conf_seen_add(&seen->digests, k->sha256, own);
	if (other != 0) {
		(void)conf_enter(r, ".sha256");
		return conf_fail(r, line_of(k, lines, "sha256"),
			"this is already the key of %s in line %d", c->api_keys[other - 1].name,
			c->api_keys[other - 1].line);
	}
	return 0;
}

static int
read_key(struct conf_read *r, enum door door, yaml_node_t *item, struct seen *seen)
{
	struct conf *c = r->conf;
	int lines[CONF_ENTRY_KEYS] = {0};
	struct conf_api_key *k;

	k = &c->api_keys[c->napi_keys++];
	k->door = door;
	k->line = conf_line(item);
	if (conf_walk(r, files[door].rows, k, item, lines) != 0)
		return -1;
	if (check_unique(r, c, seen, lines) != 0)
		return -1;
	return door == DOOR_CLIENTS ? check_pools(r, c, k, line_of(k, lines, "pools")) : 0;
}

static int
walk_file(struct conf_read *r, enum door door, yaml_node_t *root)
{
	struct conf *c = r->conf;
	const struct conf_key list = {.path = "", .type = CONF_T_API_KEYS, .max = 65536};
	struct seen seen = {NULL, NULL};
	yaml_node_t *item;
	size_t n, mark;
	int rc = 0;

	/* An empty file would refuse all requests: that is written as []. */
	if (root == NULL)
		return conf_fail(r, 0, "the file is empty: for no keys write []");
	if (conf_is_list(r, &list, root, &n) != 0)
		return -1;
	c->api_keys = mem_resize(c->api_keys, c->napi_keys + n, sizeof(*c->api_keys));
	if (n > 0)
		memset(c->api_keys + c->napi_keys, 0, n * sizeof(*c->api_keys));
	for (size_t i = 0; rc == 0 && (item = conf_item(r, root, i)) != NULL; i++) {
		mark = conf_enter_entry(r, i);
		rc = read_key(r, door, item, &seen);
		if (rc == 0)
			conf_leave(r, mark);
	}
	conf_seen_free(&seen.names);
	conf_seen_free(&seen.digests);
	return rc;
}

/* As it is now, or as it was for the configuration with the same text. */
static int
take_text(struct conf_read *r, enum door door, const char *path)
{
	struct conf *c = r->conf;
	struct conf_text *text = &c->api_keys_text[door];
	const size_t mark = conf_enter(r, "%s", files[door].key);
	const int row = (int)(conf_key_row(&conf_root_keys, files[door].key) - conf_root_keys.key);

	if (r->was != NULL && c->watch == 0) {
		text->p = mem_dup(r->was->api_keys_text[door].p, r->was->api_keys_text[door].n);
		text->n = r->was->api_keys_text[door].n;
	} else if (conf_yaml_read(r, path, c->key_lines[row], &text->p, &text->n) != 0) {
		return -1;
	}
	conf_leave(r, mark);
	return 0;
}

static int
read_file(struct conf_read *r, enum door door)
{
	struct conf *c = r->conf;
	const struct conf_text *text = &c->api_keys_text[door];
	char *path;
	int rc;

	if (c->api_keys_file[door] == NULL)
		return 0;
	path = conf_api_keys_path(c, door);
	struct conf_read f = {.file = path, .err = r->err, .conf = c};
	rc = take_text(r, door, path);
	if (rc == 0)
		rc = conf_yaml_load(&f, text->p, text->n);
	if (rc == 0) {
		rc = walk_file(&f, door, yaml_document_get_root_node(&f.doc));
		yaml_document_delete(&f.doc);
	}
	free(path);
	return rc;
}

int
conf_client_keys_read(struct conf_read *r)
{
	int rc = 0;

	for (enum door door = 0; rc == 0 && door < DOOR_N; door++)
		rc = read_file(r, door);
	return rc;
}
