/*
 * Completion flags: waiters (workers) arm, sleep on their eventfd and look as design.md says;
 * notifiers deliver what they ought to and much that they ought not to.
 *
 * A waiter arms a batch at once and arms nothing more before all of it has come, or a lost wake-up
 * would be covered by the next one.  Beside each flag lies a post: what the notifiers are told of
 * it, and what they did.
 *
 * Oracles: a flag that is READY wakes its waiter (looks are counted, not time, so that a machine
 * which stands still for seconds proves nothing); a flag gets READY only after that many notices
 * were begun for its gen, and no more count than it asked for; what is early, late, of another gen
 * or has another nonce never counts; a gen is never given out twice.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/flags.h"
#include "tests/torture/torture.h"

#define BATCH 4u
#define NOTICES 3u
#define MEMORY 64u       /* ids a notifier remembers, to deliver them again */
#define SLEEP_US 300000u /* then a waiter looks whether something got READY without a wake-up */
#define LOOKS 7u         /* in a row that find a flag READY without a wake-up: it is lost */
#define TALLY_MAX 0xffffu
/* One per flag slot in use.  gen:48 | n:16 where it says so. */
struct post {
	_Alignas(SHM_LINE) uint64_t gen;   /* written last, 0: not to be read.  W: waiter */
	uint64_t nonce, notices;           /* W: waiter */
	_Alignas(SHM_LINE) uint64_t begun; /* gen:48 | notices begun:16.  W: waiter, then atomic */
	uint64_t counted;                  /* gen:48 | notices counted:16.  W: same */
	uint64_t acked; /* highest gen whose READY_NOW came back.  W: CAS by notifiers */
};

/* What a notifier has on its desk; for the figures of its death. */
struct desk {
	_Alignas(SHM_LINE) struct flag_ref ref;
	enum { IDLE, IN_NOTIFY, BEFORE_EVENTFD } step;
};

static struct flags {
	struct post post[WAITERS][BATCH];
	struct desk desk[CHILDREN];
	struct seen {
		_Alignas(SHM_LINE) uint64_t arms, completed, wakeups, late;
		uint64_t notices, refused, readies;
	} seen[CHILDREN];
} * all;

static int efd[WAITERS];       /* made before any fork, one per slot, like the workers' */
static struct flag_set *probe; /* for flag_is_ready() from the master's side */
static uint64_t killed_before_bit, killed_before_eventfd, reaped_armed;

void
flags_init(void)
{
	all = shared(sizeof(*all));
	for (uint32_t i = 0; i < WAITERS; i++) {
		efd[i] = eventfd(0, EFD_NONBLOCK);
		if (efd[i] == -1) {
			perror("eventfd");
			exit(2);
		}
	}
	probe = flag_set_new(seg, 0);
}

/* --- gen:48 | n:16 ------------------------------------------------------------------------------ */

static uint64_t
tally_start(uint64_t gen)
{
	return gen << 16;
}

/* Adds one if it is still of this gen, up to TALLY_MAX.  Returns n, or 0 if it is of a later one. */
static uint64_t
tally_add(uint64_t *tally, uint64_t gen)
{
	uint64_t seen = seen_get(tally);

	do {
		if (seen >> 16 != gen)
			return 0;
		if ((seen & TALLY_MAX) == TALLY_MAX)
			return TALLY_MAX;
	} while (!__atomic_compare_exchange_n(
		tally, &seen, seen + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
	return (seen + 1) & TALLY_MAX;
}

/* --- the waiter --------------------------------------------------------------------------------- */

struct wait {
	struct life *l;
	struct flag_set *flags;
	struct seen *seen;
	uint32_t awaited;
	uint32_t stuck; /* looks in a row that found something READY that did not wake us */
	struct held {
		struct flag_ref ref;
		uint8_t notices;
		enum { NOT_HELD, SILENT, AWAITED } state; /* SILENT: nobody is told of it */
	} held[BATCH];
};

/* What becomes of an armed flag. */
enum fate { SILENCE = 0, ABANDONED = 1, WAITED_FOR = 2 };

static enum fate
fate_draw(uint64_t r)
{
	return r % 8 < WAITED_FOR ? (enum fate)(r % 8) : WAITED_FOR;
}

static void
arm_one(struct wait *w)
{
	const uint64_t r = next_random(&w->l->rnd);
	const enum fate fate = fate_draw(r);
	const uint8_t notices = (uint8_t)(1 + (r >> 8) % NOTICES);
	struct flag_ref ref;
	struct post *post;

	if (!flag_arm(w->flags, notices, &ref) || ref.slot >= BATCH)
		abort(); /* the last slots freed are given first */
	post = &all->post[w->l->child][ref.slot];
	w->seen->arms++;
	if (ref.gen <= seen_get(&post->begun) >> 16)
		bad(BAD_GEN);
	seen_set(&post->gen, 0);
	seen_set(&post->begun, tally_start(ref.gen));
	seen_set(&post->counted, tally_start(ref.gen));
	seen_set(&post->nonce, ref.nonce);
	seen_set(&post->notices, notices);
	if (fate != SILENCE)
		seen_set(&post->gen, ref.gen);
	if (fate == ABANDONED) { /* whatever comes is late */
		flag_free(w->flags, &ref);
		return;
	}
	w->held[ref.slot] = (struct held){ref, notices, fate == SILENCE ? SILENT : AWAITED};
	w->awaited += fate == WAITED_FOR;
}

/* The flag is READY: were there so many notices? */
static void
check_ready(struct wait *w, uint32_t slot)
{
	const struct held *h = &w->held[slot];
	const uint64_t begun = seen_get(&all->post[w->l->child][slot].begun);

	if (h->state == SILENT || (begun & TALLY_MAX) < h->notices)
		bad(BAD_EARLY);
}

static void
finish(struct wait *w, uint32_t slot)
{
	struct held *h = &w->held[slot];

	w->awaited -= h->state == AWAITED;
	w->seen->completed += h->state == AWAITED;
	flag_free(w->flags, &h->ref);
	h->state = NOT_HELD;
}

static void
on_ready(uint32_t slot, void *arg)
{
	struct wait *w = arg;

	if (slot >= BATCH || w->held[slot].state == NOT_HELD ||
		!flag_is_ready(w->flags, &w->held[slot].ref)) {
		bad(BAD_NOTICE); /* READY, and nobody armed it */
		return;
	}
	check_ready(w, slot);
	finish(w, slot);
	w->stuck = 0;
}

/* The eventfd first, then the bits (I10). */
static void
awake(struct wait *w)
{
	eventfd_t n;

	(void)eventfd_read(efd[w->l->child], &n);
	flag_collect(w->flags, on_ready, w);
	w->seen->wakeups++;
}

/* The flag does not get READY whatever the notifiers do: its notices do not count. */
static bool
is_deaf(struct wait *w, uint32_t slot)
{
	const struct post *post = &all->post[w->l->child][slot];
	const uint64_t gen = w->held[slot].ref.gen;

	/* the flag after what was said of it */
	return (seen_get(&post->acked) == gen ||
		       seen_get(&post->begun) == (tally_start(gen) | TALLY_MAX)) &&
	       !flag_is_ready(w->flags, &w->held[slot].ref);
}

/* Nothing woke us for long: is there something READY all the same? */
static void
look_again(struct wait *w)
{
	uint32_t ready = BATCH;

	for (uint32_t slot = 0; slot < BATCH; slot++) {
		if (w->held[slot].state != AWAITED)
			continue;
		if (flag_is_ready(w->flags, &w->held[slot].ref)) {
			ready = slot;
		} else if (is_deaf(w, slot)) {
			bad(BAD_NOTICE);
			finish(w, slot);
		}
	}
	if (ready == BATCH) {
		w->stuck = 0;
		return;
	}
	w->stuck++;
	w->seen->late += w->stuck == 1;
	if (w->stuck == LOOKS) {
		bad(BAD_LOST);
		finish(w, ready);
		w->stuck = 0;
	}
}

/* False if the life ends meanwhile. */
static bool
sleep_for_all(struct wait *w)
{
	uint64_t look_us = clock_us() + SLEEP_US;

	while (w->awaited > 0) {
		struct pollfd p = {.fd = efd[w->l->child], .events = POLLIN};
		const uint64_t now_us = clock_us();

		if (life_end(w->l) == END_DIE)
			return false;
		if (now_us >= look_us) {
			look_again(w);
			look_us = now_us + SLEEP_US;
		} else if (poll(&p, 1, (int)((look_us - now_us) / 1000 + 1)) == 1) {
			awake(w);
		}
	}
	return true;
}

/* Those that nobody was told of must not have come. */
static void
end_batch(struct wait *w)
{
	for (uint32_t slot = 0; slot < BATCH; slot++) {
		if (w->held[slot].state == NOT_HELD)
			continue;
		if (flag_is_ready(w->flags, &w->held[slot].ref))
			check_ready(w, slot);
		finish(w, slot);
	}
}

void
waiter(struct life *l)
{
	struct wait w = {
		.l = l, .flags = flag_set_new(seg, l->child), .seen = &all->seen[l->child]};
	bool alive = true;

	while (alive && life_end(l) == END_NOT) {
		for (uint64_t n = 1 + next_random(&l->rnd) % BATCH; n > 0; n--)
			arm_one(&w);
		alive = sleep_for_all(&w);
		if (alive)
			end_batch(&w);
	}
	flag_set_free(&w.flags);
}

void
waiter_wake(uint32_t child)
{
	(void)eventfd_write(efd[child], 1);
}

void
waiter_bury(uint32_t child)
{
	reaped_armed += flag_reap(seg, child);
}

/* --- the notifier ------------------------------------------------------------------------------- */

struct notify {
	struct life *l;
	struct desk *desk;
	struct seen *seen;
	struct flag_ref memory[MEMORY];
};

/* A new notifier does not know what its predecessor died over. */
static void
kick_all(void)
{
	flag_kick_all(seg);
	for (uint32_t i = 0; i < WAITERS; i++)
		(void)eventfd_write(efd[i], 1);
}

static void
acknowledge(struct post *post, uint64_t gen)
{
	uint64_t seen = seen_get(&post->acked);

	while (seen < gen && !__atomic_compare_exchange_n(&post->acked, &seen, gen, false,
				     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
}

/* The flag is READY or gone: nothing counts any more. */
static void
deliver_dead(struct notify *n, const struct flag_ref *ref)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* after what told us so */
	if (flag_notify(seg, ref) != FLAG_STALE)
		bad(BAD_NOTICE);
	n->seen->refused++;
}

/* READY, and the eventfd not written yet: so little time that few would die in it. */
static void
linger(struct notify *n)
{
	spin(next_random(&n->l->rnd) & 255);
}

/* Delivers a notice as an engine would send it. */
static void
deliver(struct notify *n, const struct flag_ref *ref)
{
	struct post *post = &all->post[ref->worker][ref->slot];
	const uint64_t notices = seen_get(&post->notices);
	enum flag_notice result;

	n->seen->notices++;
	if (tally_add(&post->begun, ref->gen) == 0) {
		deliver_dead(n, ref); /* armed anew since */
		return;
	}
	n->desk->ref = *ref;
	n->desk->step = IN_NOTIFY;
	result = flag_notify(seg, ref);
	if (result == FLAG_READY_NOW) {
		n->desk->step = BEFORE_EVENTFD;
		acknowledge(post, ref->gen);
		linger(n);
		(void)eventfd_write(efd[ref->worker], 1);
		n->seen->readies++;
	}
	n->desk->step = IDLE;
	/* the post's `notices` is of this gen if the tally still is */
	if ((result == FLAG_COUNTED || result == FLAG_READY_NOW) &&
		tally_add(&post->counted, ref->gen) > notices)
		bad(BAD_NOTICE);
	/* Twice.  And a right nonce is wrong only where the next gen's was just written over it. */
	if (result == FLAG_READY_NOW || result == FLAG_WRONG_NONCE)
		deliver_dead(n, ref);
}

/* Delivers what must not count. */
static void
deliver_wrong(struct notify *n, struct flag_ref ref, uint64_t r)
{
	enum flag_notice result;

	if (r % 3 == 0)
		ref.nonce ^= UINT64_C(1) << (r >> 8) % 64;
	else if (r % 3 == 1)
		ref.gen--;
	else
		ref.gen++; /* of the next one, with the nonce of this: too early */
	result = flag_notify(seg, &ref);
	if (result == FLAG_COUNTED || result == FLAG_READY_NOW)
		bad(BAD_NOTICE);
	n->seen->refused++;
}

/* False if there is none, or it is being written. */
static bool
read_post(uint32_t waiter, uint32_t slot, struct flag_ref *ret)
{
	struct post *post = &all->post[waiter][slot];
	const uint64_t gen = seen_get(&post->gen);

	*ret = (struct flag_ref){waiter, slot, gen, seen_get(&post->nonce)};
	return gen != 0 && seen_get(&post->gen) == gen;
}

static void
notify_once(struct notify *n)
{
	const uint64_t r = next_random(&n->l->rnd);
	struct flag_ref ref, *memory = &n->memory[(r >> 16) % MEMORY];

	if (!read_post((uint32_t)(r >> 32) % WAITERS, (uint32_t)(r >> 40) % BATCH, &ref))
		return;
	if (r % 4 == 0)
		spin(r >> 48 & 1023); /* late: the flag may be of another gen by now */
	if (r % 16 == 1) {
		deliver_wrong(n, ref, r >> 8);
	} else if (r % 16 == 2 && memory->gen != 0) {
		deliver(n, memory); /* again, and later still */
	} else {
		deliver(n, &ref);
		*memory = ref;
	}
}

void
notifier(struct life *l)
{
	struct notify n = {.l = l, .desk = &all->desk[l->child], .seen = &all->seen[l->child]};

	kick_all();
	while (life_end(l) == END_NOT)
		notify_once(&n);
}

void
notifier_bury(uint32_t child)
{
	struct desk *d = &all->desk[child];
	const struct flag_ref ref = d->ref;
	const bool ready = d->step != IDLE && flag_is_ready(probe, &ref);

	d->step = IDLE;
	if (!ready)
		return;
	if (seen_get(&all->post[ref.worker][ref.slot].acked) >= ref.gen)
		killed_before_eventfd++;
	else if ((seen_get(&seg_ready(seg, ref.worker)[0]) >> ref.slot & 1) == 0)
		killed_before_bit++;
	else
		killed_before_eventfd++;
}

/* --- the master --------------------------------------------------------------------------------- */

static struct seen
sum(void)
{
	struct seen s = {0};

	for (uint32_t i = 0; i < CHILDREN; i++) {
		s.arms += all->seen[i].arms;
		s.completed += all->seen[i].completed;
		s.wakeups += all->seen[i].wakeups;
		s.late += all->seen[i].late;
		s.notices += all->seen[i].notices;
		s.refused += all->seen[i].refused;
		s.readies += all->seen[i].readies;
	}
	return s;
}

void
flags_settle(void)
{
	static uint64_t before;
	const uint64_t completed = sum().completed;

	/* nobody is left to read them: forget what was posted */
	for (uint32_t i = 0; i < WAITERS; i++)
		for (uint32_t slot = 0; slot < BATCH; slot++)
			seen_set(&all->post[i][slot].gen, 0);
	if (completed == before)
		bad(BAD_IDLE);
	before = completed;
}

void
flags_report(void)
{
	const struct seen s = sum();

	printf("flags: arms=%" PRIu64 " completed=%" PRIu64 " wakeups=%" PRIu64
	       " later_than_%u_ms=%" PRIu64 " reaped_armed=%" PRIu64 "\n",
		s.arms, s.completed, s.wakeups, SLEEP_US / 1000, s.late, reaped_armed);
	printf("flags: notices=%" PRIu64 " refused=%" PRIu64 " ready_now=%" PRIu64
	       " killed_before_bit=%" PRIu64 " killed_before_eventfd=%" PRIu64 "\n",
		s.notices, s.refused, s.readies, killed_before_bit, killed_before_eventfd);
	flag_set_free(&probe);
}
