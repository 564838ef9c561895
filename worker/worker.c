#include "worker/worker.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/tls/wipe.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/base/rnd.h"
#include "shm/accept.h"
#include "shm/flags.h"
#include "shm/notes.h"
#include "shm/own.h"
#include "shm/stored.h"
#include "shm/core/heritage.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/base/facts.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/serve.h"
#include "worker/attempt/background.h"
#include "worker/request/client.h"
#include "worker/net/connpool.h"
#include "worker/net/leg.h"
#include "worker/net/listen.h"
#include "worker/net/tls.h"
#include "worker/request/request.h"
#include "worker/request/scan.h"
#include "worker/request/silent.h"
#include "worker/request/status_stream.h"
#include "worker/schedule/cached.h"
#include "worker/schedule/reservation.h"
#include "worker/schedule/select.h"
#include "worker/schedule/threshold.h"
#include "worker/schedule/wait.h"

#define MAPPED (128 << 10) /* bytes: larger allocations are mapped */
/* time for clients to read the last bytes; the master kills after 2 s */
#define QUIT_MS 1000
/* the master kills a child that is silent for worker_watchdog; at least once a second */
#define HEARTBEAT_MS 500

/* --- accepting ----------------------------------------------------------------------------------- */

/* Accepts one connection per wake-up: the next one wakes another worker. */
static void
on_accept(evutil_socket_t lfd, short what, void *arg)
{
	struct worker *w = arg;
	struct sockaddr_storage ss = {.ss_family = AF_UNSPEC};
	socklen_t len = sizeof(ss);
	int fd = accept4(lfd, (struct sockaddr *)&ss, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

	(void)what;
	worker_follow(w);
	if (fd >= 0) {
		const struct door_fd *l = listen_of(w, lfd);

		client_new(w, fd, &(struct client_origin){l->door, l->transport, address_of(&ss)},
			&request_client_ops);
	} else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
		w->accept_paused = true; /* until the next tick */
	}
	listen_accepted(w, lfd);
}

/* --- the clock ----------------------------------------------------------------------------------- */

static bool
has_requests(const struct worker *w)
{
	return w->nreqs > 0 || w->nclients[DOOR_CLIENTS] + w->nclients[DOOR_OPERATORS] > 0 ||
	       w->ndetached > 0;
}

static void
on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct worker *w = arg;
	uint64_t now = clock_ms();
	struct visit *v;
	bool idle_conns;

	(void)fd;
	(void)what;
	w->ticking = false;
	rounds_tick(&w->req_rounds, now);
	while ((v = rounds_next(&w->req_rounds)) != NULL)
		req_tick(v, now);
	rounds_tick(&w->client_rounds, now);
	while ((v = rounds_next(&w->client_rounds)) != NULL)
		client_tick(v, now);
	wait_tick(w, now);
	serve_tick_detached(w, now);
	background_tick(w, now);
	leg_tell_down(w, now);
	if (w->phase == WORKER_DRAINS && !has_requests(w))
		background_hurry(w, now);
	idle_conns = connpool_sweep(w->connpool, now);
	listen_tick(w, now);
	if (has_requests(w) || w->nbackground > 0 || idle_conns)
		worker_need_tick(w);
}

/* --- wake-ups: notices have come, a slot is free ------------------------------------------------- */

static void
kv_ready(uint32_t slot, void *arg)
{
	struct worker *w = arg;

	if (w->waiting[slot] != NULL)
		serve_kv_ready(w->waiting[slot]);
}

/* The eventfd is read before the bits are taken: a bit that is set in between wakes the worker
 * again. */
static void
on_wake(evutil_socket_t fd, short what, void *arg)
{
	struct worker *w = arg;
	uint64_t count;

	(void)what;
	if (read(fd, &count, sizeof(count)) != (ssize_t)sizeof(count))
		return;
	flag_collect(w->flags, kv_ready, w);
	wait_collect(w);
	listen_woken(w);
}

/* --- twice a second ------------------------------------------------------------------------------ */

static void
on_heartbeat(evutil_socket_t fd, short what, void *arg)
{
	struct worker *w = arg;

	(void)fd;
	(void)what;
	/* the loop writes a heartbeat each turn */
	own_restore(w->seg);
	metric_gauges_restore(w->slab, w->gauges, w->slot);
	accept_count(w->seg, w->slot, w->nclients[DOOR_CLIENTS]);
	listen_heartbeat(w);
	flag_restore(w->flags);
	stored_restore(
		w->seg, w->slot, &w->stored, stored_step(w->conf->live.max_buffered), &w->shown);
	blocks_shrink(&w->blocks);
	flag_collect(w->flags, kv_ready, w);
	wait_restore(w);
	usage_report(&w->usage, w->seg, w->slot, clock_ms(), listen_fds(w));
}

/* --- the master's messages --------------------------------------------------------------------- */

static void
serve(struct worker *w)
{
	w->phase = WORKER_SERVES;
	listen_update(w);
}

static void
drain(struct worker *w)
{
	struct client *c;

	w->phase = WORKER_DRAINS;
	listen_end(w);
	for (c = TAILQ_FIRST(&w->clients); c != NULL; c = TAILQ_NEXT(c, link))
		client_drain(c); /* ends none */
}

/* Ends requests, each with the best answer that its state allows: only those that have a
 * client, or all.  The end of one may end any other: a visited request moves to the list's end. */
static void
end_requests(struct worker *w, bool all)
{
	struct req *r;

	for (uint32_t n = w->nreqs; n > 0 && (r = TAILQ_FIRST(&w->reqs)) != NULL; n--) {
		TAILQ_REMOVE(&w->reqs, r, link);
		TAILQ_INSERT_TAIL(&w->reqs, r, link);
		if (all || r->client != NULL)
			req_event(r, RQ_SHUTDOWN);
	}
}

static void
quit(struct worker *w)
{
	drain(w);
	end_requests(w, false); /* engines are still sent what releases their KV */
	w->quit_ms = clock_ms() + QUIT_MS;
	worker_need_tick(w);
}

static void
on_channel(evutil_socket_t fd, short what, void *arg)
{
	struct worker *w = arg;
	char msg;
	ssize_t n = read(fd, &msg, 1);

	(void)what;
	if (n == -1 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) { /* the master is gone */
		log_finish();
		_exit(CHILD_EXIT_OK);
	}
	if (msg == CH_SERVE)
		serve(w);
	else if (msg == CH_DRAIN)
		drain(w);
	else if (msg == CH_QUIT)
		quit(w);
}

/* --- life ---------------------------------------------------------------------------------------- */

static void
watch(struct worker *w, struct event *ev, int fd, short what, event_callback_fn fn,
	const struct timeval *tv)
{
	event_assign(ev, w->base, fd, what, fn, w);
	event_add(ev, tv);
}

/* Returns NULL if there are not enough descriptors. */
static struct worker *
worker_new(const struct heritage *h)
{
	static const struct timeval heartbeat = {.tv_usec = HEARTBEAT_MS * 1000};
	struct event_base *base = event_base_new();
	struct worker *w;
	uint32_t ncursors = h->seg->hdr->max_pools * ROLE_N * TABLE_GROUPS;

	if (base == NULL)
		return NULL;
	w = MEM_NEW(struct worker);
	w->h = h;
	usage_begin(&w->usage);
	w->followed = MEM_NEW(struct conf);
	*w->followed = *h->conf; /* what it points to stays the heritage's */
	w->conf = w->followed;
	w->seg = h->seg;
	w->slot = h->slot;
	w->slab = seg_slab(h->seg, h->slot);
	w->base = base;
	w->buf = mem_zero(WORKER_BUF);
	w->cursor = mem_array(ncursors, sizeof(*w->cursor));
	w->retry_turn = mem_array(ncursors, sizeof(*w->retry_turn));
	w->round = mem_array(ncursors / ROLE_N, sizeof(*w->round));
	w->mean_tokens = mem_array(h->seg->hdr->max_pools, sizeof(*w->mean_tokens));
	w->rnd = rnd_u64() | 1;
	for (uint32_t i = 0; i < ncursors; i++)
		w->cursor[i] = select_cursor(h->slot);
	rounds_init(&w->req_rounds, clock_ms());
	rounds_init(&w->client_rounds, clock_ms());
	TAILQ_INIT(&w->clients);
	TAILQ_INIT(&w->ended_clients);
	TAILQ_INIT(&w->reqs);
	TAILQ_INIT(&w->ended_reqs);
	scan_init(w);
	TAILQ_INIT(&w->detached);
	TAILQ_INIT(&w->lookups);
	TAILQ_INIT(&w->ended_attempts);
	TAILQ_INIT(&w->background);
	TAILQ_INIT(&w->ended_background);
	TAILQ_INIT(&w->waiters);
	TAILQ_INIT(&w->busy);
	own_begin(w->seg, w->slot);
	w->connpool = connpool_new(w);
	w->notes = notes_new(w->seg, w->slot);
	w->flags = flag_set_new(w->seg, w->slot);
	w->waiting = mem_array(w->seg->hdr->flags_per_worker, sizeof(*w->waiting));
	w->thresholds = mem_array(h->seg->hdr->max_pools, sizeof(*w->thresholds));
	for (uint32_t i = 0; i < h->seg->hdr->max_pools; i++)
		threshold_init(&w->thresholds[i]);
	w->reserved = mem_array(CONF_FANOUT_MAX, sizeof(*w->reserved));
	w->pools = mem_array(h->seg->hdr->max_pools, sizeof(*w->pools));
	w->cached = cached_new(w);
	w->silent = silent_new();
	event_assign(&w->ev_tick, w->base, -1, 0, on_tick, w);
	watch(w, &w->ev_heartbeat, -1, EV_PERSIST, on_heartbeat, &heartbeat);
	watch(w, &w->ev_wake, h->wake_fds[h->slot], EV_READ | EV_PERSIST, on_wake, NULL);
	watch(w, &w->ev_channel, h->channel, EV_READ | EV_PERSIST, on_channel, NULL);
	listen_init(w, on_accept);
	return w;
}

/* Frees the objects that ended during the turn: no callback can reach them any more. */
static void
worker_reap(struct worker *w)
{
	struct req *r;
	struct client *c;

	while ((r = TAILQ_FIRST(&w->ended_reqs)) != NULL) {
		TAILQ_REMOVE(&w->ended_reqs, r, link);
		req_free(&r);
	}
	while ((c = TAILQ_FIRST(&w->ended_clients)) != NULL) {
		TAILQ_REMOVE(&w->ended_clients, c, link);
		client_free(c);
	}
	attempt_reap(w);
	background_reap(w);
	connpool_reap(w->connpool);
}

static void
worker_free(struct worker *w)
{
	end_requests(w, true);
	serve_end_detached(w);
	background_end_all(w);
	while (!TAILQ_EMPTY(&w->clients)) /* the worker quits with connections open */
		client_end(TAILQ_FIRST(&w->clients));
	worker_reap(w);
	connpool_free(&w->connpool);
	silent_free(&w->silent);
	status_stream_free(&w->status);
	event_del(&w->ev_tick);
	event_del(&w->ev_heartbeat);
	event_del(&w->ev_channel);
	event_del(&w->ev_wake);
	event_base_free(w->base);
	listen_fini(w);
	tls_server_free(&w->tls);
	free(w->cursor);
	free(w->retry_turn);
	free(w->round);
	free(w->mean_tokens);
	free(w->thresholds);
	for (uint32_t i = 0; i < w->seg->hdr->max_pools; i++)
		req_pool_unref(&w->pools[i]);
	free(w->pools);
	notes_free(&w->notes);
	cached_free(&w->cached);
	free(w->reserved);
	free(w->waiting);
	flag_set_free(&w->flags);
	own_end(w->seg);
	usage_end(&w->usage);
	free(w->buf);
	blocks_free(&w->blocks);
	free(w->followed);
	free(w);
}

static bool
finished(const struct worker *w)
{
	if (w->quit_ms != 0 && clock_ms() >= w->quit_ms)
		return true;
	/* without its abort an engine would wait for its other half for minutes */
	return w->phase == WORKER_DRAINS && !has_requests(w) && w->nbackground == 0;
}

/* OpenSSL has its own copy of their keys. */
static void
wipe_certificates(const struct conf *conf)
{
	const struct conf_tls *tls = &conf->tls;

	for (size_t i = 0; i < tls->ncertificates; i++)
		if (tls->certificates[i].key_pem != NULL)
			explicit_bzero(
				tls->certificates[i].key_pem, strlen(tls->certificates[i].key_pem));
	for (size_t i = 0; i < conf->npools; i++)
		if (conf->pools[i].tls.key_pem != NULL)
			explicit_bzero(
				conf->pools[i].tls.key_pem, strlen(conf->pools[i].tls.key_pem));
}

int
worker_main(const struct heritage *h)
{
	struct worker *w;
	char ready = CH_READY;

	(void)signal(SIGPIPE, SIG_IGN); /* a write to a closed peer returns an error code */
	/* Large bodies are mapped one by one: grown without being copied, and given back when they are freed.
	 * By itself glibc would soon raise the bound to 32 MiB, and keep what a burst of them left. */
	(void)mallopt(M_MMAP_THRESHOLD, MAPPED);
	mem_check_sections();
	w = worker_new(h);
	if (w != NULL && h->conf->tls.nlisten > 0 &&
		(w->tls = tls_server_new(w, &h->conf->tls)) == NULL)
		return CHILD_EXIT_NO_RESPAWN;
	wipe_certificates(h->conf);
	tls_wipe_end();
	if (w != NULL)
		h->enter_sandbox(h);
	if (w == NULL || write(h->channel, &ready, 1) != 1)
		return CHILD_EXIT_FAILED;
	log_hold();
	while (!finished(w)) {
		proc_heartbeat(w->seg, w->slot, clock_ms());
		worker_follow(w);
		worker_turn(w);
		if (event_base_loop(w->base,
			    EVLOOP_ONCE | (blocks_turn(&w->blocks) ? EVLOOP_NONBLOCK : 0)) == -1)
			abort();
		worker_reap(w);
		if (!log_flush())
			worker_need_tick(w);
	}
	worker_free(w);
	log_finish();
	return CHILD_EXIT_OK;
}
