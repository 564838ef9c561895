/* KV events between processes: sources that change, counts of one life. */
#include "shm/kv_events.h"

#include <string.h>

#include "shm/load.h"
#include "tests/unit/shm/fixture.h"

TestSuite(shm_kv_events, .init = small_seg, .fini = small_seg_end);

Test(shm_kv_events, a_source_is_news_once)
{
	const struct kv_source a = {.tag = 1, .ranks = 1, .events = "tcp://10.0.0.1:5557"};
	struct kv_source got;
	uint64_t seq = 0;

	cr_assert_not(kv_source_get(seg, 1, &seq, &got));
	kv_source_put(seg, 1, &a);
	cr_assert(kv_source_get(seg, 1, &seq, &got));
	cr_assert_eq(memcmp(&got, &a, sizeof(a)), 0);
	cr_assert_not(kv_source_get(seg, 1, &seq, &got));
	kv_source_put(seg, 1, &a); /* the same */
	cr_assert_not(kv_source_get(seg, 1, &seq, &got));
	kv_source_put(seg, 1, &(struct kv_source){.ranks = 0});
	cr_assert(kv_source_get(seg, 1, &seq, &got));
	cr_assert_eq(got.ranks, 0);
	seq = 0;
	cr_assert_not(kv_source_get(seg, 2, &seq, &got), "of another endpoint");
}

Test(shm_kv_events, a_source_that_is_being_written_is_not_read)
{
	struct kv_source got;
	uint64_t seq = 0;

	seg->kv_sources[0].seq = 3;
	cr_assert_not(kv_source_get(seg, 0, &seq, &got));
	seg->kv_sources[0].seq = 4;
	cr_assert(kv_source_get(seg, 0, &seq, &got));
}

Test(shm_kv_events, a_sender_is_news_once_beside_a_source)
{
	const struct kv_sender a = {.family = 2, .ip = {10, 0, 0, 1}};
	const struct kv_source other = {.tag = 1, .ranks = 1, .events = "tcp://10.0.0.1:5557"};
	struct kv_sender got;
	uint64_t seq = 0, of_source = 0;

	cr_assert_not(kv_sender_get(seg, 1, &seq, &got));
	kv_sender_put(seg, 1, &a);
	kv_source_put(seg, 1, &other);
	cr_assert(kv_sender_get(seg, 1, &seq, &got));
	cr_assert_eq(memcmp(&got, &a, sizeof(a)), 0);
	kv_sender_put(seg, 1, &a); /* the same */
	kv_source_put(seg, 1, &(struct kv_source){.ranks = 0});
	cr_assert_not(kv_sender_get(seg, 1, &seq, &got));
	kv_sender_put(seg, 1, &(struct kv_sender){.family = 0});
	cr_assert(kv_sender_get(seg, 1, &seq, &got));
	cr_assert_eq(got.family, 0);
	seg->kv_sources[1].sender_seq = 7;
	cr_assert_not(kv_sender_get(seg, 1, &seq, &got), "while it is written");
	cr_assert(kv_source_get(seg, 1, &of_source, &(struct kv_source){0}));
}

Test(shm_kv_events, counts_are_of_this_life_of_the_slot)
{
	struct kv_counts c = {.stored = 5, .lag_us = 7}, got;

	cr_assert_not(kv_counts_get(seg, 0, &got));
	ep_slot_begin(seg, 0);
	c.tag = ep_tag(seg, 0);
	kv_counts_put(seg, 0, &c);
	cr_assert_not(kv_counts_get(seg, 0, &got), "no message has come");
	c.messages = 1;
	kv_counts_put(seg, 0, &c);
	cr_assert(kv_counts_get(seg, 0, &got));
	cr_assert_eq(memcmp(&got, &c, sizeof(c)), 0);
	ep_slot_begin(seg, 0);
	cr_assert_not(kv_counts_get(seg, 0, &got));
}
