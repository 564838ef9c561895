#include "worker/net/listen.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
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
			event_add(&w->ev_listen[i], NULL);
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

void
listen_update(struct worker *w)
{
	const bool able = w->phase == WORKER_SERVES && !has_too_many(w);
	uint32_t other;
	const bool want = accept_poll(w->seg, w->slot, able, w->alive_since_ms, &other);

	if (other != ACCEPT_NOBODY)
		wake(w, other);
	if (!want && w->phase == WORKER_SERVES)
		/* the tick checks again: a worker that dies wakes no other worker */
		worker_need_tick(w);
	if (w->listening[DOOR_CLIENTS] && !able && w->phase == WORKER_SERVES)
		say_paused(w);
	watch(w, DOOR_CLIENTS, want);
	update_operators(w);
}

const struct door_fd *
listen_of(const struct worker *w, int listen_fd)
{
	size_t i = 0;

	while (w->h->listen[i].fd != listen_fd)
		i++;
	return &w->h->listen[i];
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

/*
 * A connection that waits wakes every worker that listens.  So a worker without a heartbeat from one tick to the
 * next, while connections waited, is stopped or dead.  It has no share until its next heartbeat.
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
}

void
listen_end(struct worker *w)
{
	listen_update(w);
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
