/*
 * The live settings in force, which running workers follow without a new generation.
 *
 * Writer: the master.  Readers: all processes, each into a copy of its own.  Lock-free: a reader never waits.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/atomic.h"
#include "shm/core/seg.h"

struct conf_live;

/* Master: these are in force from now on. */
void settings_put(struct seg *seg, const struct conf_live *live);

/* Of the settings in force; 0: none were put yet.  Pairs with settings_put()'s last store. */
static inline uint64_t
settings_seq(const struct seg *in)
{
	return shm_load_acquire(&in->settings->seq);
}

/*
 * Copies the settings in force, if they are not those of *seq, and sets *seq.  False: *live stays as it
 * was, since it is up to date, or the settings change just now.
 */
bool settings_get(const struct seg *seg, struct conf_live *live, uint64_t *seq);
