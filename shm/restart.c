#include "shm/restart.h"

#include "shm/prefix.h"

/* restart.h draws the word. */
#define IDS_LIFE_AT 32
#define IDS 32

bool
restart_doubt(struct seg *seg, uint32_t ep, uint64_t life)
{
	const uint64_t seen = life << RESTART_LIFE_AT;

	/* fails if the sign is set already, or if the life is over */
	return shm_cas(&seg->eps[ep].restarts, seen, seen | RESTART_DOUBT) == seen;
}

bool
restart_named(struct seg *seg, uint32_t ep, uint64_t life, uint64_t id)
{
	const uint64_t none = life << IDS_LIFE_AT, bit = UINT64_C(1) << id % IDS;
	uint64_t *word = &seg->tallies[ep].ids, seen = shm_load(word), old, known;

	do {
		old = seen;
		known = old >> IDS_LIFE_AT == none >> IDS_LIFE_AT ? old : none;
		if ((known & bit) != 0)
			return false;
		seen = shm_cas(word, old, known | bit);
	} while (seen != old);
	return known != none;
}

bool
restart_take(struct seg *seg, uint32_t ep)
{
	const uint64_t seen = shm_load(&seg->eps[ep].restarts);

	/* With the sign set no worker changes the word, and lives are the master's own. */
	return (seen & RESTART_DOUBT) != 0 &&
	       shm_cas(&seg->eps[ep].restarts, seen, seen & ~RESTART_DOUBT) == seen;
}

void
restart_begin(struct seg *seg, uint32_t ep)
{
	const uint64_t next = restart_life(seg, ep) + 1;

	(void)shm_xchg(&seg->eps[ep].restarts, next << RESTART_LIFE_AT);
	prefix_void(seg, ep); /* its cache is empty */
}
