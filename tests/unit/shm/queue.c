/* The queue: who is woken, in what order, how many may wait, and what waiters that leave or die pass on. */
#include "shm/queue.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/fair.h"
#include "tests/unit/shm/fixture.h"

#define POOL 1u
#define PREFILL 1u
#define DECODE 2u

static void
begin(void)
{
	small_seg();
	/* ahead: no worker counts as stopped because the machine was */
	for (uint32_t w = 0; w < SLOT_WORKERS(seg); w++)
		proc_heartbeat(seg, w, clock_ms() + 60000);
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
tries_without_success(struct queue_ref *ref, uint32_t lacks)
{
	(void)queue_rearm(seg, ref);
	queue_tried(seg, ref, lacks);
}

Test(shm_queue, first_come_first_called)
{
	struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST), b = enter(1, 7, 0, QUEUE_BEHIND),
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
	struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST), b = enter(1, 8, 0, QUEUE_FIRST);

	tries_without_success(&a, PREFILL);
	tries_without_success(&b, DECODE);
	cr_assert_eq(wake(DECODE), 1);
	cr_assert_eq(wake(PREFILL), 0);
	cr_assert_eq(queue_rearm(seg, &a), PREFILL);
	cr_assert_eq(wake(DECODE), 0); /* untried: it may lack anything */
}

Test(shm_queue, a_spurious_wake_up_goes_on_to_other_keys)
{
	struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST);
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
	struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST);
	struct queue_target next = {.roles = QUEUE_UNTRIED, .key = 7};

	(void)enter(1, 7, 0, QUEUE_BEHIND);
	cr_assert_eq(wake(DECODE), 0);
	next.roles |= queue_leave(seg, &a);
	cr_assert_eq(next.roles, QUEUE_UNTRIED | DECODE);
	cr_assert_eq(queue_wake(seg, POOL, &next), 1);
}

/* While the first of a key lacks D, its neighbours miss the free slots of P; an untried waiter of another key may take
 * the wake-up with which it leaves. */
Test(shm_queue, what_the_first_of_a_key_let_pass_reaches_those_behind_it)
{
	struct queue_ref first = enter(0, 7, -2, QUEUE_FIRST), other, last;
	struct queue_target next = {.roles = QUEUE_UNTRIED, .key = 7}, on = {.behind = &other};

	tries_without_success(&first, DECODE);
	cr_assert_eq(wake(DECODE), 0);
	other = enter(1, 8, -1, QUEUE_BEHIND);
	last = enter(2, 7, 0, QUEUE_BEHIND);
	tries_without_success(&last, PREFILL);
	tries_without_success(&first, DECODE);
	next.roles |= queue_leave(seg, &first);
	cr_assert_eq(queue_wake(seg, POOL, &next), 1);
	on.roles = queue_rearm(seg, &other);
	queue_tried(seg, &other, DECODE);
	cr_assert_eq(queue_wake(seg, POOL, &on), 2);
}

Test(shm_queue, newcomers_do_not_overtake)
{
	const struct queue_request same = {.key = 7}, other = {.key = 8},
				   hasty = {.key = 7, .priority = -1};
	struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST);

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
	struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST);

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
	struct queue_ref a = enter(0, 7, 0, QUEUE_FIRST);
	uint32_t worker;

	cr_assert(queue_sound(seg, POOL, a.slot, &worker) && worker == 0);
	seg_queue_marks(seg, POOL)[0] = 0;
	cr_assert_not(queue_sound(seg, POOL, a.slot, &worker));
}

/* --- several models in one queue ------------------------------------------------------------------- */

#define MODEL(n) ((uint64_t)(n) << QUEUE_WAY_BITS)

static enum queue_enqueued
enter_of(uint64_t model, uint32_t tokens, uint32_t size, struct queue_ref *ret)
{
	const struct queue_request ask = {
		.key = MODEL(model), .tokens = tokens, .shares = true, .now_ms = clock_ms()};

	return queue_enqueue(seg, (uint32_t)model % SLOT_WORKERS(seg), POOL, size, &ask, ret);
}

/* Enqueues waiters of the model until it is refused.  Returns how many. */
static uint32_t
fill(uint64_t model, uint32_t size)
{
	struct queue_ref ref;
	uint32_t n = 0;

	while (enter_of(model, 1, size, &ref) != QUEUE_FULL)
		n++;
	return n;
}

Test(shm_queue, one_model_leaves_as_many_entries_as_it_has)
{
	struct queue_ref ref;

	cr_assert_eq(fill(1, 12), 6);
	cr_assert_eq(fill(2, 12), 3);
	cr_assert_eq(fill(3, 12), 2); /* with one entry left */
	cr_assert_eq(fill(1, 12), 0);
	cr_assert_eq(enter_of(5, 1, 12, &ref), QUEUE_FIRST); /* a model that has none finds it */
	cr_assert_eq(fill(4, 12), 0);
}

Test(shm_queue, a_small_queue_keeps_its_last_entry_for_another_model)
{
	for (uint32_t size = 2; size <= 5; size++) {
		struct queue_ref ref;

		cr_assert_eq(fill(1, size), (size + 1) / 2);
		cr_assert_eq(enter_of(2, 1, size, &ref), QUEUE_FIRST);
		for (uint32_t w = 0; w < SLOT_WORKERS(seg); w++)
			(void)queue_reap(seg, w);
	}
	cr_assert_eq(fill(1, 1), 1);
}

Test(shm_queue, the_only_model_of_a_pool_has_the_whole_queue)
{
	const struct queue_request ask = {.key = MODEL(1), .tokens = 1, .now_ms = clock_ms()};
	struct queue_ref ref;

	for (int i = 0; i < 12; i++)
		cr_assert_neq(queue_enqueue(seg, 0, POOL, 12, &ask, &ref), QUEUE_FULL);
	cr_assert_eq(queue_enqueue(seg, 0, POOL, 12, &ask, &ref), QUEUE_FULL);
}

/* Serves the waiter whose turn it is, of model 1 or 2 in `refs`.  Returns its model. */
static uint32_t serve_next(struct queue_ref (*refs)[10], uint32_t *at)
{
	const uint32_t model = wake(DECODE);
	const struct queue_ref *ref;

	cr_assert_lt(model, 3);
	ref = &refs[model][at[model]++];
	cr_assert_eq(queue_woken(seg, ref), DECODE);
	queue_served(seg, ref);
	(void)queue_leave(seg, ref);
	return model;
}

/* Model 1 waits with ten requests when model 2 comes, whose requests have three times as many tokens. */
Test(shm_queue, models_take_turns_by_tokens)
{
	const uint32_t order[] = {1, 2, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1};
	struct queue_ref refs[3][10];
	uint32_t at[3] = {0};

	for (int i = 0; i < 10; i++)
		(void)enter_of(1, 100, 100, &refs[1][i]);
	for (int i = 0; i < 3; i++)
		(void)enter_of(2, 300, 100, &refs[2][i]);
	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
		cr_assert_eq(serve_next(refs, at), order[i], "%zu", i);
	cr_assert_not(queue_any(seg, POOL));
}

Test(shm_queue, priority_goes_before_the_turn)
{
	const struct queue_request hasty = {
		.key = MODEL(1), .priority = -1, .tokens = 100, .now_ms = clock_ms()};
	struct queue_ref ref;

	for (int i = 0; i < 3; i++)
		(void)enter_of(1, 100, 100, &ref);
	(void)enter_of(2, 100, 100, &ref);
	cr_assert_eq(queue_enqueue(seg, 0, POOL, 100, &hasty, &ref), QUEUE_FIRST);
	cr_assert_eq(ref.order.start, 0); /* not behind waiters of its model that go after it */
	cr_assert_eq(wake(DECODE), 0);
}

/* It will not be found by that waiter, which passes a spurious wake-up on to those behind it. */
Test(shm_queue, a_request_that_goes_before_a_woken_waiter_tries)
{
	struct queue_ref a, b, c;

	(void)enter_of(1, 100, 100, &a);
	(void)enter_of(1, 100, 100, &b);
	cr_assert_eq(wake(DECODE), 1);
	queue_served(seg, &a);
	(void)queue_leave(seg, &a);
	cr_assert_eq(wake(DECODE), 1);
	cr_assert_eq(queue_woken(seg, &b), DECODE);
	cr_assert_eq(enter_of(2, 100, 100, &c), QUEUE_FIRST);
	cr_assert_lt(c.order.start, b.order.start);
}

static void
gives_up(const struct queue_ref *ref, bool moves_others)
{
	cr_assert_eq(queue_give_up(seg, ref), moves_others);
	(void)queue_leave(seg, ref);
}

Test(shm_queue, what_leaves_unserved_costs_its_model_nothing)
{
	const uint32_t order[] = {1, 2, 1, 2};
	struct queue_ref refs[3][10];
	uint32_t at[3] = {0};

	for (int i = 0; i < 10; i++)
		(void)enter_of(1, 100, 100, &refs[1][i]);
	for (int i = 0; i < 2; i++)
		(void)enter_of(2, 100, 100, &refs[2][i]);
	for (int i = 0; i < 8; i++)
		gives_up(&refs[1][i], true);
	at[1] = 8;
	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
		cr_assert_eq(serve_next(refs, at), order[i], "%zu", i);
}

Test(shm_queue, who_gives_up_moves_nobody_else)
{
	struct queue_ref first, last, other;

	(void)enter_of(1, 100, 100, &first);
	(void)enter_of(1, 100, 100, &last);
	(void)enter_of(2, 100, 100, &other);
	gives_up(&last, false);
	gives_up(&other, false);
	gives_up(&first, false);
	(void)enter_of(1, 100, 100, &last);
	cr_assert_eq(last.order.start, 0);
}

/* A worker passes a wake-up on from where its waiter stands by now. */
Test(shm_queue, who_was_moved_is_behind_fewer)
{
	struct queue_ref a, b, c;
	const struct queue_target on = {.roles = DECODE, .behind = &b};

	(void)enter_of(1, 100, 100, &a);
	(void)enter_of(1, 100, 100, &b);
	(void)enter_of(2, 100, 100, &c);
	cr_assert_eq(queue_wake(seg, POOL, &on), QUEUE_NOBODY);
	gives_up(&a, true);
	cr_assert_eq(queue_wake(seg, POOL, &on), c.worker);
}

/* --- the start of a waiter ------------------------------------------------------------------------- */

#define WAITERS 12
static struct queue_ref waiters[WAITERS];
static bool waits[WAITERS];

/* Behind all waiters of its model that go before it, and not before the virtual time. */
static uint64_t
start_of(const struct queue_request *ask)
{
	uint64_t start = fair_start(seg_queue(seg, POOL), queue_model(ask->key), 0);

	for (int i = 0; i < WAITERS; i++) {
		const struct queue_slot *s = seg_queue_slot(seg, POOL, waiters[i].slot);

		if (waits[i] && s->key == ask->key && s->priority <= ask->priority &&
			s->start + s->tokens > start)
			start = s->start + s->tokens;
	}
	return start;
}

static void
enter_or_leave(int i)
{
	const struct queue_request ask = {.key = MODEL(1 + rand() % 3),
		.priority = rand() % 4 == 0 ? -1 : 0,
		.tokens = 1 + (uint32_t)rand() % 300,
		.now_ms = clock_ms()};
	const uint64_t start = start_of(&ask);

	if (!waits[i]) {
		(void)queue_enqueue(seg, 0, POOL, 100, &ask, &waiters[i]);
		cr_assert_eq(waiters[i].order.start, start);
	} else {
		if (rand() % 3 == 0)
			(void)queue_give_up(seg, &waiters[i]);
		else
			queue_served(seg, &waiters[i]);
		(void)queue_leave(seg, &waiters[i]);
	}
	waits[i] = !waits[i];
}

/* Whoever leaves in whatever order, served or not. */
Test(shm_queue, a_waiter_starts_behind_all_of_its_model)
{
	srand(4711);
	for (int i = 0; i < 20000; i++)
		enter_or_leave(rand() % WAITERS);
}
