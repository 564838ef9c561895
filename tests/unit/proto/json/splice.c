/* Bodies are read strictly and edited without touching a byte that is not the router's. */
#include <criterion/criterion.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json/json_string.h"
#include "proto/json/splice.h"
#include "tests/unit/proto/json/in_steps.h"

/* A copy of exactly n bytes, so that ASan sees a byte too many. */
static char *
exact(const char *text, size_t n)
{
	char *copy = calloc(1, n > 0 ? n : 1);

	memcpy(copy, text, n);
	return copy;
}

static void
steps_change_nothing(const char *text, size_t len)
{
	size_t nsteps;

	for (size_t step = 1; step <= len && step <= 70; step += step < 20 ? 1 : 17)
		cr_assert(same_in_steps(text, len, step, &nsteps), "%.200s in steps of %zu", text,
			step);
}

static void
must_scan(struct splice *s, const char *text, size_t len)
{
	const char *why = NULL;
	size_t at = 0;

	cr_assert_eq(splice_scan(s, text, len, &why, &at), 0, "%.200s: %s at %zu", text, why, at);
	if (len < 2000)
		steps_change_nothing(text, len);
}

/* The edited body, to be freed. */
static char *
edit(const struct splice *s, const struct splice_edit *e)
{
	struct splice_seg segs[SPLICE_MAX_SEGMENTS];
	size_t total, n = splice_layout(s, e, segs, &total), at = 0;
	char *out = calloc(1, total + 1);

	cr_assert_leq(n, SPLICE_MAX_SEGMENTS);
	for (size_t i = 0; i < n; i++) {
		memcpy(out + at, segs[i].p, segs[i].n);
		at += segs[i].n;
	}
	cr_assert_eq(at, total);
	return out;
}

/* --- grammar --- */

Test(splice, accepts)
{
	static const char *const texts[] = {
		"{}",
		" \t\r\n{ } \n",
		"{\"a\":1}",
		"{\"\":\"\"}",
		"{\"a\" : [ ] , \"b\" : { } }",
		"{\"a\":[null,true,false,0,-0,-1.5,1e5,1E+5,1e-5,0.0e0,1e400,"
		"123456789012345678901234567890]}",
		"{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\uD83D\\uDE00\"}",
		"{\"a\":\"\\ud800\",\"b\":\"\\udc00\\ud800\",\"c\":"
		"\"\\ud800\\u0041\"}", /* lone
							  surrogates
							*/
		"{\"a\":\"\x7f \xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf "
		"\xee\x80\x80 "
		"\xf0\x90\x80\x80 \xf4\x8f\xbf\xbf\"}",
		"{\"a\":1,\"a\":2,\"a\":3}",
		"{\"a\":[[[{}]],{\"b\":[{\"c\":[]}]}]}",
	};
	struct splice s;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		char *copy = exact(texts[i], strlen(texts[i]));

		must_scan(&s, copy, strlen(texts[i]));
		free(copy);
	}
}

Test(splice, refuses)
{
	static const struct {
		const char *text;
		size_t at;
	} cases[] = {
		{"", 0},
		{"  ", 2},
		{"[]", 0},
		{"1", 0},
		{"\"a\"", 0},
		{"null", 0},
		{"\xef\xbb\xbf{}", 0},
		{"{", 1},
		{"{]", 1},
		{"{\"a\"}", 4},
		{"{\"a\":}", 5},
		{"{\"a\":1", 6},
		{"{\"a\":1,}", 7},
		{"{,}", 1},
		{"{\"a\":1 \"b\":2}", 7},
		{"{\"a\":1;}", 6},
		{"{a:1}", 1},
		{"{'a':1}", 1},
		{"{1:1}", 1},
		{"{} {}", 3},
		{"{}x", 2},
		{"{}}", 2},
		{"{\"a\":[1,]}", 8},
		{"{\"a\":[,1]}", 6},
		{"{\"a\":[1 2]}", 8},
		{"{\"a\":[1}", 7},
		{"{\"a\":{\"b\":1]}", 11},
		{"{\"a\":[", 6},
		{"{\"a\":01}", 6},
		{"{\"a\":+1}", 5},
		{"{\"a\":.5}", 5},
		{"{\"a\":1.}", 7},
		{"{\"a\":1e}", 7},
		{"{\"a\":1e+}", 8},
		{"{\"a\":-}", 6},
		{"{\"a\":--1}", 6},
		{"{\"a\":0x1}", 6},
		{"{\"a\":1_0}", 6},
		{"{\"a\":-", 6},
		{"{\"a\":1.", 7},
		{"{\"a\":1", 6},
		{"{\"a\":NaN}", 5},
		{"{\"a\":Infinity}", 5},
		{"{\"a\":-Infinity}", 6},
		{"{\"a\":True}", 5},
		{"{\"a\":nul}", 5},
		{"{\"a\":tru", 5},
		{"{\"a\":falsee}", 10},
		{"{\"a\":undefined}", 5},
		{"{\"a\":\"b", 7},
		{"{\"a", 3},
		{"{\"a\":\"\\\"}", 9},
		{"{\"a\":\"\n\"}", 6},
		{"{\"a\":\"\x1f\"}", 6},
		{"{\"a\":\"\\x\"}", 6},
		{"{\"a\":\"\\u12\"}", 6},
		{"{\"a\":\"\\u123g\"}", 6},
		{"{\"a\":\"\\U0041\"}", 6},
		{"{\"a\":\"\\", 6},
		{"{\"a\":\"\\u", 6},
		{"{\"a\":\"\\'\"}", 6},
		{"{\"a\":\"\x80\"}", 6},
		{"{\"a\":\"\xc0\x80\"}", 6},
		{"{\"a\":\"\xc1\xbf\"}", 6},
		{"{\"a\":\"\xc3\"}", 6},
		{"{\"a\":\"\xe0\x9f\xbf\"}", 6},
		{"{\"a\":\"\xed\xa0\x80\"}", 6},
		{"{\"a\":\"\xe2\x82\"}", 6},
		{"{\"a\":\"\xf0\x8f\xbf\xbf\"}", 6},
		{"{\"a\":\"\xf4\x90\x80\x80\"}", 6},
		{"{\"a\":\"\xf5\x80\x80\x80\"}", 6},
		{"{\"a\":\"\xff\"}", 6},
		{"{\"a\":\"\xe2\x82\xac\x80\"}", 9},
		{"{\"\xff\":1}", 2},
		{"{\"a\":1/**/}", 6},
		{"//\n{}", 0},
		{"{\"a\":1}\f", 7},
	};
	struct splice s;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *copy = exact(cases[i].text, strlen(cases[i].text));
		const char *why = NULL;
		size_t at = SIZE_MAX;

		cr_assert_eq(splice_scan(&s, copy, strlen(cases[i].text), &why, &at), -1, "%s",
			cases[i].text);
		cr_assert_not_null(why, "%s", cases[i].text);
		cr_assert_eq(at, cases[i].at, "%s: at %zu, %s", cases[i].text, at, why);
		steps_change_nothing(copy, strlen(cases[i].text));
		free(copy);
	}
	{
		const char *why;
		size_t at;

		cr_assert_eq(splice_scan(&s, "{}\0", 3, &why, &at), -1);
		cr_assert_eq(splice_scan(&s, "{\"a\0\":1}", 8, &why, &at), -1);
	}
}

/* Each kind of odd byte, at each distance from the string's ends: the strides of the fast path. */
Test(splice, odd_bytes_in_long_strings)
{
	static const struct {
		const char *odd;
		int r;
		uint64_t chars;
	} cases[] = {{"a", 0, 1}, {"\\n", 0, 1}, {"\x7f", 0, 1}, {"\xc3\xa9", 0, 1},
		{"\xf0\x9f\x98\x80", 0, 1}, {"\x1f", -1, 0}, {"\x01", -1, 0}, {"\x80", -1, 0},
		{"\xff", -1, 0}, {"\\x", -1, 0}, {"!", 0, 1}, {" ", 0, 1}, {"#", 0, 1}, {"[", 0, 1},
		{"]", 0, 1}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (size_t before = 0; before < 70; before++)
			for (size_t after = 0; after < 10; after++) {
				char text[128];
				size_t n = (size_t)sprintf(text, "{\"prompt\":\"%.*s%s%.*s\"}",
					(int)before,
					"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
					"xxxxxxxxxxxx",
					cases[i].odd, (int)after, "yyyyyyyyyy");
				char *copy = exact(text, n);
				struct splice s;
				const char *why;
				size_t at;

				cr_assert_eq(splice_scan(&s, copy, n, &why, &at), cases[i].r, "%s",
					text);
				if (cases[i].r == 0)
					cr_assert_eq(s.prompt_chars,
						before + after + cases[i].chars, "%s", text);
				else
					cr_assert_eq(at, 11 + before);
				free(copy);
			}
}

Test(splice, every_cut_is_refused)
{
	static const char whole[] = "{\"model\":\"m\\u00e9\",\"x\":[1,-2.5e+3,{\"a\":[true,false,"
				    "null]}],\"prompt\":\"\xe2\x82\xac\",\"n\":{}}";
	struct splice s;
	const char *why;
	size_t at;

	must_scan(&s, whole, sizeof(whole) - 1);
	for (size_t n = 0; n < sizeof(whole) - 1; n++) {
		char *copy = exact(whole, n);

		cr_assert_eq(splice_scan(&s, copy, n, &why, &at), -1, "cut at %zu", n);
		cr_assert_leq(at, n);
		steps_change_nothing(copy, n);
		free(copy);
	}
}

/* What holds the bytes of long bodies: a prompt, with and without peculiar characters, token ids, messages. */
Test(splice, a_long_text_takes_many_steps)
{
	static const struct {
		const char *before, *again, *after;
	} cases[] = {{"{\"prompt\":\"", "plain text ", "\"}"},
		{"{\"prompt\":\"", "\xe2\x82\xac", "\"}"}, {"{\"prompt\":\"", "\\n", "\"}"},
		{"{\"prompt\":[1", ",12345", "]}"},
		{"{\"messages\":[1", ",{\"content\":\"a\"}", "],\"model\":\"m\"}"}};
	const size_t step = 1000, room = 100 * step;
	char *text = calloc(1, room);
	size_t nsteps;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *p = stpcpy(text, cases[i].before);

		while (p < text + room - 100)
			p = stpcpy(p, cases[i].again);
		p = stpcpy(p, cases[i].after);
		cr_assert(same_in_steps(text, (size_t)(p - text), step, &nsteps), "case %zu", i);
		cr_assert(nsteps >= 95 && nsteps <= 101, "case %zu: %zu steps", i, nsteps);
	}
	free(text);
}

static int
scan_nested(size_t depth)
{
	char *text = malloc(2 * depth + 8);
	struct splice s;
	const char *why;
	size_t at, n = 5;
	int r;

	memcpy(text, "{\"a\":", 5);
	memset(text + n, '[', depth - 1);
	n += depth - 1;
	memset(text + n, ']', depth - 1);
	n += depth - 1;
	text[n++] = '}';
	r = splice_scan(&s, text, n, &why, &at);
	free(text);
	return r;
}

Test(splice, depth)
{
	cr_assert_eq(scan_nested(SPLICE_MAX_DEPTH), 0);
	cr_assert_eq(scan_nested(SPLICE_MAX_DEPTH + 1), -1);
	cr_assert_eq(scan_nested(1000000), -1);
}

/* Why a body with so many times `again` between the two is refused; NULL: it is not. */
static const char *
scan_piece(const char *before, const char *again, size_t times, const char *after)
{
	const size_t n = strlen(again);
	char *text = malloc(strlen(before) + times * n + strlen(after) + 1),
	     *p = stpcpy(text, before);
	const char *why = NULL;
	struct splice s;
	size_t at;

	for (size_t i = 0; i < times; i++)
		p = stpcpy(p, again);
	p = stpcpy(p, after);
	(void)splice_scan(&s, text, (size_t)(p - text), &why, &at);
	if (why != NULL)
		cr_assert(at < SPLICE_MAX_PIECE + 100, "%s: at %zu", why, at);
	free(text);
	return why;
}

/* They are read in one piece, also by a scan in steps. */
Test(splice, no_name_number_or_blanks_are_longer_than_a_step_may_take)
{
	static const char name[] = "a name of more than 64 KiB",
			  number[] = "a number of more than 64 KiB",
			  blanks[] = "more than 64 KiB of blanks";
	static const struct {
		const char *before, *again, *after, *why;
	} cases[] = {
		{"{\"", "a", "\":1}", name},
		{"{\"", "\\n", "\":1}", name},
		{"{\"", "\u00e9", "\":1}", name},
		{"{\"a\":{\"", "a", "\":1}}", name},
		{"{\"a\":1", "0", "}", number},
		{"{\"a\":-1", "0", "}", number},
		{"{\"a\":[1.5", "0", "]}", number},
		{"{\"a\":1e1", "0", "}", number},
		{"", " ", "{}", blanks},
		{"{", "\n", "}", blanks},
		{"{\"a\"", "\t", ":1}", blanks},
		{"{\"a\":", "\r", "1}", blanks},
		{"{\"a\":1", " ", "}", blanks},
		{"{\"a\":1,", " ", "\"b\":1}", blanks},
		{"{\"a\":[1,", " ", "1]}", blanks},
		{"{}", " ", "", blanks},
		{"{\"a\":\"", "a", "\"}", NULL},
		{"{\"a\":[1", ",1", "]}", NULL},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const size_t n = strlen(cases[i].again);
		const char *why = scan_piece(
			cases[i].before, cases[i].again, SPLICE_MAX_PIECE / n - 2, cases[i].after);

		cr_assert_null(why, "case %zu: %s", i, why);
		why = scan_piece(
			cases[i].before, cases[i].again, 4 * SPLICE_MAX_PIECE, cases[i].after);
		cr_assert((why == NULL) == (cases[i].why == NULL), "case %zu: %s", i, why);
		if (why != NULL)
			cr_assert_str_eq(why, cases[i].why, "case %zu", i);
	}
}

/* --- what a scan tells --- */

Test(splice, members)
{
	static const char text[] =
		" { \"x\":0 ,\"model\" : \"m\" , \"stream\":true,\"n\":[1,{\"model\":2}]\n}";
	struct splice s;
	const struct splice_member *m;

	must_scan(&s, text, sizeof(text) - 1);
	cr_assert_eq(s.nmembers, 4);
	cr_assert_eq(s.nowned, 3);
	cr_assert_eq(text[s.open], '{');
	cr_assert_eq(s.close, sizeof(text) - 2);
	m = splice_find(&s, SK_MODEL);
	cr_assert_eq(m->type, ST_STRING);
	cr_assert_eq(m->index, 1);
	cr_assert_eq(strncmp(text + m->val, "\"m\"", m->end - m->val), 0);
	cr_assert_eq(strncmp(text + m->start, "\"model\"", 7), 0);
	cr_assert_eq(text[m->comma], ',');
	cr_assert_eq(strncmp(text + m->next, "\"stream\"", 8), 0);
	m = splice_find(&s, SK_N);
	cr_assert_eq(m->type, ST_ARRAY);
	cr_assert_eq(m->next, 0);
	cr_assert_eq(strncmp(text + m->val, "[1,{\"model\":2}]", m->end - m->val), 0);
	cr_assert_null(splice_find(&s, SK_PROMPT));
	must_scan(&s, "{\"model\":1}", 11);
	cr_assert_eq(s.owned[0].comma, 0);
	cr_assert_eq(s.owned[0].index, 0);
}

Test(splice, types)
{
	static const char *const values[] = {"null", "false", "true", "-1", "\"\"", "[]", "{}"};

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		char text[32];
		struct splice s;

		must_scan(&s, text, (size_t)sprintf(text, "{\"n\": %s }", values[i]));
		cr_assert_eq(s.owned[0].type, (enum splice_type)i);
		cr_assert_eq(s.owned[0].end - s.owned[0].val, strlen(values[i]));
	}
}

/* Every name is found, written plainly and with any one of its characters escaped, and none next to
 * it. */
Test(splice, names)
{
	for (unsigned k = 0; k < SK_N_KEYS; k++) {
		const char *name = splice_key_name((enum splice_key)k);
		size_t len = strlen(name);
		struct splice s;
		char text[128];

		must_scan(&s, text, (size_t)sprintf(text, "{\"%s\":1}", name));
		cr_assert_eq(s.nowned, 1, "%s", name);
		cr_assert_eq(s.owned[0].key, (enum splice_key)k);
		for (size_t i = 0; i < len; i++) {
			must_scan(&s, text,
				(size_t)sprintf(text, "{\"%.*s\\u%04x%s\":1}", (int)i, name,
					(unsigned)name[i], name + i + 1));
			cr_assert_eq(s.nowned, 1, "%s", text);
			cr_assert_eq(s.owned[0].key, (enum splice_key)k);
			must_scan(&s, text,
				(size_t)sprintf(text, "{\"%.*s%c%s\":1}", (int)i, name,
					name[i] ^ 0x20, name + i + 1));
			cr_assert_eq(s.nowned, 0, "%s", text);
		}
		must_scan(&s, text,
			(size_t)sprintf(text, "{\"%sx\":1,\"%s\\u0000\":1,\"%.*s\":1}", name, name,
				(int)len - 1, name));
		cr_assert_eq(s.nowned, 0, "%s", text);
	}
}

Test(splice, long_escaped_names)
{
	char text[300];
	struct splice s;

	/* longer than any name of ours, with an escape at its end */
	must_scan(&s, text, (size_t)sprintf(text, "{\"model%0200d\\n\":1,\"model\":2}", 0));
	cr_assert_eq(s.nowned, 1);
}

Test(splice, duplicates)
{
	static const char text[] = "{\"n\":1,\"x\":0,\"n\":2,\"n\":3}";
	struct splice s;

	must_scan(&s, text, sizeof(text) - 1);
	cr_assert_eq(s.nowned, 3);
	cr_assert_eq(text[splice_find(&s, SK_N)->val], '3');
}

Test(splice, too_many_owned)
{
	char text[2 + 6 * (SPLICE_MAX_OWNED + 1)];
	struct splice s;
	const char *why;
	size_t at, n = 1;

	text[0] = '{';
	for (unsigned i = 0; i < SPLICE_MAX_OWNED; i++)
		n += (size_t)sprintf(text + n, "\"n\":1,");
	text[n - 1] = '}';
	must_scan(&s, text, n);
	text[n - 1] = ',';
	memcpy(text + n, "\"n\":1}", 6);
	cr_assert_eq(splice_scan(&s, text, n + 6, &why, &at), -1);
	memcpy(text + n, "\"m\":1}", 6); /* others do not count */
	must_scan(&s, text, n + 6);
}

Test(splice, prompt_size)
{
	static const struct {
		const char *text;
		uint64_t chars, items;
	} cases[] = {
		{"{}", 0, 0},
		{"{\"prompt\":\"hello\"}", 5, 0},
		{"{\"prompt\":"
		 "\"a\\n\\u00e9\\ud83d\\ude00\\ud800\\ud800\\u0041\xc3\xa9\xf0\x9f\x98\x80\"}",
			9, 0},
		{"{\"prompt\":[\"ab\",\"c\"]}", 3, 0},
		{"{\"prompt\":[1,2,3]}", 0, 3},
		{"{\"prompt\":[[1,2],[3,4,5]]}", 0, 5},
		{"{\"prompt\":7}", 0, 0},
		{"{\"prompt\":null,\"suffix\":\"abc\",\"max_tokens\":5}", 0, 0},
		{"{\"prompt\":[{\"a\":\"b\",\"c\":[1]}]}", 0, 0},
		{"{\"prompt\":\"abc\",\"prompt\":\"d\"}", 1, 0}, /* engines take the last */
		{"{\"prompt\":[1,2],\"prompt\":[3]}", 0, 1},
		{"{\"pr\\u006fmpt\":\"abc\"}", 3, 0},
		{"{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"},{\"content\":\"ab\","
		 "\"role\":\"x\"}]}",
			7, 0},
		{"{\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":\"abc\"},"
		 "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:xxxx\",\"text\":\"y\"}},"
		 "\"de\"]}]}",
			5, 0},
		{"{\"messages\":[{\"content\":null,\"tool_calls\":[{\"content\":\"x\",\"text\":"
		 "\"y\"}]}]}",
			0, 0},
		{"{\"messages\":[{\"cont\\u0065nt\":\"abc\"}]}", 3, 0},
		{"{\"messages\":{\"content\":\"abc\"}}", 0, 0},
		{"{\"messages\":\"abc\"}", 0, 0},
		{"{\"content\":\"abc\",\"tools\":[{\"content\":\"abc\",\"prompt\":\"x\"}],\"x\":{"
		 "\"messages\":[{\"content\":\"y\"}]}}",
			0, 0},
		{"{\"messages\":[{\"content\":\"abc\"}],\"prompt\":\"de\"}", 5, 0},
		{"{\"messages\":[{\"content\":\"abc\"}],\"messages\":[{\"content\":\"d\"}],"
		 "\"prompt\":[1]}",
			1, 1},
		{"{\"messages\":[{\"content\":[[\"abc\"],1,{\"text\":[\"x\"]}]}]}", 0, 0},
		/* a part counts by its type, wherever that stands */
		{"{\"messages\":[{\"content\":[{\"text\":\"abc\",\"type\":\"text\"}]}]}", 3, 0},
		{"{\"messages\":[{\"content\":[{\"text\":\"abc\"},{\"type\":\"text\"}]}]}", 0, 0},
		{"{\"messages\":[{\"content\":[{\"text\":\"abc\",\"type\":\"texts\"},{\"text\":\"abc\","
		 "\"type\":\"\"},{\"text\":\"abc\",\"type\":[\"text\"]},{\"text\":\"abc\",\"type\":{"
		 "\"type\":\"text\"}}]}]}",
			0, 0},
		{"{\"messages\":[{\"content\":[{\"typ\\u0065\":\"t\\u0065xt\",\"te\\u0078t\":\"abc\"}"
		 "]}]}",
			3, 0},
		/* an engine sees the last of doubles alone */
		{"{\"messages\":[{\"content\":\"abc\",\"content\":\"d\"}]}", 1, 0},
		{"{\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":\"abc\"}],\"content\":\"d\"}]}",
			1, 0},
		{"{\"messages\":[{\"content\":\"abc\",\"content\":null}]}", 0, 0},
		{"{\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":\"abc\",\"text\":\"d\"}]}]}",
			1, 0},
		{"{\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":\"abc\",\"type\":\"x\"}]}]}",
			0, 0},
		{"{\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":\"abc\",\"type\":1}]}]}",
			0, 0},
		{"{\"messages\":[{\"content\":[{\"type\":\"x\",\"text\":\"abc\",\"type\":\"text\"}]}]}",
			3, 0},
	};
	struct splice s;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		must_scan(&s, cases[i].text, strlen(cases[i].text));
		cr_assert_eq(s.prompt_chars + s.message_chars, cases[i].chars, "%s: %lu + %lu",
			cases[i].text, (unsigned long)s.prompt_chars,
			(unsigned long)s.message_chars);
		cr_assert_eq(s.prompt_items, cases[i].items, "%s: %lu", cases[i].text,
			(unsigned long)s.prompt_items);
	}
}

Test(splice, prompt_and_messages_are_counted_apart)
{
	static const char text[] = "{\"messages\":[{\"content\":\"abc\"}],\"prompt\":\"de\"}";
	struct splice s;

	must_scan(&s, text, sizeof(text) - 1);
	cr_assert_eq(s.prompt_chars, 2);
	cr_assert_eq(s.message_chars, 3);
}

Test(splice, system_and_input_are_counted)
{
	static const struct {
		const char *text;
		uint64_t chars;
	} cases[] = {
		{"{\"system\":\"abc\",\"messages\":[]}", 3},
		{"{\"system\":[{\"type\":\"text\",\"text\":\"abc\"},{\"text\":\"d\",\"text\":\"ef\"}]}",
			5},
		{"{\"system\":\"abc\",\"system\":\"d\"}", 1},
		{"{\"system\":{\"text\":\"abc\"}}", 0},
		{"{\"system\":[[\"abc\"],1,null,\"d\"]}", 0},
		{"{\"instructions\":\"abc\",\"input\":\"de\"}", 5},
		{"{\"input\":[\"abc\",\"de\"]}", 5},
		{"{\"input\":[{\"role\":\"user\",\"content\":\"abc\",\"content\":\"de\"},{\"content\":"
		 "[{\"type\":\"input_text\",\"text\":\"f\"},{\"type\":\"input_image\",\"image_url\":"
		 "\"data:x\"}]},{\"type\":\"reasoning\",\"summary\":\"x\"}]}",
			3},
		{"{\"input\":[{\"content\":\"abc\"}],\"input\":\"d\"}", 1},
		{"{\"x\":{\"input\":\"abc\",\"system\":\"abc\"}}", 0},
	};
	struct splice s;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		must_scan(&s, cases[i].text, strlen(cases[i].text));
		cr_expect_eq(s.other_chars, cases[i].chars, "%s: %lu", cases[i].text,
			(unsigned long)s.other_chars);
		cr_expect_eq(s.prompt_chars + s.message_chars, 0, "%s", cases[i].text);
	}
}

Test(splice, elements_of_a_list_prompt)
{
	static const struct {
		const char *prompt;
		uint64_t elements;
	} cases[] = {{"[]", 0}, {"[1]", 1}, {"[1,2,3]", 3}, {"[ 1 , 2,3,  4 ]", 4},
		{"[[1,2,3],[4]]", 2}, {"[[],[]]", 2}, {"[\"ab\",\"c\"]", 2},
		{"[1,2,\"a\",3,4.5,6,null,[7,8],{\"a\":[9,9]},true]", 10}, {"\"abc\"", 0}, {"7", 0},
		{"null", 0}, {"{\"a\":1,\"b\":[1,2]}", 0}, {"[1,2],\"prompt\":[3]", 1},
		{"[1,2],\"prompt\":\"x\"", 0}, {"\"x\",\"a\":[1,2],\"prompt\":[1,2,3]", 3}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char text[128];
		struct splice s;

		must_scan(&s, text, (size_t)sprintf(text, "{\"prompt\":%s}", cases[i].prompt));
		cr_assert_eq(s.prompt_elements, cases[i].elements, "%s: %lu", text,
			(unsigned long)s.prompt_elements);
	}
}

Test(splice, string)
{
	static const struct {
		const char *value, *want; /* want NULL: refused */
	} cases[] = {
		{"\"\"", ""},
		{"\"llama\"", "llama"},
		{"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
		{"\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\"",
			"A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
		{"\"\\ud800x\\udc00\"", "\xef\xbf\xbdx\xef\xbf\xbd"},
		{"\"a\\u0000b\"", NULL},
		{"1", NULL},
		{"null", NULL},
		{"[\"a\"]", NULL},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char text[128];
		struct splice s;

		must_scan(&s, text, (size_t)sprintf(text, "{\"model\":%s}", cases[i].value));
		for (size_t size = 0; size < 32; size++) {
			char *buf = calloc(1, size > 0 ? size : 1);
			long n = splice_string(&s, &s.owned[0], buf, size);

			if (cases[i].want == NULL || size < strlen(cases[i].want) + 1) {
				cr_assert_eq(n, -1, "%s into %zu", cases[i].value, size);
			} else {
				cr_assert_eq(n, (long)strlen(cases[i].want));
				cr_assert_str_eq(buf, cases[i].want);
			}
			free(buf);
		}
	}
}

Test(splice, member_raw)
{
	static const char text[] = "{\"id\":\"x\",\"choices\":[{\"kv_transfer_params\":1}],\"kv_"
				   "transfer_params\" : {\"b\":[[3,\"4\"]], \"c\":1e400} }";
	struct splice_seg seg = {NULL, 7};
	char *copy = exact(text, sizeof(text) - 1);

	cr_assert_eq(splice_member_raw(copy, sizeof(text) - 1, "kv_transfer_params", &seg), 1);
	cr_assert_eq(seg.n, strlen("{\"b\":[[3,\"4\"]], \"c\":1e400}"));
	cr_assert_eq(strncmp(seg.p, "{\"b\":[[3,\"4\"]], \"c\":1e400}", seg.n), 0);
	free(copy);
	seg = (struct splice_seg){NULL, 7};
	cr_assert_eq(splice_member_raw(text, sizeof(text) - 1, "kv_transfer", &seg), 0);
	cr_assert_eq(splice_member_raw(text, sizeof(text) - 2, "id", &seg), -1);
	cr_assert_eq(splice_member_raw("[]", 2, "id", &seg), -1);
	cr_assert_eq(seg.n, 7, "untouched");
	cr_assert_eq(splice_member_raw("{\"a\":1,\"\\u0061\":22}", 19, "a", &seg), 1);
	cr_assert_eq(seg.n, 2, "the last of duplicates");
	cr_assert_eq(splice_member_raw("{\"\":null}", 9, "", &seg), 1);
	cr_assert_eq(seg.n, 4);
}

/* An answer as engines write it, and the same with two blanks after each comma and colon.  The byte at i is
 * replaced in both.  Returns whether they are read differently. */
static bool
blanks_matter(const char *answer, size_t i, char byte)
{
	char dense[600], spread[1200];
	size_t n = 0, at[601];
	const size_t len = strlen(answer);
	struct splice_seg a, b;
	int found;

	for (size_t k = 0; k < len; k++) {
		const bool separates = answer[k] == ',' || answer[k] == ':';

		at[k] = n;
		dense[k] = spread[n++] = k == i ? byte : answer[k];
		if (separates)
			memcpy(spread + n, "  ", 2);
		n += separates ? 2 : 0;
	}
	at[len] = n;
	found = splice_member_raw(dense, len, "wanted", &a);
	return found != splice_member_raw(spread, n, "wanted", &b) ||
	       (found == 1 && (b.p != spread + at[a.p - dense] ||
				      b.p + b.n != spread + at[a.p + a.n - dense]));
}

/* Values without a role are passed in one loop where they are written without blanks. */
Test(splice, what_is_written_without_blanks_is_read_as_strictly)
{
	static const char answer[] =
		"{\"id\":\"cmpl-1\",\"choices\":[{\"index\":0,\"message\":{\"content\":\" they\",\"refusal\":null,"
		"\"calls\":[]},\"a\":{},\"finish_reason\":\"length of this is more than sixteen\"}],\"usage\":{"
		"\"total\":1337,\"x\":true,\"y\":false,\"z\":-1,\"e\":1e5},\"wanted\":{\"ids\":[21,20,19,10,9,0,1],"
		"\"lists\":[[1,2],[3],[\"4\",5,null,true]],\"port\":38459},\"last\":[7]}          ";
	static const char bytes[] = "\"\\{}[]0719-.eEtfna \n\x01\x7f\x80\xff";
	struct splice_seg v;

	cr_assert_eq(splice_member_raw(answer, strlen(answer), "wanted", &v), 1);
	cr_assert_eq(v.p, strstr(answer, "{\"ids\""));
	cr_assert_eq(v.p + v.n, strstr(answer, ",\"last\""));
	for (size_t i = 0; i < strlen(answer); i++)
		for (size_t b = 0; answer[i] != ',' && answer[i] != ':' && b < strlen(bytes); b++)
			cr_assert(!blanks_matter(answer, i, bytes[b]), "byte %zu is %#x", i,
				(unsigned char)bytes[b]);
}

Test(splice, elements_of_an_array)
{
	static const struct {
		const char *list, *want;
	} cases[] = {
		{"[]", ""},
		{"[ \n]", ""},
		{"[1]", "1;"},
		{"[ -1e3 , \"],[\" ,[[],[2]],{\"a\":[3,{}]} ]",
			"-1e3;\"],[\";[[],[2]];{\"a\":[3,{}]};"},
		{"[null,true,false]", "null;true;false;"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *copy = exact(cases[i].list, strlen(cases[i].list)), got[128];
		struct splice_seg list = {copy, strlen(cases[i].list)}, e;
		size_t at = 0, n = 0;

		while (splice_element(&list, &at, &e))
			n += (size_t)sprintf(got + n, "%.*s;", (int)e.n, e.p);
		got[n] = '\0';
		cr_assert_str_eq(got, cases[i].want);
		cr_assert_not(splice_element(&list, &at, &e), "stays at the end");
		free(copy);
	}
}

Test(splice, lists_of_integers)
{
	static const struct {
		const char *list;
		int items; /* -1: bad */
	} cases[] = {
		{"[]", 0},
		{"[0]", 1},
		{"[1,2,3]", 3},
		{"[10, 20, 30]", 3},
		{"[1,  2 ,3 ]", 3},
		{"[1,\n2,\t3]", 3},
		{"[0,0, 0,10]", 4},
		{"[-1,2,-3,4]", 4},
		{"[1,2.5,3e2,4,5E-1,6]", 6},
		{"[[1,2],[3, 4, 5],[],[6]]", 6},
		{"[1,2,\"a\",3]", 3},
		{"[1,12345678901234567890123456789,3]", 3},
		{"[1,02]", -1},
		{"[1,00]", -1},
		{"[1, -]", -1},
		{"[1,,2]", -1},
		{"[1,2,]", -1},
		{"[1, ]", -1},
		{"[1,2 3]", -1},
		{"[1,2x,3]", -1},
		{"[1,2}", -1},
		{"[1,2.]", -1},
		{"[1,2:3]", -1},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char text[128];
		size_t len = (size_t)sprintf(text, "{\"prompt\":%s}", cases[i].list), at;
		const char *why;
		struct splice s;

		for (size_t n = 0; n <= len; n++) {
			char *copy = exact(text, n);
			int r = splice_scan(&s, copy, n, &why, &at);

			cr_assert_eq(r, n < len || cases[i].items < 0 ? -1 : 0, "%s up to %zu",
				cases[i].list, n);
			free(copy);
		}
		if (cases[i].items >= 0)
			cr_assert_eq(s.prompt_items, (uint64_t)cases[i].items, "%s", cases[i].list);
	}
}

/* --- edits --- */

#define VALUE(text)                                                                                \
	{                                                                                          \
		.op = SE_SET, .value = text, .len = sizeof(text) - 1                               \
	}

static void
expect_edit(const char *text, const struct splice_edit *e, const char *want)
{
	struct splice s;
	char *out;

	must_scan(&s, text, strlen(text));
	out = edit(&s, e);
	cr_assert_str_eq(out, want);
	free(out);
}

#define GIVEN(k) (UINT64_C(1) << (k))

Test(splice, cut)
{
	static const struct splice_edit e = {.given = GIVEN(SK_N) | GIVEN(SK_STREAM),
		.on = {[SK_N] = {.op = SE_CUT}, [SK_STREAM] = {.op = SE_CUT}}};

	expect_edit("{}", &e, "{}");
	expect_edit("{\"a\":1}", &e, "{\"a\":1}");
	expect_edit("{\"n\":1}", &e, "{}");
	expect_edit("{ \"n\" : 1 }", &e, "{  }");
	expect_edit("{\"n\":1,\"a\":2}", &e, "{\"a\":2}");
	expect_edit("{\"a\":2,\"n\":1}", &e, "{\"a\":2}");
	expect_edit("{\"a\":2,\"n\":1,\"b\":3}", &e, "{\"a\":2,\"b\":3}");
	expect_edit("{\"n\":1,\"stream\":1,\"a\":2}", &e, "{\"a\":2}");
	expect_edit("{\"a\":2,\"n\":1,\"stream\":1}", &e, "{\"a\":2}");
	expect_edit("{\"n\":1,\"a\":2,\"stream\":1}", &e, "{\"a\":2}");
	expect_edit("{\"n\":1,\"stream\":1}", &e, "{}");
	expect_edit("{\"n\":1,\"n\":[{}],\"stream\":1,\"n\":3}", &e, "{}");
	expect_edit("{\"n\":1,\"a\":2,\"n\":[{}],\"b\":3,\"stream\":1,\"n\":3}", &e,
		"{\"a\":2,\"b\":3}");
	expect_edit(
		" {\n \"n\" : 1 ,\n \"a\" : 2 ,\n \"stream\" : 1\n}\n", &e, " {\n \"a\" : 2 \n}\n");
}

Test(splice, set)
{
	static const struct splice_edit e = {.given = GIVEN(SK_N) | GIVEN(SK_RID),
		.on = {[SK_N] = VALUE("[7]"), [SK_RID] = VALUE("\"r\"")}};

	expect_edit("{}", &e, "{\"n\":[7],\"rid\":\"r\"}");
	expect_edit("{ }", &e, "{ \"n\":[7],\"rid\":\"r\"}");
	expect_edit("{\"a\":1}", &e, "{\"a\":1,\"n\":[7],\"rid\":\"r\"}");
	expect_edit("{\"a\":1 } ", &e, "{\"a\":1 ,\"n\":[7],\"rid\":\"r\"} ");
	expect_edit("{\"rid\": 0 ,\"a\":1}", &e, "{\"rid\": \"r\" ,\"a\":1,\"n\":[7]}");
	expect_edit(
		"{\"n\":1,\"a\":2,\"n\":3,\"rid\":{}}", &e, "{\"n\":[7],\"a\":2,\"rid\":\"r\"}");
	expect_edit("{\"\\u006e\":1}", &e, "{\"\\u006e\":[7],\"rid\":\"r\"}");
}

Test(splice, lower)
{
	static const struct splice_edit e = {.given = GIVEN(SK_MAX_COMPLETION_TOKENS),
		.on = {[SK_MAX_COMPLETION_TOKENS] = {.op = SE_LOWER, .value = "1", .len = 1}}};

	expect_edit("{\"a\":1}", &e, "{\"a\":1}");
	expect_edit("{\"max_completion_tokens\":77}", &e, "{\"max_completion_tokens\":1}");
	expect_edit("{\"max_completion_tokens\":77,\"max_completion_tokens\":78}", &e,
		"{\"max_completion_tokens\":1}");
}

Test(splice, cut_all_then_set)
{
	static const struct splice_edit e = {.given = GIVEN(SK_N) | GIVEN(SK_RID) | GIVEN(SK_MODEL),
		.on = {[SK_N] = {.op = SE_CUT}, [SK_RID] = VALUE("1"), [SK_MODEL] = VALUE("2")}};

	expect_edit("{\"n\":1}", &e, "{\"model\":2,\"rid\":1}");
	expect_edit("{\"n\":1,\"rid\":5}", &e, "{\"rid\":1,\"model\":2}");
	expect_edit("{\"rid\":5,\"n\":1}", &e, "{\"rid\":1,\"model\":2}");
}

Test(splice, nothing_asked_nothing_changed)
{
	static const char text[] = " { \"model\" : \"m\" , \"n\" : 1e400 ,\"n\":2,\"x\":[ ] } ";
	static const struct splice_edit e;

	expect_edit(text, &e, text);
}

/* --- random bodies, random edits --- */

struct part {
	char key[80];
	const char *value;
	int owned; /* splice_key, or -1 */
};

#define MAX_PARTS 12

static unsigned
pick(unsigned *seed, unsigned n)
{
	*seed = *seed * 1664525 + 1013904223;
	return (*seed >> 8) % n;
}

static const char *const values[] = {"0", "-1.5e+300", "1e400", "123456789012345678901234567890",
	"true", "null", "\"\"", "\"a\\\"}],{\\u0041\"", "\"\xe2\x82\xac\"", "[]", "{}",
	"[1,[2,{\"n\":[3]}],\"]\"]", "{\"n\":1,\"model\":{\"x\":[]}}", "\"x, \\\"n\\\":1\"",
	"[ 1 , { \"a\" : 2 } ]", "{ }"};
static const char *const blanks[] = {"", "", "", " ", "\n  ", "\t\r\n"};

static void
random_parts(unsigned *seed, struct part *parts, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		parts[i].value = values[pick(seed, sizeof(values) / sizeof(values[0]))];
		parts[i].owned =
			pick(seed, 2) ? (int)pick(seed, pick(seed, 3) ? 4 : SK_N_KEYS) : -1;
		if (parts[i].owned >= 0)
			strcpy(parts[i].key, splice_key_name((enum splice_key)parts[i].owned));
		else
			(void)sprintf(parts[i].key, "%s%u", pick(seed, 2) ? "k\\u006f\\\"" : "n",
				pick(seed, 3));
		if (parts[i].owned >= 0 && pick(seed, 4) == 0) {
			char rest[64];

			strcpy(rest, parts[i].key + 1);
			(void)sprintf(parts[i].key, "\\u%04X%s",
				(unsigned)splice_key_name((enum splice_key)parts[i].owned)[0],
				rest);
		}
	}
}

static size_t
write_body(unsigned *seed, const struct part *parts, size_t n, char *out)
{
#define BLANK blanks[pick(seed, sizeof(blanks) / sizeof(blanks[0]))]
	char *p = out;

	p += sprintf(p, "%s{%s", BLANK, BLANK);
	for (size_t i = 0; i < n; i++) {
		p += sprintf(p, "%s%s\"%s\"%s", i > 0 ? "," : "", BLANK, parts[i].key, BLANK);
		p += sprintf(p, ":%s%s%s", BLANK, parts[i].value, BLANK);
	}
	p += sprintf(p, "}%s", BLANK);
	return (size_t)(p - out);
}

static void
random_edit(unsigned *seed, struct splice_edit *e)
{
	memset(e, 0xff, sizeof(*e)); /* what is not given is not read */
	e->given = 0;
	for (unsigned k = 0; k < SK_N_KEYS; k++) {
		const enum splice_op op = (enum splice_op)pick(seed, 4);
		const char *value = pick(seed, 2) ? "\"new\"" : "[9,{}]";

		if (k <= 4 || pick(seed, 6) == 0)
			splice_edit(e, (enum splice_key)k, op, value, strlen(value));
	}
}

/* What the edit means, said in members: nothing here looks at offsets or commas. */
static size_t
edit_parts(const struct splice_edit *e, const struct part *parts, size_t n, struct part *out)
{
	bool met[SK_N_KEYS] = {false};
	size_t nout = 0;

	for (size_t i = 0; i < n; i++) {
		int k = parts[i].owned;
		enum splice_op op = k >= 0 ? splice_op_of(e, (enum splice_key)k) : SE_KEEP;
		bool again = k >= 0 && met[k];

		if (k >= 0)
			met[k] = true;
		if (op == SE_CUT || (op != SE_KEEP && again))
			continue;
		out[nout] = parts[i];
		if (op != SE_KEEP)
			out[nout].value = e->on[k].value;
		nout++;
	}
	for (unsigned k = 0; k < SK_N_KEYS; k++)
		if (splice_op_of(e, (enum splice_key)k) == SE_SET && !met[k]) {
			strcpy(out[nout].key, splice_key_name((enum splice_key)k));
			out[nout++].value = e->on[k].value;
		}
	return nout;
}

static char *
skip(char *p)
{
	return p + strspn(p, " \t\r\n");
}

static char *
expect_text(char *p, const char *want)
{
	cr_assert_eq(strncmp(p, want, strlen(want)), 0, "%s: expected %s", p, want);
	return p + strlen(want);
}

/* Reads `body` as exactly these members, keys and values byte for byte, with any blanks between. */
static void
expect_parts(char *body, const struct part *parts, size_t n, const char *before)
{
	char *p = skip(body);

	cr_assert_eq(*p++, '{', "%s -> %s", before, body);
	for (size_t i = 0; i < n; i++) {
		p = skip(p);
		if (i > 0) {
			cr_assert_eq(*p++, ',', "%s -> %s", before, body);
			p = skip(p);
		}
		p = expect_text(p, "\"");
		p = expect_text(p, parts[i].key);
		p = skip(expect_text(p, "\""));
		p = skip(expect_text(p, ":"));
		p = expect_text(p, parts[i].value);
	}
	p = skip(p);
	cr_assert_eq(*p++, '}', "%s -> %s", before, body);
	cr_assert_eq(*skip(p), '\0', "%s -> %s", before, body);
}

static void
expect_json(const char *text)
{
	struct json_tokener *tok = json_tokener_new();
	struct json_object *doc;

	json_tokener_set_flags(tok, JSON_TOKENER_STRICT | JSON_TOKENER_ALLOW_TRAILING_CHARS);
	doc = json_tokener_parse_ex(tok, text, (int)strlen(text));
	cr_assert_not_null(doc, "%s", text);
	cr_assert(json_object_is_type(doc, json_type_object));
	(void)json_object_put(doc);
	json_tokener_free(tok);
}

Test(splice, random_edits)
{
	for (unsigned round = 0; round < 20000; round++) {
		struct part parts[MAX_PARTS] = {{{0}, NULL, 0}}, want[MAX_PARTS + SK_N_KEYS];
		unsigned seed = round;
		size_t n = pick(&seed, MAX_PARTS + 1), nwant;
		struct splice_edit e;
		struct splice s;
		char text[4096], *out;

		random_parts(&seed, parts, n);
		must_scan(&s, text, write_body(&seed, parts, n, text));
		cr_assert_eq(s.nmembers, n, "%s", text);
		random_edit(&seed, &e);
		out = edit(&s, &e);
		nwant = edit_parts(&e, parts, n, want);
		expect_parts(out, want, nwant, text);
		expect_json(out);
		free(out);
	}
}

/* The most an edit can take apart: every owned member alone between others, and every other name
 * added. */
Test(splice, most_segments)
{
	char text[16 * SPLICE_MAX_OWNED + 64], *p = text;
	struct splice_edit e = {.given = 0};
	struct splice s;
	char *out;

	*p++ = '{';
	for (unsigned i = 0; i < SPLICE_MAX_OWNED; i++)
		p += sprintf(p, "\"x\":0,\"n\":%u,", i);
	strcpy(p - 1, "}");
	must_scan(&s, text, strlen(text));
	for (unsigned k = 0; k < SK_N_KEYS; k++)
		splice_edit(&e, (enum splice_key)k, SE_SET, "7", 1);
	out = edit(&s, &e);
	expect_json(out);
	free(out);
}

/* --- json_quote --- */

Test(json_quote, escapes)
{
	static const struct {
		const char *in, *want;
	} cases[] = {
		{"", "\"\""},
		{"plain /", "\"plain /\""},
		{"\"\\\b\f\n\r\t\x01\x1f\x7f", "\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\""},
		{"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
			"\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
		{"a\xff\xe2\x82", "\"a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (size_t size = 0; size < 64; size++) {
			char *buf = malloc(size > 0 ? size : 1);
			long n = json_quote(buf, size, cases[i].in, strlen(cases[i].in), SIZE_MAX);

			if (size < strlen(cases[i].want) + 1) {
				cr_assert_eq(n, -1);
				cr_assert(
					size == 0 || memchr(buf, '\0', size) != NULL, "terminated");
			} else {
				cr_assert_eq(n, (long)strlen(cases[i].want));
				cr_assert_str_eq(buf, cases[i].want);
			}
			free(buf);
		}
}

Test(json_quote, clips_between_characters)
{
	static const char in[] = "a\xe2\x82\xac\"z";
	static const char *const want[] = {"\"\"", "\"a\"", "\"a\"", "\"a\"", "\"a\xe2\x82\xac\"",
		"\"a\xe2\x82\xac\\\"\"", "\"a\xe2\x82\xac\\\"z\"", "\"a\xe2\x82\xac\\\"z\""};
	char buf[32];

	for (size_t max = 0; max < sizeof(want) / sizeof(want[0]); max++) {
		cr_assert_eq(
			json_quote(buf, sizeof(buf), in, strlen(in), max), (long)strlen(want[max]));
		cr_assert_str_eq(buf, want[max]);
	}
}

Test(json_quote, every_byte_comes_back)
{
	for (unsigned b = 0; b < 128; b++) {
		char in = (char)b, quoted[16], text[32], back[8];
		struct splice s;
		size_t n;

		cr_assert_gt(json_quote(quoted, sizeof(quoted), &in, 1, 1), 0);
		n = (size_t)sprintf(text, "{\"model\":%s}", quoted);
		must_scan(&s, text, n);
		if (b != 0) {
			cr_assert_eq(splice_string(&s, &s.owned[0], back, sizeof(back)), 1);
			cr_assert_eq(back[0], in);
		}
	}
}
