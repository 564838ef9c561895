/*
 * A worker may accept while its connections do not exceed 1.25 x the mean, or the mean + SLACK.  The mean
 * is taken of the workers that could accept and are alive.  Of these, the one with the fewest
 * connections never exceeds the mean, so it may accept.
 *
 * Why somebody listens: a worker that stops listening (1) has stored its count, (2) stores its state by
 * an exchange, a full barrier, and (3) looks at the counts and states of all.  Of several that stop at
 * the same time, the last to pass its barrier sees the counts and states of the others.  It finds the
 * one with the fewest: itself, then it listens again; or a worker that rests, which it wakes; or a
 * worker that listens, which comes to these steps if it stops.  A worker that was woken looks at its
 * share, and passes through the same steps if it is above it by then.
 *
 * A worker that listens looks after each connection without a barrier.  It may miss that another one
 * has just come to rest although it has a share now.  Nothing is lost: the worker that looked listens.
 *
 * What ends without a look of its own (a worker that dies or is stopped while it listens) is found by
 * those who rest: each looks again at every tick, and leaves out who has not beaten.
 *
 * No herd: a look wakes one worker at most, and moves it to WOKEN by CAS, so that two do not wake the
 * same one.  A worker that accepts and finds another one with room wakes it, which does the same.
 */
#include "shm/accept.h"

#include "shm/base/clock.h"
#include "shm/core/atomic.h"
#include "shm/core/seg.h"

/* A few connections over the mean cost nothing; without them each of the first ones moves all workers. */
#define SLACK 2
/* Twice the longest time a healthy process is silent. */
#define FRESH_MS 2000

struct shares {
	uint64_t total, n;
};

void
accept_count(struct seg *seg, uint32_t me, uint64_t n)
{
	shm_store(&seg->procs[me].conns, n);
}

/* A stopped or hung worker's few connections must not pull the mean down: the others would leave
 * clients waiting in the queue until worker_watchdog ends it. */
static bool
has_share(const struct seg *seg, uint32_t slot, uint64_t since_ms)
{
	return shm_load(&seg->procs[slot].accepts) != ACCEPT_UNABLE &&
	       proc_slot_state(seg, slot) == PROC_READY && proc_heartbeat_ms(seg, slot) >= since_ms;
}

/* Of all that have a share; `me` has one. */
static struct shares
shares_of(const struct seg *seg, uint32_t me, uint64_t since_ms)
{
	struct shares s = {shm_load(&seg->procs[me].conns), 1};

	for (uint32_t i = 0; i < SLOT_WORKERS(seg); i++) {
		if (i == me || !has_share(seg, i, since_ms))
			continue;
		s.total += shm_load(&seg->procs[i].conns);
		s.n++;
	}
	return s;
}

static bool
may_accept(const struct shares *s, uint64_t conns)
{
	return 4 * conns * s->n <= 5 * s->total || conns * s->n <= s->total + SLACK * s->n;
}

/* Of those that rest and may accept, the one with the fewest connections. */
static uint32_t
find_resting(const struct seg *seg, uint32_t me, const struct shares *s, uint64_t since_ms)
{
	uint64_t fewest = UINT64_MAX;
	uint32_t found = ACCEPT_NOBODY;

	for (uint32_t i = 0; i < SLOT_WORKERS(seg); i++) {
		const uint64_t conns = shm_load(&seg->procs[i].conns);

		if (i == me || shm_load(&seg->procs[i].accepts) != ACCEPT_RESTS ||
			conns >= fewest || !has_share(seg, i, since_ms))
			continue;
		fewest = conns;
		found = i;
	}
	return found != ACCEPT_NOBODY && may_accept(s, fewest) ? found : ACCEPT_NOBODY;
}

static uint32_t
wake_one(struct seg *seg, uint32_t me, const struct shares *s, uint64_t since_ms)
{
	const uint32_t i = find_resting(seg, me, s, since_ms);

	if (i == ACCEPT_NOBODY ||
		shm_cas(&seg->procs[i].accepts, ACCEPT_RESTS, ACCEPT_WOKEN) != ACCEPT_RESTS)
		return ACCEPT_NOBODY; /* or another worker has woken it: that one goes on from here */
	return i;
}

bool
accept_poll(struct seg *seg, uint32_t me, bool able, uint64_t alive_since_ms, uint32_t *ret_wake)
{
	const uint64_t now_ms = clock_ms(),
		       fresh_ms = now_ms < FRESH_MS ? 0 : now_ms - FRESH_MS + 1;
	const uint64_t since_ms = alive_since_ms > fresh_ms ? alive_since_ms : fresh_ms;
	uint64_t *state = &seg->procs[me].accepts;
	struct shares s = shares_of(seg, me, since_ms);
	bool listen = able && may_accept(&s, shm_load(&seg->procs[me].conns));

	if (!listen) {
		(void)shm_xchg(state, able ? ACCEPT_RESTS : ACCEPT_UNABLE);
		s = shares_of(seg, me, since_ms);
		if (!able) {
			s.total -= shm_load(&seg->procs[me].conns);
			s.n--;
		}
		listen = able && may_accept(&s, shm_load(&seg->procs[me].conns));
	}
	if (listen && shm_load(state) != ACCEPT_LISTENS)
		(void)shm_xchg(state, ACCEPT_LISTENS);
	*ret_wake = wake_one(seg, me, &s, since_ms);
	return listen;
}
