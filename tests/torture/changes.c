/*
 * State changes: a changer does what the master does for an endpoint that comes up, a requester what a worker
 * does for a request that finds no endpoint up.
 *
 * Each turn begins with the endpoint down and with a new request.  At about the same moment the changer says UP
 * and calls queue_wake_after_change(), and the requester tries, enqueues, and tries again.  No second change
 * comes before the request is served, since a second change would cover a lost wake-up.
 *
 * Oracle: nobody sleeps in the queue once the change is over: either the second try has seen UP, or the changer
 * has seen the waiter.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "shm/base/clock.h"
#include "shm/load.h"
#include "shm/queue.h"
#include "tests/torture/torture.h"

#define POOL 0u
#define EP 2u
#define NOISE 16u
#define LOOK_MS 10
#define LOOKS 30u /* in a row that find a waiter whom the change should have woken */

static struct changes {
	_Alignas(SHM_LINE) uint64_t turn; /* W: changer */
	/* the last turn whose change and wake-up are over.  W: changer */
	_Alignas(SHM_LINE) uint64_t changed;
	_Alignas(SHM_LINE) uint64_t served; /* the last turn served.  W: requester */
	uint64_t waited, second_try;
	struct {
		_Alignas(SHM_LINE) uint64_t word;
	} noise[NOISE]; /* W: both */
} * all;

static int efd;

void
changes_init(void)
{
	all = shared(sizeof(*all));
	efd = eventfd(0, EFD_NONBLOCK);
	if (efd == -1) {
		perror("eventfd");
		exit(2);
	}
}

/* The state's store is kept in the store buffer behind these: where a barrier is missing, that shows. */
static void
make_noise(uint64_t r)
{
	for (uint32_t i = 0; i < NOISE; i++)
		__atomic_store_n(&all->noise[i].word, r, __ATOMIC_RELAXED);
}

static void
spin_until(const struct life *l, const uint64_t *word, uint64_t n)
{
	while (seen_get(word) < n && life_end(l) == END_NOT)
		proc_heartbeat(seg, l->child, clock_ms());
}

/* --- changer ---------------------------------------------------------------------------------------- */

static void
change(struct life *l, uint64_t n)
{
	const uint64_t r = next_random(&l->rnd);

	spin(r & 511);
	if (r >> 16 & 1)
		make_noise(r);
	ep_state_set(seg, EP, EP_UP);
	if (queue_wake_after_change(seg, POOL) != QUEUE_NOBODY)
		(void)eventfd_write(efd, 1);
	seen_set(&all->changed, n);
}

void
changer(struct life *l)
{
	uint64_t n = seen_get(&all->turn);

	while (life_end(l) == END_NOT) {
		if (seen_get(&all->served) == n) {
			ep_state_set(seg, EP, EP_DOWN);
			seen_set(&all->turn, ++n);
		}
		change(l, n);
		spin_until(l, &all->served, n);
	}
}

/* --- requester -------------------------------------------------------------------------------------- */

static bool
try(void)
{
	return ep_state_get(seg, EP) == EP_UP;
}

/* True: the change of this turn is over, the endpoint is up, and nobody has woken the waiter. */
static bool
is_forgotten(const struct queue_ref *ref, uint64_t n)
{
	return seen_get(&all->changed) >= n && queue_woken(seg, ref) == 0;
}

/* False: its life ends. */
static bool
sleep_until_served(const struct life *l, struct queue_ref *ref, uint64_t n)
{
	uint32_t forgotten = 0;

	while (life_end(l) == END_NOT) {
		struct pollfd p = {.fd = efd, .events = POLLIN};
		eventfd_t woken;

		proc_heartbeat(seg, l->child, clock_ms());
		if (poll(&p, 1, LOOK_MS) == 1) {
			(void)eventfd_read(efd, &woken);
			if (queue_woken(seg, ref) != 0 && queue_rearm(seg, ref) != 0 && try())
				return true;
			continue;
		}
		forgotten = is_forgotten(ref, n) ? forgotten + 1 : 0;
		if (forgotten == LOOKS) {
			bad(BAD_LOST);
			return true;
		}
	}
	return false;
}

/* False: its life ends. */
static bool
one_request(struct life *l, uint64_t n)
{
	const struct queue_request ask = {.key = 1, .now_ms = clock_ms()};
	const uint64_t r = next_random(&l->rnd);
	struct queue_ref ref;
	bool served = true;

	make_noise(r);
	spin(r & 511);
	if (try())
		return true;
	if (queue_enqueue(seg, l->child, POOL, 1, &ask, &ref) != QUEUE_FIRST) {
		bad(BAD_LEAK); /* the queue is this requester's alone */
		return true;
	}
	if (try()) {
		all->second_try++;
	} else {
		all->waited++;
		served = sleep_until_served(l, &ref, n);
	}
	(void)queue_leave(seg, &ref);
	return served;
}

void
requester(struct life *l)
{
	uint64_t n = seen_get(&all->served);

	for (;;) {
		spin_until(l, &all->turn, n + 1);
		if (life_end(l) != END_NOT || !one_request(l, n + 1))
			return;
		seen_set(&all->served, ++n);
	}
}

void
changes_settle(void)
{
	static uint64_t before;
	uint64_t since_ms;

	if (queue_waiting(seg, POOL, &since_ms) != 0 || queue_any(seg, POOL))
		bad(BAD_LEAK);
	if (all->served == before)
		bad(BAD_IDLE);
	before = all->served;
}

void
changes_report(void)
{
	printf("changes: requests=%" PRIu64 " served_by_second_try=%" PRIu64 " waited=%" PRIu64
	       "\n",
		all->served, all->second_try, all->waited);
}
