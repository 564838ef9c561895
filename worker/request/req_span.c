#include "worker/request/req_span.h"

#include "proto/answer/usage_end.h"
#include "shm/spans.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/leg_span.h"
#include "worker/attempt/tokens.h"
#include "worker/base/core.h"
#include "worker/request/req.h"

/* The words of the GenAI conventions; other paths have none. */
static const char *const operations[ROUTE_N] = {
	[ROUTE_CHAT] = "chat",
	[ROUTE_RESPONSES] = "chat",
	[ROUTE_MESSAGES] = "chat",
	[ROUTE_COMPLETIONS] = "text_completion",
	[ROUTE_GENERATE] = "text_completion",
	[ROUTE_GENERATE_IDS] = "text_completion",
	[ROUTE_EMBEDDINGS] = "embeddings",
	[ROUTE_EMBED] = "embeddings",
};

static void
put_child(const struct req *req, enum span_name name, uint64_t from_us, uint64_t until_us)
{
	struct span_record r;

	if (from_us == 0 || until_us < from_us)
		return;
	leg_span_child(req->job.facts.trace, req->job.facts.trace_state, name, &r);
	r.head.from_us = from_us;
	r.head.until_us = until_us;
	span_put(req->w->seg, req->w->slot, &r);
}

/* As the log's kv_ms: from the prefill engine's answer to the first byte of decode's stream. */
static void
put_kv(const struct req *req)
{
	const struct job *job = &req->job;
	const struct attempt *a = job->nbranches == 0 ? NULL : job->branches[0].attempt;

	if (a != NULL && job->facts.stream && a->prefill == PREFILL_ANSWERED)
		put_child(req, SPAN_KV, a->timing.decode_us, req->t_first_us);
}

/* A client's mistake is no error of the router, says the HTTP convention. */
static bool
is_error(const struct req *req)
{
	return req->job.end != END_OK && (req->status < 400 || req->status >= 500);
}

static void
put_number(struct span_record *r, enum span_attr key, uint64_t n)
{
	if (n != USAGE_NONE)
		span_number(r, key, n);
}

static void
put_tokens(struct span_record *r, const struct tokens *t)
{
	put_number(r, SA_INPUT, t->prompt);
	put_number(r, SA_CACHED, t->cached);
	put_number(r, SA_OUTPUT, t->completion);
}

static void
put_outcome(struct span_record *r, const struct req *req, const char *rescued)
{
	const struct job *job = &req->job;

	r->head.outcome = is_error(req) ? SPAN_FAILED : SPAN_UNSET;
	if (req->status != 0)
		span_number(r, SA_STATUS, (uint64_t)req->status);
	span_text(r, SA_REASON, end_word(job->end));
	if (job->end != END_OK)
		span_text(r, SA_ERROR, end_word(job->end));
	span_text(r, SA_DETAIL, job->detail);
	if (job->tries > 0)
		span_number(r, SA_TRIES, job->tries);
	span_text(r, SA_RESCUED, rescued);
}

void
req_span_end(
	const struct req *req, const struct tokens *tokens, const char *rescued, uint64_t now_us)
{
	const struct facts *facts = &req->job.facts;
	struct span_record r;

	put_child(req, SPAN_QUEUE, req->queued.from_us, req->queued.from_us + req->queued.us);
	put_kv(req);
	span_init(&r, SPAN_REQUEST, facts->trace->id);
	r.head.flags = facts->trace->flags;
	r.head.id = facts->trace->span;
	r.head.parent = facts->trace->parent;
	r.head.from_us = req->t_start_us;
	r.head.until_us = now_us;
	r.head.event_us = facts->stream ? req->t_first_us : SPAN_NO_EVENT;
	span_text(&r, SA_METHOD, route_method(facts->route));
	span_text(&r, SA_PATH, route_path(facts->route));
	span_text(&r, SA_OPERATION, operations[facts->route]);
	span_text(&r, SA_MODEL, facts->model);
	put_outcome(&r, req, rescued);
	put_tokens(&r, tokens);
	span_text(&r, SA_REQUEST_ID, facts->id);
	span_text(&r, SA_POOL, facts->pool->name);
	span_text(&r, SA_KEY, req->key != NULL ? req->key->name : NULL);
	span_text(&r, SA_DIRECT, req->job.direct);
	span_text(&r, SA_STATE, facts->trace_state != NULL ? facts->trace_state->text : NULL);
	span_put(req->w->seg, req->w->slot, &r);
}
