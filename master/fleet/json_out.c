#include "master/fleet/json_out.h"

#include <event2/buffer.h>
#include <json-c/json.h>
#include <string.h>

#include "proto/json/utf8.h"
#include "shm/base/mem.h"

struct json_object *
json_out_text(const char *text)
{
	const uint8_t *p = (const uint8_t *)text;
	struct membuf clean = {0};
	struct json_object *o;

	for (size_t left = strlen(text), n; left > 0; p += n, left -= n) {
		n = utf8_seq(p, left);
		/* json-c escapes C0 and no other controls; a terminal obeys those, too */
		if (n > 0 && (*p < 0x20 || !utf8_is_control(p)))
			membuf_add(&clean, p, n);
		else
			membuf_add(&clean, UTF8_REPLACEMENT, strlen(UTF8_REPLACEMENT));
		n = n > 0 ? n : 1;
	}
	o = json_object_new_string_len(clean.n > 0 ? clean.p : "", (int)clean.n);
	membuf_free(&clean);
	return o;
}

void
json_out_add(struct json_object *o, const char *key, const char *text)
{
	(void)json_object_object_add(o, key, text != NULL ? json_out_text(text) : NULL);
}

void
json_out_number(struct json_object *o, const char *key, bool known, uint64_t n)
{
	(void)json_object_object_add(o, key, known ? json_object_new_uint64(n) : NULL);
}

void
json_out_write(struct evbuffer *out, size_t *nwritten, struct json_object *o)
{
	(void)evbuffer_add_printf(out, "%s\n%s", (*nwritten)++ > 0 ? "," : "",
		json_object_to_json_string_ext(
			o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
	(void)json_object_put(o);
}
