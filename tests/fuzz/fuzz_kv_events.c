/*
 * proto/kv_events: the input is the third frame of a message.
 *
 * Held against it: no event tells of more blocks than the message has bytes, nor of blocks of an absurd size; and
 * reading twice gives the same.  What an event lists is read to its end.
 */
#include "proto/wire/kv_events.h"

#include "tests/fuzz/check.h"

struct sum {
	size_t size;
	uint64_t events, blocks, tokens, kinds;
};

static void
take(const struct kv_event *e, void *arg)
{
	struct sum *s = arg;
	uint64_t hash;
	uint32_t id;

	CHECK(e->kind <= KV_EVENT_BAD);
	CHECK(e->blocks <= s->size);
	if (e->kind == KV_EVENT_STORED)
		CHECK(e->block_tokens > 0 && e->block_tokens <= KV_EVENTS_BLOCK_MAX);
	if (e->kind == KV_EVENT_OTHER)
		CHECK(!e->counts);
	for (struct kv_list ids = e->ids; ids.n > 0;)
		if (kv_events_id(&ids, &id))
			s->kinds += id;
	for (struct kv_list hashes = e->hashes; hashes.n > 0;)
		if (kv_events_hash(&hashes, &hash))
			s->kinds += hash;
	CHECK(e->nextra <= KV_EVENT_EXTRA_MAX + 1);
	for (unsigned i = 0; i < e->nextra && i < KV_EVENT_EXTRA_MAX; i++)
		if (e->nextra <= KV_EVENT_EXTRA_MAX)
			s->kinds += e->extra[i].n > 0 ? (uint64_t)e->extra[i].p[0] : 0;
	s->events++;
	s->blocks += e->blocks;
	s->tokens += e->blocks * e->block_tokens;
	s->kinds = s->kinds * 5 + (uint64_t)e->kind;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *copy = exact_copy(data, size);
	struct sum first = {.size = size}, second = {.size = size};
	struct kv_batch b;
	const bool ok = kv_events_read(copy, size, &b, take, &first);

	CHECK(ok == kv_events_read(copy, size, &b, take, &second));
	CHECK(memcmp(&first, &second, sizeof(first)) == 0);
	CHECK(first.events <= size && first.blocks <= size);
	free(copy);
	return 0;
}
