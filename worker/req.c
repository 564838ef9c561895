/*
 * The life of a request.
 *
 *   HEAD --> BODY --> PLAN --> EXCHANGE --> RELAY --> DONE
 *     |        |        |         |  |        |         ^
 *     |        |        |         |  `----> RELEASE ----+     the client has gone, KV is committed
 *     `--------+--------+---------+-----------+---------'     every failure is an edge
 *
 * HEAD      the connection has sent a byte; nothing else is known.
 * BODY      the head is parsed, the path is one that generates; no endpoint is chosen.
 * PLAN      the body is a JSON object; endpoints are being chosen.  Rested in only while endpoints that
 *           have just been added are not known yet, and at most health_timeout.
 * EXCHANGE  both endpoints are reserved; legs run as the connector says; no byte has gone to the client.
 * RELAY     the decode engine's answer has begun.  relay_started() tells whether the client has any of it:
 *           before that a failure still gets an honest status.
 * RELEASE   the client has gone after a prefill engine committed KV for it: a decode engine must be told,
 *           since only its fetch frees those blocks (protocols.md 2.5).
 * DONE      logged and counted; freed after the loop turn.
 */
#include "worker/req.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/uio.h>

#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/base/rnd.h"
#include "shm/load.h"
#include "worker/connector.h"
#include "worker/core.h"
#include "worker/front.h"
#include "worker/local.h"
#include "worker/plan.h"
#include "worker/pool.h"
#include "worker/relay.h"
#include "shm/heritage.h"

/*
 * For a prefill engine that was hung up on to close in turn; and for a decode engine that generates an
 * answer in one piece for a client that has gone: by then it has admitted the request, and one that is
 * aborted after its admission tells the prefill engine (protocols.md 2.5).  A streamed one is let go at
 * its first byte instead.
 */
#define RELEASE_GRACE_MS 5000

typedef void req_handler(struct req *, struct leg *);
static req_handler head_read, body_read, exchange_start, leg_first, leg_answered, leg_failed,
	leg_late, client_left, head_late, body_late, drop, shut, refuse, refuse_shutdown,
	relay_answered, relay_failed, relay_late, release_first, release_answered, ignore, never;

#define MS(field) offsetof(struct conf, field)
#define NO_CLOCK SIZE_MAX

/* clang-format off */
static const struct {
	const char *name;
	char letter;  /* in the log's `path` */
	size_t clock; /* which time limit of struct conf runs in this state; legs have their own */
	req_handler *on[RQ_N];
} states[REQ_NSTATES] = {
	[REQ_HEAD] = { "head", 'h', MS(client_head_ms), {
		[RQ_HEAD] = head_read,
		[RQ_BODY] = never, [RQ_PLANNED] = never,
		[RQ_FIRST] = never, [RQ_ANSWER] = never, [RQ_LEG_FAIL] = never,
		[RQ_TIMEOUT] = head_late,
		[RQ_CLIENT_GONE] = drop,
		[RQ_REFUSE] = refuse,
		[RQ_SHUTDOWN] = shut } },
	[REQ_BODY] = { "body", 'b', MS(client_body_ms), {
		[RQ_HEAD] = never,
		[RQ_BODY] = body_read,
		[RQ_PLANNED] = never,
		[RQ_FIRST] = never, [RQ_ANSWER] = never, [RQ_LEG_FAIL] = never,
		[RQ_TIMEOUT] = body_late,
		[RQ_CLIENT_GONE] = drop,
		[RQ_REFUSE] = refuse,
		[RQ_SHUTDOWN] = shut } },
	[REQ_PLAN] = { "plan", 'p', NO_CLOCK /* req_wait() */, {
		[RQ_HEAD] = never, [RQ_BODY] = never,
		[RQ_PLANNED] = exchange_start,
		[RQ_FIRST] = never, [RQ_ANSWER] = never, [RQ_LEG_FAIL] = never,
		[RQ_TIMEOUT] = refuse, /* with what req_wait() was told */
		[RQ_CLIENT_GONE] = drop,
		[RQ_REFUSE] = refuse,
		[RQ_SHUTDOWN] = refuse_shutdown } },
	[REQ_EXCHANGE] = { "exchange", 'x', NO_CLOCK, {
		[RQ_HEAD] = never, [RQ_BODY] = never, [RQ_PLANNED] = never,
		[RQ_FIRST] = leg_first,
		[RQ_ANSWER] = leg_answered,
		[RQ_LEG_FAIL] = leg_failed,
		[RQ_TIMEOUT] = leg_late,
		[RQ_CLIENT_GONE] = client_left,
		[RQ_REFUSE] = refuse,
		[RQ_SHUTDOWN] = refuse_shutdown } },
	[REQ_RELAY] = { "relay", 'r', NO_CLOCK, {
		[RQ_HEAD] = never, [RQ_BODY] = never, [RQ_PLANNED] = never,
		[RQ_FIRST] = ignore, /* a prefill engine's, where both legs run at once */
		[RQ_ANSWER] = relay_answered,
		[RQ_LEG_FAIL] = relay_failed,
		[RQ_TIMEOUT] = relay_late,
		[RQ_CLIENT_GONE] = drop, /* the KV has been fetched: a byte of the answer is here */
		[RQ_REFUSE] = never,
		[RQ_SHUTDOWN] = relay_failed } },
	[REQ_RELEASE] = { "release", 'l', NO_CLOCK, {
		[RQ_HEAD] = never, [RQ_BODY] = never, [RQ_PLANNED] = never,
		[RQ_FIRST] = release_first,
		[RQ_ANSWER] = release_answered,
		[RQ_LEG_FAIL] = drop,
		[RQ_TIMEOUT] = drop,
		[RQ_CLIENT_GONE] = never,
		[RQ_REFUSE] = drop,
		[RQ_SHUTDOWN] = shut } },
	[REQ_DONE] = { "done", 'd', NO_CLOCK, {
		[RQ_HEAD] = never, [RQ_BODY] = never, [RQ_PLANNED] = never,
		[RQ_FIRST] = ignore, [RQ_ANSWER] = ignore, [RQ_LEG_FAIL] = ignore,
		[RQ_TIMEOUT] = ignore, [RQ_CLIENT_GONE] = ignore, [RQ_REFUSE] = ignore, [RQ_SHUTDOWN] = ignore } },
};
/* clang-format on */

#define END_ROW(id, w, s, t, m) [END_##id] = {w, s, t, m},
static const struct {
	const char *word;
	int status;
	const char *type, *message;
} ends[END_N] = {END_LIST(END_ROW)};
#undef END_ROW

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

const char *
end_word(enum req_end e)
{
	return ends[e].word;
}

void
req_event(struct req *req, enum req_event ev, struct leg *leg)
{
	states[req->state].on[ev](req, leg);
}

/* The only writer of req->state: moves the clock and the trace with it. */
static void
req_enter(struct req *req, enum req_state to)
{
	size_t clock = states[to].clock, n = strlen(req->trace);

	req->state = to;
	req->deadline_ms = 0;
	if (clock != NO_CLOCK) {
		req->deadline_ms =
			clock_ms() +
			*(const uint64_t *)(const void *)((const char *)req->w->conf + clock);
		worker_need_tick(req->w);
	}
	if (n + 1 < sizeof(req->trace))
		req->trace[n] = states[to].letter;
}

struct req *
req_new(struct worker *w, struct conn *c)
{
	struct req *req = MEM_NEW(struct req);

	req->w = w;
	req->conn = c;
	req->pool.id = METRIC_NO_POOL;
	req->t_start_us = clock_us();
	req->pair.req = req;
	for (enum role r = 0; r < ROLE_N; r++) {
		req->pair.leg[r].pair = &req->pair;
		req->pair.leg[r].role = r;
	}
	req->pair.leg[ROLE_PREFILL].keep = true;
	TAILQ_INSERT_TAIL(&w->reqs, req, link);
	w->nreqs++;
	metric_gauge_add(w->slab, G_REQUESTS, 1);
	req_enter(req, REQ_HEAD);
	return req;
}

/* The client's bytes and the hand-over: needed until the decode engine has its request. */
static void
drop_bytes(struct req *req)
{
	struct leg *p = &req->pair.leg[ROLE_PREFILL];

	free(req->body);
	free(req->doc);
	free(req->fwd);
	free(req->pair.own_kv);
	req->body = req->fwd = req->pair.own_kv = NULL;
	req->doc = NULL;
	if (!leg_active(p)) {
		free(p->answer);
		p->answer = NULL;
		req->pair.kv = (struct span){NULL, 0};
	}
}

void
req_free(struct req **reqp)
{
	struct req *req = *reqp;

	drop_bytes(req);
	for (enum role r = 0; r < ROLE_N; r++)
		leg_fini(&req->pair.leg[r]);
	free(req->query);
	free(req);
	*reqp = NULL;
}

/* --- the end: one line, one count ---------------------------------------------------------------- */

static uint64_t
since(uint64_t from_us, uint64_t to_us)
{
	return from_us == 0 || to_us < from_us ? 0 : to_us - from_us;
}

static void
log_end(const struct req *req, uint64_t now_us)
{
	const struct leg *p = &req->pair.leg[ROLE_PREFILL], *d = &req->pair.leg[ROLE_DECODE];

	LOG_AT(req->end == END_LOCAL ? LOG_L_DEBUG : LOG_L_INFO, "request", LOG_S("req", req->id),
		LOG_S("attempt", req->attempt[0] != '\0' ? req->attempt : NULL),
		LOG_S("route", route_path(req->route)), LOG_S("pool", req->pool.name),
		LOG_S("prefill", p->up != NULL ? p->up->url : NULL),
		LOG_S("decode", d->up != NULL ? d->up->url : NULL), LOG_I("status", req->status),
		LOG_S("reason", end_word(req->end)), LOG_S("detail", req->detail),
		LOG_S("states", req->trace),
		LOG_MS("body_ms", since(req->t_start_us, req->t_body_us)),
		LOG_MS("prefill_ms", since(req->t_prefill_us, req->t_prefilled_us)),
		LOG_MS("first_ms", since(req->t_body_us, req->t_first_us)),
		LOG_MS("total_ms", since(req->t_start_us, now_us)),
		LOG_U("bytes_in", req->bytes_in), LOG_U("bytes_out", req->bytes_out),
		LOG_U("events", req->sse.events));
}

static void
req_end(struct req *req, enum req_end end)
{
	struct worker *w = req->w;
	uint64_t now_us = clock_us();

	req->end = end;
	for (enum role r = 0; r < ROLE_N; r++)
		leg_end(&req->pair.leg[r]);
	req_enter(req, REQ_DONE);
	if (req->pool.id != METRIC_NO_POOL)
		metric_observe(w->slab, req->pool.id, H_DURATION, now_us - req->t_start_us);
	metric_request_count(w->slab, (struct metric_request){.pool = (uint16_t)req->pool.id,
					      .path = (uint8_t)req->route,
					      .reason = (uint8_t)end,
					      .status = (uint16_t)req->status});
	metric_gauge_add(w->slab, G_REQUESTS, -1);
	log_end(req, now_us);
	relay_drop_held(req);
	TAILQ_REMOVE(&w->reqs, req, link);
	TAILQ_INSERT_TAIL(&w->ended_reqs, req, link);
	w->nreqs--;
	if (req->conn != NULL)
		front_done(req->conn, req->keep_alive);
	req->conn = NULL;
}

/* --- refusing ------------------------------------------------------------------------------------ */

void
req_refuse(struct req *req, enum req_end end, const char *detail)
{
	req->end = end;
	req->detail = detail;
	req_event(req, RQ_REFUSE, NULL);
}

static void
error_message(const struct req *req, char *buf, size_t size)
{
	const char *m = ends[req->end].message;

	if (req->end == END_MODEL_NOT_FOUND && req->model[0] == '\0')
		(void)snprintf(buf, size, "The body names no `model`, and there are several.");
	else if (req->end == END_MODEL_NOT_FOUND)
		(void)snprintf(buf, size, "The model `%s` does not exist.", req->model);
	else if (req->pool.name != NULL)
		(void)snprintf(buf, size, "%s%s%s (pool %s)", m, req->detail != NULL ? ": " : "",
			req->detail != NULL ? req->detail : "", req->pool.name);
	else if (req->detail != NULL)
		(void)snprintf(buf, size, "%s: %s", m, req->detail);
	else
		(void)snprintf(buf, size, "%s", m);
}

static void
refuse(struct req *req, struct leg *leg)
{
	char message[400];

	(void)leg;
	if (req->state == REQ_HEAD || req->state == REQ_BODY) {
		metric_add(req->w->slab, M_BAD_REQUESTS, 1);
		if (!req->framing.done)
			/* what follows cannot be told from a new request */
			req->keep_alive = false;
	}
	if (req->id[0] == '\0')
		rnd_uuid(req->id);
	error_message(req, message, sizeof(message));
	relay_error(req, ends[req->end].status, ends[req->end].type, end_word(req->end), message);
	req_end(req, req->end);
}

static void
refuse_with(struct req *req, enum req_end end)
{
	req->end = end;
	refuse(req, NULL);
}

static void
refuse_shutdown(struct req *req, struct leg *leg)
{
	(void)leg;
	refuse_with(req, END_SHUTDOWN);
}

/* Nobody is there to be answered, or no word of ours would reach him. */
static void
drop(struct req *req, struct leg *leg)
{
	(void)leg;
	req->keep_alive = false;
	if (req->end != END_CLIENT_STALLED)
		req->end = END_CLIENT_GONE;
	req_end(req, req->end);
}

/* The drain time is over and nothing can be said any more. */
static void
shut(struct req *req, struct leg *leg)
{
	(void)leg;
	req->keep_alive = false;
	req_end(req, END_SHUTDOWN);
}

static void
ignore(struct req *req, struct leg *leg)
{
	(void)req;
	(void)leg;
}

static void
never(struct req *req, struct leg *leg)
{
	char words[SHM_WORDS];

	(void)snprintf(words, sizeof(words), "impossible event in state %s, leg %s",
		states[req->state].name, leg == NULL ? "-" : leg_state_name(leg->state));
	proc_words_set(req->w->seg, req->w->slot, words);
	abort();
}

/* --- HEAD, BODY: reading the request ------------------------------------------------------------- */

/* A client's id is taken when it is safe to print and to send on as a header and inside JSON. */
static bool
id_usable(struct span id)
{
	if (id.n == 0 || id.n > REQ_ID_MAX)
		return false;
	for (size_t i = 0; i < id.n; i++)
		if (id.p[i] <= ' ' || id.p[i] >= 0x7f || id.p[i] == '"' || id.p[i] == '\\')
			return false;
	return true;
}

static void
take_id(struct req *req, const struct http_head *h)
{
	const struct http_header *id = http_header(h, "x-request-id");

	if (id != NULL && id_usable(id->value))
		memcpy(req->id, id->value.p, id->value.n);
	else
		rnd_uuid(req->id);
}

static void
take_headers(struct req *req, const struct http_head *h)
{
	size_t need = 0, n = 0;

	for (size_t i = 0; i < h->nheaders; i++)
		need += h->headers[i].name.n + h->headers[i].value.n + 4;
	req->fwd = mem_zero(need + 1);
	for (size_t i = 0; i < h->nheaders; i++) {
		const struct http_header *f = &h->headers[i];

		if (!f->hop && !http_is_ours(f->name))
			n += http_line(req->fwd + n, f);
	}
	req->fwd_len = n;
}

void
req_head(struct req *req, const struct http_head *h)
{
	const struct http_header *enc = http_header(h, "content-encoding");
	const char *allow;

	req->head_only = h->method == HTTP_M_HEAD;
	req->keep_alive = h->keep_alive;
	req->http10 = h->minor == 0;
	req->route = route_find(h->path);
	take_id(req, h);
	http_body_init(&req->framing, h->framing, h->content_length);
	if (h->query.n > 0)
		req->query = mem_strndup(h->query.p, h->query.n);

	if (req->route == ROUTE_NONE)
		req_refuse(req, END_NOT_FOUND, NULL);
	else if (!route_method_ok(req->route, h->method, &allow))
		req_refuse(req, END_METHOD, allow);
	else if (!route_generates(req->route))
		req_event(req, RQ_HEAD, NULL);
	else if (h->framing == HTTP_BODY_NONE)
		req_refuse(req, END_LENGTH_REQUIRED, NULL);
	else if (h->framing == HTTP_BODY_LENGTH && h->content_length > req->w->conf->max_body)
		req_refuse(req, END_BODY_TOO_LARGE, NULL);
	else if (enc != NULL && !span_is(enc->value, "identity"))
		req_refuse(req, END_BAD_ENCODING, NULL);
	else {
		take_headers(req, h);
		if (h->expect_continue && !req->http10 && !req->framing.done)
			front_write(req->conn,
				&(struct iovec){
					(void *)(uintptr_t) "HTTP/1.1 100 Continue\r\n\r\n", 25},
				1);
		req_event(req, RQ_HEAD, NULL);
	}
}

static void
head_read(struct req *req, struct leg *leg)
{
	(void)leg;
	if (!route_generates(req->route)) {
		if (!req->framing.done)
			req->keep_alive = false;
		local_answer(req);
		req_end(req, END_LOCAL);
		return;
	}
	req_enter(req, REQ_BODY);
	if (req->framing.done) /* Content-Length: 0 */
		req_event(req, RQ_BODY, NULL);
}

void
req_body(struct req *req, const char *p, size_t n)
{
	uint64_t max = req->w->conf->max_body;

	if (n > max - req->body_len) {
		req_refuse(req, END_BODY_TOO_LARGE, NULL);
		return;
	}
	if (n > 0) {
		if (req->body_len + n > req->body_cap) {
			/* not all of what a head claims at once: it may never come */
			size_t want = 2 * req->body_cap, known = n + (size_t)req->framing.left;

			if (req->framing.framing == HTTP_BODY_LENGTH && req->body_cap == 0 &&
				known <= WORKER_BUF)
				want = known;
			if (want < req->body_len + n)
				want = req->body_len + n;
			req->body = mem_resize(req->body, want, 1);
			req->body_cap = want;
		}
		memcpy(req->body + req->body_len, p, n);
		req->body_len += n;
		req->deadline_ms = clock_ms() + req->w->conf->client_body_ms;
	}
	if (req->framing.done)
		req_event(req, RQ_BODY, NULL);
}

static void
head_late(struct req *req, struct leg *leg)
{
	(void)leg;
	refuse_with(req, END_HEAD_TIMEOUT);
}

static void
body_late(struct req *req, struct leg *leg)
{
	(void)leg;
	refuse_with(req, END_BODY_TIMEOUT);
}

/* --- PLAN ---------------------------------------------------------------------------------------- */

/* What the router must know of the body; NULL, or why it cannot be served. */
static const char *
look_at_body(struct req *req)
{
	const struct splice_member *m;
	const char *why;
	size_t at;

	req->doc = mem_resize(
		NULL, 1, sizeof(*req->doc)); /* 3.6 KiB that splice_scan() fills as far as needed */
	if (splice_scan(req->doc, req->body == NULL ? "" : req->body, req->body_len, &why, &at) !=
		0)
		return why;
	m = splice_find(req->doc, SK_STREAM);
	req->stream = m != NULL && m->type == ST_TRUE;
	m = splice_find(req->doc, SK_MODEL);
	if (m != NULL && m->type != ST_NULL &&
		splice_string(req->doc, m, req->model, sizeof(req->model)) < 0)
		return "`model` is not a usable string";
	return NULL;
}

static void
body_read(struct req *req, struct leg *leg)
{
	const char *why;

	(void)leg;
	if (req->w->quit_ms != 0) {
		refuse_with(req, END_SHUTDOWN); /* it could not be finished any more */
		return;
	}
	req->t_body_us = clock_us();
	why = look_at_body(req);
	if (why != NULL) {
		req_refuse(req, END_BAD_JSON, why);
		return;
	}
	req_enter(req, REQ_PLAN);
	plan_request(req);
}

void
req_wait(struct req *req, enum req_end why, uint64_t most_ms)
{
	req->end = why;
	if (req->deadline_ms == 0)
		req->deadline_ms = clock_ms() + most_ms;
	worker_need_tick(req->w);
}

/* --- EXCHANGE ------------------------------------------------------------------------------------ */

static void
start_legs(struct req *req, enum leg_starts when)
{
	for (enum role r = 0; r < ROLE_N; r++) {
		if (req->connector->starts[r] != when || req->state == REQ_DONE)
			continue;
		leg_start(&req->pair.leg[r]);
	}
}

/* A fresh id for each attempt: old engines find the KV by it, so it must never come twice. */
static void
new_attempt(struct req *req)
{
	size_t n = strlen(req->id);

	memcpy(req->attempt, req->id, n);
	req->attempt[n] = '-';
	rnd_hex16(req->attempt + n + 1, rnd_u64());
	req->attempt[n + 17] = '\0';
	(void)snprintf(req->attempt_json, sizeof(req->attempt_json), "\"%s\"", req->attempt);
}

static void
exchange_start(struct req *req, struct leg *leg)
{
	(void)leg;
	req->end = END_OK; /* of an earlier try to plan */
	new_attempt(req);
	req_enter(req, REQ_EXCHANGE);
	start_legs(req, STARTS_AT_ONCE);
}

static void
leg_first(struct req *req, struct leg *leg)
{
	if (leg->role != ROLE_DECODE)
		return; /* a prefill answer counts when it is whole */
	relay_begin(req, leg);
	req_enter(req, REQ_RELAY);
	if (leg_sent(leg))
		drop_bytes(req);
}

/* An engine's own refusal reaches the client as it is. */
static void
pass_on(struct req *req, struct leg *leg)
{
	if (leg->answer_len == 0)
		relay_error(req, leg->status, "server_error", end_word(END_ENGINE_STATUS),
			"the prefill engine refused without saying why");
	else
		relay_reply(req, leg->status, leg->head, leg->head_len, NULL, leg->answer,
			leg->answer_len);
	req_end(req, END_ENGINE_STATUS);
}

/* Takes the hand-over out of a prefill answer; false if the answer is no use. */
static bool
take_handover(struct req *req, struct leg *leg)
{
	int r;

	req->t_prefilled_us = clock_us();
	metric_observe(req->w->slab, req->pool.id, H_PREFILL,
		since(req->t_prefill_us, req->t_prefilled_us));
	r = leg->answer_len == 0 ? -1 : req->connector->prefilled(&req->pair);
	if (r == 0)
		metric_add(req->w->slab, M_KV_MISSING, 1);
	return r >= 0;
}

static void
leg_answered(struct req *req, struct leg *leg)
{
	assert(leg->role == ROLE_PREFILL); /* a decode answer's first byte has moved us to RELAY */
	if (leg->status >= 400)
		pass_on(req, leg);
	else if (leg->status != 200)
		refuse_with(req, END_PREFILL_ANSWER);
	else if (!take_handover(req, leg))
		refuse_with(req, END_PREFILL_ANSWER);
	else
		start_legs(req, STARTS_AFTER_PREFILL);
}

static enum req_end
fail_reason(const struct leg *leg)
{
	if (leg->role == ROLE_PREFILL)
		return leg->fail == LEG_FAIL_GARBAGE || leg->fail == LEG_FAIL_TOO_LARGE
			       ? END_PREFILL_ANSWER
			       : END_PREFILL_BROKEN;
	return END_DECODE_BROKEN;
}

static void
leg_failed(struct req *req, struct leg *leg)
{
	static const char *const detail[] = {[LEG_FAIL_NONE] = NULL,
		[LEG_FAIL_CONNECT] = "connection refused or unreachable",
		[LEG_FAIL_BROKEN] = "connection closed before the end of the answer",
		[LEG_FAIL_GARBAGE] = "answer is not HTTP",
		[LEG_FAIL_TOO_LARGE] = "answer is larger than max_answer"};

	req->detail = detail[leg->fail];
	refuse_with(req, fail_reason(leg));
}

static enum req_end
late_reason(const struct leg *leg)
{
	if (leg->role == ROLE_PREFILL)
		return leg_connecting(leg) ? END_PREFILL_CONNECT : END_PREFILL_TIMEOUT;
	return leg_connecting(leg) ? END_DECODE_CONNECT : END_DECODE_TIMEOUT;
}

static void
leg_late(struct req *req, struct leg *leg)
{
	refuse_with(req, late_reason(leg));
}

/*
 * The client has gone before its answer began.  A prefill engine that has not begun to answer is hung up
 * on, which aborts it; once it has answered, blocks are held there, and a decode engine must be told.
 */
static void
client_left(struct req *req, struct leg *none)
{
	struct leg *p = &req->pair.leg[ROLE_PREFILL], *d = &req->pair.leg[ROLE_DECODE];

	(void)none;
	if (leg_active(p) ? !leg_sent(p) && !p->got_bytes : req->pair.kv.n == 0) {
		drop(req, NULL); /* nothing has been asked for, or nothing was handed over */
		return;
	}
	req_enter(req, REQ_RELEASE);
	req->pair.release = true; /* the form of whatever is sent from now on */
	if (leg_active(p) && p->got_bytes)
		return; /* read to its end */
	if (leg_active(p))
		leg_hang_up(p);
	if (leg_active(p) || (leg_sent(d) && !req->stream)) {
		req->deadline_ms = clock_ms() + RELEASE_GRACE_MS;
		worker_need_tick(req->w);
	}
}

/* --- RELAY --------------------------------------------------------------------------------------- */

void
req_payload(struct req *req, struct leg *leg, const struct span *pieces, size_t n, bool done)
{
	if (req->state == REQ_RELAY)
		relay_payload(req, leg, pieces, n, done);
}

void
req_client_drained(struct req *req)
{
	leg_hold(&req->pair.leg[ROLE_DECODE], false);
}

static void
relay_answered(struct req *req, struct leg *leg)
{
	if (leg->role == ROLE_DECODE)
		req_end(req, leg->status == 200 && !req->sse.error ? END_OK : END_ENGINE_STATUS);
}

/* The answer cannot be completed: said honestly, by status where that is still possible. */
static void
cut(struct req *req, enum req_end end)
{
	if (!relay_started(req)) {
		refuse_with(req, end);
		return;
	}
	relay_cut(req, end_word(end), ends[end].message);
	req_end(req, end);
}

static void
relay_failed(struct req *req, struct leg *leg)
{
	if (leg == NULL)
		cut(req, END_SHUTDOWN);
	else if (leg->role == ROLE_DECODE && relay_complete(req))
		req_end(req, END_OK);
	else if (leg->role == ROLE_DECODE)
		cut(req, fail_reason(leg));
}

static void
relay_late(struct req *req, struct leg *leg)
{
	if (leg->role == ROLE_DECODE)
		cut(req, late_reason(leg));
}

/* --- RELEASE ------------------------------------------------------------------------------------- */

/*
 * A prefill engine answers after all: its own clock goes on.  A decode engine that answers the client's
 * own request has fetched the KV, so it can be let go.
 */
static void
release_first(struct req *req, struct leg *leg)
{
	if (leg->role == ROLE_PREFILL)
		req->deadline_ms = 0;
	else if (!leg->releases)
		drop(req, NULL);
}

static void
release_answered(struct req *req, struct leg *leg)
{
	if (leg->role == ROLE_PREFILL && leg->status == 200 && take_handover(req, leg) &&
		req->pair.kv.n > 0)
		start_legs(req, STARTS_AFTER_PREFILL);
	else
		drop(req, NULL);
}

/* --- clocks -------------------------------------------------------------------------------------- */

void
req_tick(struct req *req, uint64_t now_ms)
{
	if (req->deadline_ms != 0 && now_ms >= req->deadline_ms) {
		req_event(req, RQ_TIMEOUT, NULL);
		return;
	}
	if (req->state == REQ_PLAN) {
		plan_request(req);
		return;
	}
	for (enum role r = 0; r < ROLE_N && req->state != REQ_DONE; r++) {
		struct leg *leg = &req->pair.leg[r];

		if (leg_active(leg) && leg->deadline_ms != 0 && now_ms >= leg->deadline_ms)
			req_event(req, RQ_TIMEOUT, leg);
	}
}
