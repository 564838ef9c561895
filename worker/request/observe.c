#include "worker/request/observe.h"

#include <string.h>
#include <time.h>

#include "shm/exemplar.h"
#include "shm/metrics.h"
#include "worker/base/core.h"
#include "worker/request/req.h"

static_assert(EXEMPLAR_TRACE == TRACE_ID, "the id of a trace is copied");

static void
put_exemplar(const struct req *req, enum metric_histogram h, uint64_t us)
{
	struct exemplar x = {.us = us};
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	x.at_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	memcpy(x.trace, req->job.facts.trace.id, sizeof(x.trace));
	exemplar_put(req->w->seg, req->job.facts.pool.id, h, &x);
}

void
observe_time(const struct req *req, enum metric_histogram h, uint64_t us)
{
	metric_observe(req->w->slab, req->job.facts.pool.id, h, us);
	if ((req->job.facts.trace.flags & TRACE_SAMPLED) != 0)
		put_exemplar(req, h, us);
}
