#include "master/supervise/procs.h"

#include <assert.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/supervise/proc.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/core/heritage.h"
#include "shm/core/layout.h"
#include "shm/core/seg.h"
#include "shm/core/suspect.h"

#define STALL_TICK_MS 500
/* the identity of a notifier that reads what a newer instance sends */
#define REPLACED "of an instance that was replaced"

/* What the owner wants all processes to do. */
enum aim { AIM_SERVE, AIM_DRAIN, AIM_QUIT };

struct procs {
	struct proc_env env;
	const struct proc_kind *kinds;
	struct procs_hooks hooks;
	struct generation gens[GENERATIONS_MAX];
	uint32_t last_number;
	enum aim aim;
	struct event *ev_stall;
	uint64_t stall_tick_ms; /* when ev_stall last ran */
	uint64_t no_stall_before_ms;
	uint32_t nprocs;     /* worker slots + the single ones */
	struct proc procs[]; /* indexed by process slot */
};

/* --- reaping and hanging processes ---------------------------------------------------------------- */

void
procs_sigchld(struct procs *ps)
{
	int status;

	for (uint32_t i = 0; i < ps->nprocs; i++)
		if (ps->procs[i].pid > 0 &&
			waitpid(ps->procs[i].pid, &status, WNOHANG) == ps->procs[i].pid)
			proc_reap(&ps->procs[i], status);
}

static void
kill_hanging(struct proc *p, uint64_t age_ms)
{
	p->hangs = true;
	log_error("process hangs: killed", LOG_S("kind", p->kind->name),
		LOG_U("child_slot", p->slot), LOG_I("pid", p->pid),
		LOG_U("heartbeat_age_ms", age_ms));
	(void)kill(p->pid, SIGKILL);
}

/*
 * Kills each child that has stored no heartbeat for watchdog_ms.  When this timer itself is late, the whole
 * machine (or the cgroup) was stopped: no child is killed, and the intervals start again.
 */
static void
on_stall_tick(evutil_socket_t fd, short what, void *arg)
{
	struct procs *ps = arg;
	uint64_t now = clock_ms(), stall = ps->env.conf != NULL ? ps->env.conf->watchdog_ms : 0;

	(void)fd;
	(void)what;
	if (now - ps->stall_tick_ms > 4 * STALL_TICK_MS)
		ps->no_stall_before_ms = now + stall;
	ps->stall_tick_ms = now;
	for (uint32_t i = 0; stall != 0 && now >= ps->no_stall_before_ms && i < ps->nprocs; i++) {
		struct proc *p = &ps->procs[i];
		uint64_t heartbeat = proc_heartbeat_ms(ps->env.seg, i), former = p->heartbeat;

		p->heartbeat = heartbeat;
		if (p->pid == 0 || p->hangs)
			continue;
		if (suspect(SUSPECT_PROCESSES, i, heartbeat > now + STALL_TICK_MS))
			proc_heartbeat(ps->env.seg, i, now);
		else if (heartbeat + stall < now && heartbeat == former)
			kill_hanging(p, now - heartbeat);
	}
}

/* --- generations and single processes ----------------------------------------------------------- */

static struct generation *
generation_find(struct procs *ps, uint32_t number)
{
	for (int i = 0; i < GENERATIONS_MAX; i++)
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
generation_post(struct procs *ps, const struct generation *g, enum proc_event ev)
{
	for (uint32_t i = 0; i < ps->nprocs; i++)
		if (ps->procs[i].gen == g && ps->procs[i].state != PS_IDLE)
			proc_post(&ps->procs[i], ev);
}

static struct proc *
free_slot(struct procs *ps)
{
	for (uint32_t i = 0; i < SLOT_WORKERS(ps->env.seg); i++)
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
	proc_post(p, PE_START);
}

static uint32_t
workers_of(const struct procs *ps, const struct conf *conf)
{
	uint32_t n = 0;

	for (const struct proc_kind *k = ps->kinds; k->name != NULL; k++)
		n += k->count != NULL ? k->count(conf) : 0;
	return n;
}

/* What is free without the generations before number `from`. */
static bool
fits(const struct procs *ps, const struct conf *conf, uint32_t from)
{
	uint32_t places = 0, used = 0;

	for (int i = 0; i < GENERATIONS_MAX; i++) {
		const struct generation *g = &ps->gens[i];

		if (g->number >= from && g->number != 0)
			used += count_in(ps, g, false);
		else
			places++;
	}
	return places > 0 && used + workers_of(ps, conf) <= SLOT_WORKERS(ps->env.seg);
}

bool
procs_generation_fits(const struct procs *ps, const struct conf *conf)
{
	return fits(ps, conf, 1);
}

uint32_t
procs_generation_start(
	struct procs *ps, const struct conf *conf, const struct door_fd *fds, size_t nfds)
{
	struct generation *g = generation_find(ps, 0);

	assert(procs_generation_fits(ps, conf));
	*g = (struct generation){.number = ++ps->last_number, .conf = conf, .nfds = nfds};
	g->fds = mem_array(nfds > 0 ? nfds : 1, sizeof(*g->fds));
	if (nfds > 0)
		memcpy(g->fds, fds, nfds * sizeof(*g->fds));
	for (const struct proc_kind *k = ps->kinds; k->name != NULL; k++) {
		uint32_t n = k->count != NULL ? k->count(conf) : 0;

		for (uint32_t i = 0; i < n; i++) {
			struct proc *p = free_slot(ps);

			assert(p != NULL); /* it fits */
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

	for (int i = 0; i < GENERATIONS_MAX; i++)
		n += ps->gens[i].number != 0;
	return n;
}

/* Its requests may go on for so long from `from_ms` on, or until its former end, if that is sooner. */
static void
generation_drain(struct procs *ps, struct generation *g, uint64_t from_ms, uint64_t limit_ms)
{
	if (g->drain_from_ms == 0) {
		g->drain_from_ms = from_ms;
		g->end_ms = GENERATION_NO_END;
	}
	if (limit_ms != GENERATION_NO_END && from_ms + limit_ms < g->end_ms)
		g->end_ms = from_ms + limit_ms;
	generation_post(ps, g, PE_DRAIN);
}

/* The oldest one that drains and is not older than number `from`; NULL: none. */
static struct generation *
oldest_draining(struct procs *ps, uint32_t from)
{
	struct generation *oldest = NULL;

	for (int i = 0; i < GENERATIONS_MAX; i++) {
		struct generation *g = &ps->gens[i];

		if (g->number >= from && g->number != 0 && g->drain_from_ms != 0 &&
			(oldest == NULL || g->number < oldest->number))
			oldest = g;
	}
	return oldest;
}

void
procs_make_room(struct procs *ps, const struct conf *conf)
{
	uint64_t now = clock_ms();
	struct generation *g;

	for (uint32_t from = 1; !fits(ps, conf, from); from = g->number + 1) {
		g = oldest_draining(ps, from);
		if (g == NULL)
			return;
		if (g->end_ms > now + ps->env.conf->drain_ms)
			log_warn(
				"an old generation of workers must end: a reload needs its process slots",
				LOG_U("generation", g->number),
				LOG_U("drain_timeout_ms", ps->env.conf->drain_ms));
		generation_drain(ps, g, now, ps->env.conf->drain_ms);
	}
}

/* Draining workers may wait for notices. */
static bool
single_is_needed(const struct procs *ps, const struct proc *p)
{
	if (ps->env.held || ps->env.conf == NULL)
		return false;
	return ps->aim == AIM_SERVE ||
	       (ps->aim == AIM_DRAIN && p->kind->drains_last && procs_generations(ps) > 0);
}

/* A single process is replaced, old one first (it holds its address), when its identity changes. */
static void
single_sync(const struct procs *ps, struct proc *p)
{
	const char *want = single_is_needed(ps, p) ? p->kind->identity(ps->env.conf) : NULL;

	if (want != NULL && ps->env.notices_from != 0 && p->slot == SLOT_NOTIFIER(ps->env.seg))
		want = REPLACED;
	if (p->state != PS_IDLE && (want == NULL || strcmp(want, p->identity) != 0))
		proc_post(p, PE_DRAIN);
	if (p->state == PS_IDLE && want != NULL && !p->refused) {
		p->identity = mem_strdup(want);
		start_in(p, p->kind, NULL);
	}
}

static void
singles_sync(struct procs *ps)
{
	for (uint32_t i = SLOT_WORKERS(ps->env.seg); i < ps->nprocs; i++)
		if (ps->procs[i].kind != NULL)
			single_sync(ps, &ps->procs[i]);
}

void
procs_conf_set(struct procs *ps, const struct conf *conf, uint32_t generation)
{
	struct generation *serving = generation_find(ps, generation);

	ps->env.conf = conf;
	/* before the old workers drain: at any time one of both accepts */
	if (generation != ps->env.generation && generation != 0 && serving != NULL && !ps->env.held)
		generation_post(ps, serving, PE_SERVE);
	ps->env.generation = generation;
	for (int i = 0; i < GENERATIONS_MAX; i++) {
		struct generation *g = &ps->gens[i];

		if (g->number == generation)
			g->conf = conf;
		else if (g->number != 0)
			generation_drain(ps, g,
				g->drain_from_ms != 0 ? g->drain_from_ms : clock_ms(),
				conf->reload_drain_ms != 0 ? conf->reload_drain_ms
							   : GENERATION_NO_END);
	}
	for (uint32_t i = SLOT_WORKERS(ps->env.seg); i < ps->nprocs; i++)
		ps->procs[i].refused = false;
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
	if (!g->told_ready && ps->aim == AIM_SERVE && count_in(ps, g, true) == g->wanted) {
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

	(void)fd;
	(void)what;
	for (int i = 0; i < GENERATIONS_MAX; i++)
		if (ps->gens[i].number != 0)
			generation_settle(ps, &ps->gens[i]);
	singles_sync(ps);
}

/* --- several instances ------------------------------------------------------------------------- */

void
procs_hold(struct procs *ps)
{
	ps->env.held = true;
}

void
procs_release(struct procs *ps)
{
	const struct generation *g = generation_find(ps, ps->env.generation);

	ps->env.held = false;
	if (ps->env.generation != 0 && g != NULL)
		generation_post(ps, g, PE_SERVE);
	singles_sync(ps);
}

void
procs_notices_from(struct procs *ps, int fd)
{
	ps->env.notices_from = fd;
	singles_sync(ps);
}

void
procs_notices_to(struct procs *ps, const struct notices_to *to, size_t n)
{
	ps->env.notices_to = to;
	ps->env.nnotices_to = n;
}

bool
procs_notices_left(const struct procs *ps)
{
	const struct proc *p = &ps->procs[SLOT_NOTIFIER(ps->env.seg)];

	return p->state == PS_IDLE || (p->identity != NULL && strcmp(p->identity, REPLACED) == 0);
}

void
procs_retire(struct procs *ps, uint64_t limit_ms)
{
	ps->env.generation = 0;
	for (int i = 0; i < GENERATIONS_MAX; i++)
		if (ps->gens[i].number != 0)
			generation_drain(ps, &ps->gens[i], clock_ms(),
				limit_ms != 0 ? limit_ms : GENERATION_NO_END);
}

/* --- the whole ---------------------------------------------------------------------------------- */

struct procs *
procs_new(struct event_base *base, struct seg *seg, const struct proc_kind *kinds,
	const int *wake_fds, const struct procs_hooks *hooks)
{
	uint32_t n = SLOT_MASTER(seg), single = SLOT_WORKERS(seg);
	struct procs *ps = mem_zero(sizeof(*ps) + n * sizeof(ps->procs[0]));
	struct timeval tick = clock_tv(STALL_TICK_MS);

	ps->env.base = base;
	ps->env.seg = seg;
	ps->kinds = kinds;
	ps->env.wake_fds = wake_fds;
	ps->hooks = *hooks;
	ps->env.reaped = hooks->reaped;
	ps->env.arg = hooks->arg;
	ps->env.master = getpid();
	ps->env.as = (struct identity){getuid(), getgid(), IDENTITY_STAYS};
	ps->nprocs = n;
	ps->env.ev_settle = evtimer_new(base, on_settle, ps);
	ps->ev_stall = event_new(base, -1, EV_PERSIST, on_stall_tick, ps);
	assert(ps->env.ev_settle != NULL && ps->ev_stall != NULL);
	for (uint32_t i = 0; i < n; i++)
		proc_init(&ps->procs[i], &ps->env, i);
	for (const struct proc_kind *k = kinds; k->name != NULL; k++)
		if (k->identity != NULL) {
			assert(single < n); /* the segment has room for it */
			ps->procs[single++].kind = k;
		}
	ps->stall_tick_ms = clock_ms();
	(void)event_add(ps->ev_stall, &tick);
	return ps;
}

void
procs_identity(struct procs *ps, const struct identity *as)
{
	ps->env.as = *as;
}

void
procs_free(struct procs **pps)
{
	struct procs *ps = *pps;

	if (ps == NULL)
		return;
	for (uint32_t i = 0; i < ps->nprocs; i++)
		proc_fini(&ps->procs[i]);
	for (int i = 0; i < GENERATIONS_MAX; i++)
		free(ps->gens[i].fds);
	event_free(ps->env.ev_settle);
	event_free(ps->ev_stall);
	free(ps);
	*pps = NULL;
}

void
procs_stop(struct procs *ps)
{
	ps->aim = AIM_DRAIN;
	for (int i = 0; i < GENERATIONS_MAX; i++)
		if (ps->gens[i].number != 0)
			generation_drain(ps, &ps->gens[i], clock_ms(), ps->env.conf->drain_ms);
	event_active(ps->env.ev_settle, EV_TIMEOUT, 0); /* nothing may be left to wait for */
}

void
procs_stop_now(struct procs *ps)
{
	ps->aim = AIM_QUIT;
	for (uint32_t i = 0; i < ps->nprocs; i++)
		proc_post(&ps->procs[i], PE_QUIT);
}

unsigned
procs_alive(const struct procs *ps)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < ps->nprocs; i++)
		n += ps->procs[i].state != PS_IDLE;
	return n;
}

bool
procs_die_young(const struct procs *ps)
{
	bool any = false;

	for (uint32_t i = 0; i < SLOT_WORKERS(ps->env.seg); i++)
		any |= ps->procs[i].backoff_ms >= PROC_DIES_YOUNG_MS;
	return any;
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
		proc_status(&ps->procs[i], out, json);
		sep = json ? "," : "";
	}
	if (json)
		(void)evbuffer_add_printf(out, "]");
}
