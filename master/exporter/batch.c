#include "master/exporter/batch.h"

#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/http/trace.h"
#include "proto/json/utf8.h"
#include "shm/base/mem.h"
#include "shm/spans.h"

#define STATUS_ERROR 2 /* of the enum StatusCode */
/* SpanFlags: the two bits say that the parent is in another process */
#define FLAG_REMOTE 0x300
#define ANSWER_DEPTH 8

static const struct {
	const char *text;
	int kind;
} names[SPAN_NNAMES] = {
#define NAME(id, name, kind) [SPAN_##id] = {(name), (kind)},
	SPAN_NAMES(NAME)
#undef NAME
};

static const char *const attrs[SA_N] = {
#define ATTR(id, name, type) [SA_##id] = (name),
	SPAN_ATTRS(ATTR)
#undef ATTR
};

struct batch {
	struct json_object *root, *spans; /* `spans` is part of `root` */
};

/* Adds a member that the object has not had. */
static void
put(struct json_object *to, const char *key, struct json_object *value)
{
	(void)json_object_object_add_ex(
		to, key, value, JSON_C_OBJECT_ADD_KEY_IS_NEW | JSON_C_OBJECT_ADD_CONSTANT_KEY);
}

/* Returns a text of n bytes; what is not UTF-8 becomes U+FFFD: a collector would refuse the whole batch. */
static struct json_object *
new_text(const char *p, size_t n)
{
	struct membuf clean = {0};
	struct json_object *text;

	for (size_t i = 0, seq; i<n; i += seq> 0 ? seq : 1) {
		seq = utf8_seq((const uint8_t *)p + i, n - i);
		if (seq > 0)
			membuf_add(&clean, p + i, seq);
		else
			membuf_add(&clean, UTF8_REPLACEMENT, strlen(UTF8_REPLACEMENT));
	}
	text = json_object_new_string_len(n > 0 ? clean.p : "", (int)clean.n);
	membuf_free(&clean);
	return text;
}

static struct json_object *
new_word(const char *text)
{
	return new_text(text, strlen(text));
}

/* 64-bit numbers are texts. */
static struct json_object *
new_number(uint64_t n)
{
	char text[24];

	(void)snprintf(text, sizeof(text), "%" PRIu64, n);
	return json_object_new_string(text);
}

static struct json_object *
new_id(uint64_t id)
{
	char text[24];

	(void)snprintf(text, sizeof(text), "%016" PRIx64, id);
	return json_object_new_string(text);
}

/* A member of a list of attributes. */
static void
put_attr(struct json_object *list, const char *key, const char *type, struct json_object *value)
{
	struct json_object *attr = json_object_new_object(), *any = json_object_new_object();

	put(any, type, value);
	put(attr, "key", json_object_new_string(key));
	put(attr, "value", any);
	(void)json_object_array_add(list, attr);
}

static struct json_object *
new_resource(const struct batch_source *from)
{
	struct json_object *resource = json_object_new_object(), *list = json_object_new_array();

	put_attr(list, "service.name", "stringValue", new_word("pdrouter"));
	put_attr(list, "service.version", "stringValue", new_word(from->version));
	put_attr(list, "service.instance.id", "stringValue", new_word(from->instance));
	put_attr(list, "host.name", "stringValue", new_word(from->host));
	put(resource, "attributes", list);
	return resource;
}

/* Returns a list of one object. */
static struct json_object *
new_list(struct json_object *only)
{
	struct json_object *list = json_object_new_array();

	(void)json_object_array_add(list, only);
	return list;
}

struct batch *
batch_new(const struct batch_source *from)
{
	struct batch *b = MEM_NEW(struct batch);
	struct json_object *scope = json_object_new_object(), *of_scope = json_object_new_object(),
			   *of_resource = json_object_new_object();

	b->root = json_object_new_object();
	b->spans = json_object_new_array();
	put(scope, "name", new_word("pdrouter"));
	put(scope, "version", new_word(from->version));
	put(of_scope, "scope", scope);
	put(of_scope, "spans", b->spans);
	put(of_resource, "resource", new_resource(from));
	put(of_resource, "scopeSpans", new_list(of_scope));
	put(b->root, "resourceSpans", new_list(of_resource));
	return b;
}

void
batch_free(struct batch **b)
{
	if (*b == NULL)
		return;
	(void)json_object_put((*b)->root);
	free(*b);
	*b = NULL;
}

/* The texts that stand elsewhere in the span too. */
struct texts {
	struct span_value method, path, error, detail, state;
};

static void
note_text(struct texts *t, const struct span_value *v)
{
	struct span_value *const of[SA_N] = {[SA_METHOD] = &t->method,
		[SA_PATH] = &t->path,
		[SA_ERROR] = &t->error,
		[SA_DETAIL] = &t->detail,
		[SA_STATE] = &t->state};

	if (of[v->key] != NULL)
		*of[v->key] = *v;
}

static struct json_object *
new_attrs(const struct span_record *s, struct texts *ret)
{
	struct json_object *list = json_object_new_array();
	struct span_value v;

	for (size_t at = 0; span_next_value(s, &at, &v);) {
		note_text(ret, &v);
		if (v.key == SA_STATE)
			continue;
		if (v.text != NULL)
			put_attr(list, attrs[v.key], "stringValue", new_text(v.text, v.n));
		else
			put_attr(list, attrs[v.key], "intValue", new_number(v.number));
	}
	return list;
}

/* A request is named by its method and path. */
static struct json_object *
new_name(const struct span_record *s, const struct texts *t)
{
	struct json_object *name;
	char *text;

	if (s->head.name != SPAN_REQUEST || t->method.text == NULL || t->path.text == NULL)
		return new_word(names[s->head.name].text);
	text = mem_printf(
		"%.*s %.*s", (int)t->method.n, t->method.text, (int)t->path.n, t->path.text);
	name = new_word(text);
	free(text);
	return name;
}

static struct json_object *
new_status(const struct texts *t)
{
	const struct span_value *v = t->detail.text != NULL ? &t->detail : &t->error;
	struct json_object *status = json_object_new_object();

	put(status, "code", json_object_new_int(STATUS_ERROR));
	if (v->text != NULL)
		put(status, "message", new_text(v->text, v->n));
	return status;
}

static struct json_object *
new_event(const char *name, uint64_t ns)
{
	struct json_object *event = json_object_new_object();

	put(event, "timeUnixNano", new_number(ns));
	put(event, "name", new_word(name));
	return event;
}

void
batch_add(struct batch *b, const struct span_record *s, uint64_t wall_ns)
{
	const struct span_head *h = &s->head;
	struct json_object *span = json_object_new_object(), *list;
	struct texts texts = {.method = {.text = NULL}};
	const bool remote = h->name == SPAN_REQUEST && h->parent != 0;

	list = new_attrs(s, &texts);
	put(span, "traceId", json_object_new_string_len(h->trace, SPAN_TRACE));
	put(span, "spanId", new_id(h->id));
	if (texts.state.text != NULL)
		put(span, "traceState", new_text(texts.state.text, texts.state.n));
	if (h->parent != 0)
		put(span, "parentSpanId", new_id(h->parent));
	put(span, "flags", json_object_new_int(h->flags | (remote ? FLAG_REMOTE : 0)));
	put(span, "name", new_name(s, &texts));
	put(span, "kind", json_object_new_int(names[h->name].kind));
	put(span, "startTimeUnixNano", new_number(h->from_us * 1000 + wall_ns));
	put(span, "endTimeUnixNano", new_number(h->until_us * 1000 + wall_ns));
	put(span, "attributes", list);
	if (h->event_us != SPAN_NO_EVENT)
		put(span, "events",
			new_list(new_event("first token", h->event_us * 1000 + wall_ns)));
	if (h->outcome == SPAN_FAILED)
		put(span, "status", new_status(&texts));
	(void)json_object_array_add(b->spans, span);
}

uint32_t
batch_count(const struct batch *b)
{
	return (uint32_t)json_object_array_length(b->spans);
}

const char *
batch_text(struct batch *b, size_t *ret_len)
{
	return json_object_to_json_string_length(
		b->root, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, ret_len);
}

uint32_t
batch_rejected(const char *answer, size_t len, uint32_t most)
{
	struct json_tokener *reader = json_tokener_new_ex(ANSWER_DEPTH);
	struct json_object *root, *partial = NULL, *n = NULL;
	int64_t rejected = 0;

	if (reader == NULL)
		return 0;
	root = json_tokener_parse_ex(reader, answer, (int)len);
	if (json_object_object_get_ex(root, "partialSuccess", &partial) &&
		json_object_object_get_ex(partial, "rejectedSpans", &n))
		rejected = json_object_get_int64(n); /* a text, or a number */
	(void)json_object_put(root);
	json_tokener_free(reader);
	if (rejected < 0)
		return 0;
	return rejected > most ? most : (uint32_t)rejected;
}
