#include "master/waiters.h"

#include <assert.h>
#include <event2/event.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "shm/base/mem.h"
#include "shm/queue.h"

#define CALL_S 1 /* so long a call that nobody follows holds the others up, at most */

struct waiters {
	struct seg *seg;
	const int *wake_fds;
	struct event *tick;
};

void
waiters_call(struct waiters *ws)
{
	static const struct queue_call first = {.roles = QUEUE_ALL_ROLES};
	static const uint64_t one = 1;

	for (uint32_t pool = 0; ws != NULL && pool < ws->seg->hdr->max_pools; pool++) {
		const uint32_t worker =
			queue_any(ws->seg, pool) ? queue_wake(ws->seg, pool, &first) : QUEUE_NOBODY;

		if (worker != QUEUE_NOBODY)
			(void)!write(ws->wake_fds[worker], &one, sizeof(one));
	}
}

static void
on_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	waiters_call(arg);
}

struct waiters *
waiters_new(struct event_base *base, struct seg *seg, const int *wake_fds)
{
	static const struct timeval every = {.tv_sec = CALL_S};
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
