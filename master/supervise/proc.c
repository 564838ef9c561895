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
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/base/rnd.h"
#include "shm/eject.h"
#include "shm/flags.h"
#include "shm/core/heritage.h"
#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/queue.h"
#include "shm/core/rcu.h"
#include "shm/core/seg.h"

#define GENERATIONS 2
#define BACKOFF_MIN_MS 100
#define BACKOFF_MAX_MS 10000
/* a process that lived this long starts again with the shortest delay */
#define BACKOFF_RESET_MS 10000
#define QUIT_MS 2000 /* for ending what is left; then SIGKILL */
#define STALL_TICK_MS 500

struct generation {
	uint32_t number; /* 0: this place is free */
	const struct conf *conf;
	int *fds;
	size_t nfds;
	uint32_t wanted; /* processes */
	bool told_ready;
	bool refused;
};

/*
 *            START           READY             DRAIN             QUIT or time is up     2 s
 *   idle -----------> starting -----> ready ------------> draining ---------> quitting -----> SIGKILL
 *    ^                  ^  \_________________________________^ |                 |
 *    |           100 ms |      |                               |                 |
 *    |           .. 10 s|      | exit                          | exit            | exit
 *    |                 dead <--+                               |                 |
 *    +---- DRAIN -------+                                      |                 |
 *    +<---------------------------------------------------- ---+-----------------+
 *
 * idle      no process and none wanted; the slot is free
 * starting  forked, has not reported ready; killed if its beat stops
 * ready     serves
 * draining  told to finish; its time is conf's drain_ms
 * quitting  told to end what is left with an error
 * dead      reaped; its successor comes when the back-off is over
 */
enum state { PS_IDLE, PS_STARTING, PS_READY, PS_DRAINING, PS_QUITTING, PS_DEAD, PS_NSTATES };
enum event_kind { PE_START, PE_READY, PE_DRAIN, PE_QUIT, PE_EXIT, PE_REFUSE, PE_TIMER, PE_N };

struct proc {
	struct procs *ps;
	const struct proc_kind *kind;
	uint32_t slot;
	enum state state;
	struct generation *gen; /* NULL: a single process */
	char *identity;         /* of a single process, as it was started */
	pid_t pid;              /* 0: none */
	int channel;            /* -1: none */
	struct event *ev_channel;
	struct event *ev_timer;
	uint64_t started_ms;
	uint64_t backoff_ms; /* that preceded this process; 0: none */
	uint64_t restarts;
	bool refused; /* single process: said "do not respawn me"; asked again after a reload */
	bool hangs;   /* it was killed for its silence; dying may take it a while */
};

struct procs {
	struct event_base *base;
	struct seg *seg;
	const struct proc_kind *kinds;
	const int *wake_fds;
	struct procs_hooks hooks;
	const struct conf *conf; /* in force; NULL before the first */
	struct generation gens[GENERATIONS];
	uint32_t last_number;
	bool stopping;
	pid_t master;
	struct event *ev_settle; /* made active by whatever may have completed something */
	struct event *ev_stall;
	uint64_t stall_tick_ms; /* when ev_stall last ran */
	uint64_t no_stall_before_ms;
	uint32_t nprocs;     /* worker slots + the single one */
	struct proc procs[]; /* indexed by process slot */
};

typedef void proc_handler(struct proc *);
static proc_handler spawn, serve, ask_drain, ask_quit, kill_now, respawn_later, finish, ignore,
	never;

/* clang-format off */
static const struct {
	const char *name;
	enum proc_state shown; /* to the other processes */
	proc_handler *on[PE_N];
} states[PS_NSTATES] = {
	[PS_IDLE] = { "idle", PROC_EMPTY, {
		[PE_START] = spawn,	[PE_READY] = never,	[PE_DRAIN] = ignore,	[PE_QUIT] = ignore,
		[PE_EXIT] = never,	[PE_REFUSE] = never,	[PE_TIMER] = never } },
	[PS_STARTING] = { "starting", PROC_STARTING, {
		[PE_START] = never,	[PE_READY] = serve,	[PE_DRAIN] = ask_drain,	[PE_QUIT] = ask_quit,
		[PE_EXIT] = respawn_later, [PE_REFUSE] = finish, [PE_TIMER] = never } },
	[PS_READY] = { "ready", PROC_READY, {
		[PE_START] = never,	[PE_READY] = ignore,	[PE_DRAIN] = ask_drain,	[PE_QUIT] = ask_quit,
		[PE_EXIT] = respawn_later, [PE_REFUSE] = finish, [PE_TIMER] = never } },
	[PS_DRAINING] = { "draining", PROC_DRAINING, {
		[PE_START] = never,	[PE_READY] = ignore,	[PE_DRAIN] = ignore,	[PE_QUIT] = ask_quit,
		[PE_EXIT] = finish,	[PE_REFUSE] = finish,	[PE_TIMER] = ask_quit } },
	[PS_QUITTING] = { "quitting", PROC_DRAINING, {
		[PE_START] = never,	[PE_READY] = ignore,	[PE_DRAIN] = ignore,	[PE_QUIT] = ignore,
		[PE_EXIT] = finish,	[PE_REFUSE] = finish,	[PE_TIMER] = kill_now } },
	[PS_DEAD] = { "dead", PROC_EMPTY, {
		[PE_START] = never,	[PE_READY] = never,	[PE_DRAIN] = finish,	[PE_QUIT] = finish,
		[PE_EXIT] = never,	[PE_REFUSE] = never,	[PE_TIMER] = spawn } },
};
/* clang-format on */

static_assert(PS_NSTATES == PROCS_STATES && PE_N == PROCS_EVENTS, "as the unit test walks it");

const char *
procs_state_name(unsigned state)
{
	return states[state].name;
}

bool
procs_handles(unsigned state, unsigned event)
{
	return states[state].on[event] != NULL;
}

static void
post(struct proc *p, enum event_kind ev)
{
	states[p->state].on[ev](p);
}

/* The only writer of p->state, and of the process's slot as others see it. */
static void
enter(struct proc *p, enum state st)
{
	p->state = st;
	proc_slot_set(p->ps->seg, p->slot, (uint64_t)p->pid, states[st].shown,
		p->gen != NULL ? p->gen->number : 0);
	event_active(p->ps->ev_settle, EV_TIMEOUT, 0);
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
	post(arg, PE_TIMER);
}

/* --- the child between fork and its kind's main ------------------------------------------------- */

static int
by_number(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	return (x > y) - (x < y);
}

/* Closes every descriptor but stdin, stdout, stderr and these (sorted here). */
static void
close_all_but(int *keep, size_t n)
{
	unsigned from = STDERR_FILENO + 1;

	qsort(keep, n, sizeof(keep[0]), by_number);
	for (size_t i = 0; i < n; i++) {
		if ((unsigned)keep[i] < from)
			continue; /* it is in the place of stdin, stdout or stderr */
		if ((unsigned)keep[i] > from)
			(void)close_range(from, (unsigned)keep[i] - 1, 0);
		from = (unsigned)keep[i] + 1;
	}
	(void)close_range(from, ~0u, 0);
}

static void
keep_heritage_only(const struct heritage *h)
{
	size_t nwake = h->seg->hdr->nslots, n = 0;
	int *keep = mem_array(nwake + h->nlisten + 1, sizeof(int));

	keep[n++] = h->channel;
	for (size_t i = 0; i < h->nlisten; i++)
		keep[n++] = h->listen_fds[i];
	for (size_t i = 0; i < nwake; i++)
		keep[n++] = h->wake_fds[i];
	close_all_but(keep, n);
	free(keep);
}

/*
 * The master has the signals it acts on blocked and read from a signalfd, which is closed by now.  A
 * terminal's ^C and a `kill -HUP 0` reach the whole process group: children leave those to the master,
 * who tells them over the channel.
 */
static void
signals_for_child(void)
{
	static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
	sigset_t none;

	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		(void)signal(ignored[i], SIG_IGN);
	(void)signal(SIGCHLD, SIG_DFL);
	(void)sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/*
 * The order of steps matters (design.md, "A child after fork"): the master's event base is never
 * touched, since event_del() there would edit the epoll set both share; ids go before PDEATHSIG, which
 * a change of ids clears; getppid() after it, for a master that died in between.
 */
static _Noreturn void
child(const struct proc *p, int channel)
{
	const struct procs *ps = p->ps;
	const struct conf *conf = p->gen != NULL ? p->gen->conf : ps->conf;
	struct heritage h = {
		.conf = conf,
		.seg = ps->seg,
		.slot = p->slot,
		.generation = p->gen != NULL ? p->gen->number : 0,
		.master_pid = ps->master,
		.channel = channel,
		.listen_fds = p->gen != NULL ? p->gen->fds : NULL,
		.nlisten = p->gen != NULL ? p->gen->nfds : 0,
		.wake_fds = ps->wake_fds,
		.version = PDROUTER_VERSION,
	};
	gid_t gid = getgid();
	uid_t uid = getuid();
	char name[16]; /* the kernel's limit; longer ones are cut */

	keep_heritage_only(&h);
	signals_for_child();
	rnd_after_fork();
	/* no way back to what a set-id bit gave; without one this changes nothing */
	if (setresgid(gid, gid, gid) == -1 || setresuid(uid, uid, uid) == -1)
		_exit(CHILD_EXIT_NO_RESPAWN);
	(void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (getppid() != h.master_pid)
		_exit(CHILD_EXIT_OK);
	(void)snprintf(name, sizeof(name), "pdr-%s", p->kind->name);
	(void)prctl(PR_SET_NAME, name, 0, 0, 0);
	log_init(p->kind->name, p->slot);
	log_setup(conf->log_level, conf->log_format);
	if (seg_check(ps->seg->hdr, seg_build()) != 0) {
		log_error("the shared memory is not of this version and build");
		_exit(CHILD_EXIT_NO_RESPAWN);
	}
	/* exit(), not _exit(): a leak checker reports from there; nothing of the master's is in stdio */
	exit(p->kind->main(&h));
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

/* Children send few bytes and die: end of file is followed by SIGCHLD, which does the rest. */
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
			post(p, PE_READY);
}

static void
tell(struct proc *p, enum channel_msg msg)
{
	char c = (char)msg;

	/* fails only if the child is dying: SIGCHLD tells */
	(void)send(p->channel, &c, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* No process came about: handled like one that died at once. */
static void
spawn_failed(struct proc *p, const char *what, int err)
{
	log_error("cannot start a process", LOG_S("kind", p->kind->name),
		LOG_U("child_slot", p->slot), LOG_S("step", what), LOG_S("error", strerror(err)));
	respawn_later(p);
}

static void
spawn(struct proc *p)
{
	struct procs *ps = p->ps;
	int sv[2];
	pid_t pid;

	p->started_ms = clock_ms();
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv) == -1) {
		spawn_failed(p, "socketpair", errno);
		return;
	}
	/* before it has an owner: the stall clock starts here */
	proc_beat(ps->seg, p->slot, p->started_ms);
	pid = fork();
	if (pid == 0)
		child(p, sv[1]);
	(void)close(sv[1]);
	if (pid == -1) {
		(void)close(sv[0]);
		spawn_failed(p, "fork", errno);
		return;
	}
	p->pid = pid;
	p->hangs = false;
	p->channel = sv[0];
	p->ev_channel = event_new(ps->base, sv[0], EV_READ | EV_PERSIST, on_channel, p);
	assert(p->ev_channel != NULL);
	(void)event_add(p->ev_channel, NULL);
	enter(p, PS_STARTING);
	log_info("process started", LOG_S("kind", p->kind->name), LOG_U("child_slot", p->slot),
		LOG_I("pid", pid), LOG_U("generation", p->gen != NULL ? p->gen->number : 0));
}

static void
serve(struct proc *p)
{
	enter(p, PS_READY);
}

/* --- ending ------------------------------------------------------------------------------------- */

static void
ask_drain(struct proc *p)
{
	tell(p, CH_DRAIN);
	clock_set(p, p->ps->conf->drain_ms);
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
	log_warn("process does not go: killed", LOG_S("kind", p->kind->name),
		LOG_U("child_slot", p->slot), LOG_I("pid", p->pid));
	(void)kill(p->pid, SIGKILL);
}

uint64_t
procs_backoff_ms(uint64_t last_ms, uint64_t lived_ms)
{
	if (last_ms == 0 || lived_ms >= BACKOFF_RESET_MS)
		return BACKOFF_MIN_MS;
	return last_ms * 2 < BACKOFF_MAX_MS ? last_ms * 2 : BACKOFF_MAX_MS;
}

static void
respawn_later(struct proc *p)
{
	struct procs *ps = p->ps;

	p->backoff_ms = procs_backoff_ms(p->backoff_ms, clock_ms() - p->started_ms);
	clock_set(p, p->backoff_ms);
	p->restarts++;
	metric_add(seg_slab(ps->seg, SLOT_MASTER(ps->seg)), p->kind->restarts, 1);
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
	char words[SHM_WORDS];
	const char *last = p->ps->seg->procs[p->slot].words;
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
			LOG_S("state", states[p->state].name), LOG_S("last_words", words));
	else
		log_error("process exited", LOG_S("kind", p->kind->name),
			LOG_U("child_slot", p->slot), LOG_I("pid", p->pid),
			LOG_I("code", WEXITSTATUS(status)), LOG_S("state", states[p->state].name),
			LOG_S("last_words", words));
}

/*
 * The dead process's words in shared memory are ours from here on.  The reader line goes first: the
 * arena it may hold can then be reused; the slot goes last: until then nobody else is born into it.
 */
static void
give_back(struct proc *p)
{
	struct seg *seg = p->ps->seg;
	uint32_t held = 0, armed = 0, trials = 0, waiting = 0;

	rcu_reap(seg, p->slot);
	if (p->slot < SLOT_WORKERS(seg)) {
		held = load_reap(seg, p->slot);
		armed = flag_reap(seg, p->slot);
		trials = eject_reap(seg, p->slot);
		waiting = queue_reap(seg, p->slot);
	}
	metric_reap(seg, p->slot);
	memset(seg->procs[p->slot].words, 0, SHM_WORDS);
	proc_slot_set(seg, p->slot, 0, PROC_EMPTY, 0);
	if (held + armed + trials + waiting > 0)
		log_info("gave back what the process held", LOG_U("child_slot", p->slot),
			LOG_U("reservations", held), LOG_U("flags", armed), LOG_U("trials", trials),
			LOG_U("waiting", waiting));
	if (p->ps->hooks.reaped != NULL)
		p->ps->hooks.reaped(p->ps->hooks.arg);
}

static void
reap(struct proc *p, int status)
{
	struct generation *g = p->gen;
	bool refuses = WIFEXITED(status) && WEXITSTATUS(status) == CHILD_EXIT_NO_RESPAWN;

	log_death(p, status);
	channel_close(p);
	p->pid = 0;
	give_back(p);
	if (refuses && g != NULL && !g->told_ready)
		g->refused = true;
	p->refused = refuses;
	post(p, refuses ? PE_REFUSE : PE_EXIT);
}

void
procs_sigchld(struct procs *ps)
{
	int status;

	for (uint32_t i = 0; i < ps->nprocs; i++)
		if (ps->procs[i].pid > 0 &&
			waitpid(ps->procs[i].pid, &status, WNOHANG) == ps->procs[i].pid)
			reap(&ps->procs[i], status);
}

/*
 * Kills who has not stored its beat for watchdog_ms.  When this timer itself comes late, the whole machine
 * (or our cgroup) stood still: nobody is to blame, and the clocks start anew.
 */
static void
on_stall_tick(evutil_socket_t fd, short what, void *arg)
{
	struct procs *ps = arg;
	uint64_t now = clock_ms(), stall = ps->conf != NULL ? ps->conf->watchdog_ms : 0;

	(void)fd;
	(void)what;
	if (now - ps->stall_tick_ms > 4 * STALL_TICK_MS)
		ps->no_stall_before_ms = now + stall;
	ps->stall_tick_ms = now;
	for (uint32_t i = 0; stall != 0 && now >= ps->no_stall_before_ms && i < ps->nprocs; i++) {
		struct proc *p = &ps->procs[i];
		uint64_t beat = proc_beat_ms(ps->seg, i);

		if (p->pid == 0 || p->hangs || beat + stall >= now)
			continue;
		p->hangs = true;
		log_error("process hangs: killed", LOG_S("kind", p->kind->name),
			LOG_U("child_slot", i), LOG_I("pid", p->pid),
			LOG_U("silent_ms", now - beat));
		(void)kill(p->pid, SIGKILL);
	}
}

/* --- generations and single processes ----------------------------------------------------------- */

static struct generation *
generation_find(struct procs *ps, uint32_t number)
{
	for (int i = 0; i < GENERATIONS; i++)
		if (ps->gens[i].number == number)
			return &ps->gens[i];
	return NULL;
}

static uint32_t
count_in(const struct procs *ps, const struct generation *g, bool ready_only)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < ps->nprocs; i++)
		if (ps->procs[i].gen == g && ps->procs[i].state != PS_IDLE)
			n += !ready_only || ps->procs[i].state == PS_READY;
	return n;
}

static void
generation_post(struct procs *ps, const struct generation *g, enum event_kind ev)
{
	for (uint32_t i = 0; i < ps->nprocs; i++)
		if (ps->procs[i].gen == g && ps->procs[i].state != PS_IDLE)
			post(&ps->procs[i], ev);
}

static struct proc *
free_slot(struct procs *ps)
{
	for (uint32_t i = 0; i < SLOT_WORKERS(ps->seg); i++)
		if (ps->procs[i].state == PS_IDLE)
			return &ps->procs[i];
	return NULL;
}

static void
start_in(struct proc *p, const struct proc_kind *kind, struct generation *g)
{
	p->kind = kind;
	p->gen = g;
	p->restarts = 0;
	post(p, PE_START);
}

uint32_t
procs_generation_start(struct procs *ps, const struct conf *conf, const int *fds, size_t nfds)
{
	struct generation *g = generation_find(ps, 0);

	if (g == NULL || ps->stopping)
		return 0;
	*g = (struct generation){.number = ++ps->last_number, .conf = conf, .nfds = nfds};
	g->fds = mem_array(nfds > 0 ? nfds : 1, sizeof(int));
	if (nfds > 0)
		memcpy(g->fds, fds, nfds * sizeof(int));
	for (const struct proc_kind *k = ps->kinds; k->name != NULL; k++) {
		uint32_t n = k->count != NULL ? k->count(conf) : 0;

		for (uint32_t i = 0; i < n; i++) {
			struct proc *p = free_slot(ps);

			assert(p != NULL); /* two generations of max_workers fit */
			g->wanted++;
			start_in(p, k, g);
		}
	}
	return g->number;
}

void
procs_generation_quit(struct procs *ps, uint32_t generation)
{
	struct generation *g = generation_find(ps, generation);

	if (g != NULL)
		generation_post(ps, g, PE_QUIT);
}

unsigned
procs_generations(const struct procs *ps)
{
	unsigned n = 0;

	for (int i = 0; i < GENERATIONS; i++)
		n += ps->gens[i].number != 0;
	return n;
}

/* A single process is replaced, old one first (it holds its address), when its identity changes. */
static void
single_sync(struct proc *p)
{
	const char *want =
		p->ps->stopping || p->ps->conf == NULL ? NULL : p->kind->identity(p->ps->conf);

	if (p->state != PS_IDLE && (want == NULL || strcmp(want, p->identity) != 0))
		post(p, PE_DRAIN);
	if (p->state == PS_IDLE && want != NULL && !p->refused) {
		p->identity = mem_strdup(want);
		start_in(p, p->kind, NULL);
	}
}

static void
singles_sync(struct procs *ps)
{
	struct proc *p = &ps->procs[SLOT_NOTIFIER(ps->seg)];

	/* one that is needed by draining workers stays until they are gone (settle) */
	if (p->kind != NULL && !(ps->stopping && p->kind->drains_last))
		single_sync(p);
}

void
procs_conf_set(struct procs *ps, const struct conf *conf, uint32_t generation)
{
	ps->conf = conf;
	for (int i = 0; i < GENERATIONS; i++) {
		struct generation *g = &ps->gens[i];

		if (g->number == generation)
			g->conf = conf;
		else if (g->number != 0)
			generation_post(ps, g, PE_DRAIN);
	}
	ps->procs[SLOT_NOTIFIER(ps->seg)].refused = false;
	singles_sync(ps);
}

static void
generation_settle(struct procs *ps, struct generation *g)
{
	uint32_t number = g->number;

	if (g->refused && !g->told_ready) {
		g->refused = false;
		ps->hooks.refused(ps->hooks.arg, number);
	}
	if (!g->told_ready && !ps->stopping && count_in(ps, g, true) == g->wanted) {
		g->told_ready = true;
		ps->hooks.ready(ps->hooks.arg, number);
	}
	if (count_in(ps, g, false) == 0) {
		free(g->fds);
		*g = (struct generation){.number = 0};
		ps->hooks.gone(ps->hooks.arg, number);
	}
}

/* Tells the owner what has come about, outside of whatever brought it about. */
static void
on_settle(evutil_socket_t fd, short what, void *arg)
{
	struct procs *ps = arg;
	struct proc *single = &ps->procs[SLOT_NOTIFIER(ps->seg)];

	(void)fd;
	(void)what;
	for (int i = 0; i < GENERATIONS; i++)
		if (ps->gens[i].number != 0)
			generation_settle(ps, &ps->gens[i]);
	singles_sync(ps);
	if (ps->stopping && procs_generations(ps) == 0 && single->kind != NULL)
		single_sync(single);
}

/* --- the whole ---------------------------------------------------------------------------------- */

struct procs *
procs_new(struct event_base *base, struct seg *seg, const struct proc_kind *kinds,
	const int *wake_fds, const struct procs_hooks *hooks)
{
	uint32_t n = SLOT_NOTIFIER(seg) + 1;
	struct procs *ps = mem_zero(sizeof(*ps) + n * sizeof(ps->procs[0]));
	struct timeval tick = clock_tv(STALL_TICK_MS);

	ps->base = base;
	ps->seg = seg;
	ps->kinds = kinds;
	ps->wake_fds = wake_fds;
	ps->hooks = *hooks;
	ps->master = getpid();
	ps->nprocs = n;
	ps->ev_settle = evtimer_new(base, on_settle, ps);
	ps->ev_stall = event_new(base, -1, EV_PERSIST, on_stall_tick, ps);
	assert(ps->ev_settle != NULL && ps->ev_stall != NULL);
	for (uint32_t i = 0; i < n; i++) {
		struct proc *p = &ps->procs[i];

		*p = (struct proc){.ps = ps, .slot = i, .channel = -1};
		p->ev_timer = evtimer_new(base, on_timer, p);
		assert(p->ev_timer != NULL);
	}
	for (const struct proc_kind *k = kinds; k->name != NULL; k++)
		if (k->identity != NULL)
			ps->procs[SLOT_NOTIFIER(seg)].kind = k; /* the segment has room for one */
	ps->stall_tick_ms = clock_ms();
	(void)event_add(ps->ev_stall, &tick);
	return ps;
}

void
procs_free(struct procs **pps)
{
	struct procs *ps = *pps;

	if (ps == NULL)
		return;
	for (uint32_t i = 0; i < ps->nprocs; i++) {
		struct proc *p = &ps->procs[i];

		if (p->pid > 0 && kill(p->pid, SIGKILL) == 0)
			(void)waitpid(p->pid, NULL, 0);
		channel_close(p);
		event_free(p->ev_timer);
		free(p->identity);
	}
	for (int i = 0; i < GENERATIONS; i++)
		free(ps->gens[i].fds);
	event_free(ps->ev_settle);
	event_free(ps->ev_stall);
	free(ps);
	*pps = NULL;
}

void
procs_stop(struct procs *ps)
{
	ps->stopping = true;
	for (int i = 0; i < GENERATIONS; i++)
		if (ps->gens[i].number != 0)
			generation_post(ps, &ps->gens[i], PE_DRAIN);
	event_active(ps->ev_settle, EV_TIMEOUT, 0); /* nothing may be left to wait for */
}

void
procs_stop_now(struct procs *ps)
{
	ps->stopping = true;
	for (uint32_t i = 0; i < ps->nprocs; i++)
		post(&ps->procs[i], PE_QUIT);
}

unsigned
procs_alive(const struct procs *ps)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < ps->nprocs; i++)
		n += ps->procs[i].state != PS_IDLE;
	return n;
}

static void
add_status(struct evbuffer *out, const struct proc *p, bool json)
{
	char pid[16];

	/* A process that is to be started again has none. */
	(void)snprintf(pid, sizeof(pid), "%s", json ? "null" : "-");
	if (p->pid != 0)
		(void)snprintf(pid, sizeof(pid), "%d", (int)p->pid);
	(void)evbuffer_add_printf(out,
		json ? "{\"kind\":\"%s\",\"slot\":%u,\"pid\":%s,\"generation\":%u,\"state\":\"%s\","
		       "\"connections\":%llu,\"restarts\":%llu,\"age_s\":%llu}"
		     : "%s slot=%u pid=%s generation=%u state=%s connections=%llu restarts=%llu age=%llus\n",
		p->kind->name, p->slot, pid, p->gen != NULL ? p->gen->number : 0,
		states[p->state].name, (unsigned long long)p->ps->seg->procs[p->slot].conns,
		(unsigned long long)p->restarts,
		(unsigned long long)((clock_ms() - p->started_ms) / 1000));
}

void
procs_status(const struct procs *ps, struct evbuffer *out, bool json)
{
	const char *sep = "";

	if (json)
		(void)evbuffer_add_printf(out, "[");
	for (uint32_t i = 0; i < ps->nprocs; i++) {
		if (ps->procs[i].state == PS_IDLE)
			continue;
		(void)evbuffer_add_printf(out, "%s", sep);
		add_status(out, &ps->procs[i], json);
		sep = json ? "," : "";
	}
	if (json)
		(void)evbuffer_add_printf(out, "]");
}
