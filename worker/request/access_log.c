#include "worker/request/access_log.h"

#include "shm/base/log.h"
#include "shm/base/rnd.h"
#include "shm/metrics.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/tokens.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/request/observe.h"
#include "worker/request/req.h"
#include "worker/request/req_note.h"
#include "worker/request/req_span.h"

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

/* What a request took, as far as it is known: times of 0 and tokens of USAGE_NONE are not. */
struct took {
	struct tokens tokens;
	uint64_t connect_us, prefill_us, kv_us, first_us, decode_us;
};

/* A stream's decode begins with its first byte; an answer in one piece comes when all of it is generated, and its time
 * is known where another engine has computed the prompt. */
static uint64_t
decode_us(const struct req *req, const struct attempt *a, uint64_t now_us)
{
	if (req->t_first_us == 0)
		return 0;
	if (req->job.facts.stream)
		return since(req->t_first_us, now_us);
	return a->prefill == PREFILL_ANSWERED ? since(a->timing.decode_us, req->t_first_us) : 0;
}

static struct took
took(const struct req *req, uint64_t now_us)
{
	const struct job *job = &req->job;
	const struct attempt *a = job->nbranches == 0 ? NULL : job->branches[0].attempt;
	struct took t = {
		.tokens = tokens_of(job),
		.prefill_us = since(job->t_prefill_us, job->t_prefilled_us),
		.first_us = since(req->t_body_us, req->t_first_us),
	};

	if (a == NULL)
		return t;
	for (enum leg_kind k = 0; k < a->nlegs; k++)
		t.connect_us += a->leg[k].connect_us;
	if (job->facts.stream && a->prefill == PREFILL_ANSWERED)
		t.kv_us = since(a->timing.decode_us, req->t_first_us);
	t.decode_us = decode_us(req, a, now_us);
	return t;
}

static struct log_field
count_of(const char *key, uint64_t n)
{
	return n == USAGE_NONE ? LOG_NONE : LOG_U(key, n);
}

static struct log_field
time_of(const char *key, uint64_t us)
{
	return us == 0 ? LOG_NONE : LOG_MS(key, us);
}

/* Tokens that came in decode's time: the first one of a stream begins it.  0: not known. */
static uint64_t
decoded(const struct req *req, const struct took *t)
{
	const uint64_t n = t->tokens.completion, first = req->job.facts.stream ? 1 : 0;

	return n == USAGE_NONE || n <= first || t->decode_us == 0 ? 0 : n - first;
}

static struct log_field
pace_of(const struct req *req, const struct took *t)
{
	const uint64_t n = decoded(req, t);

	return n == 0 ? LOG_NONE : LOG_MS("tokens_per_s", n * 1000000000 / t->decode_us);
}

/* A good request is logged by lot; what an operator looks for is always logged. */
static bool
is_logged(const struct req *req)
{
	const uint32_t part = req->w->conf->live.log_sample;

	return part == CONF_PART_ALL || req->job.end != END_OK || req->job.tries > 0 ||
	       rescued_by(req).word != NULL || rnd_u64() % CONF_PART_ALL < part;
}

static void
line(const struct req *req, const struct took *t, uint64_t now_us)
{
	char client[ADDRESS_TEXT];

	LOG_AT(req->job.end == END_LOCAL ? LOG_L_DEBUG : LOG_L_INFO, "request",
		LOG_S("req", req->job.facts.id),
		LOG_S("attempt", req->job.nbranches > 0 && req->job.branches[0].attempt != NULL
					 ? req->job.branches[0].attempt->t.id
					 : NULL),
		LOG_S("trace",
			req->job.facts.trace->id[0] != '\0' ? req->job.facts.trace->id : NULL),
		LOG_S("client", address_text(&req->from, client)),
		LOG_S("key", req->key != NULL ? req->key->name : NULL),
		LOG_S("route", route_path(req->job.facts.route)),
		LOG_S("model", req->job.facts.model[0] != '\0' ? req->job.facts.model : NULL),
		LOG_S("pool", req->job.facts.pool->name),
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
		req->queued.from_us != 0 ? LOG_MS("queued_ms", req->queued.us)
					 : LOG_S("queued_ms", NULL),
		LOG_MS("body_ms", since(req->t_start_us, req->t_body_us)),
		time_of("connect_ms", t->connect_us), LOG_MS("prefill_ms", t->prefill_us),
		time_of("kv_ms", t->kv_us), LOG_MS("first_ms", t->first_us),
		time_of("decode_ms", t->decode_us),
		LOG_MS("total_ms", since(req->t_start_us, now_us)),
		count_of("prompt_tokens", t->tokens.prompt),
		count_of("cached_tokens", t->tokens.cached),
		count_of("completion_tokens", t->tokens.completion), pace_of(req, t),
		LOG_U("bytes_in", req->bytes_in), LOG_U("bytes_out", req->bytes_out),
		LOG_U("events", req->events));
}

/* Tokens and their times are counted with the line: the attempts know them. */
static void
count_tokens(const struct req *req, const struct took *t)
{
	struct metrics_slab *slab = req->w->slab;
	const uint32_t pool = req->job.facts.pool->id;
	const uint64_t said[T_N] = {[T_PROMPT] = t->tokens.prompt,
		[T_CACHED] = t->tokens.cached,
		[T_COMPLETION] = t->tokens.completion};
	const uint64_t n = decoded(req, t);

	for (enum metric_tokens k = 0; k < T_N; k++)
		if (said[k] != USAGE_NONE)
			metric_tokens_add(slab, pool, k, said[k]);
	if (n > 0)
		metric_observe(slab, pool, H_TOKEN, t->decode_us / n);
	observe_names(req, said);
}

void
access_log_line(struct req *req, uint64_t now_us)
{
	const struct took t = took(req, now_us);

	count_tokens(req, &t);
	req_note_end(req, &t.tokens, now_us);
	if (is_logged(req))
		line(req, &t, now_us);
	if (req->job.facts.trace->span != 0)
		req_span_end(req, &t.tokens, rescued_by(req).word, now_us);
}

void
access_log_count(const struct req *req, uint64_t now_us)
{
	struct metrics_slab *slab = req->w->slab;
	const struct rescued by = rescued_by(req);

	observe_time(req, H_DURATION, now_us - req->t_start_us);
	metric_request_count(
		slab, (struct metric_request){.pool = (uint16_t)req->job.facts.pool->id,
			      .path = (uint8_t)req->job.facts.route,
			      .reason = (uint8_t)req->job.end,
			      .status = (uint16_t)req->status});
	if (by.word != NULL)
		metric_add(slab, by.counter, 1);
	worker_gauge(req->w, G_REQUESTS, -1);
}
