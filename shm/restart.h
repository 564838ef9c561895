/*
 * The lives of an engine: one word per endpoint counts them.  An engine that restarts begins a new life, in which
 * nothing holds that was known of the former one.
 *
 *	life:63 | doubt:1
 *
 * A worker that meets a sign of a restart (a connection refused, an answer broken off) sets `doubt`.  The master takes
 * it, looks at the engine at once, and counts a new life if the engine has restarted.  A worker's sign names the life
 * that its exchange began in, so signs of a former life put no later one in doubt.
 *
 * vLLM names itself in its KV parameters, by an id that each process draws anew.  A second word, in the endpoint's
 * tally, knows the ids of one life by a bit of their hash:
 *
 *	life:32 | ids:32
 *
 * An id whose bit is not set is such a sign, too, but no proof: each data-parallel rank has an id of its own, and so
 * has each replica behind one address.  In each life an id is the sign once, and 1 of 32 ids is taken for a known one.
 *
 * Process: workers; the functions under "master" are the master's.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/atomic.h"
#include "shm/core/seg.h"

#define RESTART_DOUBT UINT64_C(1)
#define RESTART_LIFE_AT 1

/* The number of the engine's present life. */
static inline uint64_t
restart_life(const struct seg *seg, uint32_t ep)
{
	return shm_load(&seg->eps[ep].restarts) >> RESTART_LIFE_AT;
}

/* An exchange that began in `life` has met a sign of a restart.  Returns true if the caller must wake the
 * master; false: the master knows, or the engine has begun another life. */
bool restart_doubt(struct seg *seg, uint32_t ep, uint64_t life);

/* An answer of an exchange that began in `life` names that id (a hash).  Returns true if the answers of that life have
 * named others only. */
bool restart_named(struct seg *seg, uint32_t ep, uint64_t life, uint64_t id);

/* --- master */

/* Takes the workers' sign.  Returns true if there was one. */
bool restart_take(struct seg *seg, uint32_t ep);
/* The engine begins its next life; the former one's sign ends.  Requests must not choose the endpoint now. */
void restart_begin(struct seg *seg, uint32_t ep);
