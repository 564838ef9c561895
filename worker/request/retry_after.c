#include "worker/request/retry_after.h"

#include <stdio.h>
#include <stdlib.h>

#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/budget.h"
#include "shm/queue.h"
#include "worker/base/core.h"
#include "worker/request/req.h"

#define UNKNOWN_MS (RETRY_AFTER_MOST_S * UINT64_C(1000)) /* nothing says that it will be sooner */
#define LOOKED_AT 16 /* requests whose age tells how long requests take */

uint32_t
retry_after_seconds(uint64_t ms, uint32_t rnd)
{
	const uint64_t most = RETRY_AFTER_MOST_S * UINT64_C(1000);
	uint64_t s;

	if (ms < 1000)
		ms = 1000;
	if (ms > most)
		ms = most;
	/* half as long again, and at least a second: a crowd that is refused together comes back spread out */
	ms += rnd % (ms / 2 < 1000 ? 1001 : ms / 2 + 1);
	s = (ms + 999) / 1000;
	return s > RETRY_AFTER_MOST_S ? RETRY_AFTER_MOST_S : (uint32_t)s;
}

/* --- estimates: milliseconds --------------------------------------------------------------------- */

typedef uint64_t wait_fn(const struct req *req);

/* The pool's queue and `more` requests, at the pace at which the pool's requests get engines; `unknown_ms` if none does. */
static uint64_t
queued_ms(const struct req *req, uint64_t more, uint64_t unknown_ms)
{
	const uint32_t pool = req->job.facts.pool->id;
	const struct budget_pace pace = budget_pace(req->w->seg, pool, clock_ms());
	uint64_t since_ms;

	if (pace.requests == 0)
		return unknown_ms;
	return (queue_waiting(req->w->seg, pool, &since_ms) + more) * pace.ms / pace.requests;
}

/* Until this request has an engine. */
static uint64_t
queue_ms(const struct req *req)
{
	/* slots that do not exist will not become free */
	return req->plan != NULL && req->plan->waiter.hopeless ? UNKNOWN_MS
							       : queued_ms(req, 1, UNKNOWN_MS);
}

/* Until probes show that an engine is up. */
static uint64_t
probes_ms(const struct worker *w)
{
	return w->conf->health_interval_ms * w->conf->rise;
}

static uint64_t
engine_ms(const struct req *req)
{
	return probes_ms(req->w);
}

/* Until the budget of fallbacks has room, and those before this request in the queue have gone. */
static uint64_t
fallback_ms(const struct req *req)
{
	return plan_fallback_ms(req->w, &req->job.facts) + queued_ms(req, 0, 0);
}

/* The mean age of requests in flight: they need about as long again. */
static uint64_t
age_ms(const struct req *req)
{
	const uint64_t now_us = clock_us();
	uint64_t sum_us = 0, n = 0;
	const struct req *r;

	TAILQ_FOREACH(r, &req->w->reqs, link)
	{
		if (n == LOOKED_AT)
			break;
		if (r == req)
			continue;
		sum_us += now_us - r->t_start_us;
		n++;
	}
	return n == 0 ? 0 : sum_us / n / 1000;
}

/* Until one of the client's requests ends. */
static uint64_t
client_ms(const struct req *req)
{
	const uint64_t own = req->key != NULL ? req->key->terms.max_inflight : 0,
		       n = own != 0 ? own : req->w->conf->live.client_max_inflight;

	return n == 0 ? 0 : age_ms(req) / n;
}

/* Another router, or the next instance of this one, takes the next connection. */
static uint64_t
other_ms(const struct req *req)
{
	(void)req;
	return 0;
}

static wait_fn *const waits[END_N] = {
	[END_FALLBACK_BUDGET] = fallback_ms,
	[END_QUEUE_FULL] = queue_ms,
	[END_QUEUE_TIMEOUT] = queue_ms,
	[END_NO_CAPACITY] = queue_ms,
	[END_NO_PREFILL] = engine_ms,
	[END_NO_DECODE] = engine_ms,
	[END_NOT_LEARNED] = engine_ms,
	[END_CLIENT_INFLIGHT] = client_ms,
	[END_OVERLOADED] = age_ms,
	[END_SHUTDOWN] = other_ms,
};

/* --- the line ------------------------------------------------------------------------------------ */

static void
put(char *buf, size_t size, uint32_t seconds)
{
	(void)snprintf(buf, size, "Retry-After: %u\r\n", seconds);
}

void
retry_after_line(const struct req *req, char *buf, size_t size)
{
	wait_fn *wait = waits[req->job.end];

	buf[0] = '\0';
	if (req->retry_after_s != 0) /* when this client is in order again */
		put(buf, size, req->retry_after_s);
	else if (wait != NULL)
		put(buf, size, retry_after_seconds(wait(req), arc4random()));
}

void
retry_after_probes_line(const struct worker *w, char *buf, size_t size)
{
	put(buf, size, retry_after_seconds(probes_ms(w), arc4random()));
}
