/* Model lists and error bodies as engines send them, and what they must not be mistaken for. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "proto/json/json_small.h"
#include "proto/json/splice.h"

#define MAX_IDS 3

struct ids {
	char text[256];
	size_t n;
	uint64_t len; /* of the last one */
};

static bool
collect(const struct json_model *m, void *arg)
{
	struct ids *ids = arg;

	strncat(ids->text, m->id, sizeof(ids->text) - strlen(ids->text) - 1);
	strncat(ids->text, ";", sizeof(ids->text) - strlen(ids->text) - 1);
	ids->len = m->max_model_len;
	return ++ids->n < MAX_IDS;
}

static int
ids_of(const char *text, struct ids *ids)
{
	*ids = (struct ids){.n = 0};
	return json_models(text, strlen(text), collect, ids);
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

static bool
keep_last(const struct json_model *m, void *arg)
{
	*(struct json_model *)arg = *m;
	return true;
}

Test(json_small, what_is_told_of_a_model)
{
	static const char list[] =
		"{\"data\":[{\"id\":\"a\",\"owned_by\":\"v\\u0041\",\"root\":7,\"parent\":null}]}";
	struct json_model m;

	cr_assert_eq(json_models(list, strlen(list), keep_last, &m), 1);
	cr_assert(m.owned_by.n == 9 && memcmp(m.owned_by.p, "\"v\\u0041\"", 9) == 0, "raw");
	cr_assert_eq(m.root.n, 0, "it is no text");
	cr_assert(m.parent.n == 4 && memcmp(m.parent.p, "null", 4) == 0);
}

Test(json_small, no_model_list)
{
	static const char *const texts[] = {"", "[]", "{}", "{\"data\":{}}", "{\"data\":null}",
		"{\"data\":[1]}", "{\"data\":[null]}", "{\"data\":[{}]}", "{\"data\":[{\"id\":1}]}",
		"{\"data\":[{\"id\":\"a\"},{}]}", "{\"data\":[{\"id\":\"a\\u0000b\"}]}",
		"{\"data\":[{\"id\":\"a\"}]"};
	struct ids ids;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		cr_assert_eq(ids_of(texts[i], &ids), -1, "%s", texts[i]);
}

Test(json_small, ids_beyond_the_wanted_number_are_counted_only)
{
	struct ids ids;

	cr_assert_eq(
		ids_of("{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"}, {\"id\":\"c\"} ,{\"id\":\"d\"},{}]}",
			&ids),
		5);
	cr_assert_str_eq(ids.text, "a;b;c;");
}

Test(json_small, the_last_of_duplicate_members_counts)
{
	struct ids ids;

	cr_assert_eq(
		ids_of("{\"data\":7,\"d\\u0061ta\":[{\"id\":1,\"i\\u0064\":\"a\"}]}", &ids), 1);
	cr_assert_str_eq(ids.text, "a;");
}

Test(json_small, an_id_too_long_for_any_use_is_told_empty)
{
	char text[JSON_ID_MAX + 64];
	struct ids ids;

	for (int over = 0; over < 2; over++) {
		(void)sprintf(text, "{\"data\":[{\"id\":\"%0*d\"}]}", JSON_ID_MAX + over, 0);
		cr_assert_eq(ids_of(text, &ids), 1);
		cr_assert_eq(strlen(ids.text), over ? 1 : sizeof(ids.text) - 1);
	}
}

/* "{},{},..." in `size` bytes between head and tail, which a tree would need 200 times its size for */
static char *
bomb(const char *head, size_t size, const char *tail, size_t *ret_len)
{
	char *text = malloc(size + 64);
	size_t n = (size_t)sprintf(text, "%s{}", head);

	while (n + strlen(tail) + 3 <= size) {
		memcpy(text + n, ",{}", 3);
		n += 3;
	}
	*ret_len = n + (size_t)sprintf(text + n, "%s", tail);
	return text;
}

static long
peak_kib(void)
{
	struct rusage u;

	cr_assert_eq(getrusage(RUSAGE_SELF, &u), 0);
	return u.ru_maxrss;
}

Test(json_small, an_answer_does_not_make_memory_grow)
{
	char *list, *error, message[64];
	struct ids ids = {0};
	size_t nlist, nerror;
	long before;

	list = bomb("{\"data\":[{\"id\":\"a\",\"x\":[", 8u << 20, "]}]}", &nlist);
	error = bomb("{\"message\":\"m\",\"x\":[", 8u << 20, "]}", &nerror);
	before = peak_kib();
	cr_assert_eq(json_models(list, nlist, collect, &ids), 1);
	cr_assert_not(json_error_message(error, nerror, message, sizeof(message)));
	cr_assert_lt(peak_kib() - before, 4096);
	free(list);
	free(error);
	error = bomb("{\"message\":\"m\",\"x\":[", JSON_ERROR_MAX, "]}", &nerror);
	before = peak_kib();
	cr_assert(json_error_message(error, nerror, message, sizeof(message)));
	cr_assert_lt(peak_kib() - before, 16384);
	free(error);
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

Test(json_small, max_model_len)
{
	static const struct {
		const char *value;
		uint64_t len;
	} cases[] = {{"131072", 131072}, {"null", 0}, {"-1", 0}, {"4096.0", 0}, {"1e3", 0},
		{"\"4096\"", 0}, {"9999999999999999999", UINT64_C(9999999999999999999)},
		{"10000000000000000000", 0}, {"[1]", 0}, {"0", 0}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char text[128];
		struct ids ids = {0};

		(void)snprintf(text, sizeof(text),
			"{\"data\":[{\"id\":\"a\",\"max_model_len\":%s}]}", cases[i].value);
		cr_assert_eq(ids_of(text, &ids), 1, "%s", text);
		cr_assert_eq(ids.len, cases[i].len, "%s", text);
	}
}

/* Shortened from what SGLang 0.5.9 answers. */
static const char server_info[] =
	"{\"model_path\":\"m\",\"disaggregation_mode\":\"prefill\","
	"\"disaggregation_bootstrap_port\":8998,\"context_length\":null,\"tp_size\":8,"
	"\"nul\":\"a\\u0000b\",\"esc\":\"0.5\\u002e9\","
	"\"internal_states\":[{\"version\":\"no\",\"disaggregation_mode\":\"no\"}],\"version\":\"0.5.9\"}";

Test(json_small, members_of_a_flat_object)
{
	const size_t len = sizeof(server_info) - 1;
	uint64_t n = 7;
	char buf[6];

	cr_assert(json_member_text(server_info, len, "version", buf, sizeof(buf)));
	cr_assert_str_eq(buf, "0.5.9", "the top-level one");
	cr_assert(json_member_text(server_info, len, "esc", buf, sizeof(buf)));
	cr_assert_str_eq(buf, "0.5.9");
	cr_assert_not(json_member_text(server_info, len, "disaggregation_mode", buf, sizeof(buf)));
	cr_assert_str_empty(buf, "whole or not at all");
	cr_assert_not(json_member_text(server_info, len, "nul", buf, sizeof(buf)));
	cr_assert_not(json_member_text(server_info, len, "tp_size", buf, sizeof(buf)));
	cr_assert_not(json_member_text(server_info, len, "no", buf, sizeof(buf)));
	cr_assert_not(json_member_text(server_info, len - 1, "version", buf, sizeof(buf)));
	cr_assert_str_empty(buf);
	cr_assert(json_member_number(server_info, len, "disaggregation_bootstrap_port", 65535, &n));
	cr_assert_eq(n, 8998);
	cr_assert_not(
		json_member_number(server_info, len, "disaggregation_bootstrap_port", 8997, &n));
	cr_assert_not(json_member_number(server_info, len, "context_length", 65535, &n));
	cr_assert_not(json_member_number(server_info, len, "version", 65535, &n));
	cr_assert_not(json_member_number("[1]", 3, "tp_size", 65535, &n));
	cr_assert_eq(n, 8998);
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
		{"{\"error\":\"Unauthorized\"}", "Unauthorized"},
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
