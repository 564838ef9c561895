#include "worker/net/listen.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shm/accept.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/core/heritage.h"
#include "worker/base/core.h"

#define OWN_FDS                                                                                    \
	4096 /* more than a worker has at its start: an eventfd per slot, listeners, the channel */
/* clients do not get an eighth of the descriptors, at most this number */
#define FDS_KEPT 256
/* connections of operators in one worker: so few that they need no share of their own */
#define OPERATORS_MAX 64
#define PAUSED_SAY_MS 10000 /* between two log lines about a shortage */

static void
look_at_limits(struct worker *w)
{
	struct rlimit rl;

	w->max_fds = getrlimit(RLIMIT_NOFILE, &rl) == 0 ? rl.rlim_cur : RLIM_INFINITY;
}

/* Counts the open descriptors.  Descriptors open at the start have low numbers. */
static uint32_t
count_fds(void)
{
	uint32_t n = 0;

	for (int fd = 0; fd < OWN_FDS; fd++)
		n += fcntl(fd, F_GETFD) != -1;
	return n;
}

uint64_t
listen_fds(const struct worker *w)
{
	const uint64_t clients = w->nclients[DOOR_CLIENTS] + w->nclients[DOOR_OPERATORS];

	return w->own_fds + clients + (uint64_t)w->gauges[G_UP_OPEN];
}

/* Returns true if only the descriptors for engines are left: a client that could be accepted
 * and not served waits better in the kernel's queue. */
static bool
few_fds(const struct worker *w)
{
	const uint64_t kept = w->max_fds / 8 < FDS_KEPT ? w->max_fds / 8 : FDS_KEPT;

	return listen_fds(w) + kept >= w->max_fds;
}

static bool
has_too_many(const struct worker *w)
{
	const uint32_t n = w->nclients[DOOR_CLIENTS];

	return w->accept_paused || n >= w->conf->live.max_connections || (n > 0 && few_fds(w));
}

static void
say_paused(struct worker *w)
{
	const uint64_t now_ms = clock_ms();

	metric_add(w->slab, M_ACCEPT_PAUSES, 1);
	if (w->paused_ms != 0 && now_ms < w->paused_ms + PAUSED_SAY_MS)
		return;
	w->paused_ms = now_ms;
	log_warn("accept paused, new connections wait",
		LOG_S("reason", w->accept_paused || few_fds(w) ? "file descriptors"
							       : "limits.max_connections"),
		LOG_U("connections", w->nclients[DOOR_CLIENTS]),
		LOG_I("upstream", w->gauges[G_UP_OPEN]), LOG_U("open_files", w->max_fds));
}

static void
wake(const struct worker *w, uint32_t slot)
{
	const uint64_t one = 1;

	(void)!write(w->h->wake_fds[slot], &one, sizeof(one));
}

/*
 * libevent has no flag for EPOLLEXCLUSIVE, by which a connection wakes one worker in place of all.  An epoll instance
 * of our own inside libevent's would not do: the kernel counts only a process that sleeps in the instance itself.  So
 * this is the instance in which libevent has registered `fd`; -1: none, libevent uses another method.
 */
static int
epoll_of(int fd)
{
	struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
	int i = 0;

	while (i < OWN_FDS && epoll_ctl(i, EPOLL_CTL_MOD, fd, &e) == -1)
		i++;
	return i < OWN_FDS ? i : -1;
}

/*
 * The kernel wakes the first of the workers that sleep: a socket that is registered anew stands behind those of the
 * other workers.  A worker that listens alone need not do that.  A connection that waits by now is seen, whomever it has woken.
 * If the second call fails, the next heartbeat repeats it.
 */
static void
register_anew(const struct worker *w, int fd)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.fd = fd};

	if (w->epoll_fd == -1)
		return;
	(void)epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
	(void)epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &e);
}

/* Operators' sockets wake all workers: their connections are few, and must not depend on one. */
static void
watch_begin(struct worker *w, size_t i)
{
	event_add(&w->ev_listen[i], NULL);
	if (w->h->listen[i].door == DOOR_CLIENTS)
		register_anew(w, w->h->listen[i].fd);
}

static void
watch(struct worker *w, enum door door, bool want)
{
	if (want == w->listening[door])
		return;
	w->listening[door] = want;
	for (size_t i = 0; i < w->h->nlisten; i++) {
		if (w->h->listen[i].door != door)
			continue;
		if (want)
			watch_begin(w, i);
		else
			event_del(&w->ev_listen[i]);
	}
}

/* Every worker accepts operators, also one that has too many clients: that is when operators come. */
static void
update_operators(struct worker *w)
{
	const uint32_t n = w->nclients[DOOR_OPERATORS];

	watch(w, DOOR_OPERATORS,
		w->phase == WORKER_SERVES && !w->accept_paused && n < OPERATORS_MAX &&
			(n == 0 || !few_fds(w)));
}

static bool
connection_waits(const struct worker *w)
{
	for (size_t i = 0; i < w->h->nlisten; i++) {
		struct pollfd p = {.fd = w->h->listen[i].fd, .events = POLLIN};

		if (w->h->listen[i].door == DOOR_CLIENTS && poll(&p, 1, 0) == 1)
			return true;
	}
	return false;
}

/* The worker has stopped watching.  A connection that woke it alone, and that it has not accepted, is seen by another
 * worker that listens.  A worker that rests sees it when it begins to listen. */
static void
pass_on(const struct worker *w)
{
	uint32_t other;

	if (!connection_waits(w))
		return;
	other = accept_listener(w->seg, w->slot, w->alive_since_ms);
	if (other != ACCEPT_NOBODY)
		wake(w, other);
}

void
listen_update(struct worker *w)
{
	const bool listened = w->listening[DOOR_CLIENTS];
	const bool able = w->phase == WORKER_SERVES && !has_too_many(w);
	uint32_t other;
	const bool want = accept_poll(w->seg, w->slot, able, w->alive_since_ms, &other);

	if (other != ACCEPT_NOBODY)
		wake(w, other);
	if (!want && w->phase == WORKER_SERVES)
		/* the tick checks again: a worker that dies wakes no other worker */
		worker_need_tick(w);
	if (listened && !able && w->phase == WORKER_SERVES)
		say_paused(w);
	watch(w, DOOR_CLIENTS, want);
	if (listened && !want)
		pass_on(w);
	update_operators(w);
}

void
listen_accepted(struct worker *w, int listen_fd)
{
	listen_update(w);
	if (w->listening[DOOR_CLIENTS] && listen_of(w, listen_fd)->door == DOOR_CLIENTS &&
		accept_listener(w->seg, w->slot, w->alive_since_ms) != ACCEPT_NOBODY)
		register_anew(w, listen_fd);
}

static void
look_again(const struct worker *w)
{
	for (size_t i = 0; i < w->h->nlisten; i++)
		if (w->h->listen[i].door == DOOR_CLIENTS)
			register_anew(w, w->h->listen[i].fd);
}

void
listen_woken(struct worker *w)
{
	if (!w->listening[DOOR_CLIENTS])
		listen_update(w);
	else if (connection_waits(w))
		look_again(w);
}

void
listen_heartbeat(const struct worker *w)
{
	if (w->listening[DOOR_CLIENTS])
		look_again(w);
}

const struct door_fd *
listen_of(const struct worker *w, int listen_fd)
{
	size_t i = 0;

	while (w->h->listen[i].fd != listen_fd)
		i++;
	return &w->h->listen[i];
}

/*
 * A connection that waits has woken a worker that listens, or finds all of them awake.  So connections that wait from
 * one tick to the next wait for workers that are stopped, dead or busy.  Those without a heartbeat in
 * that time have no share until their next heartbeat.
 */
static void
look_for_stopped_workers(struct worker *w, uint64_t now_ms)
{
	if (w->listening[DOOR_CLIENTS] || w->phase != WORKER_SERVES || !connection_waits(w)) {
		w->waiting_since_ms = 0;
		return;
	}
	if (w->waiting_since_ms != 0)
		w->alive_since_ms = w->waiting_since_ms;
	w->waiting_since_ms = now_ms;
}

void
listen_tick(struct worker *w, uint64_t now_ms)
{
	w->accept_paused = false;
	look_at_limits(w);
	look_for_stopped_workers(w, now_ms);
	listen_update(w);
}

void
listen_init(struct worker *w, event_callback_fn on_accept)
{
	w->own_fds = count_fds();
	look_at_limits(w);
	w->ev_listen = mem_array(w->h->nlisten, sizeof(*w->ev_listen));
	for (size_t i = 0; i < w->h->nlisten; i++)
		event_assign(&w->ev_listen[i], w->base, w->h->listen[i].fd, EV_READ | EV_PERSIST,
			on_accept, w);
	w->epoll_fd = epoll_of(w->h->wake_fds[w->slot]);
}

/*
 * A connection has woken this worker alone.  While another worker of this instance serves, that
 * worker sees the connection.  The workers of an instance that takes over would find it at a
 * heartbeat.  So it is accepted here, one of each socket: each connection wakes another worker.
 */
static void
accept_last(struct worker *w)
{
	if (accept_others(w->seg, w->slot, w->alive_since_ms))
		return;
	for (size_t i = 0; i < w->h->nlisten; i++) {
		const event_callback_fn on_accept = event_get_callback(&w->ev_listen[i]);

		if (w->h->listen[i].door == DOOR_CLIENTS)
			on_accept(w->h->listen[i].fd, EV_READ, w);
	}
}

void
listen_end(struct worker *w)
{
	const bool listened = w->listening[DOOR_CLIENTS];

	listen_update(w);
	if (listened)
		accept_last(w);
	for (size_t i = 0; w->ev_listen != NULL && i < w->h->nlisten; i++)
		(void)close(w->h->listen[i].fd);
	free(w->ev_listen);
	w->ev_listen = NULL;
}

void
listen_fini(struct worker *w)
{
	free(w->ev_listen);
}
