/* Blocks of token ids that engines name, and the prompts that find them. */
#include "master/notifier/chains.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json/prompt.h"
#include "proto/wire/kv_events.h"
#include "shm/load.h"
#include "shm/prefix.h"
#include "tests/unit/shm/fixture.h"

#define BLOCK 16
#define UNIT (PREFIX_UNIT_IDS / BLOCK) /* blocks */
#define MOST 4000                      /* blocks of a prompt */
#define TEXT (16 * BLOCK * MOST)
#define MODEL "m"
#define LISTS_MAX 1000

static struct chains *chains;
static struct prefix_secret secret;
static struct prefix_found *found;
static uint32_t ids[BLOCK * MOST];
static void *lists[LISTS_MAX];
static size_t nlists;

static void
setup(void)
{
	const struct seg_sizes sizes = {.max_workers = 1,
		.max_endpoints = 4,
		.max_pools = 1,
		.flags_per_worker = 64,
		.prefix_buckets = 1 << 14};

	cr_assert_eq(seg_new(&sizes, SMALL_BUILD, &seg), 0);
	chains = chains_new(seg);
	prefix_secret_make(&secret, seg->hdr->prefix_seed);
	found = prefix_found_new(4);
	for (uint32_t ep = 0; ep < 4; ep++)
		ep_slot_begin(seg, ep);
	for (uint32_t i = 0; i < BLOCK * MOST; i++)
		ids[i] = i * 2654435761u >> 12;
}

static void
teardown(void)
{
	free(found);
	while (nlists > 0)
		free(lists[--nlists]);
	chains_free(&chains);
	seg_free(&seg);
}

TestSuite(chains, .init = setup, .fini = teardown);

static struct chains_engine
engine(uint32_t ep)
{
	return (struct chains_engine){.life = chains_life(chains),
		.ep = ep,
		.row = 1,
		.root = prefix_ids_model(&secret, MODEL, strlen(MODEL)),
		.block = BLOCK};
}

/* A list of msgpack's, until the test ends. */
static struct kv_list
list_of(uint64_t n)
{
	uint8_t *p = calloc(n + 1, 9);

	cr_assert_lt(nlists, LISTS_MAX);
	lists[nlists++] = p;

	return (struct kv_list){{p, p + 9 * n}, n};
}

static struct kv_list
hashes(const uint32_t *hash, uint64_t n)
{
	struct kv_list l = list_of(n);
	uint8_t *p = (uint8_t *)(uintptr_t)l.at.p;

	for (uint64_t i = 0; i < n; i++, p += 9) {
		p[0] = 0xcf;
		memcpy(p + 5, &hash[i], sizeof(hash[i]));
	}
	return l;
}

static struct kv_list
numbers(const uint32_t *v, uint64_t n)
{
	struct kv_list l = list_of(n);
	uint8_t *p = (uint8_t *)(uintptr_t)l.at.p;

	for (uint64_t i = 0; i < n; i++) {
		*p++ = 0xce;
		for (int k = 3; k >= 0; k--)
			*p++ = (uint8_t)(v[i] >> 8 * k);
	}
	l.at.end = p;
	return l;
}

/* The engine's name of the block from..from+1 of `ids`. */
static uint32_t
name(uint32_t from)
{
	return 1000 + from;
}

/* Blocks from..to-1 of `ids`, behind the one before them. */
static struct kv_event
blocks(uint32_t from, uint32_t to)
{
	uint32_t names[MOST];
	struct kv_event e = {.kind = KV_EVENT_STORED,
		.blocks = to - from,
		.block_tokens = BLOCK,
		.counts = true,
		.first = from == 0};
	struct kv_list parent;

	for (uint32_t i = from; i < to; i++)
		names[i - from] = name(i);
	e.hashes = hashes(names, to - from);
	e.ids = numbers(&ids[(size_t)from * BLOCK], (uint64_t)(to - from) * BLOCK);
	if (from > 0) {
		names[0] = name(from - 1);
		parent = hashes(names, 1);
		cr_assert(kv_events_hash(&parent, &e.parent));
	}
	return e;
}

static struct kv_event
without(uint32_t from, uint32_t to)
{
	struct kv_event e = blocks(from, to);

	e.kind = KV_EVENT_REMOVED;
	e.block_tokens = 0;
	return e;
}

static bool
take(struct chains_engine *e, struct kv_event event)
{
	return chains_take(chains, e, &event);
}

/* How many of the first n ids a prompt of them finds at the endpoint, with those members of the body beside it. */
static uint32_t
hit_with(uint32_t ep, uint32_t n, const char *model, const char *members, uint32_t block)
{
	char *body = malloc(TEXT);
	int at = sprintf(body, "{%s\"prompt\":", members);
	struct prefix_key key;
	struct splice doc;
	const char *why;
	size_t where;

	for (uint32_t i = 0; i < n; i++)
		at += sprintf(
			body + at, "%c%s%u", i == 0 ? '[' : ',', i % 3 == 0 ? " " : "", ids[i]);
	at += sprintf(body + at, "]}");
	cr_assert_eq(splice_scan(&doc, body, (size_t)at, &why, &where), 0);
	cr_assert(prompt_cut(&secret, &doc, SK_PROMPT, model, block, &key));
	prefix_look(seg, &key, 1, n, found);
	free(body);
	return prefix_has(found, ep) ? key.end[found->of[ep].cuts - 1] : 0;
}

static uint32_t
hit(uint32_t ep, uint32_t n)
{
	return hit_with(ep, n, MODEL, "", BLOCK);
}

Test(chains, a_prompt_finds_what_an_engine_has_stored)
{
	struct chains_engine e = engine(1);

	cr_expect(take(&e, blocks(0, 10)));
	cr_expect_eq(hit(1, 200), 8 * BLOCK, "whole units");
	cr_expect_eq(hit(1, 100), 4 * BLOCK);
	cr_expect_eq(hit(1, 63), 0);
	cr_expect_eq(hit(2, 200), 0, "another engine");
	ids[20]++;
	cr_expect_eq(hit(1, 200), 0, "other ids");
}

/* As an engine decodes. */
Test(chains, blocks_may_come_one_by_one)
{
	struct chains_engine e = engine(1);

	for (uint32_t i = 0; i < 100; i++)
		cr_expect(take(&e, blocks(i, i + 1)));
	cr_expect_eq(hit(1, 16 * PREFIX_UNIT_IDS), 16 * PREFIX_UNIT_IDS);
	cr_expect_eq(hit(1, 100 * BLOCK), 24 * PREFIX_UNIT_IDS, "16, 18, 20, 22, 24, 27");
}

Test(chains, long_prompts_are_cut_as_their_blocks_are)
{
	struct chains_engine e = engine(1);

	cr_expect(take(&e, blocks(0, MOST)));
	cr_expect_gt(hit(1, MOST * BLOCK), MOST * BLOCK * 8 / 9);
}

Test(chains, behind_a_gap_nothing_is_known)
{
	struct chains_engine e = engine(1);

	cr_expect(take(&e, blocks(0, 4)));
	cr_expect_not(take(&e, blocks(5, 9)));
	cr_expect_eq(hit(1, 200), 4 * BLOCK);
	cr_expect(take(&e, blocks(4, 5)), "it comes late");
	cr_expect(take(&e, blocks(5, 9)));
	cr_expect_eq(hit(1, 200), 8 * BLOCK);
}

Test(chains, what_is_removed_is_found_no_more)
{
	struct chains_engine e = engine(1), other = engine(2);

	cr_expect(take(&e, blocks(0, 12)));
	cr_expect(take(&other, blocks(0, 12)));
	(void)take(&e, without(9, 12));
	cr_expect_eq(hit(1, 200), 8 * BLOCK);
	(void)take(&e, without(3, 9));
	cr_expect_eq(hit(1, 200), 0);
	cr_expect_eq(hit(2, 200), 12 * BLOCK);
	cr_expect_not(take(&e, blocks(9, 12)), "their parent is gone");
	cr_expect(take(&e, blocks(3, 12)));
	cr_expect_eq(hit(1, 200), 12 * BLOCK, "stored again");
}

Test(chains, another_life_knows_no_block)
{
	struct chains_engine e = engine(1);

	cr_expect(take(&e, blocks(0, 4)));
	e.life = chains_life(chains);
	cr_expect_not(take(&e, blocks(4, 8)));
	cr_expect_eq(hit(1, 200), 4 * BLOCK, "words become void by prefix_void()");
}

/* An engine of blocks of another size than prompts are cut by is not found, and harms no other. */
Test(chains, another_block_size_is_another_prompt)
{
	struct chains_engine e = engine(1);
	struct kv_event large = blocks(0, 8);

	large.blocks = 4;
	large.block_tokens = 2 * BLOCK;
	e.block = 2 * BLOCK;
	cr_expect(take(&e, large));
	cr_expect_eq(hit(1, 200), 0);
	cr_expect_eq(hit_with(1, 200, MODEL, "", 2 * BLOCK), 8 * BLOCK);
	large = blocks(0, 24); /* 5 blocks of 76: a unit each */
	large.blocks = 5;
	large.block_tokens = 76;
	large.ids.n = 380;
	e = engine(2);
	cr_expect(take(&e, large));
	cr_expect_eq(hit_with(2, 384, MODEL, "", 76), 380);
}

Test(chains, adapter_and_salt_are_other_prompts)
{
	struct chains_engine e = engine(1);
	struct kv_event event = blocks(0, 8);

	event.adapter = true;
	cr_expect_not(take(&e, event), "an adapter without a name");
	event.adapter_name = (struct msgpack_text){"sql", 3};
	event.nextra = 1;
	event.extra[0] = event.adapter_name;
	cr_expect(take(&e, event));
	cr_expect_eq(hit(1, 200), 0);
	cr_expect_eq(hit_with(1, 200, "sql", "", BLOCK), 8 * BLOCK);
	cr_expect_eq(hit_with(1, 200, "sql", "\"cache_salt\":\"s\",", BLOCK), 0);
	event.nextra = 2;
	event.extra[1] = (struct msgpack_text){"s", 1};
	cr_expect(take(&e, event));
	cr_expect_eq(hit_with(1, 200, "sql", "\"cache_salt\":\"s\",", BLOCK), 8 * BLOCK);
	cr_expect_eq(hit_with(1, 200, MODEL, "\"cache_salt\":\"s\",", BLOCK), 0);
	event = blocks(0, 8);
	event.nextra = KV_EVENT_EXTRA_MAX + 1;
	cr_expect_not(take(&e, event), "an image");
	event.nextra = 2;
	event.extra[0] = event.extra[1] = (struct msgpack_text){"s", 1};
	cr_expect_not(take(&e, event), "two salts");
	cr_expect_eq(hit(1, 200), 0);
}

Test(chains, a_publisher_may_say_anything)
{
	struct chains_engine e = engine(1), honest = engine(2);
	struct kv_event event = blocks(0, 8);

	cr_expect(take(&honest, blocks(0, 8)));
	event.ids.n--;
	cr_expect_not(take(&e, event), "an id is missing");
	event = blocks(0, 8);
	event.block_tokens = PREFIX_BLOCK_MAX + 1;
	cr_expect_not(take(&e, event));
	event = blocks(0, 8);
	event.ids.at.end = event.ids.at.p + 3;
	(void)take(&e, event); /* as many ids as it says, but none of them whole */
	event = blocks(0, 8);
	event.counts = false;
	cr_expect_not(take(&e, event), "in another memory");
	cr_expect_eq(hit(1, 200), 0);
	event = blocks(4, 8); /* its own parent */
	event.hashes = hashes((uint32_t[]){name(3), name(3), name(3), name(3)}, 4);
	cr_expect(take(&e, blocks(0, 4)));
	for (int i = 0; i < 1000; i++)
		cr_expect(take(&e, event));
	(void)take(&e, without(0, 100));
	cr_expect_eq(hit(2, 200), 8 * BLOCK, "an honest one's words stay");
}

/* The table has a quarter of the index; the index itself stays as large as it was. */
static void
begin_with_one_set(void)
{
	const uint32_t n = seg->hdr->prefix_buckets;

	chains_free(&chains);
	seg->hdr->prefix_buckets = 4;
	cr_assert_eq(chains_bytes(seg), 64);
	chains = chains_new(seg);
	seg->hdr->prefix_buckets = n;
}

/* The oldest block is forgotten, and others are not. */
Test(chains, the_oldest_blocks_are_forgotten_first)
{
	struct chains_engine e;

	begin_with_one_set();
	e = engine(1);
	cr_expect(take(&e, blocks(0, 5)));
	cr_expect_not(e.stale);
	(void)take(&e, without(0, 1)); /* forgotten: no word is removed */
	cr_expect(e.stale);
	cr_expect(take(&e, blocks(3, 4)), "block 2 is among the last four");
	cr_expect_not(take(&e, blocks(1, 2)), "block 0 is not");
	cr_expect_eq(hit(1, 200), 4 * BLOCK);
}

/* A system prompt is stored once; what is stored behind it comes and goes. */
Test(chains, blocks_that_were_removed_make_room_for_others)
{
	struct chains_engine e;

	begin_with_one_set();
	e = engine(1);
	cr_expect(take(&e, blocks(0, 2)));
	for (int i = 0; i < 20; i++) {
		cr_expect(take(&e, blocks(2, 3)), "%d", i);
		(void)take(&e, without(2, 3));
	}
	cr_expect(take(&e, blocks(2, 4)));
	cr_expect_eq(hit(1, 200), 4 * BLOCK);
	(void)take(&e, without(0, 4));
	cr_expect_eq(hit(1, 200), 0, "all of it was known");
	cr_expect_not(e.stale);
}

Test(chains, a_parent_is_remembered_longer_than_its_children)
{
	struct chains_engine e;

	begin_with_one_set();
	e = engine(1);
	cr_expect(take(&e, blocks(0, 2)));
	for (uint32_t i = 0; i < 20; i++) {
		struct kv_event child = blocks(2, 3);

		child.hashes = hashes((uint32_t[]){name(100 + i)}, 1);
		cr_expect(take(&e, child), "%u", i);
	}
}

Test(chains, without_an_index_there_are_none)
{
	const uint32_t n = seg->hdr->prefix_buckets;

	seg->hdr->prefix_buckets = 0;
	cr_expect_null(chains_new(seg));
	cr_expect_eq(chains_bytes(seg), 0);
	seg->hdr->prefix_buckets = n;
	cr_expect_eq(chains_bytes(seg), (uint64_t)n * 64 / 4);
}

/* Whatever is stored meanwhile or is stale by the count is not. */
Test(chains, words_of_an_engine_whose_events_are_all_known_are_not_stale)
{
	struct chains_engine e = engine(1);

	prefix_capacity_set(seg, 1, 10000);
	cr_expect(take(&e, blocks(0, 8)));
	prefix_follow(seg, 1, 20000, PREFIX_HELD_UNKNOWN);
	cr_expect_eq(hit(1, 200), 0);
	prefix_follow_blocks(seg, 1, BLOCK, true);
	cr_expect_eq(hit(1, 200), 8 * BLOCK);
	prefix_follow_blocks(seg, 1, 2 * BLOCK, true);
	cr_expect_eq(hit(1, 200), 0, "of another size");
	prefix_follow_blocks(seg, 1, BLOCK, true);
	(void)take(&e, without(0, 8));
	cr_expect_eq(hit(1, 200), 0, "removed");
	cr_expect(take(&e, blocks(0, 8)));
	cr_expect_eq(hit(1, 200), 8 * BLOCK);
	prefix_void(seg, 1);
	cr_expect_eq(hit(1, 200), 0, "cleared");
}
