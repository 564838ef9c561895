/*
 * json-c is asked only after splice.c has accepted the grammar: json-c is laxer than RFC 8259 (it
 * takes NaN and Infinity even when strict), and a text refused early costs no allocation.
 */
#include "proto/json_small.h"

#include <json-c/json.h>
#include <string.h>

#include "proto/splice.h"
#include "proto/utf8.h"

bool
json_is_object(const char *text, size_t len)
{
	struct splice_seg unused;

	return len <= JSON_SMALL_MAX && splice_member_raw(text, len, "", &unused) >= 0;
}

/* The document, to be put by the caller; NULL if it is no object. */
static struct json_object *
parse(const char *text, size_t len)
{
	struct json_tokener *tok;
	struct json_object *doc;

	if (!json_is_object(text, len))
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

static bool
all_have_id(struct json_object *list)
{
	for (size_t i = 0; i < json_object_array_length(list); i++)
		if (string_member(json_object_array_get_idx(list, i), "id") == NULL)
			return false;
	return true;
}

int
json_model_ids(const char *text, size_t len, void (*fn)(const char *id, void *arg), void *arg)
{
	struct json_object *doc = parse(text, len), *list;
	size_t n;
	int r = -1;

	if (doc == NULL)
		return -1;
	if (!json_object_object_get_ex(doc, "data", &list) ||
		!json_object_is_type(list, json_type_array) || !all_have_id(list))
		goto out;
	n = json_object_array_length(list);
	for (size_t i = 0; i < n; i++)
		fn(string_member(json_object_array_get_idx(list, i), "id"), arg);
	r = (int)n;
out:
	(void)json_object_put(doc);
	return r;
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
	if (!json_object_object_get_ex(doc, "error", &error) ||
		!json_object_is_type(error, json_type_object))
		error = doc;
	message = string_member(error, "message");
	if (message != NULL && size > 0)
		copy_clipped(buf, size, message);
	(void)json_object_put(doc);
	return message != NULL && size > 0;
}
