/*
 * A ring of records between two processes: one writer, one reader.  The bytes follow the head (shm/core/layout.h).
 *
 * Positions count bytes since the start and never go back.  A record is published by one store of `written` after its
 * bytes, so a writer that is killed leaves at most a record that no process sees.  The reader stores `read` when it is done
 * with records: one that is killed leaves records that its successor reads again.  No process waits: a record without room
 * is dropped by the writer.  The reader trusts no byte: it copies a record, and then checks the copy.
 *
 * Process: as the users say (shm/spans.h, shm/siblings.h).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/core/layout.h"

/* `size`: the ring's bytes.  False: there is no room. */
bool ring_put(struct byte_ring *ring, uint32_t size, const void *record, uint32_t bytes);

/* Where a new reader begins. */
uint64_t ring_begin(const struct byte_ring *ring);
/* The end of the last record; what is before it is whole. */
uint64_t ring_end(const struct byte_ring *ring);
/* Copies bytes at a position, over the ring's end if need be. */
void ring_copy(const struct byte_ring *ring, uint32_t size, uint64_t at, void *to, size_t n);
/* The records before `at` are done with: their room is the writer's again. */
void ring_done(struct byte_ring *ring, uint64_t at);
