/*
 * There is one writer, so a sequence counter is enough: seq is odd while the words change.  Children end
 * with the master, so no reader finds seq odd for ever.
 */
#include "shm/settings.h"

#include <assert.h>
#include <string.h>

#include "shm/base/conf.h"

#define WORDS (sizeof(struct conf_live) / sizeof(uint64_t))

static_assert(sizeof(struct conf_live) % sizeof(uint64_t) == 0, "copied word by word");
static_assert(WORDS <= SETTINGS_WORDS, "they fit");

void
settings_put(struct seg *seg, const struct conf_live *live)
{
	struct settings *s = seg->settings;
	const uint64_t seq = shm_load(&s->seq);
	uint64_t words[WORDS];

	memcpy(words, live, sizeof(words));
	shm_store(&s->seq, seq + 1);
	/* odd before the first change.  Pairs with settings_get()'s barrier. */
	shm_mb();
	for (size_t i = 0; i < WORDS; i++)
		shm_store(&s->word[i], words[i]);
	/* Even after the last change.  Pairs with settings_seq(). */
	shm_store_release(&s->seq, seq + 2);
}

bool
settings_get(const struct seg *seg, struct conf_live *live, uint64_t *seq)
{
	const struct settings *s = seg->settings;
	const uint64_t now = settings_seq(seg);
	uint64_t words[WORDS];

	if (now == *seq || now % 2 != 0)
		return false;
	for (size_t i = 0; i < WORDS; i++)
		words[i] = shm_load(&s->word[i]);
	shm_mb(); /* the words before the second read of seq.  Pairs with settings_put()'s barrier. */
	if (shm_load(&s->seq) != now)
		return false;
	memcpy(live, words, sizeof(words));
	*seq = now;
	return true;
}
