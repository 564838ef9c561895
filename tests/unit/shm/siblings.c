/* What workers have for other routers: notes go through a ring whole, are dropped without room, and a ring that was scribbled
 * on goes on.  What other routers have in flight ends by itself. */
#include "shm/siblings.h"

#include <stdlib.h>
#include <string.h>

#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/sibling_load.h"
#include "tests/unit/shm/fixture.h"

#define W 1
#define EP 2

static void
setup(void)
{
	small_seg();
	ep_slot_begin(seg, EP);
}

TestSuite(siblings, .init = setup, .fini = small_seg_end);

static struct prefix_key
key_of(uint32_t n, uint64_t first)
{
	struct prefix_key key = {.n = n};

	for (uint32_t i = 0; i < n; i++)
		key.digest[i] = first + i;
	return key;
}

static void
put(uint32_t n, uint64_t first)
{
	const struct prefix_key key = key_of(n, first);

	sibling_note_put(seg, W, &key, EP, 100 + n);
}

Test(siblings, notes_come_as_they_were_put)
{
	struct sibling_note note;
	uint64_t at = sibling_notes_begin(seg, W);

	cr_assert_eq(sibling_note_next(seg, W, &at, &note), 0);
	put(0, 0); /* a prompt without a cut: nothing to say */
	cr_assert_eq(sibling_note_next(seg, W, &at, &note), 0);
	for (uint64_t round = 0; round < 1000; round++) { /* many times over the end */
		const uint32_t n = 1 + (uint32_t)round % PREFIX_CUTS;

		put(n, round);
		cr_assert_eq(sibling_note_next(seg, W, &at, &note), n);
		cr_assert(note.ep == EP && note.tag == (uint32_t)ep_tag(seg, EP));
		cr_assert_eq(note.computes, 100 + n);
		cr_assert(note.digest[0] == round && note.digest[n - 1] == round + n - 1);
		cr_assert_eq(sibling_note_next(seg, W, &at, &note), 0);
		sibling_notes_done(seg, W, at);
	}
	cr_assert_eq(metric_sum(seg, M_SIBLING_NOTES_DROPPED), 0);
}

Test(siblings, without_room_they_are_dropped_and_counted)
{
	const uint32_t fit = seg->hdr->sibling_bytes / (16 + 8 * 10);
	struct sibling_note note;
	uint64_t at = sibling_notes_begin(seg, W);
	uint32_t n = 0;

	for (uint32_t i = 0; i < fit + 7; i++)
		put(10, i);
	cr_assert_eq(metric_sum(seg, M_SIBLING_NOTES_DROPPED), 7);
	while (sibling_note_next(seg, W, &at, &note) > 0)
		cr_assert_eq(note.digest[0], n++);
	cr_assert_eq(n, fit);
	put(10, 0);
	cr_assert_eq(metric_sum(seg, M_SIBLING_NOTES_DROPPED), 8, "they are not done with");
	sibling_notes_done(seg, W, at);
	put(10, 77);
	cr_assert_eq(sibling_note_next(seg, W, &at, &note), 10);
	cr_assert_eq(note.digest[0], 77);
}

/* A notifier that was killed has read and not sent: its successor reads again. */
Test(siblings, a_successor_reads_what_was_not_done_with)
{
	struct sibling_note note;
	uint64_t at = sibling_notes_begin(seg, W);

	put(3, 1);
	cr_assert_eq(sibling_note_next(seg, W, &at, &note), 3);
	at = sibling_notes_begin(seg, W);
	cr_assert_eq(sibling_note_next(seg, W, &at, &note), 3);
}

Test(siblings, whatever_stands_in_a_ring)
{
	struct byte_ring *ring = seg_sibling_ring(seg, W);
	unsigned char *bytes = (unsigned char *)(ring + 1);
	struct sibling_note note;
	uint64_t at = sibling_notes_begin(seg, W);

	srand(1);
	for (int i = 0; i < 20000; i++) {
		switch (rand() % 4) {
		case 0:
			ring->written = (uint64_t)rand() << (rand() % 40);
			break;
		case 1:
			ring->read = (uint64_t)rand() << (rand() % 40);
			break;
		default:
			bytes[(unsigned)rand() % seg->hdr->sibling_bytes] = (unsigned char)rand();
			put(1 + (uint32_t)rand() % PREFIX_CUTS, 5);
		}
		for (uint32_t n; (n = sibling_note_next(seg, W, &at, &note)) > 0;)
			cr_assert(n <= PREFIX_CUTS && note.ep < seg->hdr->max_endpoints);
		sibling_notes_done(seg, W, at);
		if (i % 100 == 0) { /* nothing of it stays */
			put(2, 123456);
			cr_assert_eq(sibling_note_next(seg, W, &at, &note), 2);
			cr_assert_eq(note.digest[1], 123457);
			sibling_notes_done(seg, W, at);
		}
	}
}

Test(siblings, their_load_ends_by_itself)
{
	/* also where the time in the word begins anew */
	static const uint64_t times[] = {0, 1000000, (UINT64_C(1) << 26) - 10, UINT64_C(1) << 26};

	for (size_t i = 0; i < 4; i++) {
		const uint64_t t = times[i];

		sibling_load_set(seg, EP, 3, 70000, t);
		for (uint64_t ms = 0; ms <= SIBLING_LOAD_MS; ms += 50) {
			cr_assert_eq(sibling_load_get(seg, EP, t + ms).requests, 3);
			cr_assert_eq(sibling_load_get(seg, EP, t + ms).tokens, 70000);
		}
		cr_assert_eq(sibling_load_get(seg, EP, t + 2 * SIBLING_LOAD_MS).requests, 0);
		cr_assert_eq(sibling_load_get(seg, EP, t + 2 * SIBLING_LOAD_MS).tokens, 0);
	}
	cr_assert_eq(sibling_load_get(seg, EP, times[3] - 1).requests, 3, "a clock read before");
	sibling_load_set(seg, EP, UINT64_MAX, UINT64_MAX, 1000);
	cr_assert_eq(sibling_load_get(seg, EP, 1000).requests, SIBLING_LOAD_REQUESTS_MAX);
	cr_assert_eq(sibling_load_get(seg, EP, 1000).tokens, SIBLING_LOAD_TOKENS_MAX);
	cr_assert_eq(load_score(seg, EP, 1000, 1000), SIBLING_LOAD_REQUESTS_MAX);
}

Test(siblings, engines_have_one_name_in_all_routers)
{
	const uint64_t id = sibling_id("http://10.0.0.1:8100", ROLE_PREFILL, "m");

	cr_assert_eq(id, sibling_id("http://10.0.0.1:8100", ROLE_PREFILL, "m"));
	cr_assert_neq(id, sibling_id("http://10.0.0.1:8100", ROLE_DECODE, "m"));
	cr_assert_neq(id, sibling_id("http://10.0.0.1:8101", ROLE_PREFILL, "m"));
	cr_assert_neq(id, sibling_id("http://10.0.0.1:8100", ROLE_PREFILL, "n"));
	sibling_engine_put(seg, EP, id, 4);
	cr_assert_eq(sibling_engine_id(seg, EP), id);
	cr_assert_eq(sibling_engine_row(seg, EP), 4);
	sibling_engine_put(seg, EP, 0, 0);
	cr_assert_eq(sibling_engine_row(seg, EP), 1, "there is no row of 0");
}

Test(siblings, what_comes_from_a_router_is_shown)
{
	struct sibling s = {.address = sibling_hash("tcp://10.0.0.2:9310"),
			       .at_ms = 5,
			       .refused = 9},
		       got;

	sibling_put(seg, SIBLINGS_MAX - 1, &s);
	sibling_get(seg, SIBLINGS_MAX - 1, &got);
	cr_assert_eq(memcmp(&s, &got, sizeof(s)), 0);
}
