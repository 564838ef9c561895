/* The queue: who is woken, in what order, how many may wait, and what waiters that leave or die pass on. */
#include "shm/queue.h"

#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "tests/unit/shm/fixture.h"

#define POOL 1u
#define PREFILL 1u
#define DECODE 2u

static void
begin(void)
{
	small_seg();
	for (uint32_t w = 0; w < SLOT_WORKERS(seg); w++)
		proc_heartbeat(seg, w, clock_ms());
}

TestSuite(shm_queue, .init = begin, .fini = small_seg_end);

static struct queue_ref
enter(uint32_t worker, uint64_t key, int32_t priority, enum queue_enqueued want)
{
	const struct queue_request ask = {.key = key, .priority = priority, .now_ms = clock_ms()};
	struct queue_ref ref;

	cr_assert_eq(queue_enqueue(seg, worker, POOL, 100, &ask, &ref), want);
	return ref;
}

static uint32_t
wake(uint32_t roles)
{
	return queue_wake(seg, POOL, &(struct queue_target){.roles = roles});
}

static void
tries_without_success(const struct queue_ref *ref, uint32_t lacks)
{
	(void)queue_rearm(seg, ref);
	queue_tried(seg, ref, lacks);
}

Test(shm_queue, first_come_first_called)
{
	const struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST), b = enter(1, 7, 0, QUEUE_BEHIND),
			       c = enter(2, 7, -1, QUEUE_FIRST);
	const uint32_t order[] = {2, 0, 1};
	const struct queue_ref *refs[] = {&c, &a, &b};
	uint64_t since_ms;

	cr_assert_eq(queue_waiting(seg, POOL, &since_ms), 3);
	cr_assert_neq(since_ms, 0);
	for (int i = 0; i < 3; i++) {
		cr_assert_eq(wake(DECODE), order[i]);
		cr_assert_eq(queue_woken(seg, refs[i]), DECODE);
		cr_assert_eq(wake(PREFILL), QUEUE_NOBODY); /* takes this wake-up with it */
		cr_assert_eq(queue_leave(seg, refs[i]), DECODE | PREFILL);
	}
	cr_assert_eq(wake(DECODE), QUEUE_NOBODY);
	cr_assert_not(queue_any(seg, POOL));
	cr_assert_eq(queue_waiting(seg, POOL, &since_ms), 0);
}

Test(shm_queue, nobody_is_called_for_a_role_it_does_not_lack)
{
	const struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST), b = enter(1, 8, 0, QUEUE_FIRST);

	tries_without_success(&a, PREFILL);
	tries_without_success(&b, DECODE);
	cr_assert_eq(wake(DECODE), 1);
	cr_assert_eq(wake(PREFILL), 0);
	cr_assert_eq(queue_rearm(seg, &a), PREFILL);
	cr_assert_eq(wake(DECODE), 0); /* untried: it may lack anything */
}

Test(shm_queue, a_spurious_wake_up_goes_on_to_other_keys)
{
	const struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST);
	struct queue_target on = {.roles = DECODE, .behind = &a};

	(void)enter(1, 7, 0, QUEUE_BEHIND);
	(void)enter(2, 8, 0, QUEUE_FIRST);
	cr_assert_eq(wake(DECODE), 0);
	tries_without_success(&a, DECODE);
	cr_assert_eq(queue_wake(seg, POOL, &on), 2);
	cr_assert_eq(queue_wake(seg, POOL, &on), QUEUE_NOBODY);
}

Test(shm_queue, who_leaves_while_called_says_so)
{
	const struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST);
	struct queue_target next = {.roles = QUEUE_UNTRIED, .key = 7};

	(void)enter(1, 7, 0, QUEUE_BEHIND);
	cr_assert_eq(wake(DECODE), 0);
	next.roles |= queue_leave(seg, &a);
	cr_assert_eq(next.roles, QUEUE_UNTRIED | DECODE);
	cr_assert_eq(queue_wake(seg, POOL, &next), 1);
}

Test(shm_queue, newcomers_do_not_overtake)
{
	const struct queue_request same = {.key = 7}, other = {.key = 8},
				   hasty = {.key = 7, .priority = -1};
	const struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST);

	tries_without_success(&a, DECODE);
	cr_assert(queue_ahead(seg, POOL, &same));
	cr_assert_not(queue_ahead(seg, POOL, &other));
	cr_assert_not(queue_ahead(seg, POOL, &hasty));
	cr_assert_not(queue_ahead(seg, 0, &same)); /* another pool */
	cr_assert_eq(wake(DECODE), 0);
	cr_assert(queue_ahead(seg, POOL, &other)); /* it is about to try */
}

Test(shm_queue, waiters_of_a_worker_that_stands_still_are_passed)
{
	const struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST);

	(void)enter(1, 7, 0, QUEUE_BEHIND);
	proc_heartbeat(seg, 0, clock_ms() - 1500);
	cr_assert_eq(wake(DECODE), 1);
	proc_heartbeat(seg, 0, clock_ms());
	cr_assert_eq(queue_woken(seg, &a), 0);
	cr_assert_eq(wake(DECODE), 0);
}

Test(shm_queue, a_dead_workers_slots_are_free)
{
	bool woken[8] = {false};
	struct queue_ref c;

	(void)enter(0, 7, 0, QUEUE_FIRST);
	(void)enter(1, 7, 0, QUEUE_BEHIND);
	(void)enter(0, 8, 0, QUEUE_FIRST);
	cr_assert_eq(wake(DECODE), 0);
	cr_assert_eq(queue_reap(seg, 0), 2);
	cr_assert_eq(queue_reap(seg, 0), 0);
	cr_assert_eq(wake(DECODE), 1);
	queue_woken_all(seg, POOL, woken);
	cr_assert(woken[1] && !woken[0]);
	c = enter(2, 9, -5, QUEUE_FIRST);
	cr_assert_eq(c.slot, 0);
}

/* Four processes rush in: as many wait as may, whatever they do at the same time. */
Test(shm_queue, the_bound_is_exact_for_all_processes)
{
	uint64_t since_ms;
	int status, entered = 0;

	for (uint32_t w = 0; w < 4; w++)
		if (fork() == 0) {
			const struct queue_request ask = {.key = w + 1, .now_ms = 1};
			struct queue_ref ref;
			int n = 0;

			for (int round = 0; round < 2000; round++)
				if (queue_enqueue(seg, w, POOL, 37, &ask, &ref) != QUEUE_FULL) {
					uint64_t since;

					if (queue_waiting(seg, POOL, &since) > 37)
						_exit(255);
					(void)queue_leave(seg, &ref);
				}
			for (int i = 0; i < 30; i++)
				n += queue_enqueue(seg, w, POOL, 37, &ask, &ref) != QUEUE_FULL;
			_exit(n);
		}
	for (int i = 0; i < 4; i++) {
		cr_assert_gt(wait(&status), 0);
		cr_assert(WIFEXITED(status) && WEXITSTATUS(status) <= 30);
		entered += WEXITSTATUS(status);
	}
	cr_assert_leq(entered, 37);
	cr_assert_eq(queue_waiting(seg, POOL, &since_ms), (uint32_t)entered);
	cr_assert_geq(entered, 30);
}

Test(shm_queue, tickets_and_marks_are_looked_over)
{
	const struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST);
	uint32_t worker;

	cr_assert(queue_sound(seg, POOL, a.slot, &worker) && worker == 0);
	seg_queue_marks(seg, POOL)[0] = 0;
	cr_assert_not(queue_sound(seg, POOL, a.slot, &worker));
}
