/* Events of one form: which they are, and what of them differs. */
#include "proto/answer/form.h"

#include <criterion/criterion.h>
#include <string.h>

#define EVENT(text, usage) "data: {\"a\":" text ",\"b\":1" usage "}\n\n"
#define USAGE ",\"usage\":"

static struct splice_seg
find(const char *event, const char *what)
{
	const char *p = strstr(event, what);

	return (struct splice_seg){p, strlen(what)};
}

static void
expect(const struct form *f, const char *event, const char *text, const char *usage)
{
	struct splice_seg t, u;

	cr_assert(form_match(f, event, strlen(event), &t, &u), "%s", event);
	cr_assert(t.n == strlen(text) && memcmp(t.p, text, t.n) == 0, "%s", event);
	cr_assert(u.n == strlen(usage) && memcmp(u.p, usage, u.n) == 0, "%s", event);
}

static void
expect_other(const struct form *f, const char *const *events, size_t n)
{
	struct splice_seg t, u;

	for (size_t i = 0; i < n; i++)
		cr_assert_not(form_match(f, events[i], strlen(events[i]), &t, &u), "%s", events[i]);
}

Test(form, text_and_usage_differ)
{
	static const char first[] = EVENT("\"x\"", USAGE "{1}");
	static const char *const others[] = {
		EVENT("\"x\"", ""),
		EVENT("\"x\"", USAGE),
		EVENT("\"x\"", ",\"usagi\":{1}"),
		EVENT("null", USAGE "{1}"),
		EVENT("\"x", USAGE "{1}"),
		EVENT("\"\\x\"", USAGE "{1}"),
		EVENT("\"x\",\"c\":\"y\"", USAGE "{1}"),
		"data: {\"A\":\"x\",\"b\":1" USAGE "{1}}\n\n",
		"data: {\"a\":\"x\",\"b\":1" USAGE "{1}]\n\n",
		"data: {\"a\":\"x\"",
		"data",
	};
	const struct splice_seg text = find(first, "\"x\""), usage = find(first, "{1}");
	struct form f = {.head = 0};

	expect_other(&f, (const char *const[]){first}, 1);
	form_learn(&f, first, strlen(first), &text, &usage);
	expect(&f, first, "\"x\"", "{1}");
	expect(&f, EVENT("\"\"", USAGE "{22}"), "\"\"", "{22}");
	expect(&f, EVENT("\"a \\\"b\\u00e9\"", USAGE "null"), "\"a \\\"b\\u00e9\"", "null");
	expect_other(&f, others, sizeof(others) / sizeof(others[0]));
	form_free(&f);
	expect_other(&f, (const char *const[]){first}, 1);
}

Test(form, there_may_be_no_usage)
{
	static const char first[] = EVENT("\"x\"", "");
	static const char *const others[] = {EVENT("\"x\"", USAGE "{1}"), EVENT("\"x\"", " ")};
	const struct splice_seg text = find(first, "\"x\""), none = {"", 0};
	struct form f = {.head = 0};

	form_learn(&f, first, strlen(first), &text, &none);
	expect(&f, EVENT("\"yy\"", ""), "\"yy\"", "");
	expect_other(&f, others, sizeof(others) / sizeof(others[0]));
	form_free(&f);
}

Test(form, no_event_has_that_of_a_long_one)
{
	char event[FORM_MAX + 1];
	const struct splice_seg text = {event + 8, 3}, none = {"", 0};
	struct form f = {.head = 0};
	struct splice_seg t, u;

	memset(event, ' ', sizeof(event));
	memcpy(event + 8, "\"x\"", 3);
	form_learn(&f, event, FORM_MAX, &text, &none);
	cr_assert(form_match(&f, event, FORM_MAX, &t, &u));
	form_learn(&f, event, FORM_MAX + 1, &text, &none);
	cr_assert_not(form_match(&f, event, FORM_MAX + 1, &t, &u));
	form_free(&f);
}
