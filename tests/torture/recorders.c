/*
 * Ejection: workers whose requests fail more or less often, at endpoints of one role of which few may be
 * out.
 *
 * At any time: one trial of an endpoint at most, unless the former has had its time; no word that keeps an
 * endpoint out for longer than a time-out can last; and one that never fails is never out.  When all are
 * gone: no more are out than may be, and whoever asks when it is due gets the trial and brings it back.
 *
 * Calm: recorders are stopped but never killed, and nobody brings back what is too much: their own second
 * count must be enough.  Storm: they are killed and reaped, while endpoints go down and up.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/eject.h"
#include "shm/load.h"
#include "shm/table.h"
#include "tests/torture/crowd.h"
#include "tests/torture/torture.h"

#define TICK_US 50u /* a millisecond of eject.h's here: it asks no clock itself */
#define FAILURES 3u
#define TIME_MS 1u
#define TIME_MAX_MS 8u
/* shorter than a stop, so that trials run out while their owner stands; and too long to run out */
#define TRIAL_SHORT_MS 20u
#define TRIAL_LONG_MS 100000u

/* Of 256 requests, how many fail.  The last is without fault. */
static const uint32_t fails[RECORDED] = {230, 160, 128, 60, 0};

#define MOST_PERCENT 40u
#define MOST_OUT (RECORDED * MOST_PERCENT / 100)

static struct table_pick picks[RECORDED];
static struct table_pool pool = {.n = {RECORDED},
	.picks = {picks},
	.ejection = {.failures = FAILURES,
		.rate = 50,
		.max_percent = MOST_PERCENT,
		.time_ms = TIME_MS,
		.max_ms = TIME_MAX_MS}};

static struct recorders {
	/* end of the trial:40 | epoch:16 | its recorder+1:8; 0: none is on.  W: CAS by all */
	uint64_t trial[RECORDED];
	/* odd while the master brings endpoints back, which ends trials as well.  W: master */
	uint64_t epoch;
	/* calm: endpoints that are surely out, or some that come back less.  W: added to by all */
	uint64_t out;
	uint64_t calm; /* W: master, between rounds */
	struct counts {
		_Alignas(SHM_LINE) uint64_t answers, ejections, trials, backs, late;
	} counts[CHILDREN];
} * all;

static uint64_t reaped, brought_back, wavered;

void
recorders_init(void)
{
	all = shared(sizeof(*all));
	for (uint32_t i = 0; i < RECORDED; i++) {
		picks[i].slot = ENDPOINTS + i;
		ep_state_set(seg, ENDPOINTS + i, EP_UP);
	}
}

void
recorders_calm(void)
{
	all->calm = 1;
}

void
recorders_storm(void)
{
	all->calm = 0;
}

static uint64_t
ticks(void)
{
	return clock_us() / TICK_US;
}

static uint64_t
cas(uint64_t *word, uint64_t old, uint64_t new)
{
	(void)__atomic_compare_exchange_n(
		word, &old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return old;
}

/*
 * A trial was won at `now`, within one epoch.  Who was stopped before writing it down finds a later one, and
 * keeps still.
 */
static uint64_t
trial_begins(uint32_t me, uint32_t i, uint64_t now, uint64_t most, uint64_t epoch)
{
	const uint64_t mine = (now + most) << 24 | (epoch & 0xffff) << 8 | (me + 1);
	uint64_t seen = seen_get(&all->trial[i]), old;

	do {
		old = seen;
		if ((old >> 8 & 0xffff) == (epoch & 0xffff)) {
			if (old >> 24 >= mine >> 24)
				return 0;
			if (old >> 24 > now)
				bad(BAD_TRIALS);
		}
		seen = cas(&all->trial[i], old, mine);
	} while (seen != old);
	return mine;
}

static bool
fails_now(uint64_t r, uint32_t i)
{
	return (r >> 8 & 255) < fails[i];
}

/* Not counted as out before it is in. */
static bool
back(uint32_t i, uint64_t trial)
{
	bool counted;

	seen_add(&all->out, -(uint64_t)1);
	counted = eject_trial_good(seg, ENDPOINTS + i, trial, ticks());
	if (!counted)
		seen_add(&all->out, 1);
	return counted;
}

/* True unless this life is over in the midst of it. */
static bool
try(struct life *l, uint32_t i, uint64_t trial, uint64_t noted)
{
	struct counts *h = &all->counts[l->child];
	const uint64_t r = next_random(&l->rnd);
	bool counted;

	h->trials++;
	spin((r >> 52 & 7) == 0 ? r >> 24 & 0xffff : r >> 24 & 0xff);
	if ((r >> 40 & 3) == 0)
		(void)sched_yield();
	if (life_end(l) == END_DIE)
		return false;
	if (noted != 0) /* before it ends: the next one may begin at once */
		(void)cas(&all->trial[i], noted, 0);
	if ((r >> 48 & 7) == 0) {
		counted = eject_trial_none(seg, ENDPOINTS + i, trial);
	} else if (fails_now(r, i)) {
		counted = eject_trial_bad(
				  seg, ENDPOINTS + i, trial, true, ticks(), &pool.ejection) > 0;
	} else {
		counted = back(i, trial);
		h->backs += counted;
	}
	h->late += !counted;
	return true;
}

static void
tell_bad(struct life *l, uint32_t i)
{
	/* It was reached: refused connections eject beyond the most that may be out (tests/unit/shm/eject.c). */
	if (eject_bad_answer(seg, &pool, ROLE_PREFILL, ENDPOINTS + i, true, ticks()) == 0)
		return;
	all->counts[l->child].ejections++;
	if ((int64_t)seen_add(&all->out, 1) > (int64_t)MOST_OUT && seen_get(&all->calm) != 0)
		bad(BAD_OUT);
}

static void
look(uint32_t i)
{
	uint64_t left_ms;
	const enum eject_state s = eject_read(seg, ENDPOINTS + i, ticks(), &left_ms);

	if (left_ms >
		2 * TRIAL_LONG_MS) /* twice: we may have been stopped since we asked the clock */
		bad(BAD_FOREVER);
	if (s != EJECT_IN && fails[i] == 0)
		bad(BAD_EJECTED);
}

static bool
ask(struct life *l, uint64_t most)
{
	struct counts *h = &all->counts[l->child];
	const uint64_t r = next_random(&l->rnd), now = ticks(), epoch = seen_get(&all->epoch);
	const uint32_t i = (uint32_t)(r >> 32) % RECORDED;
	uint64_t trial;

	look(i);
	if (!eject_try(seg, l->child, ENDPOINTS + i, now, most, &trial))
		return true;
	h->answers++;
	if (trial != 0) {
		const bool sure = epoch % 2 == 0 && seen_get(&all->epoch) == epoch;

		return try(l, i, trial, sure ? trial_begins(l->child, i, now, most, epoch) : 0);
	}
	if (fails_now(r, i))
		tell_bad(l, i);
	else
		eject_good_answer(seg, ENDPOINTS + i, now, &pool.ejection);
	return true;
}

void
recorder(struct life *l)
{
	const uint64_t most_ms = l->rnd % 2 == 0 ? TRIAL_SHORT_MS : TRIAL_LONG_MS;
	const bool greedy = l->rnd % 8 < 3; /* never yields */

	while (life_end(l) == END_NOT) {
		if (!ask(l, most_ms))
			return;
		if (!greedy && next_random(&l->rnd) % 64 == 0)
			(void)sched_yield();
	}
}

static void
bring_back(void)
{
	while (eject_bring_back(seg, &pool, ROLE_PREFILL, ticks()) >= 0)
		brought_back++;
}

/* Endpoints go down for a while, as probes would have it. */
static void
waver(void)
{
	for (uint32_t ep = ENDPOINTS; ep < ENDPOINTS + RECORDED; ep++)
		if (ep_state_get(seg, ep) != EP_UP) {
			(void)eject_clear(seg, ep, false, ticks());
			ep_state_set(seg, ep, EP_UP);
		}
	if (crowd_random() % 4 != 0)
		return;
	ep_state_set(seg, ENDPOINTS + (uint32_t)(crowd_random() % RECORDED), EP_DOWN);
	wavered++;
}

void
recorder_bury(uint32_t child)
{
	for (uint32_t i = 0; i < RECORDED; i++) {
		const uint64_t noted = seen_get(&all->trial[i]);

		if ((noted & 255) == child + 1)
			(void)cas(&all->trial[i], noted, 0);
	}
	reaped += half_open_reap(seg, child);
	seen_add(&all->epoch, 1);
	waver();
	bring_back();
	seen_add(&all->epoch, 1);
}

static struct counts
sum(void)
{
	struct counts s = {0};

	for (uint32_t i = 0; i < CHILDREN; i++) {
		s.answers += all->counts[i].answers;
		s.ejections += all->counts[i].ejections;
		s.trials += all->counts[i].trials;
		s.backs += all->counts[i].backs;
		s.late += all->counts[i].late;
	}
	return s;
}

/* More than may be, though nobody is in the midst of anything? */
static void
count_out(void)
{
	uint32_t out = 0, ejected = 0;

	for (uint32_t i = 0; i < RECORDED; i++) {
		uint64_t left_ms;
		const bool up = ep_state_get(seg, ENDPOINTS + i) == EP_UP;
		const bool in = eject_read(seg, ENDPOINTS + i, ticks(), &left_ms) == EJECT_IN;

		out += !up || !in;
		ejected += up && !in;
	}
	if (ejected > 0 && out > MOST_OUT)
		bad(BAD_OUT);
}

/* Whoever comes when its time has passed gets the trial. */
static void
try_one(uint32_t i)
{
	const uint32_t ep = ENDPOINTS + i;
	uint64_t left_ms, trial;
	const enum eject_state s = eject_read(seg, ep, ticks(), &left_ms);

	if (s == EJECT_IN)
		return;
	if (s == EJECT_TRIED || left_ms > TIME_MAX_MS) { /* nobody is left to try it */
		bad(BAD_FOREVER);
		return;
	}
	(void)usleep((useconds_t)(left_ms + 1) * TICK_US);
	if (!eject_try(seg, 0, ep, ticks(), TRIAL_LONG_MS, &trial) || trial == 0 ||
		!eject_trial_good(seg, ep, trial, ticks()) ||
		eject_read(seg, ep, ticks(), &left_ms) != EJECT_IN)
		bad(BAD_FOREVER);
}

void
recorders_settle(void)
{
	static uint64_t before;
	const uint64_t trials = sum().trials;

	count_out();
	for (uint32_t i = 0; i < RECORDED; i++) {
		try_one(i);
		ep_state_set(seg, ENDPOINTS + i, EP_UP);
		seen_set(&all->trial[i], 0);
	}
	seen_set(&all->out, 0);
	if (trials == before)
		bad(BAD_IDLE);
	before = trials;
}

void
recorders_report(void)
{
	const struct counts s = sum();

	printf("ejections: answers=%" PRIu64 " ejected=%" PRIu64 " trials=%" PRIu64 " back=%" PRIu64
	       " too_late=%" PRIu64 " trials_reaped=%" PRIu64 " brought_back=%" PRIu64
	       " went_down=%" PRIu64 "\n",
		s.answers, s.ejections, s.trials, s.backs, s.late, reaped, brought_back, wavered);
}
