#include "shm/half_open.h"

#include "shm/core/atomic.h"

bool
half_open_try(uint64_t *word, uint32_t me, uint64_t now_ms, uint64_t most_ms, uint64_t *ret_trial)
{
	const uint64_t seen = shm_load(word);
	uint64_t trial;

	*ret_trial = 0;
	if (!half_open_out(seen))
		return true;
	if (half_open_shut(seen, now_ms))
		return false;
	trial = half_open_make(seen, me + 1, now_ms + most_ms);
	if (shm_cas(word, seen, trial) != seen)
		return false;
	*ret_trial = trial;
	return true;
}

/* The same endpoint, its next trial due. */
static uint64_t
due(uint64_t word)
{
	return half_open_make(word, 0, 0);
}

bool
half_open_none(uint64_t *word, uint64_t trial)
{
	return shm_cas(word, trial, due(trial)) == trial;
}

bool
half_open_reap(uint64_t *word, uint32_t dead)
{
	const uint64_t seen = shm_load(word);

	/* no second look: nobody can give the trial to the dead worker again */
	return half_open_out(seen) && half_open_worker(seen) == dead + 1 &&
	       shm_cas(word, seen, due(seen)) == seen;
}
