/*
 * What a worker alone knows for sure: a private copy of the words that it alone writes.  The words in the shared
 * memory are for the others: for the sums, and for the master if the worker dies.  If one of them is not what the
 * worker has written, another process has stored there, and the worker writes the word again.
 *
 * Process: worker.  seg->own is NULL in all other processes: they have no rows.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/seg.h"
#include "shm/load_word.h"

struct own {
	uint32_t me;
	uint64_t seq;     /* of its last operation */
	struct row *rows; /* [max_endpoints] */
	uint32_t *quotas; /* [max_quotas] */
};

/* The worker of this slot begins: its rows are empty, whatever stands there. */
void own_begin(struct seg *seg, uint32_t me);
void own_end(struct seg *seg);
/* Between operations and outside of read sections: writes the words of the worker again that differ. */
void own_restore(struct seg *seg);

/* The worker's share of the word as it knows it. */
static inline uint32_t *
own_share(const struct seg *seg, uint32_t me, uint32_t ep, enum which which)
{
	struct own *own = seg->own;

	if (own == NULL)
		return share_of(seg, me, ep, which);
	if (which == QUOTA)
		return &own->quotas[ep];
	return which == TOKENS ? &own->rows[ep].tokens : &own->rows[ep].held;
}

static inline struct row *
own_row(const struct seg *seg, uint32_t me, uint32_t ep)
{
	return seg->own != NULL ? &seg->own->rows[ep] : seg_row(seg, me, ep);
}
