/* The numbers of a usage in the last bytes of an answer. */
#include "proto/answer/usage_end.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define USAGE                                                                                      \
	"\"usage\":{\"prompt_tokens\":9,\"total_tokens\":16,\"completion_tokens\":7,"              \
	"\"prompt_tokens_details\":{\"cached_tokens\":8}}"

/* A copy of exactly the length, so that a sanitizer sees what is read beside it. */
static uint64_t
number(const char *text, enum usage_number which)
{
	const size_t n = strlen(text);
	char *copy = malloc(n > 0 ? n : 1);
	uint64_t value;

	cr_assert_not_null(copy);
	memcpy(copy, text, n);
	value = usage_at_end(copy, n, which);
	free(copy);
	return value;
}

Test(usage_end, of_engines)
{
	cr_expect_eq(number("{\"choices\":[]," USAGE "}", USAGE_COMPLETION), 7);
	cr_expect_eq(number("{\"choices\":[]," USAGE "}", USAGE_CACHED), 8);
	cr_expect_eq(number("{\"choices\":[]," USAGE "}", USAGE_PROMPT), 9);
	cr_expect_eq(number("\"usage\":{\"input_tokens\":3,\"output_tokens\":4}", USAGE_INPUT), 3);
	cr_expect_eq(number("\"usage\":{\"input_tokens\":3,\"output_tokens\":4}", USAGE_OUTPUT), 4);
	cr_expect_eq(number("{" USAGE ",\"kv_transfer_params\":null}", USAGE_CACHED), 8);
	cr_expect_eq(number("{\"completion_tokens\": 12 }", USAGE_COMPLETION), 12);
	cr_expect_eq(number("{\"prompt_tokens_details\":null}", USAGE_CACHED), USAGE_NONE);
}

Test(usage_end, an_answer_without_a_body)
{
	cr_expect_eq(usage_at_end(NULL, 0, USAGE_PROMPT), USAGE_NONE);
}

Test(usage_end, the_last_one_counts)
{
	cr_expect_eq(
		number("\"completion_tokens\":1}{\"completion_tokens\":2}", USAGE_COMPLETION), 2);
	cr_expect_eq(number("\"completion_tokens\":5 takes", USAGE_COMPLETION), 5);
}

Test(usage_end, halves)
{
	static const char whole[] = "\"completion_tokens\":7";

	for (size_t n = 0; n + 1 < sizeof(whole); n++) {
		char half[sizeof(whole)];

		(void)snprintf(half, sizeof(half), "%.*s", (int)n, whole);
		cr_expect_eq(number(half, USAGE_COMPLETION), USAGE_NONE, "%zu", n);
		cr_expect_eq(number(whole + n + 1, USAGE_COMPLETION), USAGE_NONE, "%zu", n);
	}
}

Test(usage_end, far_from_the_end_it_is_not_looked_for)
{
	char text[USAGE_END_BYTES + 64];

	(void)snprintf(
		text, sizeof(text), "%s%*s", "\"completion_tokens\":7", USAGE_END_BYTES - 21, "");
	cr_expect_eq(number(text, USAGE_COMPLETION), 7);
	(void)snprintf(text, sizeof(text), "%s%*s", "\"completion_tokens\":7", USAGE_END_BYTES, "");
	cr_expect_eq(number(text, USAGE_COMPLETION), USAGE_NONE);
}

Test(usage_end, absurd_numbers_do_not_overflow)
{
	cr_expect_leq(number("\"cached_tokens\":99999999999999999999999999", USAGE_CACHED),
		UINT32_MAX * UINT64_C(10) + 9);
	cr_expect_eq(number("\"cached_tokens\":-1", USAGE_CACHED), USAGE_NONE);
}

/* A stream as an engine sends it, cut into pieces of every length. */
Test(usage_end, of_a_stream_in_pieces)
{
	static const char event[] = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n";
	char text[2000];
	size_t len = 0;

	for (int i = 0; i < 20; i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s", event);
	len += (size_t)snprintf(text + len, sizeof(text) - len,
		"data: {\"choices\":[]," USAGE "}\n\ndata: [DONE]\n\n");
	for (size_t step = 1; step <= len; step++) {
		struct usage_tail t = {.n = 0};

		for (size_t at = 0; at < len; at += step)
			usage_tail_take(&t, text + at, step < len - at ? step : len - at);
		cr_assert_eq(usage_at_end(t.text, t.n, USAGE_COMPLETION), 7, "%zu", step);
		cr_assert_eq(usage_at_end(t.text, t.n, USAGE_PROMPT), 9, "%zu", step);
		usage_tail_free(&t);
	}
}

Test(usage_end, a_stream_that_runs_keeps_nothing)
{
	static const char event[] = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n",
			  end[] = "data: {" USAGE "}\n\n";
	struct usage_tail t = {.n = 0};

	for (int i = 0; i < 20; i++)
		usage_tail_take(&t, event, sizeof(event) - 1);
	usage_tail_take(&t, NULL, 0);
	cr_assert_null(t.text);
	cr_assert_eq(usage_at_end(t.text, t.n, USAGE_PROMPT), USAGE_NONE);
	usage_tail_take(&t, end, sizeof(end) - 1);
	cr_assert_eq(usage_at_end(t.text, t.n, USAGE_PROMPT), 9);
	usage_tail_free(&t);
	cr_assert_eq(usage_at_end(t.text, t.n, USAGE_PROMPT), USAGE_NONE);
}
