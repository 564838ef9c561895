/* The JSON of a batch, and what a collector says of one.  tests/e2e/test_tracing.py has it read by opentelemetry-proto. */
#include "master/exporter/batch.h"

#include <criterion/criterion.h>
#include <malloc.h>
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

Test(batch, a_tracestate_is_a_field)
{
	struct span_record s;

	span_init(&s, SPAN_DECODE, TRACE);
	s.head.id = s.head.parent = 1;
	span_text(&s, SA_STATE, "a=1,b=2");
	span_text(&s, SA_POOL, "m");
	batch_add(b, &s, 0);
	says("\"spanId\":\"0000000000000001\",\"traceState\":\"a=1,b=2\",\"parentSpanId\"");
	says("\"attributes\":[{\"key\":\"pdrouter.pool\",\"value\":{\"stringValue\":\"m\"}}]");
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

/* n bytes that take six each in JSON. */
static void
add_worst(struct span_record *s, enum span_attr key, size_t n)
{
	char text[SPAN_TEXT_MAX + 1] = "";

	memset(text, 1, n);
	span_text(s, key, text);
}

/* The longest text that a record can become: each attribute, no byte left, and what a span repeats is as long as may be. */
static void
make_worst(struct span_record *s)
{
	static const enum span_attr repeated[] = {SA_METHOD, SA_PATH, SA_DETAIL},
				    numbers[] = {SA_STATUS, SA_RESENDS, SA_INPUT, SA_CACHED,
					    SA_OUTPUT, SA_TRIES},
				    others[] = {SA_URL, SA_ERROR, SA_OPERATION, SA_MODEL,
					    SA_REQUEST_ID, SA_REASON, SA_POOL, SA_KEY, SA_DIRECT,
					    SA_RESCUED, SA_STATE};

	span_init(s, SPAN_REQUEST, TRACE);
	s->head.flags = UINT8_MAX;
	s->head.outcome = SPAN_FAILED;
	s->head.id = s->head.parent = s->head.until_us = s->head.event_us = UINT64_MAX;
	for (size_t i = 0; i < 3; i++)
		add_worst(s, repeated[i], SPAN_TEXT_MAX);
	for (size_t i = 0; i < 6; i++)
		span_number(s, numbers[i], UINT64_MAX);
	for (size_t i = 0; i < 11; i++)
		add_worst(s, others[i], i < 5 ? 98 : 97);
	cr_assert_eq(s->head.bytes, SPAN_MAX);
}

static size_t
heap(void)
{
	const struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

Test(batch, the_most_that_a_batch_can_take)
{
	const size_t before = heap();
	struct span_record s;
	size_t n0, n1, n;

	make_worst(&s);
	(void)batch_text(b, &n0);
	batch_add(b, &s, 0);
	(void)batch_text(b, &n1);
	cr_expect_leq(n1 - n0, BATCH_SPAN_TEXT_MAX, "%zu", n1 - n0);
	for (unsigned i = 1; i < 512; i++)
		batch_add(b, &s, 0);
	(void)batch_text(b, &n);
	cr_expect_leq(n - n0, 512 * BATCH_SPAN_TEXT_MAX, "%zu", n - n0);
	cr_expect_leq(heap() - before, 512 * BATCH_SPAN_HEAP_MAX, "%zu", heap() - before);
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
