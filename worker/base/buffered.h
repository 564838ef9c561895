/*
 * Bytes of clients and engines that a worker holds in memory: bodies, half heads, kept answers.  Whoever
 * allocates or frees them says so here; worker/request/limit.c compares the sum with limits.max_buffered.
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

#include "worker/base/core.h"

/* So many bytes more are held, or (negative) fewer. */
static inline void
buffered_add(struct worker *w, int64_t bytes)
{
	w->buffered += (uint64_t)bytes;
	metric_gauge_add(w->slab, G_BUFFERED, bytes);
}
