#include "worker/base/core.h"

void
worker_need_tick(struct worker *w)
{
	static const struct timeval tv = {.tv_usec = WORKER_TICK_MS * 1000};

	if (w->ticking)
		return;
	w->ticking = true;
	event_add(&w->ev_tick, &tv);
}
