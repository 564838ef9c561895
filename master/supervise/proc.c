#include "master/supervise/proc.h"

#include <assert.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/supervise/sandbox.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/core/heritage.h"
#include "shm/core/rcu.h"
#include "shm/core/seg.h"
#include "shm/flags.h"
#include "shm/half_open.h"
#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/queue.h"

#define BACKOFF_MIN_MS 100
#define BACKOFF_MAX_MS 10000
/* a process that has lived this long is replaced after the shortest delay */
#define BACKOFF_RESET_MS 10000
#define QUIT_MS 2000 /* time to end the remaining requests; then SIGKILL */

typedef void proc_handler(struct proc *);
static proc_handler spawn, ready, serve, ask_drain, set_end, ask_quit, kill_now, respawn_later,
	finish, ignore, never;

/* clang-format off */
static const struct {
	const char *name;
	enum proc_state shown; /* in shared memory, to the other processes */
	proc_handler *on[PE_N];
} states[PS_NSTATES] = {
	[PS_IDLE] = { "idle", PROC_EMPTY, {
		[PE_START] = spawn,	[PE_READY] = never,	[PE_SERVE] = never,	[PE_DRAIN] = ignore,	[PE_QUIT] = ignore,
		[PE_EXIT] = never,	[PE_REFUSE] = never,	[PE_TIMER] = never } },
	[PS_STARTING] = { "starting", PROC_STARTING, {
		[PE_START] = never,	[PE_READY] = ready,	[PE_SERVE] = ignore,	[PE_DRAIN] = ask_drain,	[PE_QUIT] = ask_quit,
		[PE_EXIT] = respawn_later, [PE_REFUSE] = finish, [PE_TIMER] = never } },
	[PS_READY] = { "ready", PROC_READY, {
		[PE_START] = never,	[PE_READY] = ignore,	[PE_SERVE] = serve,	[PE_DRAIN] = ask_drain,	[PE_QUIT] = ask_quit,
		[PE_EXIT] = respawn_later, [PE_REFUSE] = finish, [PE_TIMER] = never } },
	[PS_DRAINING] = { "draining", PROC_DRAINING, {
		[PE_START] = never,	[PE_READY] = ignore,	[PE_SERVE] = ignore,	[PE_DRAIN] = set_end,	[PE_QUIT] = ask_quit,
		[PE_EXIT] = finish,	[PE_REFUSE] = finish,	[PE_TIMER] = ask_quit } },
	[PS_QUITTING] = { "quitting", PROC_DRAINING, {
		[PE_START] = never,	[PE_READY] = ignore,	[PE_SERVE] = ignore,	[PE_DRAIN] = ignore,	[PE_QUIT] = ignore,
		[PE_EXIT] = finish,	[PE_REFUSE] = finish,	[PE_TIMER] = kill_now } },
	[PS_DEAD] = { "dead", PROC_EMPTY, {
		[PE_START] = never,	[PE_READY] = never,	[PE_SERVE] = ignore,	[PE_DRAIN] = finish,	[PE_QUIT] = finish,
		[PE_EXIT] = never,	[PE_REFUSE] = never,	[PE_TIMER] = spawn } },
};
/* clang-format on */

const char *
proc_phase_name(enum proc_phase state)
{
	return states[state].name;
}

bool
proc_handles(enum proc_phase state, enum proc_event event)
{
	return states[state].on[event] != NULL;
}

void
proc_post(struct proc *p, enum proc_event ev)
{
	states[p->state].on[ev](p);
}

/* The only writer of p->state and of the state in the process's slot. */
static void
enter(struct proc *p, enum proc_phase st)
{
	p->state = st;
	proc_slot_set(p->env->seg, p->slot, (uint64_t)p->pid, states[st].shown,
		p->gen != NULL ? p->gen->number : 0);
	event_active(p->env->ev_settle, EV_TIMEOUT, 0);
}

static void
clock_set(struct proc *p, uint64_t ms)
{
	struct timeval tv = clock_tv(ms);

	(void)evtimer_add(p->ev_timer, &tv);
}

static void
on_timer(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	proc_post(arg, PE_TIMER);
}

/* --- starting ----------------------------------------------------------------------------------- */

static void
channel_close(struct proc *p)
{
	if (p->ev_channel != NULL)
		event_free(p->ev_channel);
	p->ev_channel = NULL;
	if (p->channel != -1)
		(void)close(p->channel);
	p->channel = -1;
}

/* A child sends few bytes.  End of file is followed by SIGCHLD, whose handler reaps the child. */
static void
on_channel(evutil_socket_t fd, short what, void *arg)
{
	struct proc *p = arg;
	char buf[16];
	ssize_t n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);

	(void)what;
	if (n == -1 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		(void)event_del(p->ev_channel);
		return;
	}
	for (ssize_t i = 0; i < n; i++)
		if (buf[i] == CH_READY)
			proc_post(p, PE_READY);
}

static void
tell(struct proc *p, enum channel_msg msg)
{
	char c = (char)msg;

	/* fails only if the child is dying, and SIGCHLD reports that */
	(void)send(p->channel, &c, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* No process was created.  This is handled like a process that died at once. */
static void
spawn_failed(struct proc *p, const char *what, int err)
{
	log_error("cannot start a process", LOG_S("kind", p->kind->name),
		LOG_U("child_slot", p->slot), LOG_S("step", what), LOG_S("error", strerror(err)));
	respawn_later(p);
}

static _Noreturn void
be_child(const struct proc *p, int channel)
{
	const struct proc_env *env = p->env;
	const struct generation *g = p->gen;
	const bool notifier = p->slot == SLOT_NOTIFIER(env->seg);
	const struct heritage h = {
		.conf = g != NULL ? g->conf : env->conf,
		.seg = env->seg,
		.slot = p->slot,
		.generation = g != NULL ? g->number : 0,
		.master_pid = env->master,
		.channel = channel,
		.listen = g != NULL ? g->fds : NULL,
		.nlisten = g != NULL ? g->nfds : 0,
		.wake_fds = env->wake_fds,
		.notices_from = notifier ? env->notices_from : 0,
		.notices_to = env->notices_to,
		.nnotices_to = notifier ? env->nnotices_to : 0,
		.version = PDROUTER_VERSION,
		.as = &env->as,
		.kind = p->kind->sandbox,
		.enter_sandbox = sandbox_enter,
	};

	child_run(p->kind, &h);
}

static void
spawn(struct proc *p)
{
	const struct proc_env *env = p->env;
	int sv[2];
	pid_t pid;

	p->started_ms = clock_ms();
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv) == -1) {
		spawn_failed(p, "socketpair", errno);
		return;
	}
	/* before the fork: the stall interval of the child starts here */
	proc_heartbeat(env->seg, p->slot, p->started_ms);
	pid = fork();
	if (pid == 0)
		be_child(p, sv[1]);
	(void)close(sv[1]);
	if (pid == -1) {
		(void)close(sv[0]);
		spawn_failed(p, "fork", errno);
		return;
	}
	p->pid = pid;
	p->hangs = false;
	p->channel = sv[0];
	p->ev_channel = event_new(env->base, sv[0], EV_READ | EV_PERSIST, on_channel, p);
	assert(p->ev_channel != NULL);
	(void)event_add(p->ev_channel, NULL);
	enter(p, PS_STARTING);
	log_info("process started", LOG_S("kind", p->kind->name), LOG_U("child_slot", p->slot),
		LOG_I("pid", pid), LOG_U("generation", p->gen != NULL ? p->gen->number : 0));
}

static void
serve(struct proc *p)
{
	tell(p, CH_SERVE);
}

static void
ready(struct proc *p)
{
	enter(p, PS_READY);
	if (p->gen != NULL && p->gen->number == p->env->generation && !p->env->held)
		serve(p);
}

/* --- ending ------------------------------------------------------------------------------------- */

/* The end of a generation may change.  That of a single process stays, however often it is told to drain. */
static void
set_end(struct proc *p)
{
	uint64_t now = clock_ms(),
		 end = p->gen != NULL ? p->gen->end_ms : now + p->env->conf->drain_ms;

	if (p->gen == NULL && evtimer_pending(p->ev_timer, NULL))
		return;
	(void)evtimer_del(p->ev_timer);
	if (end != GENERATION_NO_END)
		clock_set(p, end > now ? end - now : 0);
}

static void
ask_drain(struct proc *p)
{
	tell(p, CH_DRAIN);
	set_end(p);
	enter(p, PS_DRAINING);
}

static void
ask_quit(struct proc *p)
{
	tell(p, CH_QUIT);
	clock_set(p, QUIT_MS);
	enter(p, PS_QUITTING);
}

static void
kill_now(struct proc *p)
{
	log_warn("process does not exit: killed", LOG_S("kind", p->kind->name),
		LOG_U("child_slot", p->slot), LOG_I("pid", p->pid));
	(void)kill(p->pid, SIGKILL);
}

uint64_t
proc_backoff_ms(uint64_t last_ms, uint64_t lived_ms)
{
	if (last_ms == 0 || lived_ms >= BACKOFF_RESET_MS)
		return BACKOFF_MIN_MS;
	return last_ms * 2 < BACKOFF_MAX_MS ? last_ms * 2 : BACKOFF_MAX_MS;
}

static void
respawn_later(struct proc *p)
{
	struct seg *seg = p->env->seg;

	p->backoff_ms = proc_backoff_ms(p->backoff_ms, clock_ms() - p->started_ms);
	clock_set(p, p->backoff_ms);
	p->restarts++;
	metric_add(seg_slab(seg, SLOT_MASTER(seg)), p->kind->restarts, 1);
	enter(p, PS_DEAD);
}

static void
finish(struct proc *p)
{
	(void)evtimer_del(p->ev_timer);
	free(p->identity);
	p->identity = NULL;
	p->backoff_ms = 0;
	enter(p, PS_IDLE);
	p->gen = NULL;
}

static void
ignore(struct proc *p)
{
	(void)p;
}

static void
never(struct proc *p)
{
	(void)p;
	assert(false && "an event this state cannot have");
}

/* --- reaping ------------------------------------------------------------------------------------ */

static void
log_death(const struct proc *p, int status)
{
	char words[SHM_CRASH_NOTE];
	const char *last = p->env->seg->procs[p->slot].crash_note;
	bool asked = p->state == PS_DRAINING || p->state == PS_QUITTING;

	memcpy(words, last, sizeof(words));
	words[sizeof(words) - 1] = '\0';
	if (WIFEXITED(status) && WEXITSTATUS(status) == CHILD_EXIT_OK && asked) {
		log_info("process gone", LOG_S("kind", p->kind->name), LOG_U("child_slot", p->slot),
			LOG_I("pid", p->pid));
		return;
	}
	if (WIFSIGNALED(status))
		log_error("process died", LOG_S("kind", p->kind->name),
			LOG_U("child_slot", p->slot), LOG_I("pid", p->pid),
			LOG_S("signal", sigabbrev_np(WTERMSIG(status))),
			LOG_S("state", states[p->state].name), LOG_S("crash_note", words));
	else
		log_error("process exited", LOG_S("kind", p->kind->name),
			LOG_U("child_slot", p->slot), LOG_I("pid", p->pid),
			LOG_I("code", WEXITSTATUS(status)), LOG_S("state", states[p->state].name),
			LOG_S("crash_note", words));
}

/* Says which system call a child was ended for. */
static void
log_forbidden(const struct proc *p, int status)
{
	uint32_t call;
	char *name;

	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
		return;
	if (!proc_forbidden(p->env->seg, p->slot, &call)) {
		log_error("a forbidden system call", LOG_S("kind", p->kind->name),
			LOG_U("child_slot", p->slot), LOG_I("pid", p->pid),
			LOG_S("call", "not known: of a thread of libzmq, which blocks signals"));
		return;
	}
	name = sandbox_call_name(call);
	log_error("a forbidden system call", LOG_S("kind", p->kind->name),
		LOG_U("child_slot", p->slot), LOG_I("pid", p->pid), LOG_S("call", name),
		LOG_U("number", call));
	free(name);
}

/*
 * Releases what the dead process held in shared memory.  The RCU reader line is first, so that the arena it
 * may hold can be reused.  The slot is last, since a free slot may get a new process.
 */
static void
give_back(struct proc *p)
{
	struct seg *seg = p->env->seg;
	uint32_t held = 0, armed = 0, trials = 0, waiting = 0;

	rcu_reap(seg, p->slot);
	if (p->slot < SLOT_WORKERS(seg)) {
		held = load_reap(seg, p->slot);
		armed = flag_reap(seg, p->slot);
		trials = half_open_reap(seg, p->slot);
		waiting = queue_reap(seg, p->slot);
	}
	metric_reap(seg, p->slot);
	memset(seg->procs[p->slot].crash_note, 0, SHM_CRASH_NOTE);
	proc_slot_set(seg, p->slot, 0, PROC_EMPTY, 0);
	if (held + armed + trials + waiting > 0)
		log_info("resources of a dead process released", LOG_U("child_slot", p->slot),
			LOG_U("reservations", held), LOG_U("flags", armed), LOG_U("trials", trials),
			LOG_U("waiting", waiting));
	if (p->env->reaped != NULL)
		p->env->reaped(p->env->arg);
}

void
proc_reap(struct proc *p, int status)
{
	struct generation *g = p->gen;
	bool refuses = WIFEXITED(status) && WEXITSTATUS(status) == CHILD_EXIT_NO_RESPAWN;

	log_forbidden(p, status);
	log_death(p, status);
	channel_close(p);
	p->pid = 0;
	give_back(p);
	if (refuses && g != NULL && !g->told_ready)
		g->refused = true;
	p->refused = refuses;
	proc_post(p, refuses ? PE_REFUSE : PE_EXIT);
}

/* --- the whole ---------------------------------------------------------------------------------- */

void
proc_init(struct proc *p, const struct proc_env *env, uint32_t slot)
{
	*p = (struct proc){.env = env, .slot = slot, .channel = -1};
	p->ev_timer = evtimer_new(env->base, on_timer, p);
	assert(p->ev_timer != NULL);
}

void
proc_fini(struct proc *p)
{
	if (p->pid > 0 && kill(p->pid, SIGKILL) == 0)
		(void)waitpid(p->pid, NULL, 0);
	channel_close(p);
	event_free(p->ev_timer);
	free(p->identity);
}

void
proc_status(const struct proc *p, struct evbuffer *out, bool json)
{
	char pid[16];

	/* a process that waits for its respawn has no pid */
	(void)snprintf(pid, sizeof(pid), "%s", json ? "null" : "-");
	if (p->pid != 0)
		(void)snprintf(pid, sizeof(pid), "%d", (int)p->pid);
	(void)evbuffer_add_printf(out,
		json ? "{\"kind\":\"%s\",\"slot\":%u,\"pid\":%s,\"generation\":%u,\"state\":\"%s\","
		       "\"connections\":%llu,\"restarts\":%llu,\"age_s\":%llu}"
		     : "%s slot=%u pid=%s generation=%u state=%s connections=%llu restarts=%llu age=%llus\n",
		p->kind->name, p->slot, pid, p->gen != NULL ? p->gen->number : 0,
		states[p->state].name, (unsigned long long)p->env->seg->procs[p->slot].conns,
		(unsigned long long)p->restarts,
		(unsigned long long)((clock_ms() - p->started_ms) / 1000));
}
