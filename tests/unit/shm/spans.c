/* The rings of spans: records go through them whole, are dropped when there is no room, and a ring that was scribbled on
 * costs what is in it and no more. */
#include "shm/spans.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/rnd.h"
#include "shm/core/suspect.h"
#include "shm/metrics.h"
#include "tests/unit/shm/fixture.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define W 1 /* the worker slot of most tests */

static uint64_t repaired[SUSPECT_N];

static void
report(const char *where, uint64_t index, uint64_t n)
{
	(void)where;
	(void)index;
	(void)n;
}

static void
setup(void)
{
	small_seg();
	suspect_begin(repaired, report);
}

TestSuite(spans, .init = setup, .fini = small_seg_end);

static uint64_t
dropped(void)
{
	return seg_slab(seg, W)->counters[M_SPANS_DROPPED];
}

/* A record that can be told from others by its id, of a length that depends on it. */
static void
make(struct span_record *s, uint64_t id)
{
	char text[100];

	span_init(s, SPAN_DECODE, TRACE);
	s->head.id = id;
	s->head.parent = 7;
	s->head.from_us = 1000 + id;
	s->head.until_us = 2000 + id;
	(void)snprintf(text, sizeof(text), "%0*d", (int)(id % 90) + 1, 0);
	span_text(s, SA_URL, text);
	span_number(s, SA_STATUS, 200 + id);
}

static void
put(uint64_t id)
{
	struct span_record s;

	make(&s, id);
	span_put(seg, W, &s);
}

static bool
is_same(const struct span_record *a, const struct span_record *b)
{
	return a->head.bytes == b->head.bytes && memcmp(a, b, a->head.bytes) == 0;
}

/* Reads the next one, which must be this. */
static void
expect(uint64_t *at, uint64_t id)
{
	struct span_record want, got;

	make(&want, id);
	cr_assert(spans_next(seg, W, at, &got), "%lu", (unsigned long)id);
	cr_assert(is_same(&want, &got), "%lu", (unsigned long)id);
}

Test(spans, what_was_put_is_read)
{
	struct span_record s;
	struct span_value v;
	uint64_t at = spans_begin(seg, W);
	size_t walk = 0;

	cr_assert_not(spans_next(seg, W, &at, &s));
	put(3);
	cr_assert(spans_next(seg, W, &at, &s));
	cr_assert(span_next_value(&s, &walk, &v));
	cr_expect(v.key == SA_URL && v.n == 4 && memcmp(v.text, "0000", 4) == 0);
	cr_assert(span_next_value(&s, &walk, &v));
	cr_expect(v.key == SA_STATUS && v.text == NULL && v.number == 203);
	cr_assert_not(span_next_value(&s, &walk, &v));
	cr_assert_not(spans_next(seg, W, &at, &s));
	cr_expect_eq(dropped(), 0);
}

Test(spans, a_thousand_times_round)
{
	uint64_t at = spans_begin(seg, W);

	for (uint64_t id = 1; id < 20000; id++) {
		put(id);
		expect(&at, id);
		spans_done(seg, W, at);
	}
	cr_expect_gt(at, 1000 * seg->hdr->span_bytes / 2);
	cr_expect_eq(dropped(), 0);
}

Test(spans, without_room_they_are_dropped_and_counted)
{
	uint64_t at = spans_begin(seg, W), kept = 0;

	for (uint64_t id = 1; id <= 100; id++) {
		const uint64_t before = dropped();

		put(id);
		kept += dropped() == before;
	}
	cr_assert(kept > 10 && kept < 100);
	cr_assert_eq(dropped(), 100 - kept);
	for (uint64_t id = 1; id <= 10; id++) /* the first ones are whole, in their order */
		expect(&at, id);
	spans_done(seg, W, at);
	put(500);
	cr_expect_eq(dropped(), 100 - kept, "there is room again");
}

/* The reader has copied them, but they are not done with. */
Test(spans, a_successor_reads_again_what_was_not_done_with)
{
	uint64_t at = spans_begin(seg, W);

	for (uint64_t id = 1; id <= 4; id++)
		put(id);
	expect(&at, 1);
	expect(&at, 2);
	spans_done(seg, W, at);
	expect(&at, 3);
	at = spans_begin(seg, W);
	expect(&at, 3);
	expect(&at, 4);
}

Test(spans, attributes_that_do_not_fit_are_left_out)
{
	static const enum span_attr long_texts[] = {SA_URL, SA_METHOD, SA_PATH, SA_ERROR,
		SA_OPERATION, SA_MODEL, SA_REASON, SA_DETAIL, SA_POOL, SA_KEY};
	struct span_record s, got;
	char text[2 * SPAN_TEXT_MAX];
	uint64_t at = spans_begin(seg, W);
	struct span_value v;
	size_t walk = 0;

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	span_init(&s, SPAN_REQUEST, TRACE);
	s.head.id = 1;
	span_text(&s, SA_KEY, NULL);
	span_text(&s, SA_KEY, "");
	cr_assert_eq(s.head.bytes, sizeof(s.head));
	for (size_t i = 0; i < sizeof(long_texts) / sizeof(long_texts[0]); i++)
		span_text(&s, long_texts[i], text);
	cr_assert_leq(s.head.bytes, SPAN_MAX);
	span_put(seg, W, &s);
	cr_assert(spans_next(seg, W, &at, &got));
	while (span_next_value(&got, &walk, &v))
		cr_assert_eq(v.n, SPAN_TEXT_MAX);
}

/* Positions that cannot be: the ring goes on from its end. */
Test(spans, scribbled_positions)
{
	static const uint64_t words[] = {
		1, 7, 4095, 4096, 4097, 1u << 20, UINT64_MAX / 2, UINT64_MAX - 100, UINT64_MAX};
	struct byte_ring *ring = seg_span_ring(seg, W);
	struct span_record s;

	for (size_t i = 0; i < 2 * sizeof(words) / sizeof(words[0]); i++) {
		uint64_t at, last = 0;

		put(1);
		at = spans_begin(seg, W);
		*(i % 2 == 0 ? &ring->written : &ring->read) += words[i / 2];
		for (int k = 0; k < 100 && spans_next(seg, W, &at, &s); k++)
			cr_assert_eq(s.head.id, 1);
		at = spans_begin(seg, W);
		for (int k = 0; k < 100 && spans_next(seg, W, &at, &s); k++)
			;
		spans_done(seg, W, at);
		put(2);
		while (spans_next(seg, W, &at, &s))
			last = s.head.id;
		cr_expect_eq(last, 2, "%zu: it works again", i);
		spans_done(seg, W, at);
	}
	cr_expect_gt(repaired[SUSPECT_SPANS], 0);
}

/* Each byte of a record in turn has another value: the record is as it was, is another good one, or is dropped. */
Test(spans, scribbled_records)
{
	struct span_record s;
	uint64_t at = spans_begin(seg, W);
	struct span_value v;

	for (size_t i = 0; i < 200; i++) {
		const uint64_t from = at;

		put(60);
		put(61);
		((unsigned char *)(seg_span_ring(seg, W) + 1))[(from + i) % seg->hdr->span_bytes] ^=
			(unsigned char)(rnd_u64() | 1);
		for (int k = 0; k < 3 && spans_next(seg, W, &at, &s); k++) {
			size_t walk = 0, n = 0;

			while (span_next_value(&s, &walk, &v))
				cr_assert_lt(n++, 3);
			cr_assert_leq(s.head.bytes, SPAN_MAX);
		}
		cr_assert_not(spans_next(seg, W, &at, &s));
		spans_done(seg, W, at);
	}
	cr_expect_gt(repaired[SUSPECT_SPANS], 50);
	put(62);
	expect(&at, 62);
}

/* Attributes that no worker writes, as many as fit: each would cost the exporter some hundred bytes. */
Test(spans, a_record_has_no_key_twice_and_no_empty_text)
{
	static const unsigned char attr_url[] = {SA_URL, 0, 0, 0}, attr_key[] = {SA_KEY, 0, 0, 0};
	struct span_record s, got;
	uint64_t at = spans_begin(seg, W);

	make(&s, 1);
	memcpy((unsigned char *)&s + s.head.bytes, attr_key, sizeof(attr_key));
	s.head.bytes += (uint32_t)sizeof(attr_key);
	span_put(seg, W, &s);
	cr_expect_not(spans_next(seg, W, &at, &got), "an empty text");
	make(&s, 2);
	span_number(&s, SA_STATUS, 3);
	span_put(seg, W, &s);
	cr_expect_not(spans_next(seg, W, &at, &got), "a number twice");
	make(&s, 3);
	span_text(&s, SA_URL, "http://127.0.0.1");
	span_put(seg, W, &s);
	cr_expect_not(spans_next(seg, W, &at, &got), "a text twice");
	make(&s, 4);
	while (s.head.bytes + sizeof(attr_url) <= SPAN_MAX) {
		memcpy((unsigned char *)&s + s.head.bytes, attr_url, sizeof(attr_url));
		s.head.bytes += (uint32_t)sizeof(attr_url);
	}
	span_put(seg, W, &s);
	cr_expect_not(spans_next(seg, W, &at, &got), "hundreds of empty texts");
	cr_expect_eq(repaired[SUSPECT_SPANS], 4);
	put(5);
	expect(&at, 5);
}

/* A worker is killed at some instruction of span_put(): all that is published is whole. */
Test(spans, a_killed_worker_leaves_whole_records)
{
	uint64_t at = spans_begin(seg, W);

	for (int life = 0; life < 30; life++) {
		uint64_t read = 0;
		struct span_record s, want;
		const pid_t pid = fork();

		cr_assert_neq(pid, -1);
		if (pid == 0)
			for (uint64_t id = 1;; id++)
				put(id);
		while (read < 50 + (uint64_t)life) {
			for (; spans_next(seg, W, &at, &s); spans_done(seg, W, at)) {
				make(&want, s.head.id);
				cr_assert(is_same(&want, &s));
				read++;
			}
			(void)sched_yield();
		}
		(void)kill(pid, SIGKILL);
		cr_assert_eq(waitpid(pid, NULL, 0), pid);
		for (; spans_next(seg, W, &at, &s); spans_done(seg, W, at)) {
			make(&want, s.head.id);
			cr_assert(is_same(&want, &s));
		}
	}
	cr_expect_eq(repaired[SUSPECT_SPANS], 0);
}
