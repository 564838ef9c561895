/*
 * The queue: few slots at two endpoints, P and D, and more requests than may wait.
 *
 * A queuer does what a worker does for one request: it rearms, then tries; a spurious wake-up is passed on; a
 * waiter that leaves wakes the next; whoever gives a slot back wakes a waiter that it serves.  Some requests
 * want both slots, others D alone; some leave while they wait.  The master reaps the killed, writes the eventfds
 * of the woken, and wakes the first.  Nobody wakes waiters once a second, since that would cover a lost wake-up.
 * But a queuer that was stopped for so long that it was passed over wakes the first as the master would:
 * machines that are shared with others do stop.
 *
 * Oracles: nobody waits while there is a free slot for it (looks are counted, not time); no more slots are
 * reserved than there are; when all have left, no entry is in use or marked, and no slot is reserved.
 */
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/load.h"
#include "shm/queue.h"
#include "tests/torture/torture.h"

#define QUEUERS 6u
#define SIZE 4u /* may wait: fewer than there are at times */
#define POOL 0u
#define EP_P 0u
#define EP_D 1u
#define ROLE_P 1u
#define ROLE_D 2u
#define PLACES 1u
/* keys: what wants both slots is of another model than what wants D alone, and they take turns */
#define MODEL_BOTH (UINT64_C(1) << QUEUE_WAY_BITS)
#define MODEL_D (UINT64_C(2) << QUEUE_WAY_BITS)
#define ABSENT UINT64_MAX
#define PAUSE_US 20u    /* between two looks whether all have made theirs */
#define LOOK_US 100000u /* without a call; then a waiter looks whether there is a place */
#define LOOKS                                                                                      \
	30u /* in a row that find one, with nobody woken who would take it: a wake-up was lost */

static struct queuers {
	_Alignas(SHM_LINE) uint64_t calm; /* W: master, between rounds */
	/* Requests made.  Calm: nobody makes its next one before all have made theirs, or others' coming and going
	 * would cover a call that got lost; ABSENT: it does not live.  W: queuer; master when it is dead */
	uint64_t made[CHILDREN];
	struct seen {
		_Alignas(SHM_LINE) uint64_t asked, at_once, full, waited, left, spurious, late;
	} seen[CHILDREN];
} * all;

static int efd[CHILDREN];
static uint64_t reaped_slots, reaped_reservations;

struct queuer {
	struct life *l;
	struct seen *seen;
	struct queue_ref ref;
	struct queue_request ask;
	uint32_t lacks, woken;
	uint32_t owes; /* roles of places taken and given back in a try */
	bool both;     /* wants P too */
};

void
queuers_init(void)
{
	all = shared(sizeof(*all));
	for (uint32_t i = 0; i < CHILDREN; i++) {
		all->made[i] = ABSENT;
		efd[i] = eventfd(0, EFD_NONBLOCK);
		if (efd[i] == -1) {
			perror("eventfd");
			exit(2);
		}
	}
}

void
queuers_calm(void)
{
	all->calm = 1;
}

void
queuers_storm(void)
{
	all->calm = 0;
}

/* --- as worker/schedule/wait.c does it ------------------------------------------------------------------- */

static void
wake(const struct queue_target *target)
{
	const uint32_t worker = queue_any(seg, POOL) ? queue_wake(seg, POOL, target) : QUEUE_NOBODY;

	if (worker == QUEUE_NOBODY)
		return;
	if (target->key == 0)
		spin(63); /* woken, and not told */
	(void)eventfd_write(efd[worker], 1);
}

static void
give_back(const struct queuer *q, uint32_t ep)
{
	load_release(seg, q->l->child, ep);
}

static bool
take(const struct queuer *q, uint32_t ep)
{
	const bool got = load_reserve(seg, q->l->child, ep, PLACES);

	if (load_count(seg, ep) > PLACES)
		bad(BAD_LIMIT);
	return got;
}

static bool
try(struct queuer *q)
{
	q->lacks = 0;
	if (q->both && !take(q, EP_P)) {
		q->lacks = ROLE_P;
		return false;
	}
	if (take(q, EP_D))
		return true;
	q->lacks = ROLE_D;
	if (q->both) {
		give_back(q, EP_P);
		q->owes = ROLE_P;
	}
	return false;
}

static void
settle(struct queuer *q, uint64_t key)
{
	if (q->owes != 0)
		wake(&(struct queue_target){.roles = q->owes, .key = key});
	q->owes = 0;
}

static void
served(struct queuer *q)
{
	const uint32_t woken = q->woken | queue_leave(seg, &q->ref);

	q->woken = 0;
	q->owes |= QUEUE_UNTRIED;
	if ((woken & ROLE_P) != 0 && (!q->both || load_count(seg, EP_P) < PLACES))
		q->owes |= ROLE_P;
	if ((woken & ROLE_D) != 0 && load_count(seg, EP_D) < PLACES)
		q->owes |= ROLE_D;
	settle(q, q->ask.key);
}

static void
leave(struct queuer *q)
{
	const uint32_t woken = queue_leave(seg, &q->ref);

	q->seen->left++;
	wake(&(struct queue_target){.roles = woken | QUEUE_UNTRIED, .key = q->ask.key});
}

static void
stays(struct queuer *q)
{
	queue_tried(seg, &q->ref, q->lacks);
	settle(q, 0);
}

/* --- waiting ------------------------------------------------------------------------------------ */

/* True: served. */
static bool
answer_wake_up(struct queuer *q)
{
	q->woken = queue_rearm(seg, &q->ref);
	if (try(q)) {
		served(q);
		return true;
	}
	q->seen->spurious++;
	stays(q);
	wake(&(struct queue_target){.roles = q->woken, .behind = &q->ref});
	q->woken = 0;
	return false;
}

/* It was woken and not told; or nobody is woken, who would be about to take it, and there is a free slot for it. */
static bool
is_forgotten(const struct queuer *q)
{
	bool woken[CHILDREN] = {false};

	if (queue_woken(seg, &q->ref) != 0)
		return true;
	queue_woken_all(seg, POOL, woken);
	for (uint32_t i = 0; i < CHILDREN; i++)
		if (woken[i])
			return false;
	return load_count(seg, EP_D) < PLACES && (!q->both || load_count(seg, EP_P) < PLACES);
}

/* True: served.  False: it has left, or its life ends. */
static bool
wait_for_wake_up(struct queuer *q, bool leaves)
{
	const uint32_t me = q->l->child;
	uint64_t heartbeat_ms = q->ask.now_ms; /* one_request() */
	uint32_t forgotten = 0;

	for (;;) {
		struct pollfd p = {.fd = efd[me], .events = POLLIN};
		const uint64_t last_ms = heartbeat_ms;
		eventfd_t n;

		heartbeat_ms = clock_ms();
		proc_heartbeat(seg, me, heartbeat_ms);
		if (heartbeat_ms >= last_ms + QUEUE_STILL_MS)
			wake(&(struct queue_target){.roles = QUEUE_ALL_ROLES});
		if (life_end(q->l) == END_DIE)
			return false;
		if (leaves && next_random(&q->l->rnd) % 4 == 0) {
			leave(q);
			return false;
		}
		if (poll(&p, 1, leaves ? 1 : LOOK_US / 1000) == 1) {
			(void)eventfd_read(efd[me], &n);
			forgotten = 0;
			if (queue_woken(seg, &q->ref) != 0 && answer_wake_up(q))
				return true;
			continue;
		}
		forgotten = !leaves && is_forgotten(q) ? forgotten + 1 : 0;
		q->seen->late += forgotten == 1;
		if (forgotten == LOOKS) {
			bad(BAD_LOST);
			leave(q);
			return false;
		}
	}
}

/* True: it has its places. */
static bool
get_slots(struct queuer *q, bool leaves)
{
	const uint32_t me = q->l->child;

	if (!queue_ahead(seg, POOL, &q->ask) && try(q)) {
		q->seen->at_once++;
		return true;
	}
	switch (queue_enqueue(seg, me, POOL, SIZE, &q->ask, &q->ref)) {
	case QUEUE_FULL:
		q->seen->full++;
		settle(q, 0);
		return false;
	case QUEUE_FIRST:
		if (try(q)) {
			served(q);
			return true;
		}
		stays(q);
		break;
	case QUEUE_BEHIND:
		settle(q, 0);
	}
	q->seen->waited++;
	return wait_for_wake_up(q, leaves);
}

/* As many as the others have made by now. */
static uint64_t
made_by_others(void)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < QUEUERS; i++) {
		const uint64_t n = seen_get(&all->made[i]);

		if (n != ABSENT && n > most)
			most = n;
	}
	return most;
}

static void
wait_for_others(const struct life *l, uint64_t n)
{
	for (uint32_t i = 0; i < QUEUERS; i++)
		while (seen_get(&all->made[i]) < n && life_end(l) == END_NOT) {
			proc_heartbeat(seg, l->child, clock_ms());
			(void)usleep(PAUSE_US);
		}
}

static void
one_request(struct queuer *q)
{
	struct life *l = q->l;
	const uint64_t r = next_random(&l->rnd);

	q->both = r % 2 == 0;
	q->ask = (struct queue_request){.key = q->both ? MODEL_BOTH : MODEL_D,
		.priority = (int32_t)(r >> 8 & 1),
		.tokens = (uint32_t)(r >> 58),
		.shares = (r >> 9 & 1) != 0,
		.now_ms = clock_ms()};
	q->seen->asked++;
	proc_heartbeat(seg, l->child, q->ask.now_ms);
	spin(r >> 48 & 1023);
	if (!get_slots(q, (r >> 16) % 8 == 0))
		return;
	for (uint64_t i = all->calm != 0 ? r >> 24 & 7 : 0; i > 0; i--)
		(void)sched_yield(); /* so that others come meanwhile */
	spin(r >> 32 & 255);
	if (q->both) {
		give_back(q, EP_P);
		wake(&(struct queue_target){.roles = ROLE_P});
	}
	spin(r >> 40 & 255);
	give_back(q, EP_D);
	wake(&(struct queue_target){.roles = ROLE_D});
}

void
queuer(struct life *l)
{
	struct queuer q = {.l = l, .seen = &all->seen[l->child]};
	uint64_t n = made_by_others();

	seen_set(&all->made[l->child], n);
	while (life_end(l) == END_NOT) {
		one_request(&q);
		seen_set(&all->made[l->child], ++n);
		if (all->calm != 0)
			wait_for_others(l, n);
	}
	if (life_end(l) == END_LEAVE)
		seen_set(&all->made[l->child], ABSENT);
}

void
queuer_wake(uint32_t child)
{
	(void)eventfd_write(efd[child], 1);
}

/* As the master does: what it held, where it stood, whom it owed a call. */
void
queuer_bury(uint32_t child)
{
	static const struct queue_target first = {.roles = QUEUE_ALL_ROLES};
	bool woken[CHILDREN] = {false};

	seen_set(&all->made[child], ABSENT);
	reaped_reservations += load_reap(seg, child);
	reaped_slots += queue_reap(seg, child);
	queue_woken_all(seg, POOL, woken);
	for (uint32_t i = 0; i < CHILDREN; i++)
		if (woken[i])
			(void)eventfd_write(efd[i], 1);
	wake(&first);
}

static struct seen
sum(void)
{
	struct seen s = {0};

	for (uint32_t i = 0; i < CHILDREN; i++) {
		s.asked += all->seen[i].asked;
		s.at_once += all->seen[i].at_once;
		s.full += all->seen[i].full;
		s.waited += all->seen[i].waited;
		s.left += all->seen[i].left;
		s.spurious += all->seen[i].spurious;
		s.late += all->seen[i].late;
	}
	return s;
}

void
queuers_settle(void)
{
	static uint64_t before;
	const uint64_t waited = sum().waited;
	uint64_t since_ms;

	if (queue_waiting(seg, POOL, &since_ms) != 0 || queue_any(seg, POOL) ||
		load_count(seg, EP_P) != 0 || load_count(seg, EP_D) != 0)
		bad(BAD_LEAK);
	for (uint32_t slot = 0; slot < seg->hdr->queue_slots; slot++)
		if (seg_queue_slot(seg, POOL, slot)->word != 0)
			bad(BAD_LEAK);
	if (waited == before)
		bad(BAD_IDLE);
	before = waited;
}

void
queuers_report(void)
{
	const struct seen s = sum();

	printf("queue: asked=%" PRIu64 " at_once=%" PRIu64 " full=%" PRIu64 " waited=%" PRIu64
	       " left=%" PRIu64 " spurious=%" PRIu64 " later_than_%u_ms=%" PRIu64
	       " reaped_slots=%" PRIu64 " reaped_reservations=%" PRIu64 "\n",
		s.asked, s.at_once, s.full, s.waited, s.left, s.spurious, LOOK_US / 1000, s.late,
		reaped_slots, reaped_reservations);
}
