/* What pdtop shows, from answers of pdrouter. */
#include "master/pdtop/sample.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define P "http://p:1"
#define D "http://d:1"
#define ENGINE(pool, role, url, more)                                                              \
	"{\"pool\":\"" pool "\",\"role\":\"" role "\",\"url\":\"" url                              \
	"\",\"ejected\":\"in\"," more "}"
#define ENDED(id, status, first, tokens)                                                           \
	"{\"id\":\"" id "\",\"state\":\"ended\",\"pool\":\"a\",\"prefill\":\"" P                   \
	"\",\"decode\":\"" D "\",\"status\":" #status ",\"first_ms\":" #first                      \
	",\"total_ms\":2010,\"completion_tokens\":" #tokens "}"

static const char status[] =
	"{\"version\":\"1\",\"state\":\"serving\",\"uptime_s\":7,\"fleet\":{\"pools\":[{\"queue\":{\"waiting\":2,\"size\":9}}],"
	"\"endpoints\":[" ENGINE("a", "decode", D,
		"\"state\":\"up\",\"in_flight\":3,\"max_inflight\":4,\"ejections\":5,\"failures\":{\"reset\":1,\"5xx\":2}") "," ENGINE("a",
		"prefill", P, "\"state\":\"up\",\"busy\":true,\"in_flight\":1") "," ENGINE("b",
		"decode", D, "\"state\":\"down\",\"in_flight\":0") "]}}";

static struct sample
parse(const char *requests)
{
	struct sample s;

	cr_assert_eq(sample_parse(status, requests, &s), 0);
	return s;
}

Test(pdtop, engines_and_totals)
{
	struct sample s = parse(
		"{\"requests\":[{\"id\":\"r\",\"state\":\"decode\",\"total_ms\":5,\"model\":\"m\",\"pool\":\"a\",\"prefill\":null,\"decode\":\"" D
		"\"}," ENDED("1", 200, 10, 100) "," ENDED("2", 200, 30, 400) "," ENDED(
			"3", 503, 0, null) "]}");

	cr_assert(s.nengines == 3 && s.nrequests == 1);
	cr_expect(s.waiting == 2 && s.queue_size == 9 && s.in_flight == 1 && s.failed == 1);
	cr_expect_float_eq(s.tokens_s, 50, 1e-9);
	cr_expect_float_eq(s.requests_s, 0.3, 1e-9);
	cr_expect(s.firsts.p50 == 10 && s.firsts.n == 2);
	sample_sort(&s, SORT_POOL);
	cr_expect_str_eq(s.engines[0].role, "prefill");
	cr_expect_str_eq(s.engines[0].state, "busy");
	cr_expect(s.engines[0].firsts.n == 2 && s.engines[0].tokens_s == 0);
	cr_expect_float_eq(s.engines[1].tokens_s, 50, 1e-9);
	cr_expect(s.engines[1].failures == 3 && s.engines[1].max_inflight == 4);
	cr_expect(s.engines[1].ejections == 5 && s.engines[0].ejections == 0);
	/* 2000 ms for 100 tokens, 1980 ms for 400 */
	cr_expect(s.engines[1].gaps.n == 2 && s.engines[1].gaps.p50 == 4 && s.gaps.n == 2);
	cr_expect(s.engines[0].gaps.n == 0, "a prefill engine has no gaps");
	cr_expect(s.engines[2].firsts.n == 0, "another pool's engine at the same URL");
	cr_expect_str_eq(s.requests[0].id, "r");
	sample_sort(&s, SORT_IN_FLIGHT);
	cr_expect_eq(s.engines[0].in_flight, 3);
	cr_expect(sample_matches(&s.engines[0], "http://d") && sample_matches(&s.engines[0], ""));
	cr_expect_not(sample_matches(&s.engines[0], "prefill"));
	sample_free(&s);
}

/* What the engine counts is of all its clients, and known while its requests last. */
Test(pdtop, tokens_that_an_engine_counts)
{
	static const char counted[] = "{\"fleet\":{\"endpoints\":[" ENGINE(
		"a", "prefill", P, "\"tokens_s\":1234.5") "," ENGINE("a", "decode", D,
		"\"tokens_s\":7.0") "," ENGINE("b", "decode", D, "\"tokens_s\":null") "]}}";
	struct sample s;

	cr_assert_eq(sample_parse(counted, "{\"requests\":[" ENDED("1", 200, 10, 100) "]}", &s), 0);
	cr_expect(s.engines[0].counts_tokens && s.engines[0].tokens_s == 1234.5);
	cr_expect_eq(s.engines[1].tokens_s, 7, "not those of the ended request, too");
	cr_expect(!s.engines[2].counts_tokens && s.engines[2].tokens_s == 0);
	cr_expect_eq(s.tokens_s, 7, "the sum of the decode engines");
	sample_free(&s);
}

Test(pdtop, a_text_of_a_client_stays_in_its_row)
{
	struct sample s = parse(
		"{\"requests\":[{\"id\":\"a\\u001b[2J\",\"state\":\"decode\",\"model\":\"m\\nup\\u007f\"}]}");

	cr_assert_eq(s.nrequests, 1);
	cr_expect_str_eq(s.requests[0].id, "a?[2J");
	cr_expect_str_eq(s.requests[0].model, "m?up?");
	sample_free(&s);
}

Test(pdtop, percentiles)
{
	char text[8192] = "{\"requests\":[";
	struct sample s;

	for (unsigned i = 1; i <= 50; i++)
		(void)snprintf(text + strlen(text), sizeof(text) - strlen(text),
			"%s{\"state\":\"ended\",\"status\":200,\"pool\":\"a\",\"decode\":\"" D
			"\",\"first_ms\":%u}",
			i > 1 ? "," : "", 51 - i);
	strcat(text, "]}");
	s = parse(text);
	cr_expect(s.firsts.p50 == 25 && s.firsts.p99 == 49, "%u %u", s.firsts.p50, s.firsts.p99);
	sample_free(&s);
}

/* Its first byte is its last one, so there was no gap. */
Test(pdtop, an_answer_as_a_whole_has_no_gap)
{
	struct sample s =
		parse("{\"requests\":[" ENDED("1", 200, 2009, 100) "," ENDED("2", 200, 10, 1) "]}");

	cr_expect(s.gaps.n == 0 && s.firsts.n == 2);
	sample_free(&s);
}

Test(pdtop, answers_of_another_version_are_refused)
{
	struct sample s;

	cr_expect_eq(sample_parse("", "", &s), -1);
	cr_expect_eq(sample_parse(status, "{}", &s), -1);
	cr_expect_eq(sample_parse("[]", "{\"requests\":[]}", &s), -1);
	cr_expect_eq(sample_parse("{\"fleet\":3}", "{\"requests\":[]}", &s), 0);
	sample_free(&s);
	cr_expect_eq(sample_parse("{\"fleet\":{\"endpoints\":[1],\"pools\":[[]]}}",
			     "{\"requests\":[7]}", &s),
		0);
	sample_free(&s);
}
