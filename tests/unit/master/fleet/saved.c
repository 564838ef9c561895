/* The text of the state_file: what is written is read again, and broken texts are refused with a reason. */
#include "master/fleet/saved.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "shm/base/mem.h"

#define NELEMS(a) (sizeof(a) / sizeof((a)[0]))
#define HEAD "{\"pdrouter_state\": 1, \"drained\": ["
#define ENTRY "{\"pool\":\"m\",\"role\":\"decode\",\"url\":\"http://a:1\"}"

#define WEIGHT(w, configured)                                                                      \
	"{\"pool\":\"m\",\"role\":\"decode\",\"url\":\"http://a:1\",\"weight\":" #w                \
	",\"configured\":" #configured "}"

static char *
text_of(struct saved_one *drains, size_t n)
{
	struct membuf out = {0};

	saved_write(drains, n, &out);
	membuf_add(&out, "", 1);
	return out.p;
}

static struct saved
parse(const char *text)
{
	struct saved s;
	const char *why = "";

	cr_assert_eq(saved_parse(text, strlen(text), &s, &why), 0, "%s: %s", text, why);
	return s;
}

Test(saved, what_is_written_is_read_sorted_and_once)
{
	char a[] = "http://a:1", b[] = "http://[::1]:2/x", m[] = "m", odd[] = "p \"\\\x01\xc3\xa9";
	struct saved_one drains[] = {{b, odd, ROLE_PREFILL, 0, 0}, {a, m, ROLE_DECODE, 0, 0},
		{b, m, ROLE_DECODE, 0, 0}, {a, m, ROLE_PREFILL, 0, 0}, {a, m, ROLE_DECODE, 0, 0}};
	char *text = text_of(drains, NELEMS(drains)), *again;
	struct saved s = parse(text);

	cr_assert_eq(s.n, 4);
	cr_expect_str_eq(s.all[0].url, a);
	cr_expect_eq(s.all[0].role, ROLE_PREFILL);
	cr_expect_str_eq(s.all[1].url, b);
	cr_expect_str_eq(s.all[2].url, a);
	cr_expect_str_eq(s.all[3].pool, odd);
	again = text_of(s.all, s.n);
	cr_expect_str_eq(text, again);
	free(again);
	free(text);
	saved_free(&s);
}

Test(saved, the_text_is_as_documented)
{
	char url[] = "http://10.0.1.1:8200", pool[] = "llama-3-70b";
	struct saved_one one = {url, pool, ROLE_DECODE, 0, 0};
	char *text = text_of(&one, 1), *none = text_of(NULL, 0);

	cr_expect_str_eq(text, HEAD
		"\n{\"pool\":\"llama-3-70b\",\"role\":\"decode\",\"url\":\"http://10.0.1.1:8200\"}\n]}\n");
	cr_expect_str_eq(none, HEAD "\n]}\n");
	free(text);
	free(none);
}

/* Behind the drains, which a former version reads alone. */
Test(saved, weights_are_a_list_of_their_own)
{
	char a[] = "http://a:1", b[] = "http://b:1", m[] = "m";
	struct saved_one all[] = {
		{b, m, ROLE_DECODE, 100, 7}, {a, m, ROLE_DECODE, 5, 1}, {a, m, ROLE_DECODE, 0, 0}};
	char *text = text_of(all, NELEMS(all)), *again;
	struct saved s = parse(text);

	cr_expect_str_eq(text, HEAD
		"\n{\"pool\":\"m\",\"role\":\"decode\",\"url\":\"http://a:1\"}\n], \"weights\": ["
		"\n{\"pool\":\"m\",\"role\":\"decode\",\"url\":\"http://a:1\",\"weight\":5,\"configured\":1},"
		"\n{\"pool\":\"m\",\"role\":\"decode\",\"url\":\"http://b:1\",\"weight\":100,\"configured\":7}\n]}\n");
	cr_assert_eq(s.n, 3);
	cr_expect_eq(s.all[0].weight, 0);
	cr_expect(s.all[2].weight == 100 && s.all[2].configured == 7);
	again = text_of(s.all, s.n);
	cr_expect_str_eq(text, again);
	free(again);
	free(text);
	saved_free(&s);
}

Test(saved, unknown_members_are_ignored)
{
	struct saved s =
		parse("{\"new\": {\"x\": [1]}, \"drained\": [{\"since\": 3, \"pool\":\"m\","
		      "\"role\":\"decode\",\"url\":\"http://a:1\"}], \"pdrouter_state\": 1}");

	cr_expect_eq(s.n, 1);
	saved_free(&s);
}

static const struct {
	const char *text, *why;
} broken[] = {
	{"", "no JSON object"},
	{"\n", "no JSON object"},
	{"[]", "no JSON object"},
	{"{}", "no JSON object"},
	{"drained: []", "no JSON object"},
	{HEAD, "no JSON object"},
	{HEAD ENTRY, "no JSON object"},
	{HEAD "]} x", "no JSON object"},
	{"{\"pdrouter_state\": 0, \"drained\": []}", "version"},
	{"{\"pdrouter_state\": -1, \"drained\": []}", "version"},
	{"{\"pdrouter_state\": \"1\", \"drained\": []}", "version"},
	{"{\"pdrouter_state\": 99999999999999999999, \"drained\": []}", "version"},
	{"{\"pdrouter_state\": 2, \"drained\": []}", "newer version"},
	{"{\"pdrouter_state\": 1}", "no list"},
	{"{\"pdrouter_state\": 1, \"drained\": {}}", "no list"},
	{HEAD "1]}", "lacks"},
	{HEAD "{}]}", "lacks"},
	{HEAD ENTRY ", null]}", "lacks"},
	{HEAD "{\"pool\":\"\",\"role\":\"decode\",\"url\":\"http://a:1\"}]}", "lacks"},
	{HEAD "{\"pool\":\"m\",\"role\":\"cook\",\"url\":\"http://a:1\"}]}", "lacks"},
	{HEAD "{\"pool\":\"m\",\"role\":\"decode\",\"url\":\"a:1\"}]}", "lacks"},
	{HEAD "{\"pool\":\"m\",\"role\":\"decode\",\"url\":\"http://a\\u0000:1\"}]}", "lacks"},
	{HEAD "], \"weights\": {}}", "a weight is wrong"},
	{HEAD "], \"weights\": [" ENTRY "]}", "a weight is wrong"},
	{HEAD "], \"weights\": [" WEIGHT(0, 1) "]}", "a weight is wrong"},
	{HEAD "], \"weights\": [" WEIGHT(101, 1) "]}", "a weight is wrong"},
	{HEAD "], \"weights\": [" WEIGHT(1, null) "]}", "a weight is wrong"},
	{HEAD "{\"pool\":\"m\",\"role\":7,\"url\":\"http://a:1\"}]}", "lacks"},
};

Test(saved, broken_texts_are_refused)
{
	for (size_t i = 0; i < NELEMS(broken); i++) {
		const char *why = "";
		struct saved s;

		cr_expect_eq(saved_parse(broken[i].text, strlen(broken[i].text), &s, &why), -1,
			"%s", broken[i].text);
		cr_expect_not_null(strstr(why, broken[i].why), "%s: %s", broken[i].text, why);
		cr_expect(s.n == 0 && s.all == NULL);
	}
}

/* No beginning of a text is taken for the whole. */
Test(saved, each_cut_text_is_refused)
{
	static const char whole[] = HEAD "\n" ENTRY ",\n" ENTRY "\n]}";

	for (size_t n = 0; n < sizeof(whole) - 1; n++) {
		const char *why;
		struct saved s;

		cr_expect_eq(saved_parse(whole, n, &s, &why), -1, "%.*s", (int)n, whole);
	}
}

Test(saved, sizes_are_bounded)
{
	char *large = mem_zero(SAVED_BYTES_MAX + 2), url[700], text[900];
	const char *why = "";
	struct saved s;

	memset(large, 'a', SAVED_BYTES_MAX + 1);
	memcpy(large, HEAD "],\"later\":\"", strlen(HEAD "],\"later\":\""));
	memcpy(large + SAVED_BYTES_MAX - 2, "\"}", 2);
	cr_expect_eq(saved_parse(large, SAVED_BYTES_MAX, &s, &why), 0, "%s", why);
	cr_expect_eq(saved_parse(large, SAVED_BYTES_MAX + 1, &s, &why), -1);
	cr_expect_str_eq(why, "the file is too large");
	memset(url, 'a', sizeof(url));
	url[sizeof(url) - 1] = '\0';
	(void)snprintf(text, sizeof(text),
		HEAD "{\"pool\":\"m\",\"role\":\"decode\",\"url\":\"http://%s\"}]}", url);
	cr_expect_eq(saved_parse(text, strlen(text), &s, &why), -1);
	free(large);
}
