/* The JSON of a batch, and what a collector says of one.  tests/e2e/test_tracing.py has it read by opentelemetry-proto. */
#include "master/exporter/batch.h"

#include <criterion/criterion.h>
#include <string.h>

#include "shm/spans.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"

static const struct batch_source source = {"1.2", "gpu1", "gpu1:42"};
static struct batch *b;

static void
setup(void)
{
	b = batch_new(&source);
}

static void
teardown(void)
{
	batch_free(&b);
}

TestSuite(batch, .init = setup, .fini = teardown);

static void
says(const char *want)
{
	size_t n;
	const char *text = batch_text(b, &n);

	cr_expect_eq(n, strlen(text));
	cr_expect_not_null(strstr(text, want), "no %s in\n%s", want, text);
}

static void
says_not(const char *word)
{
	size_t n;

	cr_expect_null(strstr(batch_text(b, &n), word), "%s", word);
}

Test(batch, of_no_span)
{
	size_t n;

	cr_expect_eq(batch_count(b), 0);
	cr_expect_str_eq(batch_text(b, &n),
		"{\"resourceSpans\":[{\"resource\":{\"attributes\":["
		"{\"key\":\"service.name\",\"value\":{\"stringValue\":\"pdrouter\"}},"
		"{\"key\":\"service.version\",\"value\":{\"stringValue\":\"1.2\"}},"
		"{\"key\":\"service.instance.id\",\"value\":{\"stringValue\":\"gpu1:42\"}},"
		"{\"key\":\"host.name\",\"value\":{\"stringValue\":\"gpu1\"}}]},"
		"\"scopeSpans\":[{\"scope\":{\"name\":\"pdrouter\",\"version\":\"1.2\"},\"spans\":[]}]}]}");
}

Test(batch, a_request)
{
	struct span_record s;

	span_init(&s, SPAN_REQUEST, TRACE);
	s.head.id = 0xabc;
	s.head.parent = 0xf067aa0ba902b7;
	s.head.flags = 1;
	s.head.from_us = 1000;
	s.head.until_us = 5000;
	s.head.event_us = 2000;
	span_text(&s, SA_METHOD, "POST");
	span_text(&s, SA_PATH, "/v1/completions");
	span_number(&s, SA_INPUT, 9007199254740993);
	batch_add(b, &s, 1700000000000000000);
	cr_expect_eq(batch_count(b), 1);
	says("\"spans\":[{\"traceId\":\"" TRACE "\",\"spanId\":\"0000000000000abc\","
	     "\"parentSpanId\":\"00f067aa0ba902b7\",\"flags\":769,\"name\":\"POST /v1/completions\","
	     "\"kind\":2,\"startTimeUnixNano\":\"1700000000001000000\","
	     "\"endTimeUnixNano\":\"1700000000005000000\",\"attributes\":["
	     "{\"key\":\"http.request.method\",\"value\":{\"stringValue\":\"POST\"}},"
	     "{\"key\":\"url.path\",\"value\":{\"stringValue\":\"/v1/completions\"}},"
	     "{\"key\":\"gen_ai.usage.input_tokens\",\"value\":{\"intValue\":\"9007199254740993\"}}],"
	     "\"events\":[{\"timeUnixNano\":\"1700000000002000000\",\"name\":\"first token\"}]}]");
}

Test(batch, a_leg_that_failed)
{
	struct span_record s;

	span_init(&s, SPAN_PREFILL, TRACE);
	s.head.id = 1;
	s.head.outcome = SPAN_FAILED;
	span_text(&s, SA_ERROR, "timeout");
	batch_add(b, &s, 0);
	says("\"flags\":0,\"name\":\"prefill\",\"kind\":3");
	says("\"status\":{\"code\":2,\"message\":\"timeout\"}");
	says_not("parentSpanId");
	says_not("events");
	span_text(&s, SA_DETAIL, "it was late");
	batch_add(b, &s, 0);
	says("\"status\":{\"code\":2,\"message\":\"it was late\"}");
}

/* A model's name comes from a client. */
Test(batch, texts_are_always_json)
{
	struct span_record s;

	span_init(&s, SPAN_DECODE, TRACE);
	s.head.id = 1;
	span_text(&s, SA_MODEL, "a\"b\\c\n\x01 \xff\xc3\xa4 \xe6\x97");
	batch_add(b, &s, 0);
	says("\"a\\\"b\\\\c\\n\\u0001 \xef\xbf\xbd\xc3\xa4 \xef\xbf\xbd\xef\xbf\xbd\"");
}

Test(batch, rejected_spans)
{
	static const struct {
		const char *answer;
		uint32_t n;
	} t[] = {{"", 0}, {"{}", 0}, {"[1]", 0}, {"{\"partialSuccess\":{}}", 0},
		{"{\"partialSuccess\":7}", 0},
		{"{\"partialSuccess\":{\"rejectedSpans\":\"3\"}}", 3},
		{"{\"partialSuccess\":{\"rejectedSpans\":2}}", 2},
		{"{\"partialSuccess\":{\"rejectedSpans\":\"99999999999999\"}}", 9},
		{"{\"partialSuccess\":{\"rejectedSpans\":-1}}", 0},
		{"{\"partialSuccess\":{\"rejectedSpans\":null}}", 0},
		{"{\"partialSuccess\":{\"rejectedSpans\":", 0},
		{"[[[[[[[[[[[[{\"partialSuccess\":1}]]]]]]]]]]]]", 0}};

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
		cr_expect_eq(batch_rejected(t[i].answer, strlen(t[i].answer), 9), t[i].n, "%s",
			t[i].answer);
}
