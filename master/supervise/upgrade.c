#include "master/supervise/upgrade.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/fleet/drain.h"
#include "master/fleet/fleet.h"
#include "master/fleet/weight.h"
#include "master/supervise/control.h"
#include "master/supervise/inherit.h"
#include "master/supervise/listen.h"
#include "master/supervise/procs.h"
#include "master/supervise/reload.h"
#include "master/supervise/sd.h"
#include "master/supervise/successor.h"
#include "master/supervise/takeover.h"
#include "master/supervise/talk.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/core/seg.h"
#include "shm/metrics.h"

#define CHECK_MS 10000
#define START_MS 60000 /* from its start to `ready` */
#define WAIT_MS 60000  /* for a reload, or for the older instance of this one */
#define LEFT_MS 1000   /* between two reports of how many requests are left */
#define RETRY_MS 100   /* systemd has no room for a message */
#define LINE_BYTES 400

enum phase { UP_NONE, UP_WAITING, UP_CHECKING, UP_STARTING, UP_GIVING, UP_TRIAL, UP_OVER };

struct upgrade {
	struct upgrade_parts parts;
	struct upgrade_hooks hooks;
	char *path; /* of the program; NULL: unknown */
	enum phase phase;
	struct event *clock; /* the end of the phase's time */
	uint64_t asked_us;
	uint64_t drain_ms; /* upgrade_drain_timeout of the new instance */
	bool watched;      /* fact: a container ends with this process */
	bool stopping;     /* upgrade_stop() */
	bool told;         /* fact: the new instance has asked this one to stop, and waits for it */

	/* CHECKING */
	pid_t check;  /* 0: none */
	pid_t killed; /* a former check that has yet to end, as on a disk that hangs; 0: none */
	int check_fd;
	/* STARTING and later */
	struct successor next;
	struct talk *talk;      /* NULL: none */
	int notices;            /* from the new instance; -1: none */
	int state;              /* the memfd for the drains; -1: none */
	char error[LINE_BYTES]; /* the last one that the new program or instance has reported */
};

static void
clock_set(struct upgrade *u, uint64_t ms)
{
	const struct timeval tv = clock_tv(ms);

	(void)evtimer_add(u->clock, &tv);
}

static void
close_fd(int *fd)
{
	if (*fd != -1)
		(void)close(*fd);
	*fd = -1;
}

/* --- the ends ----------------------------------------------------------------------------------- */

/* What belongs to the attempt.  `notices` stays while the notifier reads it. */
static void
drop_attempt(struct upgrade *u)
{
	if (u->check != 0 && kill(u->check, SIGKILL) == 0)
		u->killed = u->check;
	u->check = 0;
	close_fd(&u->check_fd);
	if (u->next.pidfd != -1)
		(void)syscall(SYS_pidfd_send_signal, u->next.pidfd, SIGKILL, NULL, 0);
	close_fd(&u->next.pidfd);
	talk_free(&u->talk);
	close_fd(&u->state);
	(void)evtimer_del(u->clock);
}

/* This instance serves again: what it has given away comes back. */
static void
resume(struct upgrade *u)
{
	const struct upgrade_parts *p = &u->parts;

	control_pause(*p->control, false);
	takeover_pause(p->takeover, false);
	fleet_hold_state(p->fleet, false);
	reload_resume(p->reload);
	reload_keep_listeners(p->reload); /* the new instance may have had other permissions */
}

static void
fail(struct upgrade *u, const char *why)
{
	const struct upgrade_parts *p = &u->parts;
	const enum phase phase = u->phase;
	char line[2 * LINE_BYTES];

	(void)snprintf(
		line, sizeof(line), "%s%s%s", why, u->error[0] != '\0' ? ": " : "", u->error);
	log_error("upgrade failed, this instance serves", LOG_S("error", line),
		LOG_S("program", u->path));
	metric_add(seg_slab(p->seg, SLOT_MASTER(p->seg)), M_UPGRADES_FAILED, 1);
	drop_attempt(u);
	u->phase = UP_NONE;
	procs_notices_from(p->procs, 0);
	if (phase == UP_TRIAL && !u->stopping)
		resume(u);
	close_fd(&u->notices);
	reload_hold(p->reload, false);
	control_upgraded(*p->control, NULL, true, line);
}

/* The new instance has proven itself: only the requests are left here. */
static void
final(struct upgrade *u)
{
	const struct upgrade_parts *p = &u->parts;

	if (!sd_tell_main_pid(p->sd, u->next.pid)) {
		clock_set(u, RETRY_MS);
		return;
	}
	u->phase = UP_OVER;
	sd_mute(p->sd, true); /* before the new instance says anything */
	talk_say(u->talk, TALK_FINAL);
	listeners_leave(p->listeners);
	control_leave(*p->control);
	fleet_leave_state(p->fleet);
	takeover_leave(p->takeover);
	close_fd(&u->next.pidfd);
	close_fd(&u->state);
	log_info("upgrade done, this instance finishes its requests", LOG_I("pid", u->next.pid),
		LOG_MS("took_ms", clock_us() - u->asked_us));
	control_upgraded(*p->control, NULL, true, NULL);
	clock_set(u, LEFT_MS);
}

/* --- the new instance --------------------------------------------------------------------------- */

static void
say_left(const struct upgrade *u)
{
	if (u->talk != NULL)
		talk_say_value(u->talk, TALK_LEFT, "%lld",
			(long long)metric_gauge_sum(u->parts.seg, G_REQUESTS));
}

/* The new instance can serve, and the notifier's address is free. */
static void
give(struct upgrade *u)
{
	const struct upgrade_parts *p = &u->parts;
	struct membuf drains = {0};
	char line[128];

	fleet_pass_drains(p->fleet, &drains);
	/* memory that is not there: the new instance says that the drains are lost */
	(void)!pwrite(u->state, drains.p, drains.n, 0);
	membuf_free(&drains);
	fleet_hold_state(p->fleet, true);
	control_pause(*p->control, true);
	takeover_pause(p->takeover, true);
	talk_say(u->talk, TALK_TAKE);
	say_left(u);
	reload_leave(p->reload);
	procs_retire(p->procs, u->drain_ms);
	u->phase = UP_TRIAL;
	(void)snprintf(line, sizeof(line), "instance %u serves, pid %ld", p->seg->hdr->instance + 1,
		(long)u->next.pid);
	log_info("a new instance serves, this one finishes its requests",
		LOG_U("instance", p->seg->hdr->instance + 1), LOG_I("pid", u->next.pid));
	control_upgraded(*p->control, line, false, NULL);
	clock_set(u, reload_conf(p->reload)->upgrade_trial_ms);
}

/* --- what it says --------------------------------------------------------------------------------- */

static void
on_error(void *arg, const char *value)
{
	struct upgrade *u = arg;

	(void)snprintf(u->error, sizeof(u->error), "%s", value);
}

static void
on_drain_ms(void *arg, const char *value)
{
	struct upgrade *u = arg;
	uint64_t ms;

	if (talk_number(&value, UINT32_MAX, &ms))
		u->drain_ms = ms;
}

static void
on_ready(void *arg, const char *value)
{
	struct upgrade *u = arg;

	(void)value;
	if (u->phase != UP_STARTING)
		return;
	u->phase = UP_GIVING;
	procs_notices_from(u->parts.procs, u->notices);
	upgrade_turn(u);
}

static void
on_commit(void *arg, const char *value)
{
	struct upgrade *u = arg;

	(void)value;
	if (u->phase == UP_TRIAL && !u->stopping)
		final(u);
}

static void
on_report(void *arg, const char *value)
{
	(void)value;
	say_left(arg);
}

static void
on_must_end(void *arg, const char *value)
{
	const struct upgrade *u = arg;

	(void)value;
	if (u->phase == UP_OVER)
		procs_retire(u->parts.procs, reload_conf(u->parts.reload)->drain_ms);
}

/* What the operator of the newest instance wants, and its number. */
static void
follow(const struct upgrade *u, enum drain_what what, const char *value)
{
	struct drain_left left;
	uint64_t number;

	if (talk_number(&value, UINT64_MAX, &number) &&
		drain_follow(u->parts.fleet, what, value, &left))
		talk_say_value(u->talk, TALK_LEFT_AT, "%" PRIu64 " %" PRIu32 " %" PRIu32, number,
			left.in_flight, left.kv);
}

static void
on_drain(void *arg, const char *value)
{
	follow(arg, DRAIN_BEGIN, value);
}

static void
on_undrain(void *arg, const char *value)
{
	follow(arg, DRAIN_END, value);
}

static void
on_weight(void *arg, const char *value)
{
	const struct upgrade *u = arg;
	uint64_t number;

	if (talk_number(&value, UINT64_MAX, &number))
		weight_follow(u->parts.fleet, value);
}

static void
on_in_flight(void *arg, const char *value)
{
	follow(arg, DRAIN_LOOK, value);
}

static void
stops(struct upgrade *u, bool now)
{
	u->told = true;
	u->hooks.stop(u->hooks.arg, now);
}

static void
on_stop(void *arg, const char *value)
{
	(void)value;
	stops(arg, false);
}

static void
on_stop_now(void *arg, const char *value)
{
	(void)value;
	stops(arg, true);
}

static talk_fn *const on_word[TALK_NWORDS] = {
	[TALK_ERROR] = on_error,
	[TALK_DRAIN_MS] = on_drain_ms,
	[TALK_READY] = on_ready,
	[TALK_COMMIT] = on_commit,
	[TALK_REPORT] = on_report,
	[TALK_END] = on_must_end,
	[TALK_DRAIN] = on_drain,
	[TALK_UNDRAIN] = on_undrain,
	[TALK_IN_FLIGHT] = on_in_flight,
	[TALK_WEIGHT] = on_weight,
	[TALK_STOP] = on_stop,
	[TALK_STOP_NOW] = on_stop_now,
};

static void
on_end(void *arg)
{
	struct upgrade *u = arg;

	if (u->phase == UP_OVER || u->stopping)
		talk_free(&u->talk);
	else if (u->phase == UP_TRIAL)
		fail(u, "the new instance has ended in its trial");
	else
		fail(u, "the new instance has ended before it could serve");
}

static void
say_announced(const char *line, void *arg)
{
	talk_say_value(arg, TALK_ANNOUNCED, "%s", line);
}

/* 0, or -errno. */
static int
start(struct upgrade *u)
{
	const struct upgrade_parts *p = &u->parts;
	const struct talk_hooks hooks = {on_word, on_end, u};
	int talk[2] = {-1, -1}, notices[2] = {-1, -1}, r = 0;
	struct inherit in;

	inherit_init(&in);
	u->state = memfd_create("pdrouter-state", MFD_CLOEXEC);
	if (u->state == -1 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, talk) == -1 ||
		socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, notices) ==
			-1)
		r = -errno;
	in.instance = p->seg->hdr->instance + 1;
	in.from = (struct inherit_old){p->seg->hdr->instance, talk[1], notices[1]};
	in.state = u->state;
	in.state_lock = fleet_state_lock(p->fleet);
	takeover_pass(p->takeover, &in);
	control_pass(*p->control, &in);
	if (r == 0 && !listeners_pass(p->listeners, &in))
		r = -E2BIG;
	if (r == 0)
		r = successor_start(u->path, p->argv, &in, talk[0], &u->next);
	close_fd(&talk[1]);
	close_fd(&notices[1]);
	u->notices = notices[0];
	if (r == 0) {
		u->talk = talk_new(p->base, talk[0], &hooks);
		fleet_pass_announced(p->fleet, say_announced, u->talk);
	} else {
		close_fd(&talk[0]);
	}
	return r;
}

/* --- the check ---------------------------------------------------------------------------------- */

/* Keeps the last line of what the program has written to its standard error. */
static void
read_check(struct upgrade *u)
{
	char text[4096];
	ssize_t n = 0, got;
	char *line;

	while ((got = read(u->check_fd, text + n, sizeof(text) - 1 - (size_t)n)) > 0)
		n += got;
	text[n] = '\0';
	while (n > 0 && text[n - 1] == '\n')
		text[--n] = '\0';
	line = strrchr(text, '\n');
	(void)snprintf(u->error, sizeof(u->error), "%.399s", line != NULL ? line + 1 : text);
}

static void
checked(struct upgrade *u, int status)
{
	int r;

	u->check = 0;
	read_check(u);
	close_fd(&u->check_fd);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		fail(u, "the new program cannot start with this configuration");
		return;
	}
	u->error[0] = '\0';
	u->phase = UP_STARTING;
	clock_set(u, START_MS);
	r = start(u);
	if (r != 0) {
		(void)snprintf(u->error, sizeof(u->error), "%s", strerror(-r));
		fail(u, "the new instance cannot be started");
	}
}

void
upgrade_sigchld(struct upgrade *u)
{
	int status;

	if (u->killed != 0 && waitpid(u->killed, NULL, WNOHANG) == u->killed)
		u->killed = 0;
	if (u->phase == UP_CHECKING && waitpid(u->check, &status, WNOHANG) == u->check)
		checked(u, status);
}

static void
check(struct upgrade *u)
{
	const pid_t pid = successor_check(u->path, u->parts.argv, &u->check_fd);

	u->phase = UP_CHECKING;
	if (pid < 0) {
		(void)snprintf(u->error, sizeof(u->error), "%s", strerror(-pid));
		fail(u, "the new program cannot be started");
		return;
	}
	u->check = pid;
	clock_set(u, CHECK_MS);
}

/* --- the whole ---------------------------------------------------------------------------------- */

#define NO_SLOTS "old generations have all slots"

/* Whether this instance could start its workers anew beside all that it has: resume() does so. */
static bool
fits_again(const struct upgrade *u)
{
	return procs_generation_fits(u->parts.procs, reload_conf(u->parts.reload));
}

static const char *const late[UP_TRIAL] = {
	[UP_WAITING] = "a reload, or the trial of this instance, has not ended in time",
	[UP_CHECKING] = "the new program has not checked the configuration in time",
	[UP_STARTING] = "the new instance was not ready in time",
	[UP_GIVING] = "the notifier has not ended in time",
};

static void
on_clock(evutil_socket_t fd, short what, void *arg)
{
	struct upgrade *u = arg;

	(void)fd;
	(void)what;
	if (u->phase < UP_TRIAL && late[u->phase] != NULL) {
		fail(u, late[u->phase]);
	} else if (u->phase == UP_TRIAL && !u->stopping) {
		final(u);
	} else if (u->phase == UP_OVER) {
		say_left(u);
		clock_set(u, LEFT_MS);
	}
}

const char *
upgrade_start(struct upgrade *u, const char *reason)
{
	const char *why;

	if (u->phase != UP_NONE)
		return "an upgrade is under way";
	if (u->stopping || reload_number(u->parts.reload) == 0)
		return "pdrouter is starting or stopping";
	if (u->watched)
		return "the container ends with the process that it has started, also under an "
		       "init: start another container in place of this one";
	if (u->killed != 0)
		return "the check of a former upgrade has not ended, though it was killed";
	if (u->path == NULL)
		return "the path of the program is not known";
	if (!fits_again(u))
		return NO_SLOTS;
	why = takeover_make_final(u->parts.takeover);
	if (why != NULL)
		return why;
	log_info("upgrade begins", LOG_S("reason", reason), LOG_S("program", u->path));
	u->asked_us = clock_us();
	u->error[0] = '\0';
	u->drain_ms = 0;
	u->phase = UP_WAITING;
	clock_set(u, WAIT_MS);
	reload_hold(u->parts.reload, true);
	return NULL;
}

static void
waited(struct upgrade *u)
{
	if (fits_again(u))
		check(u);
	else
		fail(u, NO_SLOTS); /* the reload that was waited for has taken them */
}

void
upgrade_turn(struct upgrade *u)
{
	if (u->phase == UP_WAITING && reload_is_idle(u->parts.reload) &&
		takeover_is_final(u->parts.takeover))
		waited(u);
	else if (u->phase == UP_GIVING && procs_notices_left(u->parts.procs) &&
		 fleet_state_is_settled(u->parts.fleet))
		give(u);
}

void
upgrade_stop(struct upgrade *u, bool now)
{
	u->stopping = true;
	if (u->phase == UP_TRIAL && !u->told && u->talk != NULL)
		talk_say(u->talk, now ? TALK_STOP_NOW : TALK_STOP);
	else if (u->phase != UP_NONE && u->phase < UP_TRIAL)
		fail(u, "pdrouter is stopping");
}

bool
upgrade_waits(const struct upgrade *u)
{
	return u->phase == UP_TRIAL && u->stopping && !u->told && u->talk != NULL;
}

bool
upgrade_is_over(const struct upgrade *u)
{
	return u->phase == UP_OVER;
}

static bool
init_is(const char *program)
{
	char name[32] = "";
	FILE *f = fopen("/proc/1/comm", "re");

	if (f == NULL)
		return false;
	if (fgets(name, sizeof(name), f) == NULL)
		name[0] = '\0';
	(void)fclose(f);
	name[strcspn(name, "\n")] = '\0';
	return strcmp(name, program) == 0;
}

/*
 * tini, catatonit and a shell end with the program that they have started, also where a new instance has taken its
 * place.  That program is in their session; a daemon, whose parent is process 1 as well, is not.  dumb-init makes a
 * session for it.  Parent 0: it was started from outside of the namespace.  A new instance has process 1 as its parent,
 * too: what held for the first one holds.
 */
static bool
is_watched(const struct upgrade_parts *p)
{
	const pid_t parent = getppid();

	if (getpid() == 1)
		return true;
	if (p->seg->hdr->instance != 1 || parent > 1 || sd_is_there(p->sd))
		return false;
	return parent == 0 || getsid(0) == getsid(1) || init_is("dumb-init");
}

struct upgrade *
upgrade_new(const struct upgrade_parts *parts, const struct upgrade_hooks *hooks)
{
	struct upgrade *u = MEM_NEW(struct upgrade);

	u->parts = *parts;
	u->hooks = *hooks;
	u->path = successor_path(parts->argv[0]);
	u->watched = is_watched(parts);
	u->check_fd = u->notices = u->state = u->next.pidfd = -1;
	u->clock = evtimer_new(parts->base, on_clock, u);
	assert(u->clock != NULL);
	return u;
}

void
upgrade_free(struct upgrade **pu)
{
	struct upgrade *u = *pu;

	if (u == NULL)
		return;
	if (u->phase == UP_TRIAL) /* it serves, or stops by itself */
		close_fd(&u->next.pidfd);
	drop_attempt(u);
	close_fd(&u->notices);
	event_free(u->clock);
	free(u->path);
	free(u);
	*pu = NULL;
}
