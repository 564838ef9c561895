/*
 * Repairs of words that check.c has found to be wrong for a while.  A word that a living process may change at this
 * moment is changed by CAS from the value that was found wrong, so a repair that comes too late changes nothing.  Words
 * of a slot without a process are the master's.
 *
 * Process: master.
 */
#pragma once
#include <stdint.h>

#include "shm/load_word.h"

/* The slot has no process: nothing of one is left. */
void mend_slot(struct seg *seg, uint32_t slot);
void mend_row(struct seg *seg, uint32_t slot, uint32_t ep);
/* The word read `seen` when the shares of all workers added up to `sum`. */
void mend_sum(struct seg *seg, uint32_t i, enum which which, uint64_t seen, uint32_t sum);
/* The word read `seen`: it names no operation. */
void mend_name(struct seg *seg, uint32_t i, enum which which, uint64_t seen);
/* acked read `seen` when operation `seq` was the worker's last.  It becomes the one before: the last may be open, and
 * acked would say that it has happened. */
void mend_acked(struct seg *seg, uint32_t worker, uint64_t seen, uint64_t seq);
/* A client's second entry: the entry is free as soon as it counts no request. */
void mend_client(struct seg *seg, uint32_t i);
/* *word becomes 0, whose meaning is that nothing is known, if it is still `seen`. */
void mend_word(uint64_t *word, uint64_t seen);
