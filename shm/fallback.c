#include "shm/fallback.h"

#include "shm/core/atomic.h"
#include "shm/core/seg.h"

#define AHEAD_MOST_US (FALLBACK_AHEAD_US + FALLBACK_MOST_US)
#define CLOCKS_US UINT64_C(1000000) /* a worker may have read its clock that much earlier */

/* How far the word is ahead; 0 if the budget is not spent, or if no worker can have written the word. */
static uint64_t
ahead_us(uint64_t word, uint64_t now_us)
{
	return word > now_us && word - now_us <= AHEAD_MOST_US + CLOCKS_US ? word - now_us : 0;
}

uint64_t
fallback_wait_us(const struct seg *seg, uint32_t pool, uint64_t now_us)
{
	const uint64_t ahead = ahead_us(shm_load(&seg->fallbacks[pool].used_until_us), now_us);

	return ahead <= FALLBACK_AHEAD_US ? 0 : ahead - FALLBACK_AHEAD_US;
}

void
fallback_take(struct seg *seg, uint32_t pool, uint32_t tokens, uint64_t each_s, uint64_t now_us)
{
	const uint64_t cost = tokens * UINT64_C(1000000) / each_s;
	uint64_t *word = &seg->fallbacks[pool].used_until_us;
	uint64_t seen = shm_load(word), old;

	do {
		uint64_t ahead = ahead_us(seen, now_us) + cost;

		if (ahead >
			AHEAD_MOST_US) /* one long prompt, or several workers at the same moment */
			ahead = AHEAD_MOST_US;
		old = seen;
		seen = shm_cas(word, old, now_us + ahead);
	} while (seen != old);
}
