/* One instance without main.c: a configuration file, listening sockets, child processes and their reloads. */
#pragma once
#pragma GCC diagnostic ignored "-Wunused-function" /* not every test file needs all */
#include "tests/unit/master/fleet.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "master/config/conf.h"
#include "master/fleet/publish.h"
#include "master/probe/resolve.h"
#include "master/supervise/inherit.h"
#include "master/supervise/listen.h"
#include "master/supervise/procs.h"
#include "master/supervise/reload.h"
#include "master/supervise/sd.h"
#include "master/supervise/takeover.h"
#include "master/supervise/upgrade.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/core/heritage.h"

#define NWAKE 16

static int wake_fds[NWAKE], sigfd;
static struct event *ev_sig;
static struct procs *ps;
static struct reload *reload;
static char path[64], fatal[600], refusal[600];
static unsigned port;
static const struct conf_args args = {.file = path};
static struct resolver *resolver;
static struct listeners *listeners;
static struct sd *sd;
static struct control *control; /* there is none */
static struct inherit inherit;
static struct takeover *takeover;
static struct upgrade *upgrade;
static unsigned refused, stopped; /* hooks that were called */
static char failed[600];          /* why the instance cannot go on in its trial */
static char logged[600];          /* the last error in the log */

/* --- what a worker does; a test may choose another one ------------------------------------------- */

static int
ready_until(const struct heritage *h, char end)
{
	char c = CH_READY;

	(void)!write(h->channel, &c, 1);
	do
		(void)usleep(1000);
	while (read(h->channel, &c, 1) != 1 || (c != end && c != CH_QUIT));
	_exit(CHILD_EXIT_OK);
}

/* It is ready at once, and ends when it is told to, or killed. */
static int
worker(const struct heritage *h)
{
	return ready_until(h, CH_DRAIN);
}

/* It has requests for as long as it may. */
static int
busy_worker(const struct heritage *h)
{
	return ready_until(h, CH_QUIT);
}

static int (*child)(const struct heritage *h);

static int
run_child(const struct heritage *h)
{
	return child(h);
}

/* --- hooks ----------------------------------------------------------------------------------------- */

static uint32_t
by_conf(const struct conf *conf)
{
	return conf->workers;
}

static void
on_ready(void *arg, uint32_t generation)
{
	(void)arg;
	reload_generation_ready(reload, generation);
}

static void
on_refused(void *arg, uint32_t generation)
{
	(void)arg;
	reload_generation_refused(reload, generation);
}

static void
on_gone(void *arg, uint32_t generation)
{
	(void)arg;
	reload_generation_gone(reload, generation);
}

static void
on_reaped(void *arg)
{
	(void)arg;
}

static void
on_fatal(void *arg, const char *error)
{
	(void)arg;
	(void)snprintf(fatal, sizeof(fatal), "%s", error);
}

static void
on_done(void *arg, uint64_t attempt, bool exact, const char *error, const char *notes)
{
	(void)arg;
	(void)attempt;
	(void)exact;
	(void)notes;
	(void)snprintf(refusal, sizeof(refusal), "%s", error != NULL ? error : "");
}

static void
on_error(void *arg, const char *msg, const struct log_field *fields, size_t n)
{
	const char *why = n > 0 && fields[0].type == LOG_T_STR ? fields[0].v.s : "";

	(void)arg;
	(void)snprintf(logged, sizeof(logged), "%s: %s", msg, why);
}

static void
on_refused_by_older(void *arg)
{
	(void)arg;
	refused++;
}

static void
on_failed(void *arg, const char *why)
{
	(void)arg;
	(void)snprintf(failed, sizeof(failed), "%s", why);
}

static void
on_other_stops(void *arg, bool now)
{
	(void)arg;
	(void)now;
	stopped++;
}

static void
on_older_said(void *arg, uint64_t number, const struct drain_left *left)
{
	(void)arg;
	(void)number;
	(void)left;
}

static void
on_older_gone(void *arg, uint64_t said)
{
	(void)arg;
	(void)said;
}

static void
on_sigchld(evutil_socket_t fd, short what, void *arg)
{
	struct signalfd_siginfo info;

	(void)what;
	(void)arg;
	while (read(fd, &info, sizeof(info)) > 0)
		;
	procs_sigchld(ps);
	upgrade_sigchld(upgrade);
}

/* --- the instance ---------------------------------------------------------------------------------- */

static void
write_conf(unsigned workers)
{
	FILE *f = fopen(path, "w");

	cr_assert_not_null(f);
	(void)fprintf(f,
		"listen: [\"127.0.0.1:%u\"]\nworkers: %u\nshared_memory: {max_workers: 2}\npools:\n"
		" - {connector: nixl, models: [m], prefill: [{url: http://127.0.0.1:1}],\n"
		"    decode: [{url: http://127.0.0.1:2}]}\n",
		port, workers);
	cr_assert_eq(fclose(f), 0);
}

static unsigned
free_port(void)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(sin);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	cr_assert_eq(bind(fd, (struct sockaddr *)&sin, len), 0);
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
	(void)close(fd);
	return ntohs(sin.sin_port);
}

static void
on_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
}

/* Runs the loop as main.c does, until the condition holds.  False: in 20 s it did not. */
static bool
until(bool (*holds)(const void *), const void *arg)
{
	const struct timeval tick = {.tv_usec = 10000};
	struct event *ev = event_new(base, -1, EV_PERSIST, on_tick, NULL);
	const uint64_t end = clock_ms() + 20000;
	bool met;

	(void)event_add(ev, &tick);
	do {
		(void)event_base_loop(base, EVLOOP_ONCE);
		reload_turn(reload);
		takeover_turn(takeover);
		upgrade_turn(upgrade);
		met = holds(arg);
	} while (!met && clock_ms() < end);
	event_free(ev);
	return met;
}

static bool
has_phase(const void *word)
{
	return strcmp(reload_phase(reload), word) == 0;
}

static bool
until_phase(const char *word)
{
	return until(has_phase, word);
}

static void
signals(void)
{
	sigset_t set;

	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGCHLD);
	(void)sigprocmask(SIG_BLOCK, &set, NULL);
	sigfd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	ev_sig = event_new(base, sigfd, EV_READ | EV_PERSIST, on_sigchld, NULL);
	(void)event_add(ev_sig, NULL);
}

#define READER (SLOT_WORKERS(seg) - 1) /* none of the workers gets that slot */

/* The table of the new configuration cannot be published while a reader holds the arenas. */
static void
hold_arenas(void)
{
	(void)rcu_enter(seg, READER);
	for (int i = 0; i < 10; i++)
		publish_now(fleet->publish);
}

/* `inherit` is what an older instance passes. */
static void
setup_heir(void)
{
	static const struct proc_kind kinds[] = {{.name = "worker",
							 .main = run_child,
							 .count = by_conf,
							 .restarts = M_WORKER_RESTARTS},
		{.name = NULL}};
	static const struct procs_hooks on_procs = {on_ready, on_refused, on_gone, on_reaped, NULL};
	static const struct reload_hooks on_reload = {on_fatal, on_done, NULL};
	static const struct takeover_hooks on_older = {
		on_refused_by_older, on_failed, on_other_stops, on_older_said, on_older_gone, NULL};
	static const struct upgrade_hooks on_newer = {on_other_stops, NULL};
	static char program[] = "/no/pdrouter", *argv[] = {program, NULL};

	fleet_setup(4, 2);
	seg->hdr->build = seg_build();
	(void)snprintf(path, sizeof(path), "/tmp/pdr-reload-%d.yaml", (int)getpid());
	port = free_port();
	signals();
	for (uint32_t i = 0; i < seg->hdr->nslots; i++)
		wake_fds[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	child = worker;
	resolver = resolver_new(base);
	listeners = listeners_new(resolver, &inherit);
	sd = sd_new(base);
	ps = procs_new(base, seg, kinds, wake_fds, &on_procs);
	reload = reload_new(
		&(struct reload_parts){base, &args, seg, listeners, fleet, ps, sd}, &on_reload);
	takeover = takeover_new(&(struct takeover_parts){base, seg, sd, listeners, fleet, ps,
					reload, &control, &inherit},
		&on_older);
	upgrade = upgrade_new(&(struct upgrade_parts){base, argv, seg, sd, listeners, fleet, ps,
				      reload, takeover, &control},
		&on_newer);
}

static void
setup(void)
{
	inherit_init(&inherit);
	setup_heir();
}

static void
teardown(void)
{
	upgrade_free(&upgrade);
	takeover_free(&takeover);
	procs_free(&ps);
	fleet_free(&fleet); /* it points to the configuration */
	reload_free(&reload);
	listeners_free(&listeners);
	sd_free(&sd);
	resolver_free(&resolver);
	event_free(ev_sig);
	(void)close(sigfd);
	for (uint32_t i = 0; i < seg->hdr->nslots; i++)
		(void)close(wake_fds[i]);
	fleet_teardown();
	(void)unlink(path);
}

static void
free_arenas(void)
{
	rcu_leave(seg, READER);
	publish_poll(fleet->publish);
}

static void
start(void)
{
	struct conf_error err;
	struct conf *first;

	write_conf(1);
	cr_assert_eq(reload_read(&args, NULL, &first, &err), 0);
	reload_first(reload, first);
	cr_assert(until_phase("serving"));
}

static void
ask(unsigned workers)
{
	write_conf(workers);
	cr_assert_gt(reload_request(reload), 0);
	reload_turn(reload);
}
