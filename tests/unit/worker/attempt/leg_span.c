/* The spans of an attempt's legs: when each of them ends. */
#include "worker/attempt/leg_span.h"

#include <string.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "tests/unit/worker/one_engine.h"
#include "worker/base/facts.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define LATER_US 2000

static const struct leg_sent sent = {.url = "http://127.0.0.1:1", .request_id = "r"};
static const struct leg_sent release = {
	.url = "http://127.0.0.1:1", .request_id = "r", .releases = true};
static struct facts facts;
static struct leg_spans *spans;
static uint64_t at; /* what has been read of the ring */

static void
setup(void)
{
	one_engine();
	facts_init(&facts);
	facts_set_trace(&facts, &(struct trace){.id = TRACE, .span = 7, .flags = 1});
	spans = leg_spans_new(&w, &facts);
	at = spans_begin(w.seg, w.slot);
}

static void
teardown(void)
{
	leg_spans_free(&spans);
	facts_fini(&facts);
	seg_free(&w.seg);
}

TestSuite(leg_span, .init = setup, .fini = teardown);

static struct span_record
next_span(void)
{
	struct span_record s;

	cr_assert(spans_next(w.seg, w.slot, &at, &s));
	return s;
}

/* A leg that is over.  Returns a time that is not before its end, and some time before now. */
static uint64_t
one_leg(enum leg_kind kind)
{
	uint64_t over;

	(void)leg_span_begin(spans, kind, &sent);
	leg_span_over(spans, kind, 200);
	over = clock_us();
	(void)usleep(LATER_US);
	return over;
}

Test(leg_span, a_second_leg_does_not_move_the_end_of_the_first)
{
	const uint64_t over = one_leg(LEG_DECODE);
	struct span_record first, second;

	(void)leg_span_begin(spans, LEG_DECODE, &release);
	first = next_span();
	cr_expect_eq(first.head.name, SPAN_DECODE);
	cr_expect_leq(first.head.until_us, over);
	leg_spans_end(spans);
	second = next_span();
	cr_expect_eq(second.head.name, SPAN_RELEASE);
	cr_expect_geq(second.head.from_us, over + LATER_US);
}

Test(leg_span, a_leg_that_is_not_over_ends_when_the_second_begins)
{
	const uint64_t from = clock_us();

	(void)leg_span_begin(spans, LEG_DECODE, &sent);
	(void)usleep(LATER_US);
	(void)leg_span_begin(spans, LEG_DECODE, &sent);
	cr_expect_geq(next_span().head.until_us, from + LATER_US);
}

/* A decode engine could not use the KV of a prefill engine that had answered long before. */
Test(leg_span, blame_that_comes_later_does_not_move_the_end)
{
	static const struct leg_failure why = {"unusable", "its KV is of no use", 200};
	const uint64_t over = one_leg(LEG_PREFILL);
	struct span_record s;

	leg_span_failed(spans, LEG_PREFILL, &why);
	s = next_span();
	cr_expect_eq(s.head.outcome, SPAN_FAILED);
	cr_expect_leq(s.head.until_us, over);
}
