/*
 * Bytes to libyaml's document tree, within bounds.
 *
 * libyaml's own loader loses anchors, tags and the existence of a second document, and its cost on
 * hostile input is not bounded (it compares each anchor with all earlier ones).  So the tree is
 * built here, from events that were checked first: the accepted documents are small, flat and
 * plain.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/config/conf_read.h"
#include "proto/json/utf8.h"
#include "shm/base/mem.h"

#define DEPTH_MAX 16       /* pools > entry > prefill > entry > key is 7 */
#define NODES_MAX 1000000u /* 65536 endpoints of an endpoints_file have 7 nodes each */

/*
 * The whole file, or one byte more than is allowed.  `guess`: its size as far as one knows.  Not a
 * buffer of the largest size: zeroing 8 MiB would cost a reload more than reading 1,000 endpoints.
 */
static ssize_t
read_all(int fd, size_t guess, char **ret)
{
	size_t n = 0, room = guess < CONF_FILE_MAX ? guess + 1 : CONF_FILE_MAX + 1;
	char *buf = mem_array(room, 1);
	ssize_t k = 1;

	while (k != 0 && n <= CONF_FILE_MAX) {
		if (n == room) {
			room = 2 * room < CONF_FILE_MAX ? 2 * room : CONF_FILE_MAX + 1;
			buf = mem_resize(buf, room, 1);
		}
		k = read(fd, buf + n, room - n);
		if (k > 0) {
			n += (size_t)k;
		} else if (k == -1 && errno != EINTR) {
			free(buf);
			return -1;
		}
	}
	*ret = buf;
	return (ssize_t)n;
}

/* Names the file, unless it is the one that every message begins with. */
static int
fail_file(struct conf_read *r, const char *path, int line, const char *what, const char *why)
{
	bool named = r->file != NULL && strcmp(r->file, path) == 0;

	return conf_fail(r, line, "%.150s%s%s%s%s", named ? "" : path, named ? "" : " ", what,
		why != NULL ? ": " : "", why != NULL ? why : "");
}

int
conf_yaml_read(struct conf_read *r, const char *path, int line, char **ret, size_t *ret_n)
{
	/* not blocking: a fifo must not hang a reload */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
	char *text = NULL;
	struct stat st;
	ssize_t n = 0;

	if (fd == -1 || fstat(fd, &st) == -1)
		rc = fail_file(r, path, line, "cannot be opened", strerror(errno));
	else if (!S_ISREG(st.st_mode))
		rc = fail_file(r, path, line, "is not a regular file", NULL);
	else if ((n = read_all(fd, (size_t)st.st_size, &text)) < 0)
		rc = fail_file(r, path, line, "cannot be read", strerror(errno));
	else if ((size_t)n > CONF_FILE_MAX)
		rc = fail_file(r, path, line, "is larger than 8 MiB", NULL);
	if (rc == 0) {
		*ret = text;
		*ret_n = (size_t)n;
	} else {
		free(text);
	}
	if (fd != -1)
		(void)close(fd);
	return rc;
}

/* A relative name is relative to the configuration that contains it. */
char *
conf_beside(const char *file, const char *name)
{
	const char *slash = file != NULL ? strrchr(file, '/') : NULL;

	if (name[0] == '/' || slash == NULL)
		return mem_strdup(name);
	return mem_printf("%.*s/%s", (int)(slash - file), file, name);
}

/* libyaml checks this too, but then it knows no line. */
static int
check_bytes(struct conf_read *r, const unsigned char *p, size_t n)
{
	int line = 1;

	for (size_t i = 0, k; i < n; i += k) {
		k = utf8_seq(p + i, n - i);
		if (k == 0)
			return conf_fail(r, line, "byte 0x%02x is not UTF-8", p[i]);
		if (p[i] == '\n')
			line++;
		else if (p[i] < 0x20 ? p[i] != '\t' && p[i] != '\r' : p[i] == 0x7f)
			return conf_fail(r, line, "control byte 0x%02x", p[i]);
	}
	return 0;
}

static int
fail_parse(struct conf_read *r, const yaml_parser_t *p, const char *text)
{
	int line = (int)p->problem_mark.line + 1;

	if (p->error == YAML_READER_ERROR) { /* the one kind with an offset and no mark */
		line = 1;
		for (size_t i = 0; i < p->problem_offset && text[i] != '\0'; i++)
			line += text[i] == '\n';
	}
	if (p->context != NULL && p->context_mark.line != p->problem_mark.line)
		return conf_fail(r, line, "not YAML: %.80s %.80s (line %zu)", p->problem,
			p->context, p->context_mark.line + 1);
	return conf_fail(
		r, line, "not YAML: %.100s", p->problem != NULL ? p->problem : "out of memory");
}

static int
fail_memory(struct conf_read *r)
{
	return conf_fail(r, 0, "out of memory");
}

static bool
parser_start(yaml_parser_t *p, const char *text, size_t n)
{
	if (!yaml_parser_initialize(p))
		return false;
	yaml_parser_set_encoding(p, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(p, (const unsigned char *)text, n);
	return true;
}

/* The anchor and the tag of a node's event; NULL where it has none. */
static void
decorations(const yaml_event_t *e, const yaml_char_t **ret_anchor, const yaml_char_t **ret_tag)
{
	*ret_anchor = *ret_tag = NULL;
	if (e->type == YAML_SCALAR_EVENT) {
		*ret_anchor = e->data.scalar.anchor;
		*ret_tag = e->data.scalar.tag;
	} else if (e->type == YAML_SEQUENCE_START_EVENT) {
		*ret_anchor = e->data.sequence_start.anchor;
		*ret_tag = e->data.sequence_start.tag;
	} else if (e->type == YAML_MAPPING_START_EVENT) {
		*ret_anchor = e->data.mapping_start.anchor;
		*ret_tag = e->data.mapping_start.tag;
	}
}

/* What is being built: the lists and mappings that are open, the innermost last. */
struct tree {
	yaml_document_t *doc;
	unsigned documents, nodes, depth;
	struct open {
		int id;
		bool mapping;
		int key; /* of the mapping's pair whose value comes next; 0: a key comes */
	} open[DEPTH_MAX + 1];
};

static bool
is_start(const yaml_event_t *e)
{
	return e->type == YAML_MAPPING_START_EVENT || e->type == YAML_SEQUENCE_START_EVENT;
}

static int
check_event(struct conf_read *r, const yaml_event_t *e, struct tree *t)
{
	int line = (int)e->start_mark.line + 1;
	const yaml_char_t *anchor, *tag;

	t->nodes += e->type == YAML_SCALAR_EVENT || is_start(e);
	t->documents += e->type == YAML_DOCUMENT_START_EVENT;
	decorations(e, &anchor, &tag);
	if (t->documents > 1)
		return conf_fail(r, line, "a second document; one file is one document");
	if (e->type == YAML_ALIAS_EVENT)
		return conf_fail(r, line, "the alias *%.60s; aliases are not supported",
			(const char *)e->data.alias.anchor);
	if (anchor != NULL)
		return conf_fail(r, line, "the anchor &%.60s; anchors are not supported",
			(const char *)anchor);
	if (tag != NULL)
		return conf_fail(
			r, line, "the tag %.60s; tags are not supported", (const char *)tag);
	if (t->depth >= DEPTH_MAX && is_start(e))
		return conf_fail(
			r, line, "lists and mappings are nested more than %d deep", DEPTH_MAX);
	if (t->nodes > NODES_MAX)
		return conf_fail(r, line, "more than %u values", NODES_MAX);
	return 0;
}

/* Adds a new node at its place: to the innermost list or mapping.  False: out of memory. */
static bool
attach(struct tree *t, int id, const yaml_event_t *e)
{
	struct open *in = &t->open[t->depth];
	int done = 1;

	if (id == 0)
		return false;
	yaml_document_get_node(t->doc, id)->start_mark = e->start_mark;
	yaml_document_get_node(t->doc, id)->end_mark =
		e->end_mark; /* of a value; of others, their start's */
	if (in->id == 0)
		return true; /* the root */
	if (!in->mapping)
		done = yaml_document_append_sequence_item(t->doc, in->id, id);
	else if (in->key != 0)
		done = yaml_document_append_mapping_pair(t->doc, in->id, in->key, id);
	in->key = in->mapping && in->key == 0 ? id : 0;
	return done != 0;
}

/* check_event() has let it through.  False: out of memory. */
static bool
add_event(struct tree *t, yaml_event_t *e)
{
	yaml_node_t *node;
	int id;

	if (e->type == YAML_SCALAR_EVENT) {
		id = yaml_document_add_scalar(t->doc, NULL, e->data.scalar.value,
			(int)e->data.scalar.length, e->data.scalar.style);
		if (!attach(t, id, e))
			return false;
		/* frees the tag's text with the event: no code reads it, and a document has many
		 * nodes */
		node = yaml_document_get_node(t->doc, id);
		e->data.scalar.tag = node->tag;
		node->tag = NULL;
	} else if (is_start(e)) {
		bool mapping = e->type == YAML_MAPPING_START_EVENT;

		id = mapping ? yaml_document_add_mapping(t->doc, NULL, YAML_ANY_MAPPING_STYLE)
			     : yaml_document_add_sequence(t->doc, NULL, YAML_ANY_SEQUENCE_STYLE);
		if (!attach(t, id, e))
			return false;
		t->open[++t->depth] = (struct open){.id = id, .mapping = mapping};
	} else if (e->type == YAML_MAPPING_END_EVENT || e->type == YAML_SEQUENCE_END_EVENT) {
		t->depth--;
	}
	return true;
}

static int
build(struct conf_read *r, const char *text, size_t n)
{
	struct tree t = {.doc = &r->doc};
	yaml_parser_t p;
	yaml_event_t e;
	bool end = false;
	int rc = 0;

	if (!parser_start(&p, text, n))
		return fail_memory(r);
	while (rc == 0 && !end) {
		if (!yaml_parser_parse(&p, &e)) {
			rc = fail_parse(r, &p, text);
			break;
		}
		end = e.type == YAML_STREAM_END_EVENT;
		rc = check_event(r, &e, &t);
		if (rc == 0 && !add_event(&t, &e))
			rc = fail_memory(r);
		yaml_event_delete(&e);
	}
	yaml_parser_delete(&p);
	return rc;
}

int
conf_yaml_load(struct conf_read *r, const char *text, size_t n)
{
	int rc;

	if (n > CONF_FILE_MAX)
		return conf_fail(r, 0, "larger than 8 MiB");
	if (check_bytes(r, (const unsigned char *)text, n) != 0)
		return -1;
	if (!yaml_document_initialize(&r->doc, NULL, NULL, NULL, 1, 1))
		return fail_memory(r);
	rc = build(r, text, n);
	if (rc != 0)
		yaml_document_delete(&r->doc);
	return rc;
}
