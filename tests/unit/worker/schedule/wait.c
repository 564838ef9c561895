/* Waiters of one worker: which of them try when the worker is woken. */
#include "worker/schedule/wait.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/core/heritage.h"
#include "shm/metrics.h"
#include "worker/base/core.h"
#include "worker/base/facts.h"
#include "worker/schedule/shortage.h"

#define ME 0
#define OTHER 1
#define ENTRIES 2

static struct worker w;
static struct heritage h;
static const struct req_pool pool = {.queue = {.size = ENTRIES, .timeout_ms = 1000}};
static const struct shortage full = {.roles = QUEUE_ALL_ROLES};
static struct waiter first, second;
static unsigned tries;

/* Finds no free slot. */
static bool
on_woken(struct waiter *q)
{
	enum req_end why = END_NO_CAPACITY;

	tries++;
	(void)wait_again(q, &pool, &full, &why);
	return q->waits;
}

static void
enters(struct waiter *q, uint64_t key, int32_t priority)
{
	enum req_end why = END_NO_CAPACITY;

	*q = (struct waiter){.w = &w, .woken = on_woken, .key = key, .priority = priority};
	(void)wait_again(q, &pool, &full, &why);
	cr_assert(q->waits);
}

static void
setup(void)
{
	static int fds[4];
	const struct seg_sizes sizes = {.max_workers = 1,
		.max_endpoints = 2,
		.max_pools = 1,
		.flags_per_worker = 64,
		.queue_slots = ENTRIES};

	w = (struct worker){.h = &h, .slot = ME, .ticking = true, .buf = mem_zero(WORKER_BUF)};
	cr_assert_eq(seg_new(&sizes, 1, &w.seg), 0);
	w.slab = seg_slab(w.seg, ME);
	TAILQ_INIT(&w.waiters);
	fds[ME] = eventfd(0, EFD_NONBLOCK);
	h.wake_fds = fds;
	/* ahead: no worker counts as stopped because the machine was */
	for (uint32_t slot = 0; slot <= OTHER; slot++)
		proc_heartbeat(w.seg, slot, clock_ms() + 60000);
	tries = 0;
}

static void
teardown(void)
{
	(void)close(h.wake_fds[ME]);
	free(w.buf);
	seg_free(&w.seg);
}

TestSuite(wait, .init = setup, .fini = teardown);

/* Turns of the worker's loop until its eventfd is quiet; at most 10. */
static unsigned
turns(void)
{
	uint64_t count;
	unsigned n = 0;

	for (; n < 10 && read(h.wake_fds[ME], &count, sizeof(count)) == (ssize_t)sizeof(count); n++)
		wait_collect(&w);
	return n;
}

/* Another worker takes the waiter's entry, so that there is none for it. */
static void
loses_its_entry(struct waiter *q)
{
	const struct queue_request ask = {.key = 99, .priority = 2, .now_ms = clock_ms()};
	struct queue_ref ref;

	seg_queue_slot(w.seg, 0, q->entry.slot)->word = 0;
	cr_assert_neq(queue_enqueue(w.seg, OTHER, 0, ENTRIES, &ask, &ref), QUEUE_FULL);
	cr_assert_eq(ref.slot, q->entry.slot);
	wait_restore(&w);
	cr_assert_eq(q->entry.slot, QUEUE_LOST);
}

/* It passes a wake-up on to the first, which goes behind it: neither may keep the worker awake. */
Test(wait, a_waiter_without_an_entry_tries_twice_a_second_alone)
{
	enters(&first, 7, 1);
	enters(&second, 8, 0);
	loses_its_entry(&second);
	cr_assert_lt(turns(), 3);
	tries = 0;
	(void)eventfd_write(h.wake_fds[ME], 1);
	(void)turns();
	cr_assert_eq(tries, 0);
	wait_restore(&w);
	cr_assert_geq(tries, 1);
	cr_assert_lt(turns(), 3);
}

Test(wait, a_waiter_takes_an_entry_that_is_free_again)
{
	enters(&first, 7, 1);
	enters(&second, 8, 0);
	loses_its_entry(&second);
	(void)queue_reap(w.seg, OTHER);
	wait_restore(&w);
	cr_assert_lt(second.entry.slot, ENTRIES);
}
