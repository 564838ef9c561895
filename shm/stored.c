#include "shm/stored.h"

#include "shm/core/atomic.h"
#include "shm/core/seg.h"
#include "shm/core/suspect.h"

void
stored_publish(struct seg *seg, uint32_t me, enum stored_kind kind, uint64_t bytes, uint64_t step,
	uint64_t *shown)
{
	*shown = (bytes + step - 1) / step * step;
	(void)shm_xchg(&seg->procs[me].stored[kind], *shown);
}

void
stored_restore(struct seg *seg, uint32_t me, const struct stored *held, uint64_t step,
	struct stored *shown)
{
	for (enum stored_kind kind = 0; kind < STORED_N; kind++) {
		const uint64_t *word = &seg->procs[me].stored[kind];

		if (suspect(SUSPECT_PROCESSES, me, shm_load(word) != shown->bytes[kind]) ||
			held->bytes[kind] + step <= shown->bytes[kind])
			stored_publish(seg, me, kind, held->bytes[kind], step, &shown->bytes[kind]);
	}
}

struct stored
stored_of(const struct seg *seg, uint32_t slot)
{
	struct stored stored;

	for (enum stored_kind kind = 0; kind < STORED_N; kind++) {
		stored.bytes[kind] = shm_load(&seg->procs[slot].stored[kind]);
		if (suspect(SUSPECT_PROCESSES, slot, stored.bytes[kind] >= STORED_TOO_MUCH))
			stored.bytes[kind] = 0;
	}
	return stored;
}

/* Most workers publish nothing at most times, and most slots have no worker. */
static bool
holds_none(const struct proc_slot *p)
{
	return (shm_load(&p->stored[STORED_BUFFERED]) | shm_load(&p->stored[STORED_DECLARED])) == 0;
}

struct stored
stored_others(const struct seg *seg, uint32_t me)
{
	const struct proc_slot *procs = seg->procs;
	const uint32_t n = SLOT_WORKERS(seg);
	struct stored sum = {{0}};

	for (uint32_t i = 0; i < n; i++) {
		struct stored stored;

		if (holds_none(&procs[i]) || i == me || proc_slot_state(seg, i) == PROC_EMPTY)
			continue;
		stored = stored_of(seg, i);
		for (enum stored_kind kind = 0; kind < STORED_N; kind++)
			sum.bytes[kind] += stored.bytes[kind];
	}
	return sum;
}
