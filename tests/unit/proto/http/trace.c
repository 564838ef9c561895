/* traceparent, as the standard's own examples and its errors have it. */
#include "proto/http/trace.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ID "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN "00f067aa0ba902b7"

static bool
reads(const char *text, struct trace *t)
{
	const size_t n = strlen(text);
	char *copy = malloc(n > 0 ? n : 1);
	bool r;

	cr_assert_not_null(copy);
	memcpy(copy, text, n);
	r = trace_read(copy, n, t);
	free(copy);
	return r;
}

Test(trace, read)
{
	static const struct {
		const char *text;
		bool ok;
		uint8_t flags;
	} rows[] = {
		{"00-" ID "-" SPAN "-01", true, 1},
		{"00-" ID "-" SPAN "-00", true, 0},
		{"00-" ID "-" SPAN "-ff", true, 0xff},
		{"cc-" ID "-" SPAN "-01", true, 1},
		{"01-" ID "-" SPAN "-01-more", true, 1},
		{"00-" ID "-" SPAN "-01-more", false, 0},
		{"01-" ID "-" SPAN "-01more", false, 0},
		{"ff-" ID "-" SPAN "-01", false, 0},
		{"00-" ID "-" SPAN "-0", false, 0},
		{"00-" ID "-" SPAN "-0x", false, 0},
		{"00-" ID "_" SPAN "-01", false, 0},
		{"00_" ID "-" SPAN "-01", false, 0},
		{"00-" ID "-" SPAN "_01", false, 0},
		{"0G-" ID "-" SPAN "-01", false, 0},
		{"00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01", false, 0},
		{"00-00000000000000000000000000000000-" SPAN "-01", false, 0},
		{"00-" ID "-0000000000000000-01", false, 0},
		{"", false, 0},
	};
	struct trace t;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		cr_expect_eq(reads(rows[i].text, &t), rows[i].ok, "%s", rows[i].text);
		cr_expect_str_eq(t.id, rows[i].ok ? ID : "", "%s", rows[i].text);
		cr_expect_eq(t.flags, rows[i].flags, "%s", rows[i].text);
		cr_expect_eq(t.parent, rows[i].ok ? 0x00f067aa0ba902b7 : 0, "%s", rows[i].text);
		cr_expect_eq(t.span, 0, "%s", rows[i].text);
	}
}

Test(trace, written)
{
	char text[TRACE_PARENT + 1] = "";
	struct trace t, back;

	cr_assert(reads("01-" ID "-" SPAN "-03-later", &t));
	trace_write(&t, 0x1234, text);
	cr_expect_str_eq(text, "00-" ID "-0000000000001234-03");
	trace_write(&t, 0, text);
	cr_expect(reads(text, &back), "%s", text);
}

Test(trace, made)
{
	char text[TRACE_PARENT + 1] = "";
	struct trace t, back;

	trace_make(&t, UINT64_MAX, 1);
	trace_write(&t, 7, text);
	cr_expect_str_eq(text, "00-ffffffffffffffff0000000000000001-0000000000000007-01");
	trace_make(&t, 0, 0);
	trace_write(&t, 7, text);
	cr_expect(reads(text, &back), "%s", text);
}

/* ---- tracestate */

static const char *
state_of(struct trace_state *t, const char *line)
{
	const size_t n = strlen(line);
	char *copy = malloc(n > 0 ? n : 1);

	cr_assert_not_null(copy);
	memcpy(copy, line, n);
	(void)trace_add_state(t, (struct span){copy, n});
	free(copy);
	return t->text;
}

Test(trace, states)
{
	static const struct {
		const char *line, *state;
	} rows[] = {
		{"a=1", "a=1"},
		{" a=1 ,\t, b= 2 x ,", "a=1,b= 2 x"},
		{"congo=t61rcWkgMzE,0tenant@system-x/y_z*=!~",
			"congo=t61rcWkgMzE,0tenant@system-x/y_z*=!~"},
		{"", ""},
		{",,", ""},
		{"a=1,b", ""},
		{"a=1,B=2", ""},
		{"a=", ""},
		{"=1", ""},
		{"a=1=2", ""},
		{"@a=1", ""},
		{"a=\x01", ""},
		{"a=\xc3\xa4", ""},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct trace_state t = {.text = ""};

		cr_expect_str_eq(state_of(&t, rows[i].line), rows[i].state, "%s", rows[i].line);
	}
}

Test(trace, lines_of_a_state_are_one_list)
{
	struct trace_state t = {.text = ""};

	(void)state_of(&t, "a=1,b=2");
	cr_expect_str_eq(state_of(&t, "c=3"), "a=1,b=2,c=3");
	cr_expect_str_empty(state_of(&t, "no member"));
}

Test(trace, a_member_that_does_not_fit_is_left_out_whole)
{
	char line[TRACE_STATE + 64], value[TRACE_STATE];
	struct trace_state t = {.text = ""};

	memset(value, 'v', sizeof(value) - 1);
	value[sizeof(value) - 1] = '\0';
	(void)snprintf(line, sizeof(line), "a=1,b=%s,c=3", value);
	cr_expect_str_eq(state_of(&t, line), "a=1,c=3");
	t.text[0] = '\0';
	for (unsigned i = 0; i < 40; i++)
		(void)state_of(&t, "a=1");
	cr_expect_eq(strlen(t.text), 32 * 4 - 1, "the standard has 32 members at most");
	t.text[0] = '\0';
	(void)snprintf(line, sizeof(line), "b=%.*s", TRACE_STATE - 2, value);
	cr_expect_eq(strlen(state_of(&t, line)), TRACE_STATE);
	cr_expect_eq(strlen(state_of(&t, "c=3")), TRACE_STATE);
}
