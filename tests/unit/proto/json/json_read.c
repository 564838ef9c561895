/* Walks through texts, whole ones and broken ones. */
#include "proto/json/json_read.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "proto/json/splice.h"

/* Enters every container; writes what it meets: keys in (), scalars in <>, brackets. */
static void
walk(struct json_read *r, char *out, size_t size)
{
	struct splice_seg key, value;
	size_t n = strlen(out);

	if (json_read_peek(r) == '{') {
		(void)json_read_enter(r, '{');
		strncat(out, "{", size - n - 1);
		while (json_read_member(r, &key)) {
			n = strlen(out);
			(void)snprintf(out + n, size - n, "(%.*s)", (int)key.n, key.p);
			walk(r, out, size);
		}
		strncat(out, "}", size - strlen(out) - 1);
	} else if (json_read_peek(r) == '[') {
		(void)json_read_enter(r, '[');
		strncat(out, "[", size - n - 1);
		while (json_read_element(r))
			walk(r, out, size);
		strncat(out, "]", size - strlen(out) - 1);
	} else {
		value = json_read_value(r);
		(void)snprintf(out + n, size - n, "<%.*s>", (int)value.n, value.p);
	}
}

Test(json_read, walks)
{
	static const struct {
		const char *text, *want;
	} cases[] = {
		{"{}", "{}"},
		{" [ ] ", "[]"},
		{"{\"a\":1}", "{(a)<1>}"},
		{"\t{ \"a\" : { } , \"b\\n\" : [ 1 , \"x\" ,null,{\"c\":[[]]}] } \r\n",
			"{(a){}(b\\n)[<1><\"x\"><null>{(c)[[]]}]}"},
		{"[[],{},\"]\",-1.5e3,true,false]", "[[]{}<\"]\"><-1.5e3><true><false>]"},
		{"7", "<7>"},
		{"[0,10,1.5,0e1,7E-2,-0,123456789012345678901]",
			"[<0><10><1.5><0e1><7E-2><-0><123456789012345678901>]"},
		{"{\"a\":null,\"b\":true,\"c\":false}", "{(a)<null>(b)<true>(c)<false>}"},
		{"{\"\":{\"\":\"\"}}", "{(){()<\"\">}}"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char out[128] = "";
		struct json_read r;

		json_read_init(&r, cases[i].text, strlen(cases[i].text));
		walk(&r, out, sizeof(out));
		cr_assert(json_read_done(&r), "%s", cases[i].text);
		cr_assert_str_eq(out, cases[i].want);
	}
}

Test(json_read, faults)
{
	static const char *const texts[] = {"", " ", "{", "[", "}", "{\"a\"}", "{\"a\":}",
		"{\"a\":1", "{\"a\":1,}", "{,}", "{\"a\":1 \"b\":2}", "{a:1}", "{1:1}", "{\"a\" 1}",
		"{\"a\":1]", "[1}", "[1,]", "[,1]", "[1 2]", "[01]", "[0123]", "[12a]", "[1.]",
		"[1e]", "[nul]", "[truee]", "tru", "fals", "n", "[\"\x01\"]", "[\"\xff\"]", "{} x",
		"[]]", "{\"a\":\"b}", "nullx", "{\"a", "[1,", "{\"a\":[1,2}"};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		char out[128] = "";
		struct json_read r;

		json_read_init(&r, texts[i], strlen(texts[i]));
		walk(&r, out, sizeof(out));
		cr_assert(!json_read_done(&r), "%s", texts[i]);
	}
}

/* Cut anywhere, a text is never whole; nothing is read beyond the cut. */
Test(json_read, cut_texts)
{
	static const char text[] = "{\"a\":[1,{\"b\":\"c\"}],\"d\":null}";

	for (size_t n = 0; n < sizeof(text) - 1; n++) {
		char copy[sizeof(text)], out[128] = "";
		struct json_read r;

		memset(copy, '}', sizeof(copy));
		memcpy(copy, text, n);
		json_read_init(&r, copy, n);
		walk(&r, out, sizeof(out));
		cr_assert(!json_read_done(&r), "%.*s", (int)n, text);
	}
}

Test(json_read, a_fault_sticks)
{
	static const char text[] = "[1] ";
	struct splice_seg key;
	struct json_read r;

	json_read_init(&r, text, sizeof(text) - 1);
	cr_assert(!json_read_enter(&r, '{'));
	cr_assert(!json_read_enter(&r, '['));
	cr_assert(!json_read_element(&r));
	cr_assert(!json_read_member(&r, &key));
	cr_assert_eq(json_read_value(&r).n, 0);
	cr_assert_eq(json_read_peek(&r), '\0');
	cr_assert(!json_read_done(&r));
}

Test(json_read, values_and_words)
{
	static const char text[] = " {\"a\": [ 1 ] , \"ab\":2}";
	struct splice_seg key, value;
	struct json_read r;

	json_read_init(&r, text, sizeof(text) - 1);
	cr_assert(json_read_enter(&r, '{'));
	cr_assert(json_read_member(&r, &key));
	cr_assert(json_read_is(&key, "a"));
	cr_assert(!json_read_is(&key, "ab"));
	value = json_read_value(&r);
	cr_assert_eq(value.p, text + 7);
	cr_assert_eq(value.n, 5);
	cr_assert(!json_read_done(&r));
	cr_assert(json_read_member(&r, &key));
	cr_assert(json_read_is(&key, "ab"));
	value = json_read_value(&r);
	cr_assert(json_read_is(&value, "2"));
	cr_assert(!json_read_member(&r, &key));
	cr_assert(json_read_done(&r));
}

Test(json_read, depth_is_bounded)
{
	char text[2 * SPLICE_MAX_DEPTH + 8];
	struct json_read r;

	for (size_t depth = SPLICE_MAX_DEPTH; depth <= SPLICE_MAX_DEPTH + 1; depth++) {
		memset(text, '[', depth);
		memset(text + depth, ']', depth);
		json_read_init(&r, text, 2 * depth);
		(void)json_read_value(&r);
		cr_assert_eq(json_read_done(&r), depth == SPLICE_MAX_DEPTH);
	}
}

Test(json_read, numbers)
{
	static const struct {
		const char *text;
		uint64_t max, want; /* 7: refused */
	} cases[] = {{"0", 0, 0}, {"12", 12, 12}, {"12", 11, 7}, {"", 9, 7}, {"-1", 9, 7},
		{"1.0", 9, 7}, {"1e1", 99, 7}, {"\"1\"", 9, 7}, {"null", 9, 7},
		{"9999999999999999999", UINT64_MAX, 9999999999999999999u},
		{"00000000000000000001", UINT64_MAX, 7}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct splice_seg span = {cases[i].text, strlen(cases[i].text)};
		uint64_t n = 7;

		cr_assert_eq(json_read_number(&span, cases[i].max, &n), cases[i].want != 7);
		cr_assert_eq(n, cases[i].want, "%s", cases[i].text);
	}
}
