/*
 * Requests that wait for a slot at an endpoint: a queue for each pool, shared by all workers of
 * both generations.  The queue decides which waiter tries next.  Only load.h takes and gives back
 * reservations, so the queue cannot leak one.
 *
 * A waiter occupies an entry of the queue.  A worker that gives a reservation back calls
 * queue_wake() and writes the eventfd of the worker that queue_wake() returns.  That worker finds
 * its woken waiter (queue_woken()), rearms it (queue_rearm()), and tries the whole selection.
 * queue.c draws the states and says why no wake-up is lost; queue.pml and state.pml are the models.
 *
 * Process: a worker for its own waiters; the master, and any worker that gives a reservation back,
 * for queue_wake().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/atomic.h"
#include "shm/core/seg.h"

/* Which of two waiters goes first: by priority, then by start, then by ticket, the lowest first. */
struct queue_order {
	int32_t priority;
	uint64_t start; /* in virtual time, so that models take turns: fair.h */
	uint64_t ticket;
};

/* A worker's own waiter; key and priority are those of its queue_request. */
struct queue_ref {
	uint32_t pool, slot, worker;
	uint64_t key;
	struct queue_order order; /* `start` as it was when the waiter enqueued */
	uint32_t tokens, lacks;   /* `lacks` as it was written last */
	uint32_t was_full;        /* roles that its last failed try found full; at first all */
};

struct queue_request {
	/* Not 0.  Requests with the same key can be served by the same endpoints; those with the same
	 * queue_model() are for the same model. */
	uint64_t key;
	int32_t priority; /* the lowest goes first */
	uint32_t tokens;  /* of its prompts: how much of its model's turn it takes */
	bool shares; /* the pool serves several models, so its model must leave entries to others */
	uint64_t now_ms;
};

/* The lowest bits of a key: what kinds of engines its model's request needs, and a hash of the one engine that will do. */
#define QUEUE_KIND_BITS 3
#define QUEUE_WAY_BITS (QUEUE_KIND_BITS + 32)
static inline uint64_t
queue_model(uint64_t key)
{
	return key >> QUEUE_WAY_BITS;
}

#define QUEUE_ALL_ROLES 3u /* bit per enum role */
/* beside those: the waiter has not tried since it was armed, so it relies on others */
#define QUEUE_UNTRIED 0x80u
#define QUEUE_NOBODY UINT32_MAX
/* The slot of a waiter without an entry: another process has stored in its former one, and the queue is full. */
#define QUEUE_LOST UINT32_MAX
/* Workers write their heartbeat twice a second.  Waiters of a worker that is silent for this
 * time are skipped. */
#define QUEUE_STILL_MS 1000

enum queue_enqueued {
	/* nothing was enqueued: the queue has no free entry, or none for a model that has so many */
	QUEUE_FULL,
	QUEUE_FIRST, /* enqueued: try once more, a slot may have become free in between */
	QUEUE_BEHIND /* enqueued behind a waiter that will be woken first: do not try */
};

/*
 * Takes one of the first `size` entries of the pool's queue.  Of a pool with several models, a model
 * that has waiters gets one more only while it has fewer than there are free entries, and never the
 * last entry: a model that has none always finds one, unless as many models wait as there are entries.
 */
enum queue_enqueued queue_enqueue(struct seg *seg, uint32_t worker, uint32_t pool, uint32_t size,
	const struct queue_request *request, struct queue_ref *ret);
/* True if a new request must enqueue before it tries, since it would overtake a waiter. */
bool queue_ahead(const struct seg *seg, uint32_t pool, const struct queue_request *request);

/* The roles for whose slots the waiter was woken; 0 if it was not. */
uint32_t queue_woken(const struct seg *seg, const struct queue_ref *ref);
/* To be called before each try: from then on the waiter can be woken again.  Returns as queue_woken(). */
uint32_t queue_rearm(struct seg *seg, struct queue_ref *ref);
/* The try has found no free slot in these roles. */
void queue_tried(struct seg *seg, struct queue_ref *ref, uint32_t lacks);
/* The waiter's request is served: to be called before queue_leave(). */
void queue_served(struct seg *seg, const struct queue_ref *ref);
/*
 * The waiter's request will not be served: to be called before queue_leave().  The waiters of its model
 * behind it start earlier by its tokens, since their model has not been served these.  Returns true if there
 * are such waiters: after queue_leave() the caller wakes the first waiter of the pool, whatever it lacks.
 */
bool queue_give_up(struct seg *seg, const struct queue_ref *ref);
/* Removes the waiter, served or not.  Returns the roles for which it was woken meanwhile, and those whose free slots
 * waiters of its key may have missed behind it; 0: none.  The caller passes that wake-up on. */
uint32_t queue_leave(struct seg *seg, const struct queue_ref *ref);

/* Which waiter to wake: among the first waiters of each key, one that matches. */
struct queue_target {
	/* not 0; matches a waiter that lacks a slot in one of these roles, or is QUEUE_UNTRIED if that bit is set */
	uint32_t roles;
	uint64_t key; /* also matches the waiters of this key; 0: no key */
	/* only waiters behind this one and of other keys match; NULL: no such limit */
	const struct queue_ref *behind;
};
/* Wakes the first match.  Returns the worker whose eventfd the caller writes; QUEUE_NOBODY if no
 * waiter matches, or if the match was woken before and has not tried yet. */
uint32_t queue_wake(struct seg *seg, uint32_t pool, const struct queue_target *target);
/*
 * Master: executes a full barrier, and wakes the first waiter of the pool, whatever it lacks.  To
 * be called for each pool after each change that lets a waiter be served: a state word written (UP,
 * drain ended), an ejection cleared, a table published.  Returns the worker whose eventfd the
 * caller writes, or QUEUE_NOBODY.
 */
uint32_t queue_wake_after_change(struct seg *seg, uint32_t pool);
/*
 * Master: sets workers[w], of SLOT_WORKERS, for each worker w with a woken waiter.  The master
 * writes their eventfds, because the process that woke a waiter may have died, or been stopped,
 * before it wrote.
 */
void queue_woken_all(const struct seg *seg, uint32_t pool, bool *workers);

/* Master, after waitpid and load_reap(): frees the dead worker's entries and returns how many.  Afterwards the
 * master wakes all pools: a dead waiter may have been woken, or have owed a wake-up. */
uint32_t queue_reap(struct seg *seg, uint32_t dead);

/* The number of waiters; *ret_since_ms: since when the oldest of them waits, 0 if there is none. */
uint32_t queue_waiting(const struct seg *seg, uint32_t pool, uint64_t *ret_since_ms);

/* Worker: frees the entries of the pool that name this worker although its waiters do not have them: bits of `own`, one
 * for each entry.  Returns how many. */
uint32_t queue_drop_strays(struct seg *seg, uint32_t pool, uint32_t worker, const uint64_t *own);

/* Master, of an entry that is not sound for a while, or whose worker has no process: puts right what is beside it, or
 * frees it. */
void queue_mend(struct seg *seg, uint32_t pool, uint32_t slot);
/* Whether the words before the entries can be; repairs them. */
bool queue_head_sound(const struct seg *seg, uint32_t pool);
void queue_head_mend(struct seg *seg, uint32_t pool);

/* For check.c: false if no function of queue.c writes such an entry; *ret_worker: its owner, or QUEUE_NOBODY.
 * An entry that was taken, marked and freed meanwhile may look free and marked: that finding must last. */
bool queue_sound(const struct seg *seg, uint32_t pool, uint32_t slot, uint32_t *ret_worker);

/* Whether a request may wait in that pool: the only cost of a release while none does.  To be
 * called after the release, whose CAS is a full barrier.  Pairs with queue_enqueue(). */
static inline bool
queue_any(const struct seg *seg, uint32_t pool)
{
	const uint64_t high = shm_load(&seg_queue(seg, pool)->high);
	const uint64_t *marks = seg_queue_marks(seg, pool);

	for (uint64_t i = 0; i * 64 < high && i * 64 < seg->hdr->queue_slots; i++)
		if (shm_load(&marks[i]) != 0)
			return true;
	return false;
}
