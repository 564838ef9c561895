/*
 * json-c is called only after splice.c has accepted the grammar: json-c is laxer than RFC 8259 (it
 * accepts NaN and Infinity even when strict), and refusing a text here costs no allocation.
 */
#include "proto/json/json_small.h"

#include <json-c/json.h>
#include <string.h>

#include "proto/json/json_read.h"
#include "proto/json/json_string.h"
#include "proto/json/splice.h"
#include "proto/json/utf8.h"

/* --- flat objects ------------------------------------------------------------------------ */

bool
json_member_text(const char *text, size_t len, const char *name, char *buf, size_t size)
{
	struct splice_seg value;
	long n = -1;

	buf[0] = '\0';
	if (splice_member_raw(text, len, name, &value) != 1 || value.p[0] != '"')
		return false;
	n = json_unescape(value.p + 1, value.n - 2, buf, size - 1);
	if (n < 0 || memchr(buf, '\0', (size_t)n) != NULL) {
		buf[0] = '\0';
		return false;
	}
	buf[n] = '\0';
	return true;
}

bool
json_member_number(const char *text, size_t len, const char *name, uint64_t max, uint64_t *ret)
{
	struct splice_seg value;

	return splice_member_raw(text, len, name, &value) == 1 &&
	       json_read_number(&value, max, ret);
}

/* --- model lists ------------------------------------------------------------------------- */

/* Reads the entry's id into buf, "" if it is too long; false if it has none, or one with a NUL. */
static bool
read_id(const struct splice_seg *entry, char buf[JSON_ID_MAX + 1])
{
	struct splice_seg id;
	long n;

	if (splice_member_raw(entry->p, entry->n, "id", &id) != 1 || id.p[0] != '"')
		return false;
	n = json_unescape(id.p + 1, id.n - 2, buf, JSON_ID_MAX);
	if (n < 0)
		n = 0;
	buf[n] = '\0';
	return memchr(buf, '\0', (size_t)n) == NULL;
}

/* The raw value of a member that is a string or null. */
static struct splice_seg
raw_member(const struct splice_seg *entry, const char *name)
{
	struct splice_seg value;

	if (splice_member_raw(entry->p, entry->n, name, &value) != 1 ||
		(value.p[0] != '"' && value.p[0] != 'n'))
		return (struct splice_seg){NULL, 0};
	return value;
}

int
json_models(
	const char *text, size_t len, bool (*fn)(const struct json_model *m, void *arg), void *arg)
{
	struct splice_seg list, entry;
	char id[JSON_ID_MAX + 1];
	size_t at = 0, n = 0;
	bool more = true;

	if (splice_member_raw(text, len, "data", &list) != 1 || list.p[0] != '[')
		return -1;
	for (; splice_element(&list, &at, &entry); n++) {
		struct json_model m = {.id = id};

		if (!more)
			continue;
		if (!read_id(&entry, id))
			return -1;
		(void)json_member_number(
			entry.p, entry.n, "max_model_len", UINT64_MAX, &m.max_model_len);
		m.owned_by = raw_member(&entry, "owned_by");
		m.root = raw_member(&entry, "root");
		m.parent = raw_member(&entry, "parent");
		more = fn(&m, arg);
	}
	return (int)n;
}

/* --- error bodies ------------------------------------------------------------------------ */

/* The document, to be put by the caller; NULL if it is no object, or a large one. */
static struct json_object *
parse(const char *text, size_t len)
{
	struct splice_seg unused;
	struct json_tokener *tok;
	struct json_object *doc;

	if (len > JSON_ERROR_MAX || splice_member_raw(text, len, "", &unused) < 0)
		return NULL;
	tok = json_tokener_new_ex(
		SPLICE_MAX_DEPTH + 2); /* json-c counts the outside and a scalar too */
	if (tok == NULL)
		return NULL;
	json_tokener_set_flags(tok, JSON_TOKENER_STRICT | JSON_TOKENER_ALLOW_TRAILING_CHARS);
	doc = json_tokener_parse_ex(tok, text, (int)len);
	json_tokener_free(tok);
	return doc;
}

/* A member's string without NUL inside, or NULL. */
static const char *
string_member(struct json_object *obj, const char *name)
{
	struct json_object *value;
	const char *s;

	if (!json_object_object_get_ex(obj, name, &value) ||
		!json_object_is_type(value, json_type_string))
		return NULL;
	s = json_object_get_string(value);
	return strlen(s) == (size_t)json_object_get_string_len(value) ? s : NULL;
}

/* Copies as many whole characters as fit. */
static void
copy_clipped(char *buf, size_t size, const char *text)
{
	size_t n = strnlen(text, size);

	if (n == size)
		for (n = size - 1; n > 0 && utf8_continues((uint8_t)text[n]);)
			n--;
	memcpy(buf, text, n);
	buf[n] = '\0';
}

bool
json_error_message(const char *text, size_t len, char *buf, size_t size)
{
	struct json_object *doc = parse(text, len), *error;
	const char *message;

	if (doc == NULL)
		return false;
	if (json_object_object_get_ex(doc, "error", &error) &&
		json_object_is_type(error, json_type_object))
		message = string_member(error, "message");
	else
		message = string_member(doc, "message");
	if (message == NULL)
		message = string_member(doc, "error");
	if (message != NULL && size > 0)
		copy_clipped(buf, size, message);
	(void)json_object_put(doc);
	return message != NULL && size > 0;
}
