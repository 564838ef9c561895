#include "master/fleet/waiters.h"

#include <assert.h>
#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "shm/base/mem.h"
#include "shm/queue.h"

#define AGAIN_S 1 /* the longest that a stalled worker delays the waiters behind its own */

struct waiters {
	struct seg *seg;
	const int *wake_fds;
	struct event *tick;
};

static void
notify(const struct waiters *ws, uint32_t worker)
{
	static const uint64_t one = 1;

	(void)!write(ws->wake_fds[worker], &one, sizeof(one));
}

void
waiters_wake(struct waiters *ws)
{
	for (uint32_t pool = 0; ws != NULL && pool < ws->seg->hdr->max_pools; pool++) {
		const uint32_t worker = queue_wake_after_change(ws->seg, pool);

		if (worker != QUEUE_NOBODY)
			notify(ws, worker);
	}
}

void
waiters_wake_again(struct waiters *ws)
{
	bool woken[UINT8_MAX] = {false}; /* worker + 1 has 8 bits */

	for (uint32_t pool = 0; pool < ws->seg->hdr->max_pools; pool++)
		if (queue_any(ws->seg, pool))
			queue_woken_all(ws->seg, pool, woken);
	for (uint32_t i = 0; i < SLOT_WORKERS(ws->seg); i++)
		if (woken[i])
			notify(ws, i);
	waiters_wake(ws);
}

static void
on_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	waiters_wake_again(arg);
}

struct waiters *
waiters_new(struct event_base *base, struct seg *seg, const int *wake_fds)
{
	static const struct timeval every = {.tv_sec = AGAIN_S};
	struct waiters *ws = MEM_NEW(struct waiters);

	ws->seg = seg;
	ws->wake_fds = wake_fds;
	ws->tick = event_new(base, -1, EV_PERSIST, on_tick, ws);
	assert(ws->tick != NULL);
	(void)event_add(ws->tick, &every);
	return ws;
}

void
waiters_free(struct waiters **pws)
{
	if (*pws == NULL)
		return;
	event_free((*pws)->tick);
	free(*pws);
	*pws = NULL;
}
