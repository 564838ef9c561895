#include "worker/schedule/wait.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/core/heritage.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/base/facts.h"
#include "worker/schedule/select.h"
#include "worker/schedule/shortage.h"

static struct queue_request
request_of(const struct waiter *q)
{
	return (struct queue_request){.key = q->key,
		.priority = q->priority,
		.tokens = q->tokens,
		.shares = q->shares,
		.now_ms = clock_ms()};
}

/* A reload has moved its model, or has given the pool engines that can serve others of its former key and not itself. */
static bool
is_elsewhere(const struct waiter *q, uint32_t pool)
{
	return q->entry.pool != pool || q->entry.key != q->key;
}

bool
wait_before(const struct waiter *q, const struct table_pool *tp)
{
	struct queue_request request;

	if (q->waits)
		return is_elsewhere(q, tp->id);
	if (tp->queue.size == 0)
		return false;
	request = request_of(q);
	return queue_ahead(q->w->seg, tp->id, &request);
}

/* --- waking -------------------------------------------------------------------------------------- */

/* Writes the eventfd even if it is this worker's own: a woken waiter tries from the loop, not from within the work of
 * another request. */
static void
wake(struct worker *w, uint32_t pool, const struct queue_target *target)
{
	static const uint64_t one = 1;
	const uint32_t worker = queue_wake(w->seg, pool, target);

	/* EAGAIN: it is at its maximum, and read soon */
	if (worker != QUEUE_NOBODY)
		(void)!write(w->h->wake_fds[worker], &one, sizeof(one));
}

/* While no request waits a release costs one look at the marks. */
static void
wake_any(struct worker *w, uint32_t pool, uint32_t roles, uint64_t key)
{
	if (roles != 0 && queue_any(w->seg, pool))
		wake(w, pool, &(struct queue_target){.roles = roles, .key = key});
}

void
wait_released(struct worker *w, uint32_t pool, enum role role)
{
	if (w->planning)
		w->owes |= 1u << role; /* no system call inside a read section: wait_settle() */
	else
		wake_any(w, pool, 1u << role, 0);
}

/* --- in the queue -------------------------------------------------------------------------------- */

static void
enter(struct waiter *q, const struct queue_ref *entry, uint64_t most_ms)
{
	struct worker *w = q->w;
	/* for both engines, before the decode engine was to serve the request alone */
	const uint64_t had_ms = q->queued_us / 1000;

	q->entry = *entry;
	q->waits = true;
	q->woken_for = 0;
	q->t_queued_us = clock_us();
	q->deadline_ms = clock_ms() + (had_ms < most_ms ? most_ms - had_ms : 0);
	TAILQ_INSERT_TAIL(&w->waiters, q, link);
	metric_add(w->slab, M_QUEUED, 1);
	worker_need_tick(w);
}

static bool
enqueue(struct waiter *q, const struct req_pool *pool, enum req_end *why)
{
	struct worker *w = q->w;
	const struct queue_request request = request_of(q);
	struct queue_ref entry;

	switch (queue_enqueue(w->seg, w->slot, pool->id, pool->queue.size, &request, &entry)) {
	case QUEUE_FULL:
		if (*why == END_NO_CAPACITY)
			*why = END_QUEUE_FULL;
		return false;
	case QUEUE_FIRST:
		enter(q, &entry, pool->queue.timeout_ms);
		return true;
	case QUEUE_BEHIND:
		enter(q, &entry, pool->queue.timeout_ms);
	}
	return false;
}

bool
wait_again(struct waiter *q, const struct req_pool *pool, const struct shortage *shortage,
	enum req_end *why)
{
	q->hopeless = shortage->hopeless;
	if (q->waits && is_elsewhere(q, pool->id)) {
		wait_leave(q);
		return true;
	}
	if (q->waits && shortage->hopeless) {
		wait_leave(q);
		return false;
	}
	if (q->waits) { /* it was enqueued before it tried */
		queue_tried(q->w->seg, &q->entry, shortage->roles);
		return false;
	}
	return !shortage->hopeless && pool->queue.size != 0 && enqueue(q, pool, why);
}

/* Leaves the queue.  Returns the roles that the waiter was woken for meanwhile. */
static uint32_t
leave(struct waiter *q)
{
	struct worker *w = q->w;
	const uint64_t us = clock_us() - q->t_queued_us;

	q->waits = false;
	q->queued_us += us;
	TAILQ_REMOVE(&w->waiters, q, link);
	metric_observe(w->slab, q->entry.pool, H_QUEUE, us);
	return queue_leave(w->seg, &q->entry);
}

void
wait_served(struct waiter *q, const struct selection *s, uint32_t roles)
{
	struct worker *w = q->w;
	uint32_t woken_for;

	if (!q->waits)
		return;
	q->deadline_ms = 0;
	queue_served(w->seg, &q->entry);
	woken_for = q->woken_for | leave(q);
	w->served = true;
	w->owes |= QUEUE_UNTRIED;
	/*
	 * After it has left: a request that relied on it either finds it gone, or is found by the wake-up.  Of several
	 * slots it was woken for one may be of an engine that serves other models, or other workers.
	 */
	for (enum role role = 0; role < ROLE_N; role++) {
		struct selection any = s[role];

		any.model = TABLE_ANY_MODEL;
		any.plain_only = false;
		if ((woken_for >> role & 1) != 0 &&
			((roles >> role & 1) == 0 || select_room(&any).free > 0))
			w->owes |= 1u << role;
	}
}

static void
settle(struct worker *w, uint32_t pool, uint64_t key)
{
	const uint32_t owed = w->owes;
	const bool served = w->served;

	w->owes = 0;
	w->served = false;
	wake_any(w, pool, owed, served ? key : 0);
}

void
wait_settle(struct worker *w, uint32_t pool)
{
	settle(w, pool, 0);
}

void
wait_settle_for(const struct waiter *q, uint32_t pool)
{
	settle(q->w, pool, q->key);
}

void
wait_leave(struct waiter *q)
{
	uint32_t roles = q->woken_for | QUEUE_UNTRIED;

	if (!q->waits)
		return;
	if (queue_give_up(q->w->seg, &q->entry))
		roles |= QUEUE_ALL_ROLES;
	wake_any(q->w, q->entry.pool, roles | leave(q), q->entry.key);
}

/* --- being woken --------------------------------------------------------------------------------- */

/* The woken waiter tries.  If it finds nothing, the wake-up is passed on to a waiter of another key.  Returns false if the
 * waiter waits no longer. */
static bool
try(struct waiter *q)
{
	struct worker *w = q->w;

	q->woken_for = queue_rearm(w->seg, &q->entry);
	if (!q->woken(q))
		return false;
	metric_add(w->slab, M_QUEUE_SPURIOUS, 1);
	if (q->woken_for == 0)
		return true; /* it has left, passed the wake-up on, and was enqueued anew */
	wake(w, q->entry.pool, &(struct queue_target){.roles = q->woken_for, .behind = &q->entry});
	q->woken_for = 0;
	return true;
}

bool
wait_late(struct waiter *q)
{
	if (!q->waits || queue_woken(q->w->seg, &q->entry) == 0)
		return false;
	return !try(q);
}

void
wait_tick(struct worker *w, uint64_t now_ms)
{
	const struct waiter *q, *last = NULL;

	TAILQ_FOREACH(q, &w->waiters, link)
	{
		if (q->again_ms == 0 || now_ms < q->again_ms ||
			(last != NULL && last->key == q->key && last->entry.pool == q->entry.pool))
			continue;
		wake(w, q->entry.pool,
			&(struct queue_target){.roles = QUEUE_UNTRIED, .key = q->key});
		last = q;
	}
}

/* Nobody wakes such a waiter: wait_restore() lets it try. */
static bool
has_no_entry(const struct waiter *q)
{
	return q->entry.slot == QUEUE_LOST;
}

void
wait_collect(struct worker *w)
{
	struct waiter *q, *next;

	/* The try of one request may end it, but no other request: `next` stays valid. */
	for (q = TAILQ_FIRST(&w->waiters); q != NULL; q = next) {
		next = TAILQ_NEXT(q, link);
		if (!has_no_entry(q) && queue_woken(w->seg, &q->entry) != 0)
			(void)try(q);
	}
}

/* --- the queue as this worker knows it ----------------------------------------------------------- */

/* Such a waiter was woken by nobody, and passes a wake-up on.  If it tried at each wake-up of this worker, it and a
 * waiter behind it would wake the worker without end. */
static void
try_without_entry(struct worker *w)
{
	struct waiter *q, *next;

	for (q = TAILQ_FIRST(&w->waiters); q != NULL; q = next) {
		next = TAILQ_NEXT(q, link);
		if (has_no_entry(q))
			(void)try(q);
	}
}

void
wait_restore(struct worker *w)
{
	uint64_t *own = (uint64_t *)(void *)w->buf; /* a bit for each entry of a pool */
	const uint32_t pools = w->seg->hdr->max_pools;
	const size_t bytes = seg_queue_nmarks(w->seg->hdr->queue_slots) * sizeof(*own);
	struct waiter *q;

	static_assert((UINT16_MAX + 1) / 8 < WORKER_BUF, "a pool's entries fit");
	for (uint32_t pool = 0; pool < pools; pool++) {
		if (!queue_any(w->seg, pool))
			continue;
		memset(own, 0, bytes);
		TAILQ_FOREACH(q, &w->waiters, link)
		if (q->entry.pool == pool && !has_no_entry(q))
			own[q->entry.slot / 64] |= UINT64_C(1) << q->entry.slot % 64;
		(void)queue_drop_strays(w->seg, pool, w->slot, own);
	}
	try_without_entry(w);
	wait_collect(w); /* a wake-up may be lost */
}
