/*
 * Completion flags against a notifier that delivers early, late, twice, for a slot's former gen, for a
 * dead worker, and never.  All of it is real: notifier and worker are processes, notices come over a
 * ZMQ PUSH socket; the test plays the master and looks over the segment after each step.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "master/notifier/notifier.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/check.h"
#include "shm/flags.h"
#include "shm/core/heritage.h"
#include "shm/metrics.h"
#include "tests/unit/shm/fixture.h"

#define NWAKE 16
#define WORKER 1
#define LONG_MS 10000 /* for what must come */
#define SHORT_MS 50   /* for what must not */

static int wake_fds[NWAKE];
static char address[64];
static struct conf conf = {.lmcache_listen = address};
static pid_t notifier, worker;
static int channel, talk; /* to the notifier as its master, to the worker as its test */
static void *ctx, *push;

/* --- the worker --------------------------------------------------------------------------- */

enum what { ARM, WAIT, FREE, FILL };
struct ask {
	enum what what;
	int n; /* notices, or milliseconds */
};
struct answer {
	bool ok;
	bool hinted; /* WAIT: flag_collect() named the slot */
	struct flag_ref ref;
};

static void
note_slot(uint32_t slot, void *arg)
{
	struct answer *a = arg;

	a->hinted |= slot == a->ref.slot;
}

/* As a worker does it: the eventfd, then the bits, then the flag; and once more when time is up. */
static void
wait_ready(struct flag_set *fs, int ms, struct answer *a)
{
	const uint64_t until_ms = clock_ms() + (uint64_t)ms;

	a->hinted = false;
	do {
		const uint64_t now_ms = clock_ms();
		struct pollfd pfd = {.fd = wake_fds[WORKER], .events = POLLIN};
		uint64_t n;

		if (poll(&pfd, 1, now_ms < until_ms ? (int)(until_ms - now_ms) : 0) == 1)
			(void)!read(wake_fds[WORKER], &n, sizeof(n));
		flag_collect(fs, note_slot, a);
		a->ok = flag_is_ready(fs, &a->ref);
	} while (!a->ok && clock_ms() < until_ms);
}

static void
work(int fd)
{
	struct flag_set *fs = flag_set_new(seg, WORKER);
	struct answer a = {0};
	struct ask ask;

	while (recv(fd, &ask, sizeof(ask), 0) == (ssize_t)sizeof(ask)) {
		switch (ask.what) {
		case ARM:
			a.ok = flag_arm(fs, (uint8_t)ask.n, &a.ref);
			break;
		case WAIT:
			wait_ready(fs, ask.n, &a);
			break;
		case FREE:
			flag_free(fs, &a.ref);
			break;
		case FILL:
			while (flag_arm(fs, 1, &a.ref))
				;
			break;
		}
		(void)send(fd, &a, sizeof(a), 0);
	}
	flag_set_free(&fs);
}

static void
worker_start(void)
{
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sv), 0);
	worker = fork();
	cr_assert_geq(worker, 0);
	if (worker == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)close(sv[0]);
		work(sv[1]);
		_exit(0);
	}
	(void)close(sv[1]);
	talk = sv[0];
	proc_slot_set(seg, WORKER, (uint64_t)worker, PROC_READY, 1);
}

static struct answer
tell(enum what what, int n)
{
	const struct ask ask = {what, n};
	struct answer a;

	cr_assert_eq(send(talk, &ask, sizeof(ask), 0), (ssize_t)sizeof(ask));
	cr_assert_eq(recv(talk, &a, sizeof(a), 0), (ssize_t)sizeof(a));
	return a;
}

static struct flag_ref
arm(int notices)
{
	const struct answer a = tell(ARM, notices);

	cr_assert(a.ok);
	return a.ref;
}

static void
worker_kill(void)
{
	cr_assert_eq(kill(worker, SIGKILL), 0);
	cr_assert_eq(waitpid(worker, NULL, 0), worker);
	(void)close(talk);
}

/* What the master does after that; returns how many flags were armed. */
static uint32_t
worker_reap(void)
{
	const uint32_t n = flag_reap(seg, WORKER);

	proc_slot_set(seg, WORKER, 0, PROC_EMPTY, 0);
	return n;
}

/* The test itself does more than the filter allows. */
static void
stays_outside(const struct heritage *h)
{
	(void)h;
}

/* --- the notifier, and the engine that feeds it ------------------------------------------- */

static void
notifier_start(void)
{
	struct pollfd pfd;
	int sv[2];
	char c = 0;

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	notifier = fork();
	cr_assert_geq(notifier, 0);
	if (notifier == 0) {
		const struct heritage h = {.conf = &conf,
			.seg = seg,
			.slot = SLOT_NOTIFIER(seg),
			.channel = sv[1],
			.wake_fds = wake_fds,
			.enter_sandbox = stays_outside};

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)close(sv[0]);
		_exit(notifier_main(&h));
	}
	(void)close(sv[1]);
	channel = sv[0];
	pfd = (struct pollfd){.fd = channel, .events = POLLIN};
	cr_assert_eq(poll(&pfd, 1, LONG_MS), 1);
	cr_assert_eq(read(channel, &c, 1), 1);
	cr_assert_eq(c, CH_READY);
	proc_slot_set(seg, SLOT_NOTIFIER(seg), (uint64_t)notifier, PROC_READY, 0);
}

static void
notifier_end(int sig)
{
	(void)kill(notifier, sig);
	(void)close(channel);
	(void)waitpid(notifier, NULL, 0);
	proc_slot_set(seg, SLOT_NOTIFIER(seg), 0, PROC_EMPTY, 0);
}

static void
engine_says(const struct flag_ref *ref)
{
	char msg[128] = "\x82\xa4type\xaaProxyNotif\xa6req_id\xd9\x25"; /* 37 characters follow */
	const size_t head = strlen(msg);

	flag_id_format(ref, msg + head);
	cr_assert_geq(zmq_send(push, msg, strlen(msg), 0), 0);
}

static void
counted(enum metric_counter m, uint64_t n)
{
	const volatile uint64_t *at = &seg_slab(seg, SLOT_NOTIFIER(seg))->counters[m];
	const uint64_t until_ms = clock_ms() + LONG_MS;

	while (*at != n && clock_ms() < until_ms)
		(void)usleep(500);
	cr_assert_eq(*at, n, "%s is %llu, not %llu", metric_counter_name[m],
		(unsigned long long)*at, (unsigned long long)n);
}

static void
complain(const char *line, void *arg)
{
	(void)arg;
	cr_assert_fail("%s", line);
}

static void
all_is_well(void)
{
	cr_assert_eq(check_segment(seg, SMALL_BUILD, NULL, complain, NULL), 0);
}

static void
begin(void)
{
	small_seg();
	proc_slot_set(seg, SLOT_MASTER(seg), (uint64_t)getpid(), PROC_READY, 0);
	for (uint32_t i = 0; i < seg->hdr->nslots; i++)
		wake_fds[i] = eventfd(0, EFD_NONBLOCK);
	(void)snprintf(address, sizeof(address), "ipc://@pdrouter-flags-%d", (int)getpid());
	notifier_start();
	worker_start();
	ctx = zmq_ctx_new();
	push = zmq_socket(ctx, ZMQ_PUSH);
	cr_assert_eq(zmq_connect(push, address), 0);
}

static void
end(void)
{
	int linger = 0;

	all_is_well();
	(void)zmq_setsockopt(push, ZMQ_LINGER, &linger, sizeof(linger));
	(void)zmq_close(push);
	(void)zmq_ctx_term(ctx);
	worker_kill();
	(void)worker_reap();
	notifier_end(SIGTERM);
	all_is_well();
	for (uint32_t i = 0; i < seg->hdr->nslots; i++)
		(void)close(wake_fds[i]);
	small_seg_end();
}

TestSuite(notifier_flags, .init = begin, .fini = end, .timeout = 60);

static void
is_ready(void)
{
	const struct answer a = tell(WAIT, LONG_MS);

	cr_assert(a.ok);
	cr_assert(a.hinted, "found by its bit, not by looking");
}

static void
is_not_ready(void)
{
	cr_assert_not(tell(WAIT, SHORT_MS).ok);
}

/* --- when notices come -------------------------------------------------------------------- */

Test(notifier_flags, in_time)
{
	const struct flag_ref ref = arm(2);

	engine_says(&ref);
	counted(M_NOTICES, 1);
	is_not_ready();
	engine_says(&ref);
	is_ready();
}

/* All before the worker looks for the first time: it waits for another leg until then. */
Test(notifier_flags, early)
{
	const struct flag_ref ref = arm(2);

	engine_says(&ref);
	engine_says(&ref);
	counted(M_NOTICES, 2);
	all_is_well();
	is_ready();
}

/* For what is not armed yet: the id's random part cannot be known by then, and is not. */
Test(notifier_flags, before_it_was_armed)
{
	struct flag_ref guess = {.worker = WORKER, .slot = 0, .gen = 1}, ref;

	engine_says(&guess);
	counted(M_NOTICES_STALE, 1);
	ref = arm(1);
	cr_assert(ref.slot == guess.slot && ref.gen == guess.gen);
	is_not_ready();
	engine_says(&guess); /* the gen is right now, the nonce is not */
	counted(M_NOTICES_BAD, 1);
	is_not_ready();
	engine_says(&ref);
	is_ready();
}

/* The worker gave up waiting. */
Test(notifier_flags, late)
{
	const struct flag_ref ref = arm(1);

	is_not_ready();
	(void)tell(FREE, 0);
	engine_says(&ref);
	counted(M_NOTICES_STALE, 1);
	all_is_well();
	(void)arm(1);
	is_not_ready();
}

/* More notices than were asked for: neither this transfer nor the slot's next one sees them. */
Test(notifier_flags, twice)
{
	const struct flag_ref ref = arm(1);
	struct flag_ref next;

	engine_says(&ref);
	engine_says(&ref);
	counted(M_NOTICES, 1);
	counted(M_NOTICES_STALE, 1);
	is_ready();
	(void)tell(FREE, 0);
	next = arm(1);
	cr_assert_eq(next.slot, ref.slot);
	engine_says(&ref);
	counted(M_NOTICES_STALE, 2);
	is_not_ready();
}

/* Of the same slot's transfer before this one, while this one waits. */
Test(notifier_flags, of_the_former_gen)
{
	const struct flag_ref old = arm(2);
	struct flag_ref new;

	engine_says(&old);
	counted(M_NOTICES, 1);
	(void)tell(FREE, 0);
	new = arm(2);
	cr_assert(new.slot == old.slot &&new.gen == old.gen + 1);
	engine_says(&new);
	engine_says(&old);
	engine_says(&old);
	counted(M_NOTICES_STALE, 2);
	is_not_ready();
	engine_says(&new);
	is_ready();
}

/* It arms, is killed, and nobody has noticed yet: counted, and gone with the rest when it is reaped. */
Test(notifier_flags, of_a_dead_worker)
{
	const struct flag_ref ref = arm(1);
	struct flag_ref next;

	cr_assert_eq(kill(worker, SIGKILL), 0);
	engine_says(&ref);
	counted(M_NOTICES, 1);
	all_is_well();
	worker_kill();
	cr_assert_eq(worker_reap(), 1);
	all_is_well();
	engine_says(&ref);
	counted(M_NOTICES_STALE, 1);

	worker_start(); /* into the same slot, its eventfd and ready bits still up */
	all_is_well();
	next = arm(1);
	cr_assert(next.slot == ref.slot && next.gen > ref.gen);
	is_not_ready();
	engine_says(&ref);
	counted(M_NOTICES_STALE, 2);
	is_not_ready();
	engine_says(&next);
	is_ready();
}

/* To a slot that nobody lives in. */
Test(notifier_flags, of_a_reaped_worker)
{
	const struct flag_ref ref = arm(2);

	engine_says(&ref);
	counted(M_NOTICES, 1);
	worker_kill();
	cr_assert_eq(worker_reap(), 1);
	engine_says(&ref);
	counted(M_NOTICES_STALE, 1);
	all_is_well();
	worker_start();
}

/* Time-outs end them; slots that wait for ever run out, are refused, and come back. */
Test(notifier_flags, never)
{
	struct flag_ref ref = arm(1), again;

	is_not_ready();
	(void)tell(FREE, 0);
	(void)tell(FILL, 0);
	cr_assert_not(tell(ARM, 1).ok);
	all_is_well();
	(void)tell(FREE, 0); /* the last one that was given out */
	again = arm(1);
	engine_says(&again);
	is_ready();
	engine_says(&ref);
	counted(M_NOTICES_STALE, 1);
}

/* A notifier is killed after it has read a notice: the notice is lost, and only its transfer times out.
 * Notices that the successor reads are counted. */
Test(notifier_flags, by_one_that_dies_in_between)
{
	const struct flag_ref ref = arm(2);

	engine_says(&ref);
	counted(M_NOTICES, 1);
	notifier_end(SIGKILL);
	all_is_well();
	notifier_start();
	is_not_ready();
	engine_says(&ref);
	is_ready();
}
