/*
 * Bytes of clients and engines that a worker stores in memory: bodies, half heads, kept
 * answers.  Code that allocates or frees such bytes calls buffered_add();
 * worker/request/limit.c compares the sum with limits.max_buffered.
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

#include "worker/base/core.h"

/* Adds `bytes` to the stored bytes; a negative number subtracts. */
static inline void
buffered_add(struct worker *w, int64_t bytes)
{
	w->buffered += (uint64_t)bytes;
	worker_gauge(w, G_BUFFERED, bytes);
}
