#include "shm/mend.h"

#include <string.h>

#include "shm/core/atomic.h"
#include "shm/core/rcu.h"
#include "shm/core/seg.h"
#include "shm/metrics.h"
#include "shm/quota_word.h"

void
mend_slot(struct seg *seg, uint32_t slot)
{
	rcu_reap(seg, slot);
	shm_store(&seg->procs[slot].journal, 0);
	metric_reap(seg, slot);
	memset(seg->procs[slot].crash_note, 0, SHM_CRASH_NOTE);
	proc_slot_set(seg, slot, 0, PROC_EMPTY, 0);
}

void
mend_row(struct seg *seg, uint32_t slot, uint32_t ep)
{
	*seg_row(seg, slot, ep) = (struct row){0};
}

void
mend_sum(struct seg *seg, uint32_t i, enum which which, uint64_t seen, uint32_t sum)
{
	uint64_t to = word_make(sum, 0);

	if (which == QUOTA)
		to = quota_held_idle(quota_held_life(seen)) |
		     word_make(sum < QUOTA_HELD_MAX ? sum : QUOTA_HELD_MAX, 0);
	(void)word_swap(seg, word_of(seg, i, which), seen, to);
}

void
mend_name(struct seg *seg, uint32_t i, enum which which, uint64_t seen)
{
	(void)shm_cas(word_of(seg, i, which), seen, word_make(word_count(seen), 0));
}

void
mend_acked(struct seg *seg, uint32_t worker, uint64_t seen, uint64_t seq)
{
	(void)shm_cas(&seg->procs[worker].acked, seen, (seq - 1) & SEQ_MASK);
}

void
mend_client(struct seg *seg, uint32_t i)
{
	uint64_t *word = word_of(seg, i, QUOTA);
	const uint64_t seen = shm_load(word);

	if (quota_held_count(seen) == 0)
		(void)word_swap(seg, word, seen,
			quota_held_idle(quota_held_life(seen) & ~QUOTA_LIFE_BOUND));
}

void
mend_word(uint64_t *word, uint64_t seen)
{
	(void)shm_cas(word, seen, 0);
}
