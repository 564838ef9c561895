#include "worker/request/intake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "proto/http/multipart.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/mem.h"
#include "shm/base/rnd.h"
#include "worker/base/buffered.h"
#include "worker/base/core.h"
#include "worker/base/response_id.h"
#include "worker/base/lines.h"
#include "worker/base/text.h"
#include "worker/request/client.h"
#include "worker/request/cors.h"
#include "worker/request/exposition_form.h"
#include "worker/request/forwarded.h"
#include "worker/request/key.h"
#include "worker/request/limit.h"
#include "worker/request/req.h"
#include "worker/request/spent.h"

#define BODY_RATE 512 /* bytes a second beyond client.body_timeout: a modem of 1995 has more */
#define DEADLINE_MAX_MS (24u * 3600 * 1000) /* as timeouts.request */

/* --- the head ------------------------------------------------------------------------------------ */

/* Returns true if a client's id is safe to print and to send as a header and inside JSON. */
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

void
intake_make_id(struct req *req)
{
	char id[37];

	rnd_uuid(id);
	facts_set(&req->job.facts.id, id, sizeof(id) - 1);
}

static void
take_id(struct req *req, const struct http_head *h)
{
	const struct http_header *id = http_header(h, "x-request-id");

	if (id != NULL && id_usable(id->value))
		facts_set(&req->job.facts.id, id->value.p, id->value.n);
	else
		intake_make_id(req);
}

/* Takes the id of a path that names a response.  An id of other bytes is of no engine, and would be of
 * another path there. */
static void
take_response(struct req *req, struct span path)
{
	static const char known[] =
		"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-";
	struct facts *f = &req->job.facts;
	const size_t before = route_rest(f->route);
	const struct span id = {path.p + before, path.n - before - strlen(route_after(f->route))};

	if (id.n > REQ_ID_MAX)
		return;
	for (size_t i = 0; i < id.n; i++)
		if (memchr(known, id.p[i], sizeof(known) - 1) == NULL)
			return;
	facts_set(&f->response, id.p, id.n);
	f->holder = response_id_engine(f->response);
}

static bool
is_key(struct span name)
{
	return span_is(name, "authorization") || span_is(name, "x-api-key");
}

/* Several lines are one list. */
static void
take_state(struct facts *f, const struct http_head *h)
{
	for (size_t i = 0; i < h->nheaders; i++)
		if (span_is(h->headers[i].name, "tracestate")) {
			if (f->trace_state == NULL)
				f->trace_state = MEM_NEW(struct trace_state);
			if (!trace_add_state(f->trace_state, h->headers[i].value))
				return;
		}
}

/* A trace that cannot be read ends here, with its tracestate, as the standard says. */
static void
take_trace(struct req *req, const struct http_head *h)
{
	const struct http_header *f = http_header(h, "traceparent");
	const uint32_t part = req->w->conf->live.trace_sample;
	struct trace t = {.flags = 0};

	req->traced = f != NULL && trace_read(f->value.p, f->value.n, &t);
	if (!req->traced) {
		if (part == 0 || rnd_u64() % CONF_PART_ALL >= part)
			return;
		trace_make(&t, rnd_u64(), rnd_u64());
	}
	if (req->w->conf->trace_otlp != NULL && (t.flags & TRACE_SAMPLED) != 0) {
		t.span = rnd_u64() | 1; /* not 0 */
		if (req->traced)
			take_state(&req->job.facts, h);
	}
	facts_set_trace(&req->job.facts, &t);
}

/* Returns true if engines get the line.  A tracestate belongs to the client's traceparent. */
static bool
passes(const struct req *req, const struct http_header *f)
{
	return !f->hop && !http_is_ours(f->name) &&
	       (req->traced || !span_is(f->name, "tracestate")) &&
	       (req->w->conf->forward_address == 0 || !forwarded_is_ours(f->name));
}

/* Returns the bytes that were written. */
static size_t
put_address(const struct req *req, const struct http_head *h, char *to, size_t size)
{
	const struct client_origin *from = &req->client->from;
	const struct forwarded_peer peer = {
		.address = from->address,
		.proto = from->transport == TRANSPORT_TLS ? "https" : "http",
		.proxy = forwarded_by_proxy(req->w->conf, &from->address),
	};
	struct lines l = {to, size, 0};

	forwarded_lines(&peer, h, &l);
	return l.n;
}

static void
take_headers(struct req *req, const struct http_head *h)
{
	struct text *text = req->job.text;
	const size_t room = req->w->conf->forward_address != 0 ? forwarded_room(h) : 0;
	size_t need = room, n = 0, nkeys = 0;

	for (size_t i = 0; i < h->nheaders; i++)
		if (passes(req, &h->headers[i]))
			need += h->headers[i].name.n + h->headers[i].value.n + 4;
	text_make_headers(text, need);
	if (room > 0)
		n = put_address(req, h, text->headers, room);
	for (size_t i = 0; i < h->nheaders; i++) {
		const struct http_header *f = &h->headers[i];

		if (!passes(req, f))
			continue;
		if (is_key(f->name))
			nkeys++;
		else
			n += http_line(text->headers + n, f);
	}
	text->headers_len = n;
	/* a key of the router is none of an engine */
	for (size_t i = 0; i < h->nheaders && nkeys > 0 && req->key == NULL; i++)
		if (!h->headers[i].hop && is_key(h->headers[i].name)) {
			text->headers_len +=
				http_line(text->headers + text->headers_len, &h->headers[i]);
			nkeys--;
		}
	text->key_lines_len = text->headers_len - n;
	buffered_add(req->w, (int64_t)text->headers_len);
}

static void
take_override(struct req *req, const struct http_head *h)
{
	const struct http_header *route = http_header(h, "x-pd-route");

	if (route != NULL)
		req->override = span_is(route->value, "direct")          ? OVERRIDE_DIRECT
				: span_is(route->value, "disaggregated") ? OVERRIDE_DISAGGREGATED
									 : OVERRIDE_UNKNOWN;
}

/* Reads X-Request-Timeout-Ms; the pool decides later whether it is used. */
static void
take_deadline(struct req *req, const struct http_head *h)
{
	const struct http_header *f = http_header(h, "x-request-timeout-ms");
	bool wrong = false;
	uint64_t ms = 0;

	if (f == NULL)
		return;
	for (size_t i = 0; i < f->value.n && ms <= DEADLINE_MAX_MS; i++)
		if (f->value.p[i] >= '0' && f->value.p[i] <= '9')
			ms = 10 * ms + (uint64_t)(f->value.p[i] - '0');
		else
			wrong = true;
	wrong = wrong || ms == 0 || ms > DEADLINE_MAX_MS;
	req->client_deadline_ms = wrong ? CLIENT_DEADLINE_WRONG : ms;
}

/* Returns END_OK, or the reason to refuse the head; *detail: text for the error. */
static enum req_end
refusal(struct req *req, const struct http_head *h, const char **detail)
{
	const struct http_header *enc = http_header(h, "content-encoding");
	enum req_end end;

	if (req->job.facts.route == ROUTE_PREFLIGHT)
		return END_OK;
	if (req->job.facts.route == ROUTE_NONE)
		return END_NOT_FOUND;
	if (!route_open(req->job.facts.route, req->client->from.door, req->w->conf)) {
		*detail = req->client->from.door == DOOR_OPERATORS
				  ? "it is a path for clients"
				  : "it is answered at admin.listen";
		return END_NOT_FOUND;
	}
	if (!route_method_ok(req->job.facts.route, h->method, detail))
		return END_METHOD;
	*detail = NULL;
	end = route_needs_key(req->job.facts.route, req->client->from.door)
		      ? key_take(req, h, detail)
		      : END_OK;
	if (end != END_OK)
		return end;
	if (!route_forwards(req->job.facts.route))
		return END_OK;
	if (route_body(req->job.facts.route) == ROUTE_BODY_NONE && req->job.facts.holder == 0)
		return END_RESPONSE_NOT_FOUND;
	if (h->query.n > ROUTE_QUERY_MAX)
		return END_URI_TOO_LONG;
	if (h->framing == HTTP_BODY_LENGTH && h->content_length > req->w->conf->live.max_body)
		return END_BODY_TOO_LARGE;
	if (enc != NULL && !span_is(enc->value, "identity"))
		return END_BAD_ENCODING;
	if (h->framing == HTTP_BODY_LENGTH && !limit_declare(req, h->content_length))
		return END_OVERLOADED;
	spent_begin(req);
	return limit_enter(req, h);
}

static void
ask_for_body(struct req *req)
{
	(void)client_write(req->client,
		&(struct iovec){(void *)(uintptr_t) "HTTP/1.1 100 Continue\r\n\r\n", 25}, 1);
}

static void
take_model_of_path(struct req *req, struct span path)
{
	const size_t before = route_rest(req->job.facts.route);
	char model[REQ_MODEL_MAX + 1] = ""; /* "" is no model's name */

	(void)http_percent_decode(
		(struct span){path.p + before, path.n - before}, model, sizeof(model));
	facts_set(&req->job.facts.model, model, strlen(model));
}

static void
take_head(struct req *req, const struct http_head *h, struct intake *in)
{
	req->head_only = h->method == HTTP_M_HEAD;
	req->keep_alive = h->keep_alive;
	req->http10 = h->minor == 0;
	req->from = forwarded_client(req->w->conf, &req->from, h);
	req->job.facts.route = cors_take(&req->cors, req->w->conf, req->client->from.door, h)
				       ? ROUTE_PREFLIGHT
				       : route_find(h->path);
	take_id(req, h);
	take_override(req, h);
	take_deadline(req, h);
	if (req->job.facts.route == ROUTE_MODEL)
		take_model_of_path(req, h->path);
	if (route_body(req->job.facts.route) == ROUTE_BODY_NONE)
		take_response(req, h->path);
	if (req->job.facts.route == ROUTE_METRICS)
		req->form = exposition_form(h);
	http_body_init(&req->framing, h->framing, h->content_length);
	if (h->query.n > 0)
		req->job.text->query = mem_strndup(h->query.p, h->query.n);
	in->end = refusal(req, h, &in->detail);
	if (in->end != END_OK || !route_forwards(req->job.facts.route))
		return;
	take_trace(req, h);
	take_headers(req, h);
	if (limit_full(req->w)) {
		in->end = END_OVERLOADED;
		return;
	}
	if (h->expect_continue && !req->http10 && !req->framing.done)
		ask_for_body(req);
}

/* Returns the reason to refuse a head that cannot be parsed. */
static enum req_end
parse_refusal(int error)
{
	switch (error) {
	case HTTP_E_VERSION:
		return END_BAD_VERSION;
	case HTTP_E_CODING:
		return END_BAD_CODING;
	case HTTP_E_TOO_MANY:
		return END_HEAD_TOO_LARGE;
	case HTTP_E_TOO_LARGE:
		return END_BODY_TOO_LARGE;
	default:
		return END_BAD_HTTP;
	}
}

/* A whole request line of HTTP/0.9, or of no HTTP at all: no head follows it. */
static bool
lacks_version(const char *p, size_t n)
{
	static const char version[] = " HTTP/";
	const char *end = memchr(p, '\r', n);

	return end > p && memmem(p, (size_t)(end - p), version, sizeof(version) - 1) == NULL;
}

struct intake
intake_head(struct req *req, const char *p, size_t n, size_t *scanned)
{
	struct intake in = {.used = n, .end = END_OK};
	const size_t max = req->w->conf->live.max_head;
	struct http_head h;
	ssize_t len = http_head_end(p, n, scanned);
	int r;

	if ((len == 0 && n > max) || len > (ssize_t)max) {
		in.end = END_HEAD_TOO_LARGE;
		return in;
	}
	if (len == 0 && lacks_version(p, n)) {
		in.end = END_BAD_HTTP;
		in.detail = "the request line has no version";
		return in;
	}
	if (len == 0 && limit_full(req->w)) {
		in.end = END_OVERLOADED;
		return in;
	}
	if (len == 0) {
		in.used = 0;
		return in;
	}
	*scanned = 0;
	silent_end(req->w, &req->client->silence);
	r = len < 0 ? (int)len : http_head_parse(&h, HTTP_KIND_REQUEST, p, (size_t)len, false);
	if (r < 0) {
		in.end = parse_refusal(r);
		in.detail = http_error_text(r);
		return in;
	}
	req->bytes_in += (uint64_t)len;
	in.used = (size_t)len;
	in.whole = true;
	take_head(req, &h, &in);
	return in;
}

/* --- the body ------------------------------------------------------------------------------------ */

/* Deadline between two pieces, and of the whole body: a client that sends a byte now and then
 * would hold its slot for ever. */
static uint64_t
body_deadline_ms(const struct req *req)
{
	const uint64_t each = clock_ms() + req->w->conf->live.client_body_ms;
	const uint64_t all = req->body_from_ms + req->w->conf->live.client_body_ms +
			     req->job.text->body_len * 1000 / BODY_RATE;

	return each < all ? each : all;
}

/* A head declares a length that may never come: memory for the whole body is allocated once
 * 1/BODY_TRUST of it is here. */
#define BODY_TRUST 4

/* Makes room for n more bytes.  Returns false if there is none. */
static bool
grow_body(struct req *req, size_t n)
{
	const bool known = req->framing.framing == HTTP_BODY_LENGTH;
	const size_t need = req->job.text->body_len + n, whole = need + (size_t)req->framing.left;
	size_t want = 2 * req->job.text->body_cap;

	if (need <= req->job.text->body_cap)
		return true;
	if (known && (whole <= WORKER_BUF || whole / BODY_TRUST <= need))
		want = whole;
	if (want < need)
		want = need;
	if (!limit_grow(req, want - req->job.text->body_cap))
		return false;
	req->job.text->body =
		block_grow(&req->w->blocks, req->job.text->body, req->job.text->body_cap, want);
	req->job.text->body_cap = want;
	return true;
}

static enum req_end
keep_body(struct req *req, struct span piece)
{
	struct text *text = req->job.text;

	if (text->body_len + piece.n > req->w->conf->live.max_body)
		return END_BODY_TOO_LARGE;
	if (piece.n == 0)
		return END_OK;
	if (!grow_body(req, piece.n))
		return END_OVERLOADED;
	if (piece.p != text->body + text->body_len)
		memcpy(text->body + text->body_len, piece.p, piece.n);
	text->body_len += piece.n;
	req->deadline_ms = body_deadline_ms(req);
	return END_OK;
}

struct iovec
intake_room(const struct req *req)
{
	const struct text *text = req->job.text;
	const uint64_t left = req->framing.left;

	if (req->framing.framing != HTTP_BODY_LENGTH || left > text->body_cap - text->body_len)
		return (struct iovec){.iov_len = 0};
	return (struct iovec){
		text->body + text->body_len, left < INTAKE_PIECE ? left : INTAKE_PIECE};
}

struct intake
intake_body(struct req *req, const char *p, size_t n)
{
	struct intake in = {.used = n, .end = END_OK};
	struct span piece;
	ssize_t used = http_body_next(&req->framing, p, n, &piece);

	if (used < 0) {
		in.end = used == HTTP_E_TOO_LARGE ? END_BODY_TOO_LARGE : END_BAD_HTTP;
		in.detail = http_error_text((int)used);
		return in;
	}
	req->bytes_in += (uint64_t)used;
	in.used = (size_t)used;
	in.end = keep_body(req, piece);
	in.whole = req->framing.done;
	return in;
}

/* Parses `n`; 1 for values that engines refuse anyway. */
static uint32_t
parse_samples(const char *p)
{
	double n = strtod(p, NULL);

	return n >= 1 && n <= UINT32_MAX ? (uint32_t)n : 1;
}

/* Reads the model of a form.  Returns NULL, or why the request cannot be served. */
static const char *
look_at_form(struct req *req)
{
	const struct text *text = req->job.text;
	const struct span body = {text->body == NULL ? "" : text->body, text->body_len};
	struct span model;

	switch (multipart_field(text_header(text, "content-type"), body, "model", &model)) {
	case MULTIPART_NONE:
		return NULL;    /* the same as a body without `model` */
	case MULTIPART_UNCLEAR: /* an engine would serve another model than the router checks */
		return "`model` of the form is not clear";
	case MULTIPART_FOUND:
		break;
	}
	if (model.n > REQ_MODEL_MAX || memchr(model.p, '\0', model.n) != NULL)
		return "`model` is not a usable string";
	facts_set(&req->job.facts.model, model.p, model.n);
	return NULL;
}

/* Takes the response that the conversation goes on from. */
static const char *
take_previous(struct req *req)
{
	const struct splice *doc = req->job.text->doc;
	const struct splice_member *m = splice_find(doc, SK_PREVIOUS_RESPONSE_ID);
	struct facts *f = &req->job.facts;
	char id[REQ_ID_MAX + 1];
	long n;

	if (f->route != ROUTE_RESPONSES || m == NULL || m->type != ST_STRING)
		return NULL;
	n = splice_string(doc, m, id, sizeof(id));
	if (n < 0)
		return "`previous_response_id` is not a usable string";
	facts_set(&f->response, id, (size_t)n);
	f->holder = response_id_engine(f->response);
	return NULL;
}

/* Whether `n` is a member of the body. */
static bool
has_samples(enum route route)
{
	return route != ROUTE_GENERATE && !route_is_agent(route);
}

static const char *
take_model(struct req *req)
{
	const struct splice *doc = req->job.text->doc;
	const struct splice_member *m = splice_find(doc, SK_MODEL);
	char model[REQ_MODEL_MAX + 1];
	long n;

	if (m == NULL || m->type == ST_NULL)
		return NULL;
	n = splice_string(doc, m, model, sizeof(model));
	if (n < 0)
		return "`model` is not a usable string";
	facts_set(&req->job.facts.model, model, (size_t)n);
	return NULL;
}

static const char *
look_at_body(struct req *req)
{
	const struct splice_member *m;
	/* a long body has been scanned by now: scan.c */
	const char *why = req->job.text->doc != NULL ? NULL : text_scan(req->job.text);

	if (why != NULL)
		return why;
	m = splice_find(req->job.text->doc, SK_N);
	req->job.facts.samples =
		m != NULL && m->type == ST_NUMBER && has_samples(req->job.facts.route)
			? parse_samples(req->job.text->doc->text + m->val)
			: 1;
	m = splice_find(req->job.text->doc, SK_STREAM);
	req->job.facts.stream = m != NULL && m->type == ST_TRUE;
	why = take_model(req);
	return why != NULL ? why : take_previous(req);
}

const char *
intake_read(struct req *req)
{
	switch (route_body(req->job.facts.route)) {
	case ROUTE_BODY_JSON:
		return look_at_body(req);
	case ROUTE_BODY_FORM:
		return look_at_form(req);
	case ROUTE_BODY_NONE:
		break;
	}
	return NULL;
}
