/* The endpoints of a pool from its endpoints_file or fleet_file. */
#include "master/config/conf_endpoints.h"

#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"

static const enum role role_unset =
	ROLE_N; /* role of an endpoints_file's entry, until its role or label is read */

static int
set_role(struct conf_read *r, const struct conf_pool *p, struct conf_endpoint *ep)
{
	bool pre, dec;

	if ((ep->role == role_unset) == (ep->label == NULL))
		return conf_fail(r, ep->line, "%s: each endpoint has a role or a label",
			ep->label == NULL ? "neither role nor label" : "role and label together");
	if (ep->label == NULL)
		return 0;
	pre = conf_strs_has(p->prefill_labels, p->nprefill_labels, ep->label);
	dec = conf_strs_has(p->decode_labels, p->ndecode_labels, ep->label);
	if (!pre && !dec)
		return conf_fail(r, ep->line,
			"label %.60s is in neither prefill_labels nor decode_labels of pool %s",
			ep->label, p->name);
	ep->role = pre ? ROLE_PREFILL : ROLE_DECODE;
	return 0;
}

static int
walk_file(struct conf_read *r, struct conf_pool *p, yaml_node_t *root)
{
	static const struct conf_key list = {.path = "", .type = CONF_T_PREFILL, .max = 65536};
	struct conf_endpoint *ep;
	yaml_node_t *item;
	int lines[CONF_ENTRY_KEYS];
	size_t n, mark;

	/* An empty file: no endpoints for now.  But one that is watched may be about to be written. */
	if (root == NULL && (r->was == NULL || !p->watch))
		return 0;
	if (root == NULL)
		return conf_fail(
			r, 0, "the file is empty: to remove all endpoints write [], or use SIGHUP");
	if (conf_is_list(r, &list, root, &n) != 0)
		return -1;
	for (size_t i = 0; (item = conf_item(r, root, i)) != NULL; i++) {
		mark = conf_enter_entry(r, i);
		ep = conf_endpoint_add(p);
		ep->role = role_unset;
		ep->line = conf_line(item);
		memset(lines, 0, sizeof(lines));
		if (conf_walk(r, &conf_file_keys, ep, item, lines) != 0 || set_role(r, p, ep) != 0)
			return -1;
		conf_leave(r, mark);
	}
	return 0;
}

char *
conf_endpoints_path(const struct conf *conf, const struct conf_pool *pool)
{
	return conf_beside(conf->path, conf_pool_file(pool));
}

/* The pool of the configuration with the same text. */
const struct conf_pool *
conf_pool_before(const struct conf_read *r, const struct conf_pool *p)
{
	return r->was != NULL ? &r->was->pools[p - r->conf->pools] : NULL;
}

static int
read_fleet(struct conf_read *r, struct conf_pool *p, const char *path, const int *lines,
	struct conf_fleet *ret)
{
	const struct conf_fleet *given = r->engines;

	if (given != NULL) {
		*ret = (struct conf_fleet){
			mem_dup(given->text, given->n), given->n, mem_strdup(given->connector)};
		return 0;
	}
	if (r->fleet_reader == NULL)
		return conf_fail_key(
			r, p, lines, "fleet_file", "this program reads no fleet files");
	return r->fleet_reader(path, ret, r->err);
}

/* An engine of another connector keeps its KV for engines of its own kind. */
static int
take_fleet(struct conf_read *r, struct conf_pool *p, const char *path, const int *lines)
{
	struct conf_fleet fleet = {.text = NULL};
	int rc = 0;

	if (read_fleet(r, p, path, lines, &fleet) != 0)
		return -1;
	p->file_text = fleet.text;
	p->nfile_text = fleet.n;
	if (fleet.connector != NULL && strcmp(fleet.connector, connector_name(p->connector)) != 0)
		rc = conf_fail_key(r, p, lines, "connector",
			"is %s, but the engines of %.150s are started with %.40s",
			connector_name(p->connector), path, fleet.connector);
	free(fleet.connector);
	return rc;
}

static int
take_endpoints(struct conf_read *r, struct conf_pool *p, const char *path, const int *lines)
{
	size_t mark = conf_enter(r, ".endpoints_file");

	if (conf_yaml_read(r, path, conf_line_of(p, lines, "endpoints_file"), &p->file_text,
		    &p->nfile_text) != 0)
		return -1;
	conf_leave(r, mark);
	return 0;
}

static int
take_file_text(struct conf_read *r, struct conf_pool *p, const char *path, const int *lines)
{
	const struct conf_pool *was = conf_pool_before(r, p);

	if (was != NULL && !p->watch) {
		p->file_text = mem_dup(was->file_text, was->nfile_text);
		p->nfile_text = was->nfile_text;
		return 0;
	}
	return p->fleet_file != NULL ? take_fleet(r, p, path, lines)
				     : take_endpoints(r, p, path, lines);
}

int
conf_endpoints_file_read(struct conf_read *r, struct conf_pool *p, const int *lines)
{
	char *path = conf_beside(r->file, conf_pool_file(p));
	struct conf_read f = {.file = path, .err = r->err, .conf = r->conf, .was = r->was};
	int rc = take_file_text(r, p, path, lines);

	if (rc == 0)
		rc = conf_yaml_load(&f, p->file_text, p->nfile_text);
	if (rc == 0) {
		rc = walk_file(&f, p, yaml_document_get_root_node(&f.doc));
		yaml_document_delete(&f.doc);
		if (rc == 0)
			rc = conf_endpoints_check(&f, p);
		if (rc == 0)
			rc = conf_endpoints_check_terms(&f, p);
	}
	free(path);
	return rc;
}
