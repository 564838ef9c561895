/*
 * Sources have one writer, so a sequence counter is enough: seq is odd while a source changes.  Children end with the
 * master, so no reader finds seq odd for ever.  The counts are words of their own: no reader needs two of one moment.
 */
#include "shm/kv_events.h"

#include <assert.h>
#include <string.h>

#include "shm/core/atomic.h"
#include "shm/load.h"

#define SOURCE_WORDS (sizeof(struct kv_source) / sizeof(uint64_t))
#define COUNT_WORDS (sizeof(struct kv_counts) / sizeof(uint64_t))

static_assert(sizeof(struct kv_source) == KV_SOURCE_WORDS * sizeof(uint64_t), "word by word");
static_assert(sizeof(struct kv_counts) <= KV_COUNT_WORDS * sizeof(uint64_t), "they fit");

void
kv_source_put(struct seg *seg, uint32_t ep, const struct kv_source *s)
{
	struct kv_source_words *w = &seg->kv_sources[ep];
	const uint64_t seq = shm_load(&w->seq);
	uint64_t words[SOURCE_WORDS];

	memcpy(words, s, sizeof(words));
	if (memcmp(words, w->word, sizeof(words)) == 0)
		return;
	shm_store(&w->seq, seq + 1);
	/* odd before the first change.  Pairs with kv_source_get()'s barrier. */
	shm_mb();
	for (size_t i = 0; i < SOURCE_WORDS; i++)
		shm_store(&w->word[i], words[i]);
	/* Even after the last change.  Pairs with kv_source_get()'s first read of seq. */
	shm_store_release(&w->seq, seq + 2);
}

bool
kv_source_get(const struct seg *seg, uint32_t ep, uint64_t *seq, struct kv_source *ret)
{
	const struct kv_source_words *w = &seg->kv_sources[ep];
	/* Pairs with kv_source_put()'s release. */
	const uint64_t now = shm_load_acquire(&w->seq);
	uint64_t words[SOURCE_WORDS];

	if (now == *seq || now % 2 != 0)
		return false;
	for (size_t i = 0; i < SOURCE_WORDS; i++)
		words[i] = shm_load(&w->word[i]);
	shm_mb(); /* the words before the second read of seq.  Pairs with kv_source_put()'s barrier. */
	if (shm_load(&w->seq) != now)
		return false;
	memcpy(ret, words, sizeof(words));
	*seq = now;
	return true;
}

void
kv_counts_put(struct seg *seg, uint32_t ep, const struct kv_counts *c)
{
	struct kv_count_words *w = &seg->kv_counts[ep];
	uint64_t words[COUNT_WORDS];

	memcpy(words, c, sizeof(words));
	for (size_t i = 0; i < COUNT_WORDS; i++)
		shm_store(&w->word[i], words[i]);
}

bool
kv_counts_get(const struct seg *seg, uint32_t ep, struct kv_counts *ret)
{
	const struct kv_count_words *w = &seg->kv_counts[ep];
	uint64_t words[COUNT_WORDS] = {0};

	for (size_t i = 0; i < COUNT_WORDS; i++)
		words[i] = shm_load(&w->word[i]);
	memcpy(ret, words, sizeof(words));
	return ret->tag == ep_tag(seg, ep) && ret->messages > 0;
}
