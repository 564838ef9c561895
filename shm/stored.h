/*
 * Bytes of clients and engines that all workers together hold in memory: limits.max_buffered
 * bounds their sum.
 *
 * Each worker publishes its own two sums in its process slot, and adds those of the others when it
 * needs room.  The master zeroes the words of a worker that has ended.
 *
 * A published number is rounded up, and follows a lower one only from afar: the requests of small
 * bodies change no line that other workers read.  It is never below what the worker holds.  So
 * a worker that publishes first, and adds up then, cannot exceed the bound together with another
 * worker that does the same: publishing is a full barrier, and at least one of the two sees the other.
 *
 * Process: worker; the words are in struct proc_slot.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct seg;

/* A larger number is none. */
#define STORED_TOO_MUCH (UINT64_C(1) << 48)

/* Bytes that are here; bytes that large bodies have declared and not sent yet. */
enum stored_kind { STORED_BUFFERED, STORED_DECLARED, STORED_N };

struct stored {
	uint64_t bytes[STORED_N];
};

/* Published numbers are multiples of it: of a bound `max`. */
static inline uint64_t
stored_step(uint64_t max)
{
	const uint64_t step = max >> 12, most = UINT64_C(256) << 10;

	return step < most ? step : most;
}

/* Worker `me` holds `bytes`; *shown is what it has published. */
void stored_publish(struct seg *seg, uint32_t me, enum stored_kind kind, uint64_t bytes,
	uint64_t step, uint64_t *shown);

/* Returns true if it has to be published, since `shown` is too low, or far too high. */
static inline bool
stored_is_stale(uint64_t bytes, uint64_t step, uint64_t shown)
{
	return bytes > shown || bytes + 2 * step < shown;
}

/* From time to time: its words show what it holds, whatever has been stored there. */
void stored_restore(struct seg *seg, uint32_t me, const struct stored *held, uint64_t step,
	struct stored *shown);
/* What a worker has published. */
struct stored stored_of(const struct seg *seg, uint32_t slot);
/* The sum of all workers but `me`. */
struct stored stored_others(const struct seg *seg, uint32_t me);
