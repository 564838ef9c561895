#include "worker/request/access_log.h"

#include "shm/base/log.h"
#include "shm/metrics.h"
#include "worker/attempt/attempt.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/request/req.h"

static uint64_t
since(uint64_t from_us, uint64_t to_us)
{
	return from_us == 0 || to_us < from_us ? 0 : to_us - from_us;
}

/* Returns the URL of the first branch's engine of a role.  A path that one engine serves may
 * have an engine of either role. */
static const char *
url_of(const struct req *req, enum role role)
{
	const struct attempt *a = req->job.nbranches == 0 ? NULL : req->job.branches[0].attempt;

	if (a == NULL)
		return NULL;
	for (enum role r = 0; r < ROLE_N; r++)
		if (a->reserved.of[r].ep != NULL && a->reserved.of[r].role == role)
			return a->reserved.of[r].ep->url;
	return NULL;
}

/* What served a request after its engines had failed. */
struct rescued {
	const char *word; /* NULL: no engine failed */
	enum metric_counter counter;
};

static struct rescued
rescued_by(const struct req *req)
{
	if (req->job.end != END_OK)
		return (struct rescued){NULL, M_N};
	if (req->job.rescue == RESCUE_RESUME)
		return (struct rescued){"resume", M_RESCUED_RESUME};
	if (req->job.rescue != RESCUE_NONE)
		return (struct rescued){"fallback", M_RESCUED_FALLBACK};
	return req->job.tries > 0 ? (struct rescued){"retry", M_RESCUED_RETRY}
				  : (struct rescued){NULL, M_N};
}

void
access_log_line(const struct req *req, uint64_t now_us)
{
	char client[ADDRESS_TEXT];

	LOG_AT(req->job.end == END_LOCAL ? LOG_L_DEBUG : LOG_L_INFO, "request",
		LOG_S("req", req->job.facts.id),
		LOG_S("attempt", req->job.nbranches > 0 && req->job.branches[0].attempt != NULL
					 ? req->job.branches[0].attempt->t.id
					 : NULL),
		LOG_S("client", address_text(&req->from, client)),
		LOG_S("route", route_path(req->job.facts.route)),
		LOG_S("model", req->job.facts.model[0] != '\0' ? req->job.facts.model : NULL),
		LOG_S("pool", req->job.facts.pool.name),
		LOG_S("prefill", url_of(req, ROLE_PREFILL)),
		LOG_S("decode", url_of(req, ROLE_DECODE)),
		req->job.nbranches > 1 ? LOG_U("branches", req->job.nbranches)
				       : LOG_S("direct", req->job.direct),
		req->job.tries > 0 ? LOG_U("tries", req->job.tries) : LOG_S("tries", NULL),
		LOG_S("rescued", rescued_by(req).word),
		LOG_S("not_resumed", req->job.resume_refused ? req->job.not_resumed : NULL),
		LOG_I("status", req->status), LOG_S("reason", end_word(req->job.end)),
		LOG_S("detail", req->job.detail), LOG_S("kv", req->job.kv),
		LOG_S("states", req->trace),
		req->plan.waiter.t_queued_us != 0 ? LOG_MS("queued_ms", req->plan.waiter.queued_us)
						  : LOG_S("queued_ms", NULL),
		LOG_MS("body_ms", since(req->t_start_us, req->t_body_us)),
		LOG_MS("prefill_ms", since(req->job.t_prefill_us, req->job.t_prefilled_us)),
		LOG_MS("first_ms", since(req->t_body_us, req->t_first_us)),
		LOG_MS("total_ms", since(req->t_start_us, now_us)),
		LOG_U("bytes_in", req->bytes_in), LOG_U("bytes_out", req->bytes_out),
		LOG_U("events", req->events));
}

void
access_log_count(const struct req *req, uint64_t now_us)
{
	struct metrics_slab *slab = req->w->slab;
	const struct rescued by = rescued_by(req);

	if (req->job.facts.pool.id != METRIC_NO_POOL)
		metric_observe(slab, req->job.facts.pool.id, H_DURATION, now_us - req->t_start_us);
	metric_request_count(slab, (struct metric_request){.pool = (uint16_t)req->job.facts.pool.id,
					   .path = (uint8_t)req->job.facts.route,
					   .reason = (uint8_t)req->job.end,
					   .status = (uint16_t)req->status});
	if (by.word != NULL)
		metric_add(slab, by.counter, 1);
	worker_gauge(req->w, G_REQUESTS, -1);
}
