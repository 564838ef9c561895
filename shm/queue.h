/*
 * Requests that wait for a place at an endpoint: a queue for each pool, across all workers and both
 * generations.  It says who may try next; places themselves are taken and given back by load.h alone, so
 * that nothing here can leak one.
 *
 * A waiter stands in a slot.  Whoever gives a place back, or makes one, calls queue_wake() and writes the
 * eventfd of the worker it names; that worker looks which of its waiters was called (queue_called()), lets
 * it stand (queue_stand()) and then tries the whole selection.  What follows from each outcome is drawn in
 * queue.c and modelled in queue.pml.
 *
 * Process: worker (its own waiters); whoever frees a place, and the master, for queue_wake().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/atomic.h"
#include "shm/core/seg.h"

/* A worker's own waiter; need and priority are those it entered with. */
struct queue_ref {
	uint32_t pool, slot, worker;
	uint64_t ticket, need;
	int32_t priority;
};

struct queue_ask {
	uint64_t
		need; /* not 0; two waiters with the same one can be served by the same endpoints */
	int32_t priority; /* the lowest goes first */
	uint64_t now_ms;
};

#define QUEUE_ALL_ROLES 3u /* bit per enum role */
#define QUEUE_UNTRIED                                                                              \
	0x80u /* beside those: who has not looked since it stands, and so relies on others */
#define QUEUE_NOBODY UINT32_MAX
/* A worker beats twice a second: one that has not for so long is passed by, until the master calls again. */
#define QUEUE_STILL_MS 1000

enum queue_entered {
	QUEUE_FULL,  /* nothing was entered */
	QUEUE_FIRST, /* entered: try once more, a place may have become free in between */
	QUEUE_BEHIND /* entered, behind one who will be called first */
};

/* Takes one of the first `size` slots of the pool's queue. */
enum queue_entered queue_enter(struct seg *seg, uint32_t worker, uint32_t pool, uint32_t size,
	const struct queue_ask *ask, struct queue_ref *ret);
/* True if a request that has not entered must do so before it tries: somebody waits whom it would overtake. */
bool queue_ahead(const struct seg *seg, uint32_t pool, const struct queue_ask *ask);

/* The roles of the places for which the waiter was called; 0: it was not. */
uint32_t queue_called(const struct seg *seg, const struct queue_ref *ref);
/* To be done before each try: from here on whoever frees a place may call it again.  As queue_called(). */
uint32_t queue_stand(struct seg *seg, const struct queue_ref *ref);
/* The try has found no place in these roles. */
void queue_tried(struct seg *seg, const struct queue_ref *ref, uint32_t lacks);
/* Ends it, served or not.  The roles for which it was called meanwhile, which the caller passes on; or 0. */
uint32_t queue_leave(struct seg *seg, const struct queue_ref *ref);

/* Whom to call: of each need who stands first there, if it is meant. */
struct queue_call {
	uint32_t
		roles; /* not 0: who lacks a place in one of these, or is QUEUE_UNTRIED if that is among them */
	uint64_t need; /* and whoever has this one; 0: nobody */
	const struct queue_ref
		*behind; /* of the former only those behind it, of other needs; or NULL */
};
/* Calls the first of them, unless it was called already and has not tried yet.  Its worker, whose eventfd the
 * caller writes; or QUEUE_NOBODY. */
uint32_t queue_wake(struct seg *seg, uint32_t pool, const struct queue_call *call);
/*
 * Master: as queue_wake() for whoever stands first, with a full barrier before it.  To be called for each pool after each
 * change that lets a waiter be served: a state word written (UP, drain ended), an ejection cleared, a table
 * published.  Returns the worker whose eventfd the caller writes, or QUEUE_NOBODY.
 */
uint32_t queue_wake_after_change(struct seg *seg, uint32_t pool);
/* For the master, who writes the eventfds of whoever was called: a caller may have died, or stand still, in
 * between.  workers[SLOT_WORKERS]: set to true for each of them. */
void queue_called_all(const struct seg *seg, uint32_t pool, bool *workers);

/* Master, after waitpid and load_reap(): frees the dead worker's slots, how many is returned.  All pools
 * must be woken afterwards: it may have been called, or have owed a call. */
uint32_t queue_reap(struct seg *seg, uint32_t dead);

/* How many wait, and since when the one that has waited longest; 0: nobody. */
uint32_t queue_waiting(const struct seg *seg, uint32_t pool, uint64_t *ret_since_ms);

/* For check.c: false if the slot is none that is ever written here; *ret_worker: whose it is, or
 * QUEUE_NOBODY. */
bool queue_sound(const struct seg *seg, uint32_t pool, uint32_t slot, uint32_t *ret_worker);

/* Whether anybody may wait in that pool: what a release costs while nobody does.  After the release, whose
 * CAS is a full barrier.  Pairs with queue_enter(). */
static inline bool
queue_any(const struct seg *seg, uint32_t pool)
{
	const uint64_t high = shm_load(&seg_queue(seg, pool)->high);
	const uint64_t *marks = seg_queue_marks(seg, pool);

	for (uint64_t i = 0; i * 64 < high; i++)
		if (shm_load(&marks[i]) != 0)
			return true;
	return false;
}
