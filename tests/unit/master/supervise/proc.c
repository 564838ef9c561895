/* Supervision with real processes: their kinds' mains are a few lines each, below. */
#include <criterion/criterion.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "master/supervise/proc.h"
#include "master/supervise/procs.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/accept.h"
#include "shm/core/atomic.h"
#include "shm/core/heritage.h"
#include "shm/load.h"
#include "tests/unit/shm/fixture.h"

#define NWAKE 16

static struct event_base *base;
static struct procs *ps;
static int wake_fds[NWAKE];
static int sigfd;
static struct event *ev_sig;
static bool zombies_stay; /* as if who is killed took its time to die */
static struct seen {
	uint32_t ready, refused, gone;
	int reaped;
} seen;

/* --- what children do; _exit() keeps the test runner's atexit functions out of them ---------------- */

/* Its count of connections shows how often a child was told to serve. */
static uint64_t
proc_conns(const struct heritage *h)
{
	return shm_load(&h->seg->procs[h->slot].conns);
}

static char
next_message(const struct heritage *h)
{
	struct pollfd pfd = {.fd = h->channel, .events = POLLIN};
	char c = 0;

	for (;;) {
		(void)poll(&pfd, 1, 20000);
		if (read(h->channel, &c, 1) != 1)
			return 0;
		if (c != CH_SERVE)
			return c;
		accept_count(h->seg, h->slot, proc_conns(h) + 1);
	}
}

static void
say_ready(const struct heritage *h)
{
	char c = CH_READY;

	(void)!write(h->channel, &c, 1);
}

static int
obedient(const struct heritage *h)
{
	say_ready(h);
	_exit(next_message(h) == CH_DRAIN ? CHILD_EXIT_OK : 1);
}

/* Holds a reservation and then waits to be killed. */
static int
holder(const struct heritage *h)
{
	(void)load_reserve(h->seg, h->slot, 1, 0);
	return obedient(h);
}

static int
deaf(const struct heritage *h)
{
	say_ready(h);
	while (pause() == -1)
		;
	return 0;
}

/* Goes when its time is over. */
static int
finishes(const struct heritage *h)
{
	char c;

	say_ready(h);
	do
		c = next_message(h);
	while (c != 0 && c != CH_QUIT);
	_exit(CHILD_EXIT_OK);
}

/* Goes if the master's part of the segment can be written. */
static int
tries_to_write(const struct heritage *h)
{
	if (mprotect(h->seg->hdr, 1, PROT_READ | PROT_WRITE) == 0)
		_exit(CHILD_EXIT_NO_RESPAWN);
	return obedient(h);
}

static int
unwilling(const struct heritage *h)
{
	(void)h;
	_exit(CHILD_EXIT_NO_RESPAWN);
}

/* Goes unless it finds exactly its heritage open: 0..2, channel, one eventfd per slot, no listener. */
static int
counts_fds(const struct heritage *h)
{
	unsigned want = 3 + 1 + h->seg->hdr->nslots, found = 0;

	for (int fd = 0; fd < 1024; fd++)
		found += fcntl(fd, F_GETFD) != -1;
	if (found != want || getppid() != h->master_pid)
		_exit(CHILD_EXIT_NO_RESPAWN);
	return obedient(h);
}

/* Goes unless stdout and stderr are open. */
static int
needs_stdio(const struct heritage *h)
{
	if (fcntl(STDOUT_FILENO, F_GETFD) == -1 || fcntl(STDERR_FILENO, F_GETFD) == -1)
		_exit(CHILD_EXIT_NO_RESPAWN);
	return obedient(h);
}

/* The master's hook writes into a descriptor whose number is another one's in the child. */
static void
no_log_line(void *arg, const char *msg, const struct log_field *fields, size_t n)
{
	(void)arg;
	(void)msg;
	(void)fields;
	(void)n;
	_exit(CHILD_EXIT_NO_RESPAWN);
}

static int
logs_an_error(const struct heritage *h)
{
	log_error("an error of a child");
	return obedient(h);
}

/* --- the stage ----------------------------------------------------------------------------------- */

static void
on_ready(void *arg, uint32_t generation)
{
	(void)arg;
	seen.ready = generation;
}

static void
on_refused(void *arg, uint32_t generation)
{
	(void)arg;
	seen.refused = generation;
}

static void
on_gone(void *arg, uint32_t generation)
{
	(void)arg;
	seen.gone = generation;
}

static void
on_reaped(void *arg)
{
	(void)arg;
	seen.reaped++;
}

static void
on_sigchld(evutil_socket_t fd, short what, void *arg)
{
	struct signalfd_siginfo info;

	(void)what;
	(void)arg;
	while (read(fd, &info, sizeof(info)) > 0)
		;
	if (!zombies_stay)
		procs_sigchld(ps);
}

static void
setup(const struct proc_kind *kinds)
{
	static const struct procs_hooks hooks = {on_ready, on_refused, on_gone, on_reaped, NULL};
	sigset_t set;

	small_seg();
	seg->hdr->build = seg_build();
	cr_assert_leq(seg->hdr->nslots, NWAKE);
	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGCHLD);
	(void)sigprocmask(SIG_BLOCK, &set, NULL);
	sigfd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	base = event_base_new();
	ev_sig = event_new(base, sigfd, EV_READ | EV_PERSIST, on_sigchld, NULL);
	(void)event_add(ev_sig, NULL);
	for (uint32_t i = 0; i < seg->hdr->nslots; i++)
		wake_fds[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	ps = procs_new(base, seg, kinds, wake_fds, &hooks);
}

static void
teardown(void)
{
	procs_free(&ps);
	event_free(ev_sig);
	event_base_free(base);
	(void)close(sigfd);
	for (uint32_t i = 0; i < seg->hdr->nslots; i++)
		(void)close(wake_fds[i]);
	small_seg_end();
}

static void
on_wake_up(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
}

/* Runs the loop until *what == value, at most 10 s. */
static bool
until(const uint32_t *what, uint32_t value)
{
	const struct timeval tick = {.tv_usec = 10000};
	struct event *ev = event_new(base, -1, EV_PERSIST, on_wake_up, NULL);
	uint64_t end = clock_ms() + 10000;

	(void)event_add(ev, &tick);
	while (*what != value && clock_ms() < end)
		(void)event_base_loop(base, EVLOOP_ONCE);
	event_free(ev);
	return *what == value;
}

static bool
until_ready(uint32_t slot)
{
	const uint64_t end = clock_ms() + 10000;

	do {
		(void)event_base_loop(base, EVLOOP_NONBLOCK);
		(void)usleep(1000);
	} while (proc_slot_state(seg, slot) != PROC_READY && clock_ms() < end);
	return proc_slot_state(seg, slot) == PROC_READY;
}

static pid_t
pid_in(uint32_t slot)
{
	return (pid_t)seg->proc_records[slot].pid;
}

static bool
status_has(const char *text, bool json)
{
	struct evbuffer *out = evbuffer_new();
	bool has;

	procs_status(ps, out, json);
	has = evbuffer_search(out, text, strlen(text), NULL).pos >= 0;
	evbuffer_free(out);
	return has;
}

static uint32_t
two(const struct conf *conf)
{
	(void)conf;
	return 2;
}

static uint32_t
by_conf(const struct conf *conf)
{
	return conf->workers;
}

static const char *
address(const struct conf *conf)
{
	return conf->notifier_key;
}

static const char *
collector(const struct conf *conf)
{
	return conf->trace_otlp;
}

#define KINDS(fn)                                                                                  \
	((const struct proc_kind[]){                                                               \
		{.name = "worker", .main = (fn), .count = two, .restarts = M_WORKER_RESTARTS},     \
		{.name = NULL}})

/* --- tests --------------------------------------------------------------------------------------- */

Test(proc, no_cell_is_empty)
{
	for (unsigned s = 0; s < PS_NSTATES; s++)
		for (unsigned e = 0; e < PE_N; e++)
			cr_assert(proc_handles(s, e), "state %s, event %u", proc_phase_name(s), e);
}

Test(proc, back_off_doubles_and_starts_anew)
{
	static const uint64_t want[] = {100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000};
	uint64_t ms = 0;

	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		ms = proc_backoff_ms(ms, 9999);
		cr_assert_eq(ms, want[i], "step %zu: %llu", i, (unsigned long long)ms);
	}
	cr_assert_eq(proc_backoff_ms(10000, 10000), 100);
}

Test(proc, a_generation_starts_and_drains)
{
	static const struct conf conf = {.drain_ms = 5000};
	uint32_t first, second;

	setup(KINDS(counts_fds));
	first = procs_generation_start(ps, &conf, NULL, 0);
	procs_conf_set(ps, &conf, first);
	cr_assert(until(&seen.ready, first));
	second = procs_generation_start(ps, &conf, NULL, 0);
	cr_assert_neq(second, 0);
	cr_assert_not(procs_generation_fits(ps, &conf), "all slots are taken");
	cr_assert(until(&seen.ready, second));
	cr_assert_eq(seen.gone, 0);
	procs_conf_set(ps, &conf, second);
	cr_assert(until(&seen.gone, first));
	cr_assert_eq(procs_generations(ps), 1);
	cr_assert_eq(procs_alive(ps), 2);
	procs_stop(ps);
	cr_assert(until(&seen.gone, second));
	cr_assert_eq(procs_alive(ps), 0);
	cr_assert_eq(seen.refused, 0);
	teardown();
}

static uint64_t
serving(uint32_t slot)
{
	const struct timeval a_while = {.tv_usec = 100000};

	(void)event_base_loopexit(base, &a_while);
	(void)event_base_dispatch(base);
	return shm_load(&seg->procs[slot].conns);
}

Test(proc, workers_serve_when_their_generation_is_in_force)
{
	static const struct proc_kind kinds[] = {{.name = "worker",
							 .main = obedient,
							 .count = by_conf,
							 .restarts = M_WORKER_RESTARTS},
		{.name = NULL}};
	static const struct conf conf = {.workers = 1, .drain_ms = 5000};
	uint32_t gone = 0;

	setup(kinds);
	procs_conf_set(ps, &conf, procs_generation_start(ps, &conf, NULL, 0));
	cr_assert(until(&seen.ready, 1));
	cr_assert_eq(serving(0), 1, "the first one is in force when it starts");
	cr_assert_eq(procs_generation_start(ps, &conf, NULL, 0), 2);
	cr_assert(until(&seen.ready, 2));
	cr_assert_eq(serving(1), 0, "ready, but not in force");
	procs_conf_set(ps, &conf, 2);
	cr_assert(until(&seen.gone, 1));
	cr_assert_eq(serving(1), 1);
	procs_conf_set(ps, &conf, 2);
	cr_assert_eq(serving(1), 1, "told once");
	gone = (uint32_t)seen.reaped;
	cr_assert_eq(kill(pid_in(1), SIGKILL), 0);
	while ((uint32_t)seen.reaped == gone || proc_slot_state(seg, 1) != PROC_READY)
		(void)event_base_loop(base, EVLOOP_ONCE);
	cr_assert_eq(serving(1), 1, "its successor, too");
	teardown();
}

/* Four slots: three generations of one worker finish beside the one in force. */
Test(proc, a_replaced_generation_ends_by_its_limit)
{
	static const struct proc_kind kinds[] = {{.name = "worker",
							 .main = finishes,
							 .count = by_conf,
							 .restarts = M_WORKER_RESTARTS},
		{.name = NULL}};
	static const struct conf conf = {.workers = 1, .drain_ms = 100}, big = {.workers = 2},
				 limited = {.workers = 1, .reload_drain_ms = 1};
	uint64_t t0 = clock_ms();

	setup(kinds);
	cr_assert_eq(SLOT_WORKERS(seg), 4);
	for (uint32_t n = 1; n <= 4; n++) {
		cr_assert(procs_generation_fits(ps, &conf));
		cr_assert_eq(procs_generation_start(ps, &conf, NULL, 0), n);
		cr_assert(until(&seen.ready, n));
		procs_conf_set(ps, &conf, n);
	}
	cr_assert_not(procs_generation_fits(ps, &conf));
	while (clock_ms() < t0 + 300)
		(void)event_base_loop(base, EVLOOP_NONBLOCK);
	cr_assert_eq(procs_generations(ps), 4, "drain_ms is not theirs");
	procs_make_room(ps, &conf);
	cr_assert(until(&seen.gone, 1));
	cr_assert(procs_generation_fits(ps, &conf));
	procs_make_room(ps, &conf);
	cr_assert_not(procs_generation_fits(ps, &big));
	procs_make_room(ps, &big);
	cr_assert(until(&seen.gone, 2));
	cr_assert_eq(procs_generations(ps), 2);
	procs_conf_set(ps, &limited, 4);
	cr_assert(until(&seen.gone, 3));
	cr_assert_eq(procs_generations(ps), 1);
	teardown();
}

Test(proc, a_killed_worker_is_reaped_and_replaced)
{
	static const struct conf conf = {.drain_ms = 5000};
	struct metrics_slab *slab;
	uint64_t t0;
	pid_t pid;

	setup(KINDS(holder));
	slab = seg_slab(seg, SLOT_MASTER(seg));
	ep_slot_begin(seg, 1);
	procs_conf_set(ps, &conf, procs_generation_start(ps, &conf, NULL, 0));
	cr_assert(until(&seen.ready, 1));
	cr_assert_eq(load_count(seg, 1), 2);
	pid = pid_in(0);
	t0 = clock_ms();
	cr_assert_eq(kill(pid, SIGKILL), 0);
	while (seen.reaped == 0)
		(void)event_base_loop(base, EVLOOP_ONCE);
	cr_assert_eq(load_count(seg, 1), 1, "what the dead one held");
	cr_assert_eq(pid_in(0), 0);
	cr_assert(status_has("worker slot=0 pid=- generation=1 state=dead ", false));
	cr_assert(status_has("\"slot\":0,\"pid\":null,", true));
	cr_assert_eq(proc_slot_state(seg, 0), PROC_EMPTY);
	while (proc_slot_state(seg, 0) != PROC_READY)
		(void)event_base_loop(base, EVLOOP_ONCE);
	cr_assert_neq(pid_in(0), pid);
	cr_assert_geq(clock_ms() - t0, 100, "without its back-off");
	cr_assert_leq(clock_ms() - t0, 5000);
	cr_assert_eq(slab->counters[M_WORKER_RESTARTS], 1);
	cr_assert_eq(load_count(seg, 1), 2);
	teardown();
}

Test(proc, exit_code_2_is_not_respawned)
{
	static const struct conf conf = {.drain_ms = 5000};

	setup(KINDS(unwilling));
	procs_conf_set(ps, &conf, procs_generation_start(ps, &conf, NULL, 0));
	cr_assert(until(&seen.gone, 1));
	cr_assert_eq(seen.refused, 1);
	cr_assert_eq(seen.ready, 0);
	cr_assert_eq(seen.reaped, 2);
	cr_assert_eq(procs_alive(ps), 0);
	teardown();
}

Test(proc, who_does_not_go_is_killed)
{
	static const struct conf conf = {.drain_ms = 100};
	uint64_t t0;

	setup(KINDS(deaf));
	procs_conf_set(ps, &conf, procs_generation_start(ps, &conf, NULL, 0));
	cr_assert(until(&seen.ready, 1));
	t0 = clock_ms();
	procs_stop(ps);
	cr_assert(until(&seen.gone, 1));
	cr_assert_geq(clock_ms() - t0, 2000, "before its time");
	cr_assert_leq(clock_ms() - t0, 8000);
	teardown();
}

/* `deaf` writes no heartbeat, like a process that hangs. */
Test(proc, a_hanging_worker_is_replaced)
{
	static const struct conf conf = {.drain_ms = 100, .watchdog_ms = 1000};
	pid_t pid;

	setup(KINDS(deaf));
	procs_conf_set(ps, &conf, procs_generation_start(ps, &conf, NULL, 0));
	cr_assert(until(&seen.ready, 1));
	pid = pid_in(0);
	/* the other one hangs as well and may be reaped first */
	while (pid_in(0) == pid || proc_slot_state(seg, 0) != PROC_READY)
		(void)event_base_loop(base, EVLOOP_ONCE);
	cr_assert_geq(seen.reaped, 1);
	teardown();
}

/* A process in an uninterruptible wait outlives its SIGKILL: one line, not one per tick. */
Test(proc, a_hanging_worker_is_killed_once)
{
	static const struct conf conf = {.drain_ms = 100, .watchdog_ms = 100};
	int out = memfd_create("stderr", 0), said = 0;
	char text[8192] = "";

	setup(KINDS(deaf));
	procs_conf_set(ps, &conf, procs_generation_start(ps, &conf, NULL, 0));
	cr_assert(until(&seen.ready, 1));
	zombies_stay = true;
	(void)dup2(out, STDERR_FILENO);
	for (int i = 0; i < 250;
		i++) { /* 2.5 s, and all turns also of a machine that stops meanwhile */
		(void)event_base_loop(base, EVLOOP_NONBLOCK);
		(void)usleep(10000);
	}
	cr_assert_gt(pread(out, text, sizeof(text) - 1, 0), 0);
	for (const char *at = text; (at = strstr(at, "process hangs")) != NULL; at++)
		said++;
	cr_assert_eq(said, 2, "two workers: %s", text);
	zombies_stay = false;
	teardown();
}

/* What pdrouter inherits may leave 0 to 2 free, and then its own descriptors get these numbers. */
Test(proc, low_descriptors_do_not_cost_a_child_its_stderr)
{
	static const struct conf conf = {.drain_ms = 5000};

	setup(KINDS(needs_stdio));
	(void)dup2(wake_fds[0], STDIN_FILENO);
	(void)close(wake_fds[0]);
	wake_fds[0] = STDIN_FILENO;
	procs_conf_set(ps, &conf, procs_generation_start(ps, &conf, NULL, 0));
	cr_assert(until(&seen.ready, 1));
	cr_assert_eq(seen.refused, 0);
	teardown();
}

Test(proc, the_masters_hook_for_errors_is_not_the_childs)
{
	static const struct conf conf = {.drain_ms = 5000};

	setup(KINDS(logs_an_error));
	log_errors_to(no_log_line, NULL);
	procs_conf_set(ps, &conf, procs_generation_start(ps, &conf, NULL, 0));
	cr_assert(until(&seen.ready, 1));
	log_errors_to(NULL, NULL);
	teardown();
}

/* A stray store there ends the child: tests/unit/shm/core/seg.c. */
Test(proc, a_child_cannot_write_what_is_the_masters)
{
	static const struct conf conf = {.drain_ms = 5000};

	setup(KINDS(tries_to_write));
	procs_conf_set(ps, &conf, procs_generation_start(ps, &conf, NULL, 0));
	cr_assert(until(&seen.ready, 1));
	cr_assert_eq(seen.refused, 0);
	teardown();
}

Test(proc, a_segment_of_another_build_is_refused)
{
	static const struct conf conf = {.drain_ms = 5000};

	setup(KINDS(obedient));
	seg->hdr->build++;
	procs_conf_set(ps, &conf, procs_generation_start(ps, &conf, NULL, 0));
	cr_assert(until(&seen.gone, 1));
	cr_assert_eq(seen.refused, 1);
	cr_assert_eq(seen.ready, 0);
	teardown();
}

Test(proc, a_single_process_follows_its_address)
{
	static char a[] = "tcp://a", b[] = "tcp://b";
	static const struct conf none = {.drain_ms = 1000},
				 at_a = {.drain_ms = 1000, .notifier_key = a},
				 at_b = {.drain_ms = 1000, .notifier_key = b};
	static const struct proc_kind single[] = {
		{.name = "notifier",
			.main = obedient,
			.identity = address,
			.restarts = M_NOTIFIER_RESTARTS},
		{.name = NULL},
	};
	static const struct {
		const struct conf *conf;
		bool other, alive;
	} steps[] = {{&none, false, false}, {&at_a, true, true}, {&at_a, false, true},
		{&at_b, true, true}, {&none, true, false}};
	pid_t pid = 0;

	setup(single);
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		uint32_t slot = SLOT_NOTIFIER(seg);
		enum proc_state want = steps[i].alive ? PROC_READY : PROC_EMPTY;
		uint64_t end = clock_ms() + (steps[i].other ? 10000 : 200);

		procs_conf_set(ps, steps[i].conf, 0);
		while (clock_ms() < end) {
			(void)event_base_loop(base, EVLOOP_NONBLOCK);
			if (steps[i].other && pid_in(slot) != pid &&
				proc_slot_state(seg, slot) == want)
				break;
			(void)usleep(1000);
		}
		cr_assert_eq(proc_slot_state(seg, slot), want, "step %zu", i);
		cr_assert_eq(procs_alive(ps), steps[i].alive, "step %zu", i);
		cr_assert_eq(pid_in(slot) != pid, steps[i].other, "step %zu", i);
		pid = pid_in(slot);
	}
	teardown();
}

/* An upgrade has told the notifier to end, and is given up because pdrouter stops. */
Test(proc, a_notifier_comes_back_for_workers_that_drain)
{
	static char a[] = "tcp://a";
	static const struct conf conf = {.drain_ms = 10000, .notifier_key = a};
	static const struct proc_kind kinds[] = {
		{.name = "worker", .main = finishes, .count = two, .restarts = M_WORKER_RESTARTS},
		{.name = "notifier",
			.main = obedient,
			.identity = address,
			.restarts = M_NOTIFIER_RESTARTS,
			.drains_last = true},
		{.name = NULL}};
	pid_t pid;

	setup(kinds);
	procs_conf_set(ps, &conf, procs_generation_start(ps, &conf, NULL, 0));
	cr_assert(until(&seen.ready, 1));
	while (proc_slot_state(seg, SLOT_NOTIFIER(seg)) != PROC_READY)
		(void)event_base_loop(base, EVLOOP_ONCE);
	pid = pid_in(SLOT_NOTIFIER(seg));
	procs_notices_from(ps, wake_fds[0]);
	procs_notices_from(ps, 0);
	procs_stop(ps);
	cr_assert(until_ready(SLOT_NOTIFIER(seg)));
	cr_expect_neq(pid_in(SLOT_NOTIFIER(seg)), pid);
	procs_stop_now(ps);
	while (procs_alive(ps) > 0)
		(void)event_base_loop(base, EVLOOP_ONCE);
	cr_expect_eq(seen.reaped, 4, "after that none comes");
	teardown();
}

/* Two kinds of single processes have a slot each; an upgrade ends the notifier, whose address the newer instance has, and
 * not the exporter, which has the spans of this instance's workers. */
Test(proc, single_processes_do_not_depend_on_each_other)
{
	static char a[] = "tcp://a", b[] = "http://b";
	static const struct conf conf = {.drain_ms = 1000, .notifier_key = a, .trace_otlp = b};
	static const struct proc_kind singles[] = {{.name = "notifier",
							   .main = obedient,
							   .identity = address,
							   .restarts = M_NOTIFIER_RESTARTS},
		{.name = "exporter",
			.main = obedient,
			.identity = collector,
			.restarts = M_EXPORTER_RESTARTS},
		{.name = NULL}};
	pid_t notifier, exporter;

	setup(singles);
	procs_conf_set(ps, &conf, 0);
	cr_assert(until_ready(SLOT_NOTIFIER(seg)) && until_ready(SLOT_EXPORTER(seg)));
	notifier = pid_in(SLOT_NOTIFIER(seg));
	exporter = pid_in(SLOT_EXPORTER(seg));
	procs_notices_from(ps, wake_fds[0]);
	while (pid_in(SLOT_NOTIFIER(seg)) == notifier)
		(void)event_base_loop(base, EVLOOP_ONCE);
	cr_assert(until_ready(SLOT_NOTIFIER(seg)));
	cr_expect_eq(pid_in(SLOT_EXPORTER(seg)), exporter);
	(void)kill(exporter, SIGKILL);
	while (pid_in(SLOT_EXPORTER(seg)) == exporter)
		(void)event_base_loop(base, EVLOOP_ONCE);
	cr_assert(until_ready(SLOT_EXPORTER(seg)));
	cr_expect_eq(seg_slab(seg, SLOT_MASTER(seg))->counters[M_EXPORTER_RESTARTS], 1);
	teardown();
}

/* Whatever happens meanwhile (reloads, other processes) does not prolong what one single process has. */
Test(proc, a_single_process_ends_in_time)
{
	static char a[] = "tcp://a";
	static const struct conf at_a = {.drain_ms = 300, .notifier_key = a},
				 none = {.drain_ms = 300};
	static const struct proc_kind single[] = {
		{.name = "notifier",
			.main = finishes,
			.identity = address,
			.restarts = M_NOTIFIER_RESTARTS},
		{.name = NULL},
	};
	uint64_t end;

	setup(single);
	procs_conf_set(ps, &at_a, 0);
	while (proc_slot_state(seg, SLOT_NOTIFIER(seg)) != PROC_READY)
		(void)event_base_loop(base, EVLOOP_ONCE);
	for (end = clock_ms() + 20000; procs_alive(ps) > 0 && clock_ms() < end;) {
		procs_conf_set(ps, &none, 0);
		(void)event_base_loop(base, EVLOOP_NONBLOCK);
		(void)usleep(10000);
	}
	cr_assert_lt(clock_ms(), end);
	teardown();
}
