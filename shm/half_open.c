#include "shm/half_open.h"

#include "shm/core/atomic.h"
#include "shm/core/seg.h"

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

static bool
reap_word(uint64_t *word, uint32_t dead)
{
	const uint64_t seen = shm_load(word);

	/* One CAS is enough: no process can give a trial to the dead worker again. */
	return half_open_out(seen) && half_open_worker(seen) == dead + 1 &&
	       shm_cas(word, seen, due(seen)) == seen;
}

uint32_t
half_open_reap(struct seg *seg, uint32_t dead)
{
	uint32_t n = 0;

	for (uint32_t ep = 0; ep < seg->hdr->max_endpoints; ep++) {
		n += reap_word(&seg->eps[ep].eject, dead);
		n += reap_word(&seg->eps[ep].busy, dead);
	}
	return n;
}
