#include "worker/base/core.h"

#include "shm/base/conf.h"
#include "shm/base/log.h"

void
worker_take_settings(struct worker *w)
{
	struct conf_live *live = &w->followed->live;

	if (settings_get(w->seg, live, &w->followed_seq))
		log_setup(live->log_level, live->log_format);
}

void
worker_need_tick(struct worker *w)
{
	static const struct timeval tv = {.tv_usec = WORKER_TICK_MS * 1000};

	if (w->ticking)
		return;
	w->ticking = true;
	event_add(&w->ev_tick, &tv);
}
