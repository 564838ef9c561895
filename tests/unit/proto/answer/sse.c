/* Events are found wherever the reads cut them. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/answer/sse.h"
#include "tests/unit/feed.h"

struct scenario {
	const char *in;
	uint64_t events;
	size_t ended; /* offset behind the last event that ended */
	bool done, error, boundary;
};

struct run {
	const struct scenario *want;
	struct sse sse;
	size_t fed, ended;
};

static void
start(void *ctx)
{
	struct run *r = ctx;

	sse_init(&r->sse);
	r->fed = r->ended = 0;
}

static void
piece(void *ctx, const char *p, size_t n)
{
	struct run *r = ctx;
	size_t at = sse_feed(&r->sse, p, n);

	cr_assert_leq(at, n);
	if (at > 0)
		r->ended = r->fed + at;
	r->fed += n;
}

static void
check(void *ctx, const char *how)
{
	struct run *r = ctx;
	const struct scenario *w = r->want;

	cr_assert_eq(r->sse.events, w->events, "%s, %s: %lu events", w->in, how,
		(unsigned long)r->sse.events);
	cr_assert_eq(r->ended, w->ended, "%s, %s: ended at %zu", w->in, how, r->ended);
	cr_assert_eq(r->sse.done, w->done, "%s, %s: done", w->in, how);
	cr_assert_eq(r->sse.error, w->error, "%s, %s: error", w->in, how);
	cr_assert_eq(sse_at_boundary(&r->sse), w->boundary, "%s, %s: boundary", w->in, how);
}

static void
tell(const struct scenario *scenarios, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct feeder f = {start, piece, check};
		struct run r = {.want = &scenarios[i]};

		feed_splits(&f, &r, scenarios[i].in, strlen(scenarios[i].in));
	}
}

#define TELL(scenarios) tell(scenarios, sizeof(scenarios) / sizeof((scenarios)[0]))

Test(sse, line_ends)
{
	static const struct scenario scenarios[] = {
		{"data: a\n\n", 1, 9, .boundary = true},
		{"data: a\r\n\r\n", 1, 11, .boundary = true},
		{"data: a\r\r", 1, 9, .boundary = true},
		{"data: a\n\r\n", 1, 10, .boundary = true},
		{"data: a\r\n\n", 1, 10, .boundary = true},
		{"data: a\r\n\rdata: b", 1, 10, .boundary = false},
		{"data: a\n\ndata: b\r\n\r\ndata: c\r\rd", 3, 29, .boundary = false},
		{"data: a\n", 0, 0, .boundary = false},
		{"data: a\r\n", 0, 0, .boundary = false},
		{"data: a", 0, 0, .boundary = false},
	};

	TELL(scenarios);
}

Test(sse, what_is_an_event)
{
	static const struct scenario scenarios[] = {
		{": keep-alive\n\n", 0, 14, .boundary = true},
		{"event: x\nid: 1\n\n", 0, 16, .boundary = true},
		{"event: x\ndata: 1\nid: 2\n\n", 1, 24, .boundary = true},
		{"data\n\n", 1, 6, .boundary = true},
		{"data:\n\n", 1, 7, .boundary = true},
		{"dat\n\ndatab: x\n\n data: x\n\n", 0, 25, .boundary = true},
		{"\n\n\n", 0, 3, .boundary = true},
		{"data: a\n\n: c", 1, 9, .boundary = false},
		{"data: a\ndata: b\n\n", 1, 17, .boundary = true},
		{"", 0, 0, .boundary = true},
	};

	TELL(scenarios);
}

Test(sse, done)
{
	static const struct scenario scenarios[] = {
		{"data: [DONE]\n\n", 1, 14, .done = true, .boundary = true},
		{"data:[DONE]\r\n\r\n", 1, 15, .done = true, .boundary = true},
		{"data: {\"a\":1}\n\ndata: [DONE]\n\n", 2, 29, .done = true, .boundary = true},
		{"data: [DONE]\n", 0, 0, .boundary = false}, /* it has not ended */
		{"data:  [DONE]\n\n", 1, 15, .boundary = true},
		{"data: [DONE] \n\n", 1, 15, .boundary = true},
		{"data: [DONE\n\n", 1, 13, .boundary = true},
		{"data: [DONE]\ndata: x\n\n", 1, 22, .boundary = true},
		{"data:\ndata: [DONE]\n\n", 1, 20, .boundary = true},
		{"event: [DONE]\n\n", 0, 15, .boundary = true},
		{"data: {\"text\":\"data: [DONE]\\n\\n\"}\n\n", 1, 35, .boundary = true},
	};

	TELL(scenarios);
}

Test(sse, errors)
{
	static const struct scenario scenarios[] = {
		{"data: {\"error\":{\"message\":\"m\"}}\n\n", 1, 33, .error = true,
			.boundary = true},
		{"data: {\"error\": {\"m\":1}}\n\ndata: [DONE]\n\n", 2, 40, .error = true,
			.done = true, .boundary = true},
		{"data: { \"error\" : 1}\n\n", 1, 22, .error = true, .boundary = true},
		{"data: {\"object\":\"error\",\"message\":\"m\"}\n\n", 1, 40, .error = true,
			.boundary = true},
		{"data: {\"object\": \"error\"}\n\n", 1, 27, .error = true, .boundary = true},
		{"data: {\ndata:  \"error\": 1\ndata: }\n\n", 1, 35, .error = true,
			.boundary = true},
		{"data: {\"type\":\"error\",\"error\":{}}\n\n", 1, 35, .error = true,
			.boundary = true},
		{"event: error\ndata: {\"type\" : \"error\"}\n\n", 1, 39, .error = true,
			.boundary = true},
		{"data: {\"type\":\"errors\"}\n\n", 1, 25, .boundary = true},
		{"data: {\"type\":\"content_block_delta\",\"error\":1}\n\n", 1, 48,
			.boundary = true},
		{"data: {\"errors\":0}\n\n", 1, 20, .boundary = true},
		{"data: {\"object\":\"errors\"}\n\n", 1, 27, .boundary = true},
		{"data: {\"object\":\"chat.completion.chunk\",\"error\":1}\n\n", 1, 52,
			.boundary = true},
		{": {\"error\":1}\n\n", 0, 15, .boundary = true},
		{"data: {\"error\":1}\n", 0, 0, .boundary = false},
	};

	TELL(scenarios);
}

/* The probe holds a few bytes; what lies beyond it must not matter, whatever its length. */
Test(sse, long_data_at_every_length)
{
	for (size_t n = 0; n < 80; n++) {
		char in[128] = "data: [DONE]";
		struct sse s;

		memset(in + 12, 'x', n);
		memcpy(in + 12 + n, "\n\n", 3);
		sse_init(&s);
		cr_assert_eq(sse_feed(&s, in, n + 14), n + 14);
		cr_assert_eq(s.done, n == 0);
		cr_assert_eq(s.events, 1);
	}
}

Test(sse, lines)
{
	static const struct {
		const char *text;
		size_t len, end;
	} cases[] = {{"", 0, 0}, {"ab", 2, 0}, {"ab\n", 2, 1}, {"ab\r", 2, 1}, {"ab\r\nc\n", 2, 2},
		{"ab\rc\n", 2, 1}, {"\n\r", 0, 1}, {"\r\n", 0, 2}, {"\r\r\n", 0, 1},
		{"a\n\r\n", 1, 1}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		size_t end = 9;

		cr_assert_eq(sse_line(cases[i].text, strlen(cases[i].text), &end), cases[i].len);
		cr_assert_eq(end, cases[i].end, "%zu", i);
	}
}

Test(sse, events_one_by_one)
{
	static const struct {
		const char *text;
		size_t len;
	} cases[] = {{"", 0}, {"data: a", 0}, {"data: a\n", 0}, {"data: a\r\n", 0},
		{"data: a\n\n", 9}, {"data: a\n\ndata: b\n\n", 9}, {"data: a\r\n\r\nx", 11},
		{"data: a\r\r", 9}, {"data: a\r\r\n", 10}, {"data: a\n\r", 9}, {": c\n\nx", 5},
		{"\nx", 1}, {"\r\nx", 2}, {"a\nb\nc\n\nd", 7}, {"a\nb\nc\n", 0}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_assert_eq(sse_next(cases[i].text, strlen(cases[i].text)), cases[i].len, "%s",
			cases[i].text);
	cr_assert_eq(sse_next(NULL, 0), 0);
}

/* What takes quadratic time would take hours for these. */
Test(sse, lines_without_lf, .timeout = 20)
{
	enum { N = 8 << 20 };
	char *text = malloc(N);

	cr_assert_not_null(text);
	for (size_t i = 0; i < N; i++)
		text[i] = i % 2 == 0 ? ':' : '\r';
	cr_assert_eq(sse_next(text, N), 0);
	text[N - 2] = '\r';
	cr_assert_eq(sse_next(text, N), N - 1);
	free(text);
}

/* Wherever a line ends. */
Test(sse, lines_of_any_length)
{
	char text[1100];

	for (size_t n = 0; n < 1000; n++) {
		static const char *const ends[] = {"\n", "\r", "\r\n", "\r\r\n", ""};

		for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
			size_t end = 9;

			memset(text, 'x', n);
			strcpy(text + n, ends[i]);
			cr_assert_eq(sse_line(text, strlen(text), &end), n);
			cr_assert_eq(end, i == 2 ? 2 : i == 4 ? 0 : 1, "%zu %zu", n, i);
		}
	}
}
