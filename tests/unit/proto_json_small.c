/* Model lists and error bodies as engines send them, and what they must not be mistaken for. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json_small.h"
#include "proto/splice.h"

Test(json_small, is_object)
{
	static const char *const yes[] = {
		"{}", " {\"a\":[1,{\"b\":null}]}\r\n", "{\"a\":1e400,\"a\":\"\\ud800\"}"};
	static const char *const no[] = {"", " ", "[]", "1", "\"{}\"", "{", "{}}", "{} x",
		"{\"a\":NaN}", "{'a':1}", "{\"a\":1,}", "{\"a\":01}", "{\"a\":\"\xff\"}", "nul",
		"{\"a\":Infinity}"};

	for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++)
		cr_assert(json_is_object(yes[i], strlen(yes[i])), "%s", yes[i]);
	for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
		cr_assert_not(json_is_object(no[i], strlen(no[i])), "%s", no[i]);
	cr_assert_not(json_is_object("{}\0", 3));
}

Test(json_small, too_large_is_refused)
{
	char *text = malloc(JSON_SMALL_MAX + 1);

	memset(text, ' ', JSON_SMALL_MAX + 1);
	memcpy(text, "{}", 2);
	cr_assert(json_is_object(text, JSON_SMALL_MAX));
	cr_assert_not(json_is_object(text, JSON_SMALL_MAX + 1));
	free(text);
}

struct ids {
	char text[256];
};

static void
collect(const char *id, void *arg)
{
	struct ids *ids = arg;

	strncat(ids->text, id, sizeof(ids->text) - strlen(ids->text) - 1);
	strncat(ids->text, ";", sizeof(ids->text) - strlen(ids->text) - 1);
}

static int
ids_of(const char *text, struct ids *ids)
{
	ids->text[0] = '\0';
	return json_model_ids(text, strlen(text), collect, ids);
}

Test(json_small, model_ids)
{
	struct ids ids;

	cr_assert_eq(
		ids_of("{\"object\":\"list\",\"data\":[{\"id\":\"llama\",\"object\":\"model\","
		       "\"created\":1,"
		       "\"owned_by\":\"vllm\",\"parent\":null,\"permission\":[{\"id\":\"p\"}]},"
		       "{\"id\":\"lora \\u00e9\",\"parent\":\"llama\"}]}",
			&ids),
		2);
	cr_assert_str_eq(ids.text, "llama;lora é;");
	cr_assert_eq(ids_of("{\"data\":[]}", &ids), 0);
}

Test(json_small, no_model_list)
{
	static const char *const texts[] = {"", "[]", "{}", "{\"data\":{}}", "{\"data\":null}",
		"{\"data\":[1]}", "{\"data\":[null]}", "{\"data\":[{}]}", "{\"data\":[{\"id\":1}]}",
		"{\"data\":[{\"id\":\"a\"},{}]}", "{\"data\":[{\"id\":\"a\\u0000b\"}]}",
		"{\"data\":[{\"id\":\"a\"}]"};
	struct ids ids;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		cr_assert_eq(ids_of(texts[i], &ids), -1, "%s", texts[i]);
		cr_assert_str_empty(
			ids.text, "%s: nothing is told of a list that is wrong", texts[i]);
	}
}

Test(json_small, as_deep_as_the_scan_allows)
{
	char text[2 * SPLICE_MAX_DEPTH + 64];
	struct ids ids;
	size_t n;

	/* the outer object is one level, the arrays the others, and a scalar stands in the
	 * innermost */
	n = (size_t)sprintf(text, "{\"data\":[],\"x\":");
	memset(text + n, '[', SPLICE_MAX_DEPTH - 1);
	n += SPLICE_MAX_DEPTH - 1;
	text[n++] = '1';
	memset(text + n, ']', SPLICE_MAX_DEPTH - 1);
	n += SPLICE_MAX_DEPTH - 1;
	strcpy(text + n, "}");
	cr_assert_eq(ids_of(text, &ids), 0);
}

Test(json_small, error_message)
{
	static const struct {
		const char *text, *want;
	} cases[] = {
		{"{\"error\":{\"message\":\"bad\\nthing\",\"type\":\"t\",\"param\":null,\"code\":"
		 "400}}",
			"bad\nthing"},
		{"{\"object\":\"error\",\"message\":\"old form\",\"type\":\"t\",\"code\":400}",
			"old form"},
		{"{\"error\":null,\"message\":\"m\"}", "m"},
		{"{\"error\":\"text\",\"message\":\"m\"}", "m"},
		{"{\"error\":{\"message\":\"\"}}", ""},
		{"{\"error\":{\"message\":7}}", NULL},
		{"{\"error\":{}}", NULL},
		{"{\"detail\":\"Not Found\"}", NULL},
		{"[]", NULL},
		{"Internal Server Error", NULL},
		{"", NULL},
	};
	char buf[64];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool found =
			json_error_message(cases[i].text, strlen(cases[i].text), buf, sizeof(buf));

		cr_assert_eq(found, cases[i].want != NULL, "%s", cases[i].text);
		if (found)
			cr_assert_str_eq(buf, cases[i].want);
	}
}

Test(json_small, error_message_is_clipped_between_characters)
{
	static const char text[] =
		"{\"message\":\"a\xc3\xa9\xe2\x82\xac\"}"; /* a, e acute, euro: 6 bytes */
	static const char *const want[] = {
		"", "a", "a", "a\xc3\xa9", "a\xc3\xa9", "a\xc3\xa9", "a\xc3\xa9\xe2\x82\xac"};

	for (size_t size = 1; size <= 7; size++) {
		char *buf = malloc(size);

		cr_assert(json_error_message(text, sizeof(text) - 1, buf, size));
		cr_assert_str_eq(buf, want[size - 1]);
		free(buf);
	}
	cr_assert_not(json_error_message(text, sizeof(text) - 1, NULL, 0));
}
