/*
 * Sources and senders have one writer, so a sequence counter is enough: seq is odd while one changes.  Children end with the
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
static_assert(sizeof(struct kv_sender) == KV_SENDER_WORDS * sizeof(uint64_t), "word by word");
static_assert(KV_SENDER_WORDS <= KV_SOURCE_WORDS, "words_put() has room");
static_assert(sizeof(struct kv_counts) <= KV_COUNT_WORDS * sizeof(uint64_t), "they fit");

/* Words that are as they were stay, with their seq. */
static void
words_put(uint64_t *seq, uint64_t *to, const void *from, size_t n)
{
	const uint64_t was = shm_load(seq);
	uint64_t words[SOURCE_WORDS];

	memcpy(words, from, n * sizeof(*words));
	if (memcmp(words, to, n * sizeof(*words)) == 0)
		return;
	shm_store(seq, was + 1);
	/* odd before the first change.  Pairs with words_get()'s barrier. */
	shm_mb();
	for (size_t i = 0; i < n; i++)
		shm_store(&to[i], words[i]);
	/* Even after the last change.  Pairs with words_get()'s first read of seq. */
	shm_store_release(seq, was + 2);
}

static bool
words_get(const uint64_t *seq, const uint64_t *from, size_t n, uint64_t *known, void *ret)
{
	/* Pairs with words_put()'s release. */
	const uint64_t now = shm_load_acquire(seq);
	uint64_t words[SOURCE_WORDS];

	if (now == *known || now % 2 != 0)
		return false;
	for (size_t i = 0; i < n; i++)
		words[i] = shm_load(&from[i]);
	shm_mb(); /* the words before the second read of seq.  Pairs with words_put()'s barrier. */
	if (shm_load(seq) != now)
		return false;
	memcpy(ret, words, n * sizeof(*words));
	*known = now;
	return true;
}

void
kv_source_put(struct seg *seg, uint32_t ep, const struct kv_source *s)
{
	struct kv_source_words *w = &seg->kv_sources[ep];

	words_put(&w->seq, w->word, s, SOURCE_WORDS);
}

bool
kv_source_get(const struct seg *seg, uint32_t ep, uint64_t *seq, struct kv_source *ret)
{
	const struct kv_source_words *w = &seg->kv_sources[ep];

	return words_get(&w->seq, w->word, SOURCE_WORDS, seq, ret);
}

void
kv_sender_put(struct seg *seg, uint32_t ep, const struct kv_sender *s)
{
	struct kv_source_words *w = &seg->kv_sources[ep];

	words_put(&w->sender_seq, w->sender, s, KV_SENDER_WORDS);
}

bool
kv_sender_get(const struct seg *seg, uint32_t ep, uint64_t *seq, struct kv_sender *ret)
{
	const struct kv_source_words *w = &seg->kv_sources[ep];

	return words_get(&w->sender_seq, w->sender, KV_SENDER_WORDS, seq, ret);
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
