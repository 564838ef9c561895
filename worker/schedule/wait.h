/*
 * Waiting for a slot: a waiter holds nothing but an entry in its pool's queue (shm/queue.h).  plan.c asks here before
 * it chooses and when nothing could be chosen; each release of a slot is reported here.
 *
 * Process: worker.
 * Ownership: part of struct plan.  While `waits` is set the worker's list has the waiter.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "shm/base/conf.h"
#include "shm/queue.h"
#include "worker/base/end_list.h"

struct req_pool;
struct selection;
struct shortage;
struct table_pool;
struct worker;

struct waiter {
	struct worker *w;
	/* Upward: the waiter was woken, so its request must be planned again.  Returns true if the waiter waits on.
	 * Else it has left the queue, and may be freed by now. */
	bool (*woken)(struct waiter *);

	bool waits;         /* it has `entry`, and is in the worker's list */
	uint32_t woken_for; /* for slots of these roles, while it tries */
	struct queue_ref entry;
	TAILQ_ENTRY(waiter) link;
	uint64_t key; /* queue key: waiters with the same key can be served by the same endpoints */
	int32_t priority;
	uint32_t tokens;      /* of the prompts of all branches */
	bool shares;          /* set once: the pool serves several models */
	uint64_t deadline_ms; /* the end of the rest in PLAN, in the queue or not; 0: none */
	/* the waiter lacks no slot but a budget, which has room then; 0: it lacks slots */
	uint64_t again_ms;

	/* when it was enqueued; for how long it has waited in the queue before */
	uint64_t t_queued_us, queued_us;
	bool hopeless; /* fact, of the last try: the request needs more slots at once than there are */
};

/* Before endpoints are chosen, with key and priority set: true if the request must not try, since it would overtake
 * a waiter, or since it waits in the queue of another pool than the one that serves its model by now. */
bool wait_before(const struct waiter *q, const struct table_pool *tp);
/* Nothing could be chosen.  True: plan once more.  False: the request waits until it is woken, if q->waits; else it is
 * refused, for *why. */
bool wait_again(struct waiter *q, const struct req_pool *pool, const struct shortage *shortage,
	enum req_end *why);
/* The request's endpoints are reserved: it leaves the queue.  Inside the read section checks whether a slot is left
 * of each of `roles` that it was woken for. */
void wait_served(struct waiter *q, const struct selection *s, uint32_t roles);
/* The read section is over: sends the wake-ups that are owed. */
void wait_settle(struct worker *w, uint32_t pool);
/* The same for a request that may have waited itself. */
void wait_settle_for(const struct waiter *q, uint32_t pool);
/* The request ends, or does not wait for a slot any more. */
void wait_leave(struct waiter *q);

/* The waiter's deadline has passed.  True: it was woken at the last moment, and has left the queue. */
bool wait_late(struct waiter *q);
/* Budgets that have room again: the first waiter that lacks one tries, wherever it waits. */
void wait_tick(struct worker *w, uint64_t now_ms);
/* The eventfd was read: the woken waiters of this worker try, but none that has lost its entry. */
void wait_collect(struct worker *w);
/* Twice a second: frees the entries that name this worker and are no waiter's.  The waiters whose entries are lost try. */
void wait_restore(struct worker *w);
/* A slot of a role has been given back, or an endpoint has room again. */
void wait_released(struct worker *w, uint32_t pool, enum role role);
