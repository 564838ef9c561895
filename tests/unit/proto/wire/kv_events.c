/* KV events: the forms of all versions of vLLM and SGLang are read, and a publisher's lies do no harm. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/kv_events.h"

#define EVENTS_MAX 8

struct got {
	struct kv_batch batch;
	size_t n;
	struct kv_event e[EVENTS_MAX];
};

static void
take(const struct kv_event *e, void *arg)
{
	struct got *got = arg;

	cr_assert_lt(got->n, EVENTS_MAX);
	got->e[got->n++] = *e;
}

/* Reads a copy of exactly n bytes, so that ASan sees a byte too many. */
static bool
read_copy(const char *msg, size_t n, struct got *ret)
{
	char *copy = calloc(1, n > 0 ? n : 1);
	bool r;

	memcpy(copy, msg, n);
	ret->n = 0;
	r = kv_events_read(copy, n, &ret->batch, take, ret);
	free(copy);
	return r;
}
#define READ(text, ret) read_copy(text, sizeof(text) - 1, ret)

static void
expect(const struct kv_event *e, enum kv_event_kind kind, uint64_t blocks, uint32_t tokens,
	bool counts)
{
	cr_assert_eq(e->kind, kind, "kind %d", (int)e->kind);
	cr_assert_eq(e->blocks, blocks);
	cr_assert_eq(e->block_tokens, tokens);
	cr_assert_eq(e->counts, counts);
}

#define TS "\xcb\x41\xda\x49\xba\xf0\x10\x00\x00" /* 1764158400.25 */
#define STORED                                                                                     \
	"\xab"                                                                                     \
	"BlockStored"
#define REMOVED                                                                                    \
	"\xac"                                                                                     \
	"BlockRemoved"
#define CLEARED                                                                                    \
	"\xb0"                                                                                     \
	"AllBlocksCleared"
#define HASH "\xc4\x04\x01\x02\x03\x04" /* bytes; vLLM's have 32 */
#define FOUR_IDS "\x94\x01\xcc\xc8\xcd\x10\x00\xce\x00\x03\x0d\x40"
#define GPU "\xa3GPU"
#define CPU                                                                                        \
	"\xa3"                                                                                     \
	"CPU"

/* vLLM 0.9, and SGLang: arrays, hashes are integers, as msgspec 0.22 encodes them */
#define OLD                                                                                        \
	"\x92" TS "\x93"                                                                           \
	"\x96" STORED "\x92\xfb\xcf\x80\x00\x00\x00\x00\x00\x00\x00\xc0" FOUR_IDS "\x02\xc0"       \
	"\x92" REMOVED "\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff"                                  \
	"\x91" CLEARED
/* vLLM 0.11: a rank, hashes are bytes, the medium */
#define BYTES                                                                                      \
	"\x93" TS "\x93"                                                                           \
	"\x97" STORED "\x91" HASH HASH FOUR_IDS "\x04\xc0" GPU "\x93" REMOVED "\x92" HASH HASH GPU \
	"\x93" REMOVED "\x91" HASH CPU "\x03"
/* vLLM 0.2x: maps, and groups of layers */
#define MAPS                                                                                       \
	"\x83\xa2ts" TS "\xa6"                                                                     \
	"events\x93"                                                                               \
	"\x88\xa4type" STORED "\xac"                                                               \
	"block_hashes\x91" HASH "\xb1"                                                             \
	"parent_block_hash\xc0\xa9"                                                                \
	"token_ids" FOUR_IDS "\xaa"                                                                \
	"block_size\x04\xa6medium" GPU "\xaa"                                                      \
	"extra_keys\x91\x91\xa4salt\xa9group_idx\x01"                                              \
	"\x83\xac"                                                                                 \
	"block_hashes\x91" HASH "\xa6medium\xc0\xa4type" REMOVED "\x81\xa4type" CLEARED "\xb2"     \
	"data_parallel_rank\x02"

Test(kv_events, forms_of_all_versions)
{
	struct got got;

	cr_assert(READ(OLD, &got));
	cr_assert_eq(got.n, 3);
	cr_assert_eq(got.batch.rank, 0);
	cr_assert_float_eq(got.batch.at_s, 1764158400.25, 0.001);
	expect(&got.e[0], KV_EVENT_STORED, 2, 2, true);
	expect(&got.e[1], KV_EVENT_REMOVED, 1, 0, true);
	expect(&got.e[2], KV_EVENT_CLEARED, 0, 0, true);

	cr_assert(READ(BYTES, &got));
	cr_assert_eq(got.n, 3);
	cr_assert_eq(got.batch.rank, 3);
	expect(&got.e[0], KV_EVENT_STORED, 1, 4, true);
	expect(&got.e[1], KV_EVENT_REMOVED, 2, 0, true);
	expect(&got.e[2], KV_EVENT_REMOVED, 1, 0, false); /* not from the GPU's memory */

	cr_assert(READ(MAPS, &got));
	cr_assert_eq(got.n, 3);
	cr_assert_eq(got.batch.rank, 2);
	expect(&got.e[0], KV_EVENT_STORED, 1, 4,
		false); /* the same tokens in another group of layers */
	expect(&got.e[1], KV_EVENT_REMOVED, 1, 0, true);
	expect(&got.e[2], KV_EVENT_CLEARED, 0, 0, true);
}

Test(kv_events, members_that_are_not_known)
{
	struct got got;

	/* at the end of a batch and of an event, a kind of event, an event that is none; a list in place of a medium */
	cr_assert(READ("\x94" TS "\x90\x00\x81\xa1x\x91\x01", &got));
	cr_assert_eq(got.n, 0);
	cr_assert(READ("\x92\x05\x94\x9b" STORED
		       "\x91\x01\xc0\x91\x01\x01\xc0\x91\x07\xc0\xc0\xc0\x92\x01\x91\x02"
		       "\x92\xa8"
		       "BlockMet\x91\x01\x07\x90",
		&got));
	cr_assert_eq(got.n, 4);
	cr_assert_float_eq(got.batch.at_s, 5, 0);
	expect(&got.e[0], KV_EVENT_STORED, 1, 1, true);
	for (int i = 1; i < 4; i++)
		expect(&got.e[i], KV_EVENT_OTHER, 0, 0, false);
}

Test(kv_events, absurd_events_are_told_apart)
{
	struct got got;

	/* no hashes; no size, a size of 0, of -1, of 65537, that is a text */
	cr_assert(READ("\x92" TS "\x97"
		       "\x91" STORED "\x95" STORED "\x01\xc0\x90\x10"
		       "\x94" STORED "\x91\x01\xc0\x90"
		       "\x95" STORED "\x91\x01\xc0\x90\x00"
		       "\x95" STORED "\x91\x01\xc0\x90\xff"
		       "\x95" STORED "\x91\x01\xc0\x90\xce\x00\x01\x00\x01"
		       "\x95" STORED "\x91\x01\xc0\x90\xa1x",
		&got));
	cr_assert_eq(got.n, 7);
	for (size_t i = 0; i < got.n; i++)
		cr_assert_eq(got.e[i].kind, KV_EVENT_BAD, "%zu", i);
	cr_assert(READ("\x92" TS "\x92\x91" REMOVED "\x92" REMOVED "\xc0", &got));
	cr_assert_eq(got.e[0].kind, KV_EVENT_BAD);
	cr_assert_eq(got.e[1].kind, KV_EVENT_BAD);
}

#define REFUSED_WHEN_CUT(text)                                                                     \
	for (size_t n = 0; n < sizeof(text) - 1; n++)                                              \
	cr_assert_not(read_copy(text, n, &got), "%zu bytes", n)

Test(kv_events, what_is_no_batch_is_refused)
{
	struct got got;

	REFUSED_WHEN_CUT(OLD);
	REFUSED_WHEN_CUT(BYTES);
	REFUSED_WHEN_CUT(MAPS);
	cr_assert_not(READ(OLD "\xc0", &got));
	cr_assert_not(READ("\xc0", &got));
	cr_assert_not(READ("\x91\x01", &got));         /* no events */
	cr_assert_not(READ("\x92\x01\x80", &got));     /* not a list */
	cr_assert_not(READ("\x92\x01\x91\xc1", &got)); /* no msgpack */
	/* a count is not believed before so many bytes are there */
	cr_assert_not(READ("\x92\x01\xdd\xff\xff\xff\xff\x90", &got));
	cr_assert_eq(got.n, 0);
	cr_assert_not(READ("\x92\x01\x91\x95" STORED "\xdd\x00\x10\x00\x00\x01\xc0\x90\x10", &got));
	cr_assert_eq(got.n, 0);
	/* of two lists the first counts, and the other is passed */
	cr_assert(READ("\x82\xa6"
		       "events\x91\x91" CLEARED "\xa6"
		       "events\x92\x91" CLEARED "\x91" CLEARED,
		&got));
	cr_assert_eq(got.n, 1);
}

Test(kv_events, number_of_a_message)
{
	uint64_t n;

	cr_assert(kv_events_number("\x00\x00\x00\x00\x00\x01\x02\x03", 8, &n));
	cr_assert_eq(n, 0x010203);
	cr_assert(kv_events_number("\xff\xff\xff\xff\xff\xff\xff\xff", 8, &n));
	cr_assert_eq(n, KV_EVENTS_END);
	cr_assert_not(kv_events_number("\x00\x00\x00\x00\x00\x01\x02", 7, &n));
	cr_assert_not(kv_events_number("\x00\x00\x00\x00\x00\x01\x02\x03\x04", 9, &n));
}

/* --- what blocks are made of --- */

static uint64_t
next_hash(struct kv_list *l)
{
	uint64_t hash = 0;

	cr_assert(kv_events_hash(l, &hash));
	return hash;
}

/* Reads one event from memory that stays, and frees it afterwards with whatever looks at it. */
static void
with_event(const char *msg, size_t n, void (*look)(struct kv_event *e))
{
	char *copy = malloc(n);
	struct got got = {.n = 0};

	memcpy(copy, msg, n);
	cr_assert(kv_events_read(copy, n, &got.batch, take, &got));
	cr_assert_eq(got.n, 1);
	look(&got.e[0]);
	free(copy);
}
#define WITH_EVENT(text, look) with_event(text, sizeof(text) - 1, look)

static void
four_ids(struct kv_event *e)
{
	const uint32_t want[] = {1, 200, 4096, 200000};
	uint32_t id;

	cr_expect_eq(e->ids.n, 4);
	for (int i = 0; i < 4; i++) {
		cr_assert(kv_events_id(&e->ids, &id));
		cr_expect_eq(id, want[i]);
	}
	cr_expect_not(kv_events_id(&e->ids, &id));
	cr_expect_eq(e->hashes.n, e->blocks);
}

static void
look_plain(struct kv_event *e)
{
	four_ids(e);
	cr_expect(e->first);
	cr_expect_not(e->adapter);
	cr_expect_eq(e->nextra, 0);
	cr_expect_eq(next_hash(&e->hashes), UINT64_C(1) << 63);
	cr_expect_neq(next_hash(&e->hashes), UINT64_C(1) << 63, "a negative one");
	cr_expect_not(kv_events_hash(&e->hashes, &(uint64_t){0}));
}

static void
look_adapter(struct kv_event *e)
{
	four_ids(e);
	cr_expect_not(e->first);
	cr_expect_eq(e->parent, next_hash(&e->hashes), "the same bytes");
	cr_expect(e->adapter);
	cr_expect(msgpack_is(&e->adapter_name, "sql"));
	cr_expect_eq(e->nextra, 2);
	cr_expect(msgpack_is(&e->extra[1], "salt"));
}

static void
look_more_keys(struct kv_event *e)
{
	cr_expect_eq(e->nextra, KV_EVENT_EXTRA_MAX + 1);
	cr_expect(e->adapter, "a number alone");
	cr_expect_null(e->adapter_name.p);
	cr_expect_not(kv_events_id(&e->ids, &(uint32_t){0}), "a text");
	cr_expect_not(kv_events_hash(&e->hashes, &(uint64_t){0}), "nil");
}

static void
look_whole_list(struct kv_event *e)
{
	cr_expect_eq(e->nextra, 0, "the first block has none");
	cr_expect_not(kv_events_id(&e->ids, &(uint32_t){0}), "more than 32 bits");
	cr_expect_not(e->first);
	cr_expect_neq(e->parent, 0, "-1 is a hash");
}

Test(kv_events, ids_and_hashes_of_blocks)
{
	WITH_EVENT("\x92" TS "\x91\x96" STORED "\x92\xcf\x80\x00\x00\x00\x00\x00\x00\x00"
		   "\xd3\xff\xff\xff\xff\xff\xff\xff\xfe\xc0" FOUR_IDS "\x02\xc0",
		look_plain);
	WITH_EVENT("\x92" TS "\x91\x99" STORED "\x91" HASH HASH FOUR_IDS "\x04\x07" GPU "\xa3sql"
		   "\x91\x92\xa3sql\xa4salt",
		look_adapter);
	WITH_EVENT("\x92" TS "\x91\x88\xa4type" STORED "\xac"
		   "block_hashes\x91\xc0\xb1"
		   "parent_block_hash\xc0\xa9"
		   "token_ids\x91\xa1x\xaa"
		   "block_size\x01\xa7lora_id\x07\xaa"
		   "extra_keys\x91\x93\xa1x\xa1y\xa1z\xa9group_idx\x00",
		look_more_keys);
	WITH_EVENT("\x92" TS "\x91\x99" STORED
		   "\x91\x01\xff\x91\xcf\x00\x00\x00\x01\x00\x00\x00\x00"
		   "\x01\xc0\xc0\xc0\x92\xc0\x91\x07",
		look_whole_list);
}
