#include "worker/request/observe.h"

#include <string.h>

#include "proto/answer/usage_end.h"
#include "shm/base/clock.h"
#include "shm/exemplar.h"
#include "shm/metrics.h"
#include "shm/named.h"
#include "worker/base/core.h"
#include "worker/request/req.h"

static_assert(EXEMPLAR_TRACE == TRACE_ID, "the id of a trace is copied");

static void
put_exemplar(const struct req *req, enum metric_histogram h, uint64_t us)
{
	struct exemplar x = {.us = us, .at_ms = clock_wall_us() / 1000};

	memcpy(x.trace, req->job.facts.trace->id, sizeof(x.trace));
	exemplar_put(req->w->seg, req->job.facts.pool->id, h, &x);
}

static void
count_name(
	const struct req *req, enum named_kind kind, const char *name, const uint64_t tokens[T_N])
{
	static const enum named_what whats[T_N] = {[T_PROMPT] = NAMED_PROMPT,
		[T_CACHED] = NAMED_CACHED,
		[T_COMPLETION] = NAMED_COMPLETION};
	struct seg *seg = req->w->seg;
	const struct named_at at = named_find(seg, kind, name);

	named_add(seg, &at, NAMED_REQUESTS, 1);
	if (req->status == 403 || req->status == 429)
		named_add(seg, &at, NAMED_REFUSED, 1);
	for (enum metric_tokens k = 0; k < T_N; k++)
		if (tokens[k] != USAGE_NONE && tokens[k] != 0)
			named_add(seg, &at, whats[k], tokens[k]);
}

/* A client can name models that are not served: these have no pool. */
void
observe_names(const struct req *req, const uint64_t tokens[T_N])
{
	if (req->job.facts.pool->id != METRIC_NO_POOL)
		count_name(req, NAMED_MODELS, req->job.facts.model, tokens);
	if (req->key != NULL && req->key->door == DOOR_CLIENTS)
		count_name(req, NAMED_KEYS, req->key->name, tokens);
}

void
observe_time(const struct req *req, enum metric_histogram h, uint64_t us)
{
	metric_observe(req->w->slab, req->job.facts.pool->id, h, us);
	if ((req->job.facts.trace->flags & TRACE_SAMPLED) != 0)
		put_exemplar(req, h, us);
}
