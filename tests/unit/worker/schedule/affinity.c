/* What ties a request to an engine: session names, the start of prompts, and how long a prompt is. */
#include "worker/schedule/affinity.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json/prompt.h"
#include "shm/table.h"
#include "worker/base/text.h"

static enum route asked;
static char model[256];
static struct splice doc;
static struct text client_text;
static struct table_pool pool;

static void
setup(void)
{
	pool = (struct table_pool){
		.session_header = "X-Session-Id", .session_member = "", .prefix_bytes = 16};
}

TestSuite(affinity, .init = setup);

/* A request with these header lines (each with its CRLF) and this body. */
static void
ask(enum route route, const char *lines, const char *body)
{
	const char *why;
	size_t at;

	asked = route;
	model[0] = '\0';
	client_text = (struct text){.refs = 1, .doc = &doc};
	client_text.headers = (char *)(uintptr_t)lines;
	client_text.headers_len = strlen(lines);
	cr_assert_eq(splice_scan(&doc, body, strlen(body), &why, &at), 0, "%s: %s", body, why);
	if (splice_find(&doc, SK_MODEL) != NULL)
		cr_assert_geq(
			splice_string(&doc, splice_find(&doc, SK_MODEL), model, sizeof(model)), 0);
}

/* 0: it has none (no hash of a name is 0 by accident here). */
static uint64_t
session(const char *lines, const char *body)
{
	uint64_t key = 0;

	ask(ROUTE_CHAT, lines, body);
	return affinity_session(&client_text, &pool, &key) ? key : 0;
}

Test(affinity, the_header_is_found_in_any_case_and_position)
{
	const uint64_t key = session("X-Session-Id: abc\r\n", "{}");

	cr_assert_neq(key, 0);
	cr_expect_eq(session("x-session-id: abc\r\n", "{}"), key);
	cr_expect_eq(session("X-SESSION-ID: abc\r\nA: b\r\n", "{}"), key, "first");
	cr_expect_eq(session("A: b\r\nX-Session-Id: abc\r\nC: d\r\n", "{}"), key, "middle");
	cr_expect_eq(session("A: b\r\nC: d\r\nX-Session-Id: abc\r\n", "{}"), key, "last");
	cr_expect_eq(
		session("X-Session-Id: abc\r\nX-Session-Id: x\r\n", "{}"), key, "the first counts");
	cr_expect_neq(session("X-Session-Id: abd\r\n", "{}"), key);
	cr_expect_neq(session("X-Session-Id: ABC\r\n", "{}"), key, "a value has its case");
	cr_expect_neq(session("X-Session-Id: ab\r\n", "{}"), key);
	cr_expect_neq(session("X-Session-Id: abcd\r\n", "{}"), key);
}

Test(affinity, other_headers_are_not_taken_for_it)
{
	static const char *const lines[] = {
		"",
		"X-Session-Id: \r\n",
		"X-Session-Id2: abc\r\n",
		"X-Session-I: abc\r\n",
		"XX-Session-Id: abc\r\n",
		"A: X-Session-Id: abc\r\n",
		"A: b\r\nB: c\r\n",
	};

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		cr_expect_eq(session(lines[i], "{\"X-Session-Id\":\"abc\"}"), 0, "%s", lines[i]);
}

Test(affinity, no_header_configured_means_none)
{
	pool.session_header = "";
	cr_expect_eq(session("X-Session-Id: abc\r\n: abc\r\n", "{}"), 0);
}

Test(affinity, the_member_stands_in_where_the_header_is_missing)
{
	uint64_t key;

	pool.session_member = "user";
	key = session("X-Session-Id: abc\r\n", "{\"user\":\"other\"}");
	cr_expect_eq(session("", "{\"a\":[1,{\"user\":\"x\"}],\"user\":\"abc\"}"), key,
		"the same name in either place");
	cr_expect_eq(session("X-Session-Id: \r\n", "{\"user\":\"abc\"}"), key);
	cr_expect_eq(session("", "{\"us\\u0065r\":\"abc\"}"), key, "an escaped name of the member");
	cr_expect_eq(session("", "{\"user\":\"x\",\"user\":\"abc\"}"), key,
		"engines take the last of doubles");
	cr_expect_neq(session("", "{\"user\":\"abd\"}"), key);
	pool.session_header = "";
	cr_expect_eq(session("X-Session-Id: other\r\n", "{\"user\":\"abc\"}"), key);
}

Test(affinity, members_that_name_nothing)
{
	static const char *const bodies[] = {
		"{}",
		"{\"user\":null}",
		"{\"user\":\"\"}",
		"{\"user\":{}}",
		"{\"user\":{\"id\":\"abc\"}}",
		"{\"user\":[\"abc\"]}",
		"{\"users\":\"abc\"}",
		"{\"metadata\":{\"user\":\"abc\"}}",
	};

	pool.session_member = "user";
	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
		cr_expect_eq(session("", bodies[i]), 0, "%s", bodies[i]);
}

Test(affinity, numbers_and_bools_are_names_too)
{
	uint64_t keys[5];
	static const char *const bodies[] = {"{\"user\":17}", "{\"user\": 18 }",
		"{\"user\":-1.5e3}", "{\"user\":true}", "{\"user\":false}"};

	pool.session_member = "user";
	for (size_t i = 0; i < 5; i++) {
		keys[i] = session("", bodies[i]);
		cr_expect_neq(keys[i], 0, "%s", bodies[i]);
		for (size_t k = 0; k < i; k++)
			cr_expect_neq(keys[i], keys[k]);
	}
	cr_expect_eq(session("", "{\"user\": 17 }"), keys[0], "blanks round it do not count");
}

/* 0: it has none. */
static uint64_t
prefix(enum route route, const char *body)
{
	uint64_t key = 0;

	ask(route, "", body);
	return affinity_prefix(&client_text, asked, model, &pool, &key) ? key : 0;
}

Test(affinity, prompts_are_compared_by_their_first_bytes)
{
	/* 16 bytes: the quote and 15 letters */
	const uint64_t key = prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"123456789012345\"}");

	cr_assert_neq(key, 0);
	cr_expect_eq(prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"123456789012345 and more\"}"), key);
	cr_expect_eq(prefix(ROUTE_COMPLETIONS,
			     "{ \"max_tokens\": 5, \"prompt\" :\"123456789012345\", \"n\":1}"),
		key, "what stands beside it does not count");
	cr_expect_neq(prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"12345678901234x and more\"}"), key);
	cr_expect_neq(prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"12345678901234\"}"), key, "shorter");
	pool.prefix_bytes = 17;
	cr_expect_neq(prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"123456789012345 and more\"}"),
		prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"123456789012345_and more\"}"));
}

Test(affinity, short_prompts_are_compared_whole)
{
	const uint64_t key = prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"hi\"}");

	cr_assert_neq(key, 0);
	cr_expect_eq(prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"hi\",\"user\":\"x\"}"), key);
	cr_expect_neq(prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"hi \"}"), key);
	cr_expect_neq(prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"h\"}"), key);
	cr_expect_neq(prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"\"}"), 0, "an empty one is one");
}

Test(affinity, prompts_of_token_ids_have_a_start_too)
{
	pool.prefix_bytes = 18;
	cr_expect_eq(prefix(ROUTE_COMPLETIONS, "{\"prompt\":[1001,1002,1003,1004,1005]}"),
		prefix(ROUTE_COMPLETIONS, "{\"prompt\":[1001,1002,1003,1004,77]}"));
	cr_expect_neq(prefix(ROUTE_COMPLETIONS, "{\"prompt\":[1001,1002,1003,1004]}"),
		prefix(ROUTE_COMPLETIONS, "{\"prompt\":[1001,1002,1009,1004]}"));
}

Test(affinity, the_engine_reads_messages_or_prompt_and_so_do_we)
{
	const char *both =
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"prompt\":\"b\"}";

	pool.prefix_bytes = 64;
	cr_expect_eq(prefix(ROUTE_CHAT, both),
		prefix(ROUTE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"));
	cr_expect_eq(
		prefix(ROUTE_COMPLETIONS, both), prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"b\"}"));
	cr_expect_neq(prefix(ROUTE_CHAT, both), prefix(ROUTE_COMPLETIONS, both));
	cr_expect_eq(prefix(ROUTE_CHAT, "{\"prompt\":\"b\"}"), 0);
	cr_expect_eq(prefix(ROUTE_COMPLETIONS, "{\"messages\":[]}"), 0);
	cr_expect_eq(prefix(ROUTE_CHAT, "{}"), 0);
}

/* An adapter changes every block of the cache. */
Test(affinity, the_model_is_part_of_the_key)
{
	const uint64_t key = prefix(ROUTE_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"hi\"}");

	cr_expect_eq(prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"hi\",\"model\":\"m\"}"), key);
	cr_expect_neq(prefix(ROUTE_COMPLETIONS, "{\"model\":\"m-lora\",\"prompt\":\"hi\"}"), key);
	cr_expect_neq(prefix(ROUTE_COMPLETIONS, "{\"prompt\":\"hi\"}"), key);
}

static uint32_t
tokens(const char *body)
{
	ask(ROUTE_COMPLETIONS, "", body);
	return prompt_tokens(&doc);
}

Test(affinity, four_characters_are_a_token_and_so_is_an_id)
{
	cr_expect_eq(tokens("{}"), 1);
	cr_expect_eq(tokens("{\"prompt\":\"\"}"), 1);
	cr_expect_eq(tokens("{\"prompt\":\"abc\"}"), 1);
	cr_expect_eq(tokens("{\"prompt\":\"12345678\"}"), 2);
	cr_expect_eq(tokens("{\"prompt\":[1,2,3,4,5]}"), 5);
	cr_expect_eq(tokens("{\"prompt\":[[1,2,3],[4,5]]}"), 5);
	cr_expect_eq(tokens("{\"prompt\":[\"12345678\",\"1234\"]}"), 3);
	cr_expect_eq(
		tokens("{\"messages\":[{\"role\":\"user\",\"content\":\"12345678\"},"
		       "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"1234\"}]}]}"),
		3);
	cr_expect_eq(tokens("{\"max_tokens\":100000,\"user\":\"12345678901234567890\"}"), 1);
}

Test(affinity, the_estimate_is_capped)
{
	ask(ROUTE_COMPLETIONS, "", "{}");
	doc.prompt_chars = 4 * (uint64_t)PROMPT_TOKENS_MAX - 4;
	cr_expect_eq(prompt_tokens(&doc), PROMPT_TOKENS_MAX - 1);
	doc.prompt_items = 1;
	cr_expect_eq(prompt_tokens(&doc), PROMPT_TOKENS_MAX);
	doc.prompt_items = UINT32_MAX;
	doc.prompt_chars = UINT32_MAX;
	cr_expect_eq(prompt_tokens(&doc), PROMPT_TOKENS_MAX);
}

/* --- the routing estimate --- */

static uint32_t
estimate(enum route route, const char *body)
{
	ask(route, "", body);
	return affinity_estimate(&doc, asked);
}

Test(affinity, the_estimate_is_a_quarter_of_the_characters_or_the_length_of_a_list)
{
	static const struct {
		enum route route;
		const char *body;
		uint32_t want;
	} cases[] = {
		{ROUTE_COMPLETIONS, "{\"prompt\":\"1234567\"}", 1},
		{ROUTE_COMPLETIONS, "{\"prompt\":\"12345678\"}", 2},
		{ROUTE_COMPLETIONS, "{\"prompt\":\"\\ud83d\\ude00\xf0\x9f\x98\x80\\n\\u0041\"}", 1},
		{ROUTE_COMPLETIONS, "{\"prompt\":[1,2,3,4,5]}", 5},
		{ROUTE_COMPLETIONS, "{\"prompt\":[[1,2,3,4,5],[6]]}", 2},
		{ROUTE_COMPLETIONS, "{\"prompt\":[\"a long prompt\",\"b\",\"c\"]}", 3},
		{ROUTE_COMPLETIONS, "{\"prompt\":[]}", 0},
		{ROUTE_COMPLETIONS, "{\"prompt\":null}", 0},
		{ROUTE_COMPLETIONS, "{}", 0},
		{ROUTE_COMPLETIONS, "{\"messages\":[{\"content\":\"12345678\"}]}", 0},
		{ROUTE_CHAT, "{\"messages\":[{\"content\":\"12345678\"}]}", 2},
		{ROUTE_CHAT,
			"{\"messages\":[{\"content\":\"123\"},{\"content\":[{\"type\":\"text\",\"text\":\"45\"},"
			"{\"type\":\"image_url\",\"text\":\"6789\"}]},{\"content\":\"abc\"}]}",
			2},
		{ROUTE_CHAT, "{\"messages\":[{\"role\":\"user\"},{\"content\":null}]}", 0},
		{ROUTE_CHAT, "{\"prompt\":[1,2,3,4,5,6,7,8]}", 0},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_expect_eq(estimate(cases[i].route, cases[i].body), cases[i].want, "%s: %u",
			cases[i].body, affinity_estimate(&doc, asked));
}

static void
unhex(char *text)
{
	size_t n = 0;

	for (; sscanf(text + 2 * n, "%2hhx", (unsigned char *)&text[n]) == 1; n++)
		;
	text[n] = '\0';
}

/* Python counts characters: it is asked about some thousand bodies with every escape, lone surrogates and
 * whole ones, doubled and escaped names, parts of all types. */
Test(affinity, the_estimate_is_what_python_makes_of_it)
{
	enum { BODIES = 4000 };
	FILE *oracle = popen("python3 tests/unit/worker/schedule/affinity_oracle.py 1 4000", "r");
	char *line = NULL;
	size_t size = 0;
	unsigned n = 0;

	cr_assert_not_null(oracle);
	while (getline(&line, &size, oracle) > 0) {
		const bool completions = strncmp(line, "completions ", 12) == 0;
		char *body;
		unsigned long want = strtoul(strchr(line, ' '), &body, 10);

		unhex(++body);
		cr_assert_eq(estimate(completions ? ROUTE_COMPLETIONS : ROUTE_CHAT, body), want,
			"%s, by Python %lu, here %u: %s", completions ? "prompt" : "messages", want,
			affinity_estimate(&doc, asked), body);
		n++;
	}
	free(line);
	cr_assert_eq(pclose(oracle), 0);
	cr_assert_eq(n, BODIES);
}

/* --- cuts of policy cache_aware ------------------------------------------------------------------- */

static struct prefix_secret secret;

/* Of a body with a prompt of `n` times "word " in the member, before `more`. */
static struct prefix_key
cut(enum route route, const char *member, int n, const char *more)
{
	static char body[1 << 16];
	struct prefix_key key = {.n = 0};
	int at = snprintf(body, sizeof(body), "{\"%s\":\"", member);

	for (int i = 0; i < n; i++)
		at += snprintf(body + at, sizeof(body) - (size_t)at, "word ");
	(void)snprintf(body + at, sizeof(body) - (size_t)at, "\"%s}", more);
	prefix_secret_make(&secret, (uint64_t[2]){1, 2});
	ask(route, "", body);
	if (!affinity_cut(&secret, &client_text, asked, model, 0, &key))
		key.n = UINT32_MAX;
	return key;
}

static const char *
letters(void)
{
	static char text[4096];

	for (size_t i = 0; i < sizeof(text) - 1; i++)
		text[i] = (char)('a' + i % 26);
	return text;
}

static uint32_t
common(const struct prefix_key *a, const struct prefix_key *b)
{
	uint32_t n = 0;

	while (n < a->n && n < b->n && a->digest[n] == b->digest[n])
		n++;
	return n;
}

Test(affinity, a_longer_prompt_has_the_cuts_of_a_shorter_one)
{
	const struct prefix_key a = cut(ROUTE_COMPLETIONS, "prompt", 200, ""),
				b = cut(ROUTE_COMPLETIONS, "prompt", 400, ",\"user\":\"x\"");

	cr_expect_eq(a.n, 3); /* of 1,002 bytes */
	cr_expect_eq(b.n, 7);
	cr_expect_eq(common(&a, &b), 3);
}

Test(affinity, what_changes_the_cache_changes_every_cut)
{
	static const char *const others[] = {",\"model\":\"m\"", ",\"cache_salt\":\"s\"",
		",\"cache_salt\":\"t\"", ",\"lora_path\":\"s\"", ",\"tools\":[1]"};
	struct prefix_key keys[1 + sizeof(others) / sizeof(others[0])];

	keys[0] = cut(ROUTE_COMPLETIONS, "prompt", 200, "");
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		keys[i + 1] = cut(ROUTE_COMPLETIONS, "prompt", 200, others[i]);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		for (size_t k = 0; k < i; k++)
			cr_expect_eq(common(&keys[i], &keys[k]), 0, "%zu, %zu", i, k);
}

Test(affinity, cuts_are_of_what_the_engine_reads)
{
	const struct prefix_key a = cut(ROUTE_GENERATE, "text", 200, "");

	cr_expect_eq(a.n, 3);
	cr_expect_eq(cut(ROUTE_GENERATE, "input_ids", 200, "").n, 3);
	cr_expect_eq(cut(ROUTE_CHAT, "messages", 200, "").n, 3);
	cr_expect_eq(cut(ROUTE_CHAT, "prompt", 200, "").n, UINT32_MAX);
	cr_expect_eq(cut(ROUTE_COMPLETIONS, "prompt", 1, "").n, 0, "too short to matter");
}

/* A body of two members, "system" or "instructions" and the prompt, each of so many letters. */
static struct prefix_key
cut_two(enum route route, const char *first, int nfirst, const char *second, int n)
{
	static char body[1 << 16];
	struct prefix_key key = {.n = 0};

	(void)snprintf(body, sizeof(body), "{\"%s\":\"%.*s\",\"%s\":\"%.*s\"}", second, n,
		letters(), first, nfirst, letters());
	prefix_secret_make(&secret, (uint64_t[2]){1, 2});
	ask(route, "", body);
	cr_assert(affinity_cut(&secret, &client_text, asked, model, 0, &key));
	return key;
}

Test(affinity, what_stands_before_the_messages_is_a_beginning_too)
{
	const struct {
		enum route route;
		const char *first, *second;
	} bodies[] = {
		{ROUTE_MESSAGES, "system", "messages"}, {ROUTE_RESPONSES, "instructions", "input"}};

	for (size_t i = 0; i < 2; i++) {
		const enum route r = bodies[i].route;
		const char *f = bodies[i].first, *s = bodies[i].second;
		const struct prefix_key none = cut_two(r, "user", 1000, s, 1000),
					a = cut_two(r, f, 1000, s, 1000),
					b = cut_two(r, f, 1000, s, 2000),
					c = cut_two(r, f, 1001, s, 1000);

		cr_expect_eq(none.n, 3);
		cr_expect_eq(none.size, 1002, "the quotes, too");
		/* 256, 512, 768, the end of the first part, then on from there */
		cr_expect_eq(a.n, 7, "%u", a.n);
		cr_expect_eq(a.end[3], 1002);
		cr_expect_eq(a.end[6], 1002 + 768);
		cr_expect_eq(a.size, 2004);
		cr_expect_eq(common(&a, &b), 7);
		cr_expect_eq(common(&a, &c), 3, "and not the end of the first part");
		cr_expect_eq(common(&a, &none), 3, "as long as the bytes agree");
	}
}
