#include "shm/restart.h"

bool
restart_doubt(struct seg *seg, uint32_t ep, uint64_t life)
{
	const uint64_t seen = life << RESTART_LIFE_AT;

	/* fails if the sign is set already, or if the life is over */
	return shm_cas(&seg->eps[ep].restarts, seen, seen | RESTART_DOUBT) == seen;
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
}
