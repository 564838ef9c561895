/*
 * Bytes of clients and engines that a worker stores in memory: bodies, half heads, kept
 * answers.  Code that allocates or frees such bytes calls buffered_add().  All workers see each
 * other's bytes (shm/stored.h); worker/request/limit.c compares the sum with limits.max_buffered.
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

#include "shm/stored.h"
#include "worker/base/core.h"

static inline void
buffered_show(struct worker *w, enum stored_kind kind)
{
	const uint64_t bytes = w->stored.bytes[kind],
		       step = stored_step(w->conf->live.max_buffered);

	if (stored_is_stale(bytes, step, w->shown.bytes[kind]))
		stored_publish(w->seg, w->slot, kind, bytes, step, &w->shown.bytes[kind]);
}

/* Adds `bytes` to the stored bytes; a negative number subtracts. */
static inline void
buffered_add(struct worker *w, int64_t bytes)
{
	w->stored.bytes[STORED_BUFFERED] += (uint64_t)bytes;
	worker_gauge(w, G_BUFFERED, bytes);
	buffered_show(w, STORED_BUFFERED);
}

/* The same of bytes that large bodies are to send. */
static inline void
buffered_declare(struct worker *w, int64_t bytes)
{
	w->stored.bytes[STORED_DECLARED] += (uint64_t)bytes;
	buffered_show(w, STORED_DECLARED);
}

/* What all workers store: exact of this one, rounded up of the others. */
static inline uint64_t
buffered_by_all(const struct worker *w)
{
	return w->stored.bytes[STORED_BUFFERED] +
	       stored_others(w->seg, w->slot).bytes[STORED_BUFFERED];
}
