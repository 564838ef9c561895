/*
 * The life of a request.
 *
 *   HEAD --> BODY --> PLAN --> SERVE --> DONE
 *     |       | |      ^ |        |        ^
 *     |       |SCAN ---' |        |        |
 *     `-------+-+--------+--------+--------'   every failure is an edge
 *     `-----> PAGE ------------------------'
 *
 * HEAD      the connection has sent a byte; nothing else is known.
 * BODY      the head is parsed, the path is one that generates; no endpoint is chosen.
 * SCAN      the body is complete and long: a part of it is scanned in each turn (scan.h).
 * PAGE      the path is the router's own, and its page is long: a piece is written in each turn.
 * PLAN      the body is a JSON object; endpoints are being chosen.  Rested in while endpoints that have just
 *           been added are not known yet, at most health_timeout; and while all that could serve are full
 *           (schedule/wait.c), at most queue_timeout.  Nothing is held meanwhile.
 * SERVE     each branch has an attempt (attempt/attempt.h), which runs lookups and legs; the answer goes to the
 *           client as it comes.  job_started() tells whether the client has any of it: before that a failure
 *           still gets an honest status.
 * DONE      logged and counted; freed after the loop turn.  What engines still hold is the business of detached
 *           attempts.
 */
#include "worker/request/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/http/http.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/base/rnd.h"
#include "worker/base/core.h"
#include "worker/attempt/deliver.h"
#include "worker/attempt/serve.h"
#include "worker/net/leg.h"
#include "worker/request/access_log.h"
#include "worker/request/client.h"
#include "worker/request/intake.h"
#include "worker/request/key.h"
#include "worker/request/limit.h"
#include "worker/request/local.h"
#include "worker/schedule/plan.h"
#include "worker/schedule/threshold.h"
#include "worker/request/observe.h"
#include "worker/request/relay.h"
#include "worker/request/req_note.h"
#include "worker/request/scan.h"
#include "worker/request/spent.h"
#include "worker/schedule/wait.h"
#include "shm/core/heritage.h"

typedef void req_handler(struct req *);
static req_handler head_read, body_read, body_scanned, page_written, head_late, body_late, planned,
	request_late, drop, shut, refuse, refuse_shutdown, ignore, never;

static void cut(struct job *job, enum req_end end, const char *message);
static bool woken(struct waiter *q);
static void req_end(struct req *req, enum req_end end);
static void req_refuse_with(struct req *req, enum req_end end);
static void req_trace(struct req *req, char letter);
static void req_first_byte(struct req *req);

#define MS(field) offsetof(struct conf, field)
#define NO_CLOCK SIZE_MAX

/* clang-format off */
static const struct {
	const char *name;
	char letter;  /* in the log's `path` */
	size_t clock; /* which time limit of struct conf runs in this state; legs have their own */
	req_handler *on[RQ_N];
} states[REQ_NSTATES] = {
	[REQ_HEAD] = { "head", 'h', MS(live.client_head_ms), {
		[RQ_HEAD] = head_read,
		[RQ_BODY] = never, [RQ_SCANNED] = never, [RQ_WRITTEN] = never, [RQ_PLANNED] = never,
		[RQ_TIMEOUT] = head_late,
		[RQ_EXPIRED] = never, /* this clock begins with the pool */
		[RQ_CLIENT_GONE] = drop,
		[RQ_REFUSE] = refuse,
		[RQ_SHUTDOWN] = shut } },
	[REQ_BODY] = { "body", 'b', MS(live.client_body_ms), {
		[RQ_HEAD] = never,
		[RQ_BODY] = body_read,
		[RQ_SCANNED] = never, [RQ_WRITTEN] = never, [RQ_PLANNED] = never,
		[RQ_TIMEOUT] = body_late,
		[RQ_EXPIRED] = never,
		[RQ_CLIENT_GONE] = drop,
		[RQ_REFUSE] = refuse,
		[RQ_SHUTDOWN] = shut } },
	[REQ_SCAN] = { "scan", 'b' /* the log shows BODY */, NO_CLOCK, {
		[RQ_HEAD] = never, [RQ_BODY] = never,
		[RQ_SCANNED] = body_scanned,
		[RQ_WRITTEN] = never, [RQ_PLANNED] = never,
		[RQ_TIMEOUT] = never, [RQ_EXPIRED] = never, /* this clock begins with the pool */
		[RQ_CLIENT_GONE] = drop,
		[RQ_REFUSE] = refuse,
		[RQ_SHUTDOWN] = refuse_shutdown } },
	[REQ_PAGE] = { "page", 'w', NO_CLOCK /* client.write_timeout is the connection's */, {
		[RQ_HEAD] = never, [RQ_BODY] = never, [RQ_SCANNED] = never,
		[RQ_WRITTEN] = page_written,
		[RQ_PLANNED] = never, [RQ_TIMEOUT] = never, [RQ_EXPIRED] = never,
		[RQ_CLIENT_GONE] = drop,
		[RQ_REFUSE] = never,
		[RQ_SHUTDOWN] = shut } },
	[REQ_PLAN] = { "plan", 'p', NO_CLOCK /* plan.waiter.deadline_ms */, {
		[RQ_HEAD] = never, [RQ_BODY] = never, [RQ_SCANNED] = never, [RQ_WRITTEN] = never,
		[RQ_PLANNED] = planned,
		[RQ_TIMEOUT] = refuse, /* refused with plan.end */
		[RQ_EXPIRED] = request_late,
		[RQ_CLIENT_GONE] = drop,
		[RQ_REFUSE] = refuse,
		[RQ_SHUTDOWN] = refuse_shutdown } },
	[REQ_SERVE] = { "serve", 's', NO_CLOCK /* the attempts' legs have their own clocks */, {
		[RQ_HEAD] = never, [RQ_BODY] = never, [RQ_SCANNED] = never, [RQ_WRITTEN] = never,
		[RQ_PLANNED] = never, [RQ_TIMEOUT] = never,
		[RQ_EXPIRED] = request_late,
		[RQ_CLIENT_GONE] = drop,
		[RQ_REFUSE] = refuse,
		[RQ_SHUTDOWN] = refuse_shutdown } },
	[REQ_DONE] = { "done", 'd', NO_CLOCK, {
		[RQ_HEAD] = never, [RQ_BODY] = never, [RQ_SCANNED] = never, [RQ_WRITTEN] = never,
		[RQ_PLANNED] = never, [RQ_TIMEOUT] = ignore, [RQ_EXPIRED] = ignore, [RQ_CLIENT_GONE] = ignore,
		[RQ_REFUSE] = ignore, [RQ_SHUTDOWN] = ignore } },
};
/* clang-format on */

const char *
req_state_name(enum req_state s)
{
	return states[s].name;
}

bool
req_handles(enum req_state s, enum req_event ev)
{
	return states[s].name != NULL && states[s].on[ev] != NULL;
}

void
req_event(struct req *req, enum req_event ev)
{
	states[req->state].on[ev](req);
}

/* The only writer of req->state: moves the clock and the trace with it. */
static void
req_enter(struct req *req, enum req_state to)
{
	size_t clock = states[to].clock;

	req->state = to;
	req->deadline_ms = 0;
	if (clock != NO_CLOCK) {
		req->deadline_ms =
			clock_ms() +
			*(const uint64_t *)(const void *)((const char *)req->w->conf + clock);
		worker_need_tick(req->w);
	}
	if (to != REQ_DONE)
		visit_soon(&req->w->req_rounds, &req->visit);
	if (to != REQ_SERVE) /* the steps of SERVE are noted one by one */
		req_trace(req, states[to].letter);
}

static void
req_trace(struct req *req, char letter)
{
	size_t n = strlen(req->trace);

	if (n + 1 < sizeof(req->trace) && (n == 0 || req->trace[n - 1] != letter))
		req->trace[n] = letter;
}

static bool
is_queued(const struct req *req)
{
	return req->plan != NULL && req->plan->waiter.waits;
}

/* The request has its engines, or ends. */
static void
plan_over(struct req *req)
{
	struct plan *p = req->plan;

	if (p == NULL)
		return;
	wait_leave(&p->waiter);
	req->queued = (struct req_queued){p->waiter.t_queued_us, p->waiter.queued_us};
	req->plan = NULL;
	free(p);
}

/* Endpoints are chosen: the attempts begin. */
static void
planned(struct req *req)
{
	enum req_end why;

	req->job.end = END_OK; /* may be set by an earlier try to plan */
	why = serve_begin(&req->job, req->w->reserved, req->plan->way.nbranches);
	if (why != END_OK) {
		req_refuse_with(req, why);
		return;
	}
	plan_over(req);
	req_enter(req, REQ_SERVE);
	serve_start(&req->job);
	req_note_moved(req);
}

void
req_free(struct req **reqp)
{
	struct req *req = *reqp;

	limit_drop_declared(req);
	serve_free(&req->job);
	cors_free(&req->cors);
	key_free(req);
	free(req);
	*reqp = NULL;
}

/* --- the end: one line, one count ---------------------------------------------------------------- */

static void
req_end(struct req *req, enum req_end end)
{
	struct worker *w = req->w;
	uint64_t now_us;

	clock_renew(); /* what the first byte and the end have come with took some time, too */
	now_us = clock_us();
	req->job.end = end;
	plan_over(req);
	scan_end(req);
	local_end(req);
	req_enter(req, REQ_DONE);
	access_log_line(req, now_us);
	req->job.sent = SENT_ALL;
	serve_end(&req->job);
	access_log_count(req, now_us);
	relay_drop_held(req);
	limit_leave(req);
	visit_drop(&w->req_rounds, &req->visit);
	TAILQ_REMOVE(&w->reqs, req, link);
	TAILQ_INSERT_TAIL(&w->ended_reqs, req, link);
	w->nreqs--;
	if (req->client != NULL)
		client_done(req->client, req->keep_alive, !req->framing.done);
	req->client = NULL;
}

/* --- refusing ------------------------------------------------------------------------------------ */

/* Refuses in states that may. */
static void
req_refuse(struct req *req, enum req_end end, const char *detail)
{
	req->job.end = end;
	req->job.detail = detail;
	req_event(req, RQ_REFUSE);
}

static void
error_message(const struct req *req, char *buf, size_t size)
{
	const char *m = end_info[req->job.end].message;

	if (req->job.end == END_MODEL_NOT_FOUND && req->job.facts.model[0] == '\0')
		(void)snprintf(buf, size, "The body names no `model`, and there are several.");
	else if (req->job.end == END_MODEL_NOT_FOUND)
		(void)snprintf(buf, size, "The model `%s` does not exist.", req->job.facts.model);
	else if (req->job.end == END_RESPONSE_NOT_FOUND && req->job.facts.response[0] != '\0')
		(void)snprintf(
			buf, size, "Response with id '%s' not found.", req->job.facts.response);
	else if (req->job.end == END_METHOD)
		(void)snprintf(buf, size, "%s: this path takes %s", m, req->job.detail);
	else if (req->job.end == END_TOO_MANY_BRANCHES)
		(void)snprintf(buf, size, "%s (%u)", m, req->w->conf->live.max_fanout);
	else if (req->job.facts.pool->name != NULL)
		(void)snprintf(buf, size, "%s%s%s (pool %s)", m,
			req->job.detail != NULL ? ": " : "",
			req->job.detail != NULL ? req->job.detail : "", req->job.facts.pool->name);
	else if (req->job.detail != NULL)
		(void)snprintf(buf, size, "%s: %s", m, req->job.detail);
	else
		(void)snprintf(buf, size, "%s", m);
}

static void
refuse(struct req *req)
{
	char message[400];

	if (req->state <= REQ_SCAN) {
		if (end_info[req->job.end].status < 500 && end_info[req->job.end].status != 429)
			metric_add(req->w->slab, M_BAD_REQUESTS, 1);
		if (!req->framing.done)
			/* the following bytes cannot be distinguished from a new request */
			req->keep_alive = false;
	}
	if (req->job.facts.id[0] == '\0')
		intake_make_id(req);
	error_message(req, message, sizeof(message));
	relay_error(req, end_info[req->job.end].status, end_info[req->job.end].type,
		end_word(req->job.end), message);
	req_end(req, req->job.end);
}

static void
req_refuse_with(struct req *req, enum req_end end)
{
	req->job.end = end;
	refuse(req);
}

static void
refuse_shutdown(struct req *req)
{
	cut(&req->job, END_SHUTDOWN, NULL);
}

/* The client is gone. */
static void
drop(struct req *req)
{
	req->keep_alive = false;
	if (req->viewer != NULL)
		req->job.end = END_LOCAL; /* the end that a stream of the status page has */
	else if (req->job.end != END_CLIENT_STALLED)
		req->job.end = END_CLIENT_GONE;
	req_end(req, req->job.end);
}

/* The time limit of the whole request is over. */
static void
request_late(struct req *req)
{
	req->job.detail = NULL;
	cut(&req->job, END_REQUEST_TIMEOUT, NULL);
}

/* The drain time is over and no answer can be sent any more. */
static void
shut(struct req *req)
{
	req->keep_alive = false;
	req_end(req, END_SHUTDOWN);
}

static void
ignore(struct req *req)
{
	(void)req;
}

static void
never(struct req *req)
{
	char note[SHM_CRASH_NOTE];

	(void)snprintf(note, sizeof(note), "impossible event of a request in state %s",
		states[req->state].name);
	proc_crash_note_set(req->w->seg, req->w->slot, note);
	abort();
}

/* --- the way to the client, for the attempts (attempt/job.h) --------------------------------------- */

static struct req *
req_of(struct job *job)
{
	return (struct req *)job; /* its first member */
}

static void
look_soon(struct req *req)
{
	if (req->state != REQ_DONE)
		visit_soon(&req->w->req_rounds, &req->visit);
}

static void
look(struct job *job)
{
	look_soon(req_of(job));
}

static void
step(struct job *job, char letter)
{
	req_trace(req_of(job), letter);
}

static void
moved(struct job *job)
{
	req_note_moved(req_of(job));
}

static void
begin(struct job *job, const struct leg *d)
{
	relay_begin(req_of(job), d);
	req_trace(req_of(job), 'r');
}

static void
payload(struct job *job, struct leg *d, struct sse *sse, const struct span *pieces, size_t n,
	bool done)
{
	for (size_t i = 0; i < n && req_of(job)->key != NULL; i++)
		spent_note(req_of(job), pieces[i].p, pieces[i].n);
	relay_payload(req_of(job), d, sse, pieces, n, done);
	if (job_started(job))
		req_first_byte(req_of(job));
}

static void
events(struct job *job, const char *p, size_t n)
{
	req_trace(req_of(job), 'r');
	req_first_byte(req_of(job));
	spent_note(req_of(job), p, n);
	relay_events(req_of(job), p, n);
}

static void
end_events(struct job *job)
{
	relay_end_events(req_of(job));
}

static void
reply(struct job *job, const char *body, size_t n)
{
	req_trace(req_of(job), 'r');
	req_first_byte(req_of(job));
	spent_note(req_of(job), body, n);
	relay_reply(req_of(job), 200, NULL, 0, "application/json", body, n);
}

static void
reset(struct job *job)
{
	relay_reset(req_of(job));
}

static bool
complete(struct job *job, const struct sse *sse)
{
	return relay_complete(req_of(job), sse);
}

static bool
holds(const struct job *job)
{
	return ((const struct req *)job)->held != NULL;
}

static bool
contains(const struct job *job, const struct span *pieces, size_t n, const char *word)
{
	return relay_contains((const struct req *)job, pieces, n, word);
}

static bool
full(const struct job *job)
{
	return client_full(((const struct req *)job)->client);
}

static void
pass_on(struct job *job, const struct reply *refusal)
{
	static const char silent[] = "the engine refused without saying why";
	struct req *req = req_of(job);

	if (job_started(job)) {
		relay_cut_refused(req, end_word(END_ENGINE_STATUS),
			(struct span){refusal->body.p, refusal->body.n});
	} else if (refusal->body.n == 0 && relay_has_body(refusal->status)) {
		relay_error(
			req, refusal->status, "server_error", end_word(END_ENGINE_STATUS), silent);
	} else {
		relay_reply(req, refusal->status, refusal->head.p, refusal->head.n, NULL,
			refusal->body.p, refusal->body.n);
	}
	req_end(req, END_ENGINE_STATUS);
}

static void
cut(struct job *job, enum req_end end, const char *message)
{
	struct req *req = req_of(job);

	if (!job_started(job)) {
		req_refuse_with(req, end);
		return;
	}
	relay_cut(req, end_word(end), message != NULL ? message : end_info[end].message);
	req_end(req, end);
}

static void
end_job(struct job *job, enum req_end end)
{
	req_end(req_of(job), end);
}

static const struct job_ops answer_ops = {.look = look,
	.step = step,
	.moved = moved,
	.begin = begin,
	.payload = payload,
	.events = events,
	.end_events = end_events,
	.reply = reply,
	.reset = reset,
	.complete = complete,
	.holds = holds,
	.contains = contains,
	.full = full,
	.pass_on = pass_on,
	.cut = cut,
	.end = end_job};

static struct req *
req_new(struct worker *w, struct client *c)
{
	struct req *req = MEM_NEW(struct req);

	req->w = w;
	req->client = c;
	req->from = c->from.address;
	serve_init(&req->job, w, &answer_ops);
	req->priority_max = INT32_MIN;
	req->t_start_us = clock_us();
	TAILQ_INSERT_TAIL(&w->reqs, req, link);
	w->nreqs++;
	worker_gauge(w, G_REQUESTS, 1);
	req_enter(req, REQ_HEAD);
	return req;
}

/* --- what the client reports (request/client.h) --------------------------------------------------- */

static size_t
client_bytes(struct client *c, const char *p, size_t n)
{
	struct req *req;
	struct intake in;

	if (c->req == NULL)
		c->req = req_new(c->w, c);
	req = c->req;
	in = req->state == REQ_HEAD ? intake_head(req, p, n, &c->scanned) : intake_body(req, p, n);
	if (in.end != END_OK)
		req_refuse(req, in.end, in.detail);
	else if (in.whole)
		req_event(req, req->state == REQ_HEAD ? RQ_HEAD : RQ_BODY);
	return in.used;
}

static struct iovec
client_room(const struct req *req)
{
	return req->state == REQ_BODY ? intake_room(req) : (struct iovec){.iov_len = 0};
}

static bool
client_wants(const struct req *req)
{
	return req->state == REQ_HEAD || req->state == REQ_BODY;
}

static void
client_drained(struct req *req)
{
	look_soon(req); /* the engine is read again, and has a limit again */
	if (req->state == REQ_PAGE)
		local_drained(req);
	else
		deliver_drained(&req->job);
}

static void
client_gone(struct req *req, bool stalled)
{
	req->client = NULL;
	if (stalled)
		req->job.end = END_CLIENT_STALLED;
	req_event(req, RQ_CLIENT_GONE);
}

const struct client_ops request_client_ops = {.bytes = client_bytes,
	.room = client_room,
	.wants_bytes = client_wants,
	.drained = client_drained,
	.gone = client_gone};

/* --- HEAD, BODY: reading the request ------------------------------------------------------------- */

static void
page_written(struct req *req)
{
	req_end(req, END_LOCAL);
}

/* local.c reports it. */
static void
written(struct req *req)
{
	req_event(req, RQ_WRITTEN);
}

static void
head_read(struct req *req)
{
	if (!route_forwards(req->job.facts.route)) {
		if (!req->framing.done)
			req->keep_alive = false;
		if (local_answer(req, written))
			req_end(req, END_LOCAL);
		else
			req_enter(req, REQ_PAGE);
		return;
	}
	req->body_from_ms = clock_ms();
	req_enter(req, REQ_BODY);
	if (req->framing.done) /* Content-Length: 0 */
		req_event(req, RQ_BODY);
}

static void
head_late(struct req *req)
{
	req_refuse_with(req, END_HEAD_TIMEOUT);
}

static void
body_late(struct req *req)
{
	req_refuse_with(req, END_BODY_TIMEOUT);
}

/* --- PLAN ---------------------------------------------------------------------------------------- */

/* Plans the request: chooses engines.  In PLAN it may be called again. */
static void
plan(struct req *req)
{
	struct plan *p = req->plan;
	struct job *job = &req->job;
	const enum plan_result result = plan_make(p);

	job->connector = p->way.connector;
	job->direct = p->way.direct;
	job->detail = p->detail;
	job->rescue = p->way.alone ? RESCUE_ALONE : RESCUE_NONE;
	switch (result) {
	case PLAN_DONE:
		req_event(req, RQ_PLANNED);
		break;
	case PLAN_WAITS: /* until a slot is free, or the next tick */
		job->end = p->end;
		req_note_moved(req);
		break;
	case PLAN_REFUSED:
		req_refuse(req, p->end, p->detail);
		break;
	}
}

/* A slot that the request lacked may be free. */
static bool
woken(struct waiter *q)
{
	struct req *req = plan_of(q)->user;

	look_soon(req);
	plan(req);
	return is_queued(req);
}

static void
plan_begin(struct req *req)
{
	struct plan *p = MEM_NEW(struct plan);

	plan_init(p, req->w, woken, req);
	p->of = (struct demand){&req->job.facts, req->job.text};
	p->client_deadline_ms = req->client_deadline_ms;
	p->priority_max = req->priority_max;
	p->way.override = req->override;
	req->plan = p;
}

/* The members of the body are known. */
static void
body_scanned(struct req *req)
{
	const char *why = intake_read(req);
	enum req_end end;

	if (why != NULL) {
		req_refuse(req, END_BAD_JSON, why);
		return;
	}
	end = key_admit(req, &why);
	if (end != END_OK) {
		req_refuse(req, end, why);
		return;
	}
	plan_begin(req);
	req_enter(req, REQ_PLAN);
	plan(req);
}

/* scan.c reports it. */
static void
scanned(struct req *req, const char *why)
{
	if (why != NULL)
		req_refuse(req, END_BAD_JSON, why);
	else
		req_event(req, RQ_SCANNED);
}

static void
body_read(struct req *req)
{
	if (req->w->quit_ms != 0) {
		/* the worker exits before the request could end */
		req_refuse_with(req, END_SHUTDOWN);
		return;
	}
	req->t_body_us = clock_us();
	if (!scan_is_long(req)) {
		body_scanned(req);
		return;
	}
	req_enter(req, REQ_SCAN);
	scan_begin(req, scanned);
}

/* Records a time to first token for `routing_threshold: auto`. */
static void
learn_threshold(struct req *req, uint64_t ttft_us)
{
	/* of a stream with its first event: a whole answer has all its tokens' time in it, an error none, and
	 * where engines failed there is theirs in it, too */
	if (req->job.facts.pool->shake.routing_threshold == THRESHOLD_AUTO &&
		req->job.nbranches == 1 && req->job.tries == 0 && req->job.rescue == RESCUE_NONE &&
		route_by(req->job.facts.route) == ROUTE_BY_TWO && req->job.facts.stream &&
		(req->relay == RELAY_STREAM || req->job.answer != NULL))
		threshold_learn(&req->w->thresholds[req->job.facts.pool->id],
			req->job.facts.estimate, req->job.direct != NULL, ttft_us);
}

static void
req_first_byte(struct req *req)
{
	uint64_t us;

	if (req->t_first_us != 0)
		return;
	req->t_first_us = clock_us();
	req_note_moved(req);
	us = req->t_first_us - req->t_body_us;
	observe_time(req, H_TTFT, us);
	learn_threshold(req, us - req->queued.us); /* without the time in the queue */
}

/* --- clocks -------------------------------------------------------------------------------------- */

static bool
is_late(const struct req *req, uint64_t now_ms)
{
	const uint64_t ms =
		req->state == REQ_PLAN ? req->plan->waiter.deadline_ms : req->deadline_ms;

	return ms != 0 && now_ms >= ms;
}

/* Returns when the whole request must be over; 0: no limit.  The limit counts from the last
 * byte of the body: before that the client takes the time. */
static uint64_t
over_at_ms(const struct req *req)
{
	const uint64_t client_ms = req->client_deadline_ms;
	uint64_t ms = req->job.facts.pool->timeouts.request_ms;

	if (req->t_body_us == 0)
		return 0;
	if (req->job.facts.pool->rescue.allow_timeout_header != 0 && client_ms != 0 &&
		(ms == 0 || client_ms < ms))
		ms = client_ms;
	return ms == 0 ? 0 : req->t_body_us / 1000 + ms;
}

/* Checks the time limits of the state. */
static void
check_limits(struct req *req, uint64_t now_ms)
{
	const uint64_t over_ms = over_at_ms(req);

	if (req->state == REQ_BODY)
		limit_tick(req, now_ms);
	if (over_ms != 0 && now_ms >= over_ms) {
		serve_poll(&req->job); /* an answer that arrives at the same moment wins */
		req_event(req, RQ_EXPIRED);
		return;
	}
	if (is_late(req, now_ms) && req->client != NULL && req->state <= REQ_BODY)
		(void)sock_look(
			/* the missing bytes may have arrived at this moment */
			&req->client->sock);
	if (is_late(req, now_ms)) {
		if (req->plan != NULL && wait_late(&req->plan->waiter))
			return;
		req_event(req, RQ_TIMEOUT);
		return;
	}
	if (is_queued(req) || req->state == REQ_PAGE)
		return; /* the request rests until it is woken */
	if (req->state == REQ_PLAN) {
		plan(req);
		return;
	}
	serve_tick(&req->job, now_ms);
}

/* Returns the milliseconds until the next tick that the request needs. */
static uint64_t
next_look(const struct req *req, uint64_t now_ms)
{
	const uint64_t most = visit_sooner(VISIT_MOST * WORKER_TICK_MS, over_at_ms(req), now_ms);

	if (req->state == REQ_SERVE)
		return serve_next_look(&req->job, most, now_ms);
	if (is_queued(req)) /* it rests until it is woken */
		return visit_sooner(most, req->plan->waiter.deadline_ms, now_ms);
	return 0;
}

void
req_tick(struct visit *v, uint64_t now_ms)
{
	struct req *req = (struct req *)(void *)((char *)v - offsetof(struct req, visit));

	check_limits(req, now_ms);
	if (req->state == REQ_BODY)
		req_note_moved(req); /* most bodies come with the head */
	if (req->state != REQ_DONE)
		visit_within(&req->w->req_rounds, v, next_look(req, now_ms));
}
