/*
 * What the modules of a worker share: the worker itself.
 *
 * Process: worker.  One loop, no threads: only that loop reads or writes what a worker owns.
 */
#pragma once
#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/metrics.h"
#include "shm/stored.h"
#include "shm/settings.h"
#include "shm/usage.h"
#include "worker/base/blocks.h"
#include "worker/base/rounds.h"

struct conf;
struct client;
struct body_scan;
struct attempt;
struct background;
struct cached;
struct flag_set;
struct heritage;
struct connpool;
struct endpoint;
struct req;
struct req_pool;
struct seg;
struct threshold;
struct silent;
struct status_stream;
struct tls_server;
struct transfer;
struct reserved;
struct waiter;

TAILQ_HEAD(client_list, client);
TAILQ_HEAD(req_list, req);
TAILQ_HEAD(scan_list, body_scan);
TAILQ_HEAD(background_list, background);
TAILQ_HEAD(attempt_list, attempt);
TAILQ_HEAD(wait_list, waiter);
TAILQ_HEAD(endpoint_list, endpoint);

#define WORKER_BUF (64u << 10) /* one read(2); a paced event is under 1 KiB, a burst fills it */

/* a turn takes 1 ms with 32 busy connections */
#define WORKER_TURN_YOUNG_US 5000
/* libevent gives epoll_wait() room for 32 events or more: a turn with fewer has one of every socket that was ready.
 * The rest is for callbacks that ran before that of the first socket. */
#define WORKER_TURN_EVENTS 16

enum worker_phase {
	WORKER_WAITS,  /* until its configuration is in force */
	WORKER_SERVES, /* accepts */
	WORKER_DRAINS, /* finishes what it has */
};

struct worker {
	const struct heritage *h;
	const struct conf *conf; /* == followed */
	struct conf
		*followed; /* copy of *h->conf, but `live` is what is in force: worker_follow() */
	uint64_t followed_seq; /* of these settings */
	struct seg *seg;
	struct metrics_slab *slab;
	int64_t gauges[G_N]; /* those of the slab are a copy: worker_gauge() */
	uint32_t slot;
	struct event_base *base;
	struct connpool *connpool;
	struct silent *silent;        /* connections without a head: request/silent.h */
	struct tls_server *tls;       /* NULL: no client may speak TLS */
	struct status_stream *status; /* request/status_stream.h; NULL: it has had no viewer yet */
	struct usage usage;
	char *buf; /* the one read buffer, WORKER_BUF bytes: valid within one callback only */

	struct event ev_channel, ev_tick, ev_heartbeat, ev_wake, ev_scan;
	struct event *ev_listen; /* one per listening socket; NULL: listen_end() has closed them */
	int epoll_fd;            /* libevent's, or -1: net/listen.c */
	bool listening[DOOR_N];  /* watched now */
	bool accept_paused;      /* out of file descriptors: tried again at the next tick */
	/* Since when a connection has waited while this worker does not listen; 0: none waited at the last
	 * tick.  And: a worker without a heartbeat since then has no share of the connections. */
	uint64_t waiting_since_ms, alive_since_ms;
	bool ticking;

	uint64_t turn; /* of the loop */
	/* worker_turn_is_believed(); 0: no socket was handled in this turn */
	uint64_t believed_until_us;

	struct client_list clients;
	/* freed after the turn, so that a late callback finds a live object */
	struct client_list ended_clients;
	struct req_list reqs;
	struct rounds req_rounds, client_rounds; /* when the tick visits them */
	struct req_list ended_reqs;
	struct scan_list scans; /* long bodies: request/scan.c */
	/* detached: the requests have ended or continued, the engines still hold something */
	struct attempt_list detached, ended_attempts;
	struct attempt_list
		lookups; /* LOOKUP_SHARED: attempts that wait for another attempt's lookup */
	struct background_list background, ended_background;
	struct endpoint_list busy; /* endpoints with active legs: net/leg.c */
	uint32_t nbusy;
	struct wait_list waiters; /* requests that wait for a slot: schedule/wait.c */
	bool planning;            /* inside the read section of a selection */
	bool served;              /* in that section a waiter was served */
	uint32_t owes;            /* roles whose waiters are woken after that section */
	/* [pool id]: its settings in the latest table that a request has met (base/facts.h); NULL: none has */
	struct req_pool **pools;
	/* [CONF_FANOUT_MAX]: what that section has reserved for the branches of a request, schedule/plan.h */
	struct reserved *reserved;
	uint32_t nclients[DOOR_N];
	uint32_t nreqs;
	uint32_t nbackground;
	uint32_t ndetached;
	struct blocks blocks;  /* memory of bodies: base/blocks.h */
	size_t detached_bytes; /* of the bodies of detached attempts */
	/* bytes of bodies, heads and kept answers: base/buffered.h; and what other workers see of them */
	struct stored stored, shown;
	/* descriptors: open at the start, the limit, and when the worker last logged that few
	 * are left */
	uint32_t own_fds;
	uint64_t max_fds, paused_ms;
	enum worker_phase phase;
	/* when the worker exits, with or without open connections; 0: not told to quit */
	uint64_t quit_ms;

	struct notes *notes; /* what pdctl shows of its requests: shm/notes.h */
	struct flag_set *flags;
	struct transfer **waiting; /* [flag slot]: the transfer that waits for its notices */
	uint64_t next_room;        /* counter of SGLang's bootstrap rooms */

	/* [pool id][cursor partition]: requests since both rounds began together, schedule/choose.c */
	uint32_t *round;
	/* round-robin cursors [pool id][role][cursor partition]; where each starts: select_cursor() */
	uint32_t *cursor;
	uint32_t *retry_turn;         /* the same: counts retries, which do not move the cursors */
	uint32_t *mean_tokens;        /* [pool id]: mean of recent prompts */
	struct threshold *thresholds; /* [pool id]: what `routing_threshold: auto` has learned */
	struct cached *cached;        /* schedule/cached.h; NULL: there is no prefix index */
	uint64_t rnd;                 /* policy_rnd()'s state */
};

/* Copies the settings in force into w->followed, where they have changed. */
void worker_take_settings(struct worker *w);

/* Once a turn, and before bytes of a client are read: the next request has the settings in force. */
static inline void
worker_follow(struct worker *w)
{
	if (settings_seq(w->seg) != w->followed_seq)
		worker_take_settings(w);
}

static inline void
worker_gauge(struct worker *w, enum metric_gauge g, int64_t n)
{
	w->gauges[g] += n;
	w->slab->gauges[g] = w->gauges[g];
}

/* A new turn of the loop begins; a socket is handled in it. */
static inline void
worker_turn(struct worker *w)
{
	w->turn++;
	w->believed_until_us = 0;
}

static inline void
worker_turn_handles(struct worker *w)
{
	int left;

	if (w->believed_until_us != 0)
		return;
	left = event_base_get_num_events(w->base, EVENT_BASE_COUNT_ACTIVE);
	w->believed_until_us = clock_us() + (left < WORKER_TURN_EVENTS ? WORKER_TURN_YOUNG_US : 0);
}

/* Returns true if a socket that the turn's epoll_wait() has not named was not ready, some ms ago at most. */
static inline bool
worker_turn_is_believed(const struct worker *w)
{
	return clock_us() < w->believed_until_us;
}

/* Starts the tick if it is stopped.  Code that sets a deadline calls it. */
void worker_need_tick(struct worker *w);
