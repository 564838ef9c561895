/*
 * A worker may accept while its load does not exceed 1.25 x the mean, or the mean + SLACK.
 * The mean is taken of the workers that could accept and are alive.  Of these, the worker with the
 * lowest load never exceeds the mean, so it may accept.
 *
 * Why at least one worker listens: a worker that stops listening (1) has stored its count, (2)
 * stores its state by an exchange, a full barrier, and (3) reads the counts and states of all
 * workers.  If several workers stop at the same time, the last one to pass its barrier sees the
 * counts and states of the others.  It finds the worker with the lowest load.  That is
 * itself, and it listens again; or a worker that rests, which it wakes; or a worker that listens,
 * which passes through the same steps if it stops.  A woken worker checks its share, and passes
 * through the same steps if it is above its share by then.
 *
 * A worker that listens checks its share after each connection without a barrier.  It may miss that
 * another worker has just come to rest although that worker may accept now.  Nothing is lost: the
 * checking worker listens.
 *
 * The bytes of a worker change without a check.  While the worker listens, nothing is lost, as above.
 * While it rests, it finds at its next tick that it may accept.
 *
 * A worker that dies or is stopped while it listens does not pass through these steps.  The resting
 * workers notice: each checks again at every tick, and leaves out the workers without a heartbeat.
 *
 * No herd: a check wakes at most one worker, and moves it to WOKEN by CAS, so that two workers do
 * not wake the same one.  A worker that accepts and finds another worker with room wakes that one,
 * which does the same.
 */
#include "shm/accept.h"

#include "shm/base/clock.h"
#include "shm/core/atomic.h"
#include "shm/core/seg.h"
#include "shm/stored.h"

/* A worker may have a few connections more than the mean: otherwise each of the first
 * connections would move all workers. */
#define SLACK 2
/* So many bytes of bodies are as much work as a connection. */
#define CONN_BYTES (UINT64_C(1) << 20)
/* Twice the longest time between two heartbeats of a healthy process. */
#define FRESH_MS 2000

struct shares {
	uint64_t total, n;
};

void
accept_count(struct seg *seg, uint32_t me, uint64_t n)
{
	shm_store(&seg->procs[me].conns, n);
}

static uint64_t
load_of(const struct seg *seg, uint32_t slot)
{
	const struct stored stored = stored_of(seg, slot);

	return shm_load(&seg->procs[slot].conns) +
	       (stored.bytes[STORED_BUFFERED] + stored.bytes[STORED_DECLARED]) / CONN_BYTES;
}

static bool
serves(const struct seg *seg, uint32_t slot, uint64_t since_ms)
{
	return proc_slot_state(seg, slot) == PROC_READY && proc_heartbeat_ms(seg, slot) >= since_ms;
}

/* The few connections of a stopped or hung worker must not lower the mean: the other workers
 * would leave clients waiting in the queue until worker_watchdog ends that worker. */
static bool
has_share(const struct seg *seg, uint32_t slot, uint64_t since_ms)
{
	return shm_load(&seg->procs[slot].accepts) != ACCEPT_UNABLE && serves(seg, slot, since_ms);
}

/* The mean of all workers with a share; `me` has one. */
static struct shares
shares_of(const struct seg *seg, uint32_t me, uint64_t since_ms)
{
	struct shares s = {load_of(seg, me), 1};

	for (uint32_t i = 0; i < SLOT_WORKERS(seg); i++) {
		if (i == me || !has_share(seg, i, since_ms))
			continue;
		s.total += load_of(seg, i);
		s.n++;
	}
	return s;
}

static bool
may_accept(const struct shares *s, uint64_t load)
{
	return 4 * load * s->n <= 5 * s->total || load * s->n <= s->total + SLACK * s->n;
}

/* Of the workers in this state, the one with the lowest load, or ACCEPT_NOBODY. */
static uint32_t
find(const struct seg *seg, uint32_t me, enum accept_state state, uint64_t since_ms,
	uint64_t *ret_load)
{
	uint64_t lowest = UINT64_MAX;
	uint32_t found = ACCEPT_NOBODY;

	for (uint32_t i = 0; i < SLOT_WORKERS(seg); i++) {
		uint64_t load;

		if (i == me || shm_load(&seg->procs[i].accepts) != (uint64_t)state ||
			!has_share(seg, i, since_ms))
			continue;
		load = load_of(seg, i);
		if (load >= lowest)
			continue;
		lowest = load;
		found = i;
	}
	*ret_load = lowest;
	return found;
}

static uint32_t
wake_one(struct seg *seg, uint32_t me, const struct shares *s, uint64_t since_ms)
{
	uint64_t load;
	const uint32_t i = find(seg, me, ACCEPT_RESTS, since_ms, &load);

	if (i == ACCEPT_NOBODY || !may_accept(s, load) ||
		shm_cas(&seg->procs[i].accepts, ACCEPT_RESTS, ACCEPT_WOKEN) != ACCEPT_RESTS)
		/* or another worker has woken it, and it continues from here */
		return ACCEPT_NOBODY;
	return i;
}

/* Workers without a heartbeat since `alive_since_ms`, or for FRESH_MS, are not alive. */
static uint64_t
alive_since(uint64_t alive_since_ms)
{
	const uint64_t now_ms = clock_ms(),
		       fresh_ms = now_ms < FRESH_MS ? 0 : now_ms - FRESH_MS + 1;

	return alive_since_ms > fresh_ms ? alive_since_ms : fresh_ms;
}

uint32_t
accept_listener(const struct seg *seg, uint32_t me, uint64_t alive_since_ms)
{
	uint64_t load;

	return find(seg, me, ACCEPT_LISTENS, alive_since(alive_since_ms), &load);
}

bool
accept_others(const struct seg *seg, uint32_t me, uint64_t alive_since_ms)
{
	const uint64_t since_ms = alive_since(alive_since_ms);

	for (uint32_t i = 0; i < SLOT_WORKERS(seg); i++)
		if (i != me && serves(seg, i, since_ms))
			return true;
	return false;
}

bool
accept_poll(struct seg *seg, uint32_t me, bool able, uint64_t alive_since_ms, uint32_t *ret_wake)
{
	const uint64_t since_ms = alive_since(alive_since_ms);
	uint64_t *state = &seg->procs[me].accepts;
	struct shares s = shares_of(seg, me, since_ms);
	bool listen = able && may_accept(&s, load_of(seg, me));

	if (!listen) {
		(void)shm_xchg(state, able ? ACCEPT_RESTS : ACCEPT_UNABLE);
		s = shares_of(seg, me, since_ms);
		if (!able) {
			s.total -= load_of(seg, me);
			s.n--;
		}
		listen = able && may_accept(&s, load_of(seg, me));
	}
	if (listen && shm_load(state) != ACCEPT_LISTENS)
		(void)shm_xchg(state, ACCEPT_LISTENS);
	*ret_wake = wake_one(seg, me, &s, since_ms);
	return listen;
}
