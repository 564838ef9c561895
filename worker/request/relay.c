#include "worker/request/relay.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json/json_small.h"
#include "proto/json/json_string.h"
#include "proto/json/splice.h"
#include "shm/base/clock.h"
#include "worker/attempt/attempt.h"
#include "worker/base/core.h"
#include "worker/base/lines.h"
#include "worker/request/client.h"
#include "worker/request/cors.h"
#include "worker/request/req.h"
#include "worker/request/retry_after.h"
#include "shm/base/mem.h"

/* a half event or a short answer up to this is held; see relay.h */
#define RELAY_HOLD (64u << 10)
#define RELAY_PIECES 64 /* the maximum of one call of a leg */
#define RELAY_HEAD 1024 /* the router's own lines of an answer's head */

/* clang-format off */
static const struct {
	int status;
	const char *text;
} phrases[] = {
	{ 200, "OK" },
	{ 201, "Created" },
	{ 202, "Accepted" },
	{ 204, "No Content" },
	{ 400, "Bad Request" },
	{ 401, "Unauthorized" },
	{ 403, "Forbidden" },
	{ 404, "Not Found" },
	{ 405, "Method Not Allowed" },
	{ 408, "Request Timeout" },
	{ 409, "Conflict" },
	{ 413, "Content Too Large" },
	{ 414, "URI Too Long" },
	{ 415, "Unsupported Media Type" },
	{ 422, "Unprocessable Content" },
	{ 429, "Too Many Requests" },
	{ 431, "Request Header Fields Too Large" },
	{ 500, "Internal Server Error" },
	{ 501, "Not Implemented" },
	{ 502, "Bad Gateway" },
	{ 503, "Service Unavailable" },
	{ 504, "Gateway Timeout" },
	{ 505, "HTTP Version Not Supported" },
};
/* clang-format on */

/* iovec's base is not const; nothing writes through it here. */
static void *
text(const void *p)
{
	return (void *)(uintptr_t)p;
}

static const char *
phrase(int status)
{
	for (size_t i = 0; i < sizeof(phrases) / sizeof(phrases[0]); i++)
		if (phrases[i].status == status)
			return phrases[i].text;
	return "Status";
}

bool
relay_has_body(int status)
{
	return status != 204 && status != 304;
}

/*
 * Opens the answer: decides the framing and whether the connection stays open, and writes the
 * router's own lines into buf.  The caller appends the engine's lines and the empty line.
 */
static struct iovec
open_answer(struct req *req, char buf[RELAY_HEAD], int status, bool length_known, uint64_t length)
{
	const bool no_body = !relay_has_body(status);
	struct lines l = {buf, RELAY_HEAD, 0};

	req->framing_out = no_body        ? FRAMING_NONE
			   : length_known ? FRAMING_LENGTH
			   : req->http10  ? FRAMING_CLOSE
					  : FRAMING_CHUNKED;
	if (req->framing_out == FRAMING_CLOSE || req->w->phase == WORKER_DRAINS)
		req->keep_alive = false;
	req->status = status;
	req->job.sent = SENT_WHOLE;
	lines_put(&l, "HTTP/1.1 ");
	lines_number(&l, (uint64_t)status);
	lines_put(&l, " ");
	lines_put(&l, phrase(status));
	lines_put(&l, "\r\nX-Request-Id: ");
	lines_put(&l, req->job.facts.id);
	cors_lines(&req->cors, req->w->conf, &l);
	if (req->framing_out == FRAMING_LENGTH) {
		lines_put(&l, "\r\nContent-Length: ");
		lines_number(&l, length);
	} else if (req->framing_out == FRAMING_CHUNKED) {
		lines_put(&l, "\r\nTransfer-Encoding: chunked");
	}
	if (!req->keep_alive)
		lines_put(&l, "\r\nConnection: close");
	else if (req->http10)
		lines_put(&l, "\r\nConnection: keep-alive");
	lines_put(&l, "\r\n");
	return (struct iovec){buf, l.n};
}

/* Writes to the client, and stops reading from the engine while the socket is full.  The client
 * notices a broken connection itself and raises RQ_CLIENT_GONE. */
static void
put(struct req *req, const struct iovec *iov, int n)
{
	req->bytes_out += client_write(req->client, iov, n);
}

static size_t
held_bytes(const struct req *req)
{
	return req->held == NULL ? 0 : evbuffer_get_length(req->held);
}

void
relay_reset(struct req *req)
{
	relay_drop_held(req);
	req->relay = RELAY_PLAIN;
	req->job.sent = SENT_NOTHING;
}

void
relay_drop_held(struct req *req)
{
	if (req->held != NULL)
		evbuffer_free(req->held);
	req->held = NULL;
}

bool
relay_contains(const struct req *req, const struct span *pieces, size_t n, const char *word)
{
	const size_t len = strlen(word);
	struct membuf all = {NULL, 0, 0};
	bool found;

	if (held_bytes(req) == 0 && n == 1)
		return pieces[0].n > 0 && memmem(pieces[0].p, pieces[0].n, word, len) != NULL;
	if (held_bytes(req) > 0)
		membuf_add(&all, evbuffer_pullup(req->held, -1), held_bytes(req));
	for (size_t i = 0; i < n; i++)
		membuf_add(&all, pieces[i].p, pieces[i].n);
	found = all.n > 0 && memmem(all.p, all.n, word, len) != NULL;
	membuf_free(&all);
	return found;
}

static void
hold(struct req *req, const void *p, size_t n)
{
	if (n == 0)
		return;
	if (req->held == NULL)
		req->held = evbuffer_new();
	(void)evbuffer_add(req->held, p, n);
}

static void
count_events(struct req *req, uint64_t n)
{
	uint64_t now;

	if (n == 0)
		return;
	req->events += n;
	now = clock_us();
	if (req->t_event_us != 0)
		metric_observe(req->w->slab, req->job.facts.pool->id, H_GAP, now - req->t_event_us);
	req->t_event_us = now;
	metric_add(req->w->slab, M_EVENTS, n);
}

void
relay_begin(struct req *req, const struct leg *leg)
{
	req->relay = leg->sse && leg->status == 200                 ? RELAY_STREAM
		     : !req->job.facts.stream || leg->status != 200 ? RELAY_SHORT
								    : RELAY_PLAIN;
}

/*
 * Where the last event that ends in these pieces ends: all before pieces[i], and `at` bytes of it.
 */
struct cut {
	size_t i, at;
};

static struct cut
last_event_end(struct req *req, struct sse *sse, const struct span *pieces, size_t n)
{
	struct cut cut = {0, 0};
	uint64_t before = sse->events;

	for (size_t i = 0; i < n; i++) {
		size_t end = sse_feed(sse, pieces[i].p, pieces[i].n);

		if (end > 0)
			cut = (struct cut){i, end};
	}
	count_events(req, sse->events - before);
	return cut;
}

#define CHUNK_SIZE 18 /* of a chunk-size line: 16 digits and CRLF */

/*
 * Writes the chunk-size line of n bytes at the end of buf.  Without printf, which would cost
 * a quarter of an event: one line is written per event.
 */
static struct iovec
chunk_size(char buf[CHUNK_SIZE], size_t n)
{
	char *p = &buf[CHUNK_SIZE - 2];

	memcpy(p, "\r\n", 2);
	do
		*--p = "0123456789abcdef"[n & 0xf];
	while ((n >>= 4) != 0);
	return (struct iovec){p, CHUNK_SIZE - (size_t)(p - buf)};
}

/* A stream tells nginx in front of the router not to buffer the answer (proxy_buffering of
 * ngx_http_proxy_module). */
static struct iovec
end_of_head(enum relay_kind relay)
{
	static const char lines[] = "X-Accel-Buffering: no\r\n\r\n";
	const size_t skip = relay == RELAY_STREAM ? 0 : sizeof(lines) - 3;

	return (struct iovec){text(lines + skip), sizeof(lines) - 1 - skip};
}

/* Sends one client chunk (or plain bytes): head lines if not sent yet, held bytes, the payload. */
static void
send_out(struct req *req, struct leg *leg, const struct span *pieces, size_t n, bool done)
{
	struct iovec iov[RELAY_PIECES + 8];
	char lines[RELAY_HEAD], size[CHUNK_SIZE];
	size_t total = held_bytes(req);
	int k = 0;

	for (size_t i = 0; i < n; i++)
		total += pieces[i].n;
	if (req->job.sent == SENT_NOTHING) {
		bool whole = done && req->relay != RELAY_STREAM;

		/* a stream is always chunked: an error event may have to be added */
		iov[k++] = open_answer(req, lines, leg->status,
			whole || (leg_length_known(leg) && req->relay != RELAY_STREAM),
			whole ? total : leg->length);
		iov[k++] = (struct iovec){leg->head, leg->head_len};
		iov[k++] = end_of_head(req->relay);
	}
	if (req->framing_out == FRAMING_CHUNKED && total > 0)
		iov[k++] = chunk_size(size, total);
	if (req->held != NULL)
		iov[k++] = (struct iovec){evbuffer_pullup(req->held, -1), held_bytes(req)};
	for (size_t i = 0; i < n; i++)
		iov[k++] = (struct iovec){text(pieces[i].p), pieces[i].n};
	if (req->framing_out == FRAMING_CHUNKED && total > 0)
		iov[k++] = (struct iovec){text("\r\n"), 2};
	if (req->framing_out == FRAMING_CHUNKED && done)
		iov[k++] = (struct iovec){text("0\r\n\r\n"), 5};
	if (k > 0)
		put(req, iov, k);
	relay_drop_held(req);
}

void
relay_payload(struct req *req, struct leg *leg, struct sse *sse, const struct span *in, size_t n,
	bool done)
{
	bool half = false;
	struct cut cut = {n, 0};
	struct span pieces[RELAY_PIECES];
	size_t nsend;

	if (req->relay == RELAY_STREAM)
		cut = last_event_end(req, sse, in, n);
	else if (req->relay == RELAY_SHORT && req->job.sent == SENT_NOTHING)
		cut = (struct cut){0, 0}; /* the answer waits for its end */
	if (done)
		cut = (struct cut){n, 0};

	if (cut.i == 0 && cut.at == 0 && !done) {
		for (size_t i = 0; i < n; i++)
			hold(req, in[i].p, in[i].n);
		if (held_bytes(req) <= RELAY_HOLD)
			return;
		half = true; /* larger than RELAY_HOLD: passes unchanged */
		n = 0;
	}
	nsend = cut.i < n ? cut.i : n;
	if (nsend > 0)
		memcpy(pieces, in, nsend * sizeof(*in));
	if (nsend < n && cut.at > 0)
		pieces[nsend++] = (struct span){in[cut.i].p, cut.at};
	half = half || (nsend == 0 && req->job.sent == SENT_HALF);
	send_out(req, leg, pieces, nsend, done);
	if (req->job.sent != SENT_NOTHING)
		req->job.sent = half ? SENT_HALF : SENT_WHOLE;
	for (size_t i = cut.i; i < n; i++) {
		size_t skip = i == cut.i ? cut.at : 0;

		hold(req, in[i].p + skip, in[i].n - skip);
	}
	if (req->state == REQ_SERVE && client_full(req->client))
		leg_hold(leg, true);
}

void
relay_events(struct req *req, const char *p, size_t n)
{
	static const char type[] = "Content-Type: text/event-stream; charset=utf-8\r\n"
				   "Cache-Control: no-cache\r\n";
	/* an engine's own lines if its events are only followed */
	const struct leg *d = attempt_decode_leg(req->job.branches[0].attempt);
	struct iovec iov[6];
	char lines[RELAY_HEAD], size[CHUNK_SIZE];
	uint64_t events = 0;
	size_t at = 0, len;
	int k = 0;

	if (req->job.sent == SENT_NOTHING) {
		req->relay = RELAY_STREAM;
		iov[k++] = open_answer(req, lines, 200, false, 0);
		if (req->job.answer == NULL) {
			iov[k++] = (struct iovec){d->head, d->head_len};
		} else {
			iov[k++] = (struct iovec){text(type), sizeof(type) - 1};
		}
		iov[k++] = end_of_head(req->relay);
	}
	if (req->framing_out == FRAMING_CHUNKED)
		iov[k++] = chunk_size(size, n);
	iov[k++] = (struct iovec){text(p), n};
	if (req->framing_out == FRAMING_CHUNKED)
		iov[k++] = (struct iovec){text("\r\n"), 2};
	put(req, iov, k);
	for (; (len = sse_next(p + at, n - at)) > 0; at += len)
		events++;
	count_events(req, events);
	if (client_full(req->client))
		for (uint32_t i = 0; i < req->job.nbranches; i++)
			leg_hold(attempt_decode_leg(req->job.branches[i].attempt), true);
}

void
relay_end_events(struct req *req)
{
	if (req->framing_out == FRAMING_CHUNKED)
		put(req, &(struct iovec){text("0\r\n\r\n"), 5}, 1);
}

bool
relay_complete(struct req *req, const struct sse *sse)
{
	if (req->relay != RELAY_STREAM || !sse->done || held_bytes(req) > 0)
		return false;
	if (req->framing_out == FRAMING_CHUNKED)
		put(req, &(struct iovec){text("0\r\n\r\n"), 5}, 1);
	else
		req->keep_alive = false;
	return true;
}

#define ERROR_TEXT 1600 /* 200 bytes of message, each as \u00xx */

/* Returns the member that an unknown name stands in, as vLLM says it, with 404 as the error's code
 * (check_model() in its entrypoints/openai/models/serving.py, _make_not_found_error() in
 * entrypoints/openai/responses/serving.py); NULL: the end is of another kind. */
static const char *
unknown(enum req_end end)
{
	if (end == END_MODEL_NOT_FOUND)
		return "\"model\"";
	return end == END_RESPONSE_NOT_FOUND ? "\"response_id\"" : NULL;
}

/*
 * Writes the error's JSON.  Anthropic's paths have `type` beside `error` (AnthropicErrorResponse
 * in its entrypoints/anthropic/protocol.py).
 */
static void
error_json(const struct req *req, char buf[ERROR_TEXT], const char *type, const char *code,
	const char *message)
{
	const char *param = unknown(req->job.end);
	char quoted[1300], word[64];

	if (json_quote(quoted, sizeof(quoted), message, strlen(message), 200) == -1)
		(void)snprintf(quoted, sizeof(quoted), "\"\"");
	if (route_is_anthropic(req->job.facts.route) && param != NULL) {
		(void)snprintf(buf, ERROR_TEXT,
			"{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":%s}}", type,
			quoted);
		return;
	}
	(void)snprintf(word, sizeof(word), "\"%s\"", code);
	(void)snprintf(buf, ERROR_TEXT,
		"{%s\"error\":{\"message\":%s,\"type\":\"%s\",\"param\":%s,\"code\":%s}}",
		route_is_anthropic(req->job.facts.route) ? "\"type\":\"error\"," : "", quoted, type,
		param != NULL ? param : "null", param != NULL ? "404" : word);
}

/* Ends a started answer: in a stream with an error event of these pieces of JSON, then with the close. */
static void
cut_with(struct req *req, const struct span json[3])
{
	const char *begin =
		route_is_anthropic(req->job.facts.route) ? "event: error\ndata: " : "data: ";
	const char *half = req->job.sent == SENT_HALF ? "\n\n" : "";
	char size[CHUNK_SIZE];
	struct iovec iov[8];
	size_t total = strlen(half) + strlen(begin) + 2;
	int k = 0;

	if (req->relay != RELAY_STREAM || req->framing_out != FRAMING_CHUNKED) {
		req->keep_alive = false; /* the missing bytes and the close show the failure */
		client_cut(req->client);
	}
	if (req->relay != RELAY_STREAM)
		return;
	for (int i = 0; i < 3; i++)
		total += json[i].n;
	if (req->framing_out == FRAMING_CHUNKED)
		iov[k++] = chunk_size(size, total);
	iov[k++] = (struct iovec){text(half), strlen(half)};
	iov[k++] = (struct iovec){text(begin), strlen(begin)};
	for (int i = 0; i < 3; i++)
		iov[k++] = (struct iovec){text(json[i].p), json[i].n};
	iov[k++] = (struct iovec){text("\n\n"), 2};
	if (req->framing_out == FRAMING_CHUNKED)
		iov[k++] = (struct iovec){text("\r\n0\r\n\r\n"), 7};
	put(req, iov, k);
}

void
relay_cut(struct req *req, const char *code, const char *message)
{
	char error[ERROR_TEXT];

	error_json(req, error, "server_error", code, message);
	cut_with(req, (struct span[3]){{error, strlen(error)}});
}

/* The JSON of a refusal in one line, its error object in `error`.  Returns false if it is none. */
static bool
refusal_json(struct span body, struct span json[3])
{
	struct splice_seg v;

	if (memchr(body.p, '\n', body.n) != NULL || memchr(body.p, '\r', body.n) != NULL)
		return false;
	json[1] = body;
	if (splice_member_raw(body.p, body.n, "error", &v) == 1)
		return v.p[0] == '{';
	/* vLLM to 0.10 and SGLang: the members of the error stand outside */
	json[0] = (struct span){"{\"error\":", 9};
	json[2] = (struct span){"}", 1};
	return splice_member_raw(body.p, body.n, "message", &v) == 1 && v.p[0] == '"';
}

void
relay_cut_refused(struct req *req, const char *code, struct span body)
{
	static const char silent[] = "the engine refused without saying why";
	struct span json[3] = {{"", 0}, {"", 0}, {"", 0}};
	char message[400];

	if (refusal_json(body, json))
		cut_with(req, json);
	else if (json_error_message(body.p, body.n, message, sizeof(message)))
		relay_cut(req, code, message);
	else
		relay_cut(req, code, silent);
}

void
relay_reply(struct req *req, int status, const char *head, size_t head_len, const char *type,
	const void *body, size_t n)
{
	char lines[RELAY_HEAD], ctype[128] = "";
	struct iovec iov[5];
	int k = 0;

	if (type != NULL)
		(void)snprintf(ctype, sizeof(ctype), "Content-Type: %s\r\n", type);
	iov[k++] = open_answer(req, lines, status, true, n);
	iov[k++] = (struct iovec){text(head), head_len};
	iov[k++] = (struct iovec){ctype, strlen(ctype)};
	iov[k++] = (struct iovec){text("\r\n"), 2};
	if (!req->head_only && n > 0 && relay_has_body(status))
		iov[k++] = (struct iovec){text(body), n};
	put(req, iov, k);
}

void
relay_piece(struct req *req, const struct page_kind *kind, struct span piece, bool last)
{
	char lines[RELAY_HEAD], more[256], size[CHUNK_SIZE];
	struct iovec iov[6];
	int k = 0;

	if (req->job.sent == SENT_NOTHING) {
		iov[k++] = open_answer(req, lines, 200, false, 0);
		(void)snprintf(
			more, sizeof(more), "Content-Type: %s\r\n%s\r\n", kind->type, kind->head);
		iov[k++] = (struct iovec){more, strlen(more)};
	}
	if (!req->head_only && piece.n > 0) {
		if (req->framing_out == FRAMING_CHUNKED)
			iov[k++] = chunk_size(size, piece.n);
		iov[k++] = (struct iovec){text(piece.p), piece.n};
		if (req->framing_out == FRAMING_CHUNKED)
			iov[k++] = (struct iovec){text("\r\n"), 2};
	}
	if (!req->head_only && last && req->framing_out == FRAMING_CHUNKED)
		iov[k++] = (struct iovec){text("0\r\n\r\n"), 5};
	if (k > 0)
		put(req, iov, k);
}

void
relay_error(struct req *req, int status, const char *type, const char *code, const char *message)
{
	char head[64], body[ERROR_TEXT];

	error_json(req, body, type, code, message);
	if (status == 405 && req->job.detail != NULL)
		(void)snprintf(head, sizeof(head), "Allow: %s\r\n", req->job.detail);
	else if (status == 401 && req->job.end == END_API_KEY)
		(void)snprintf(head, sizeof(head), "WWW-Authenticate: %s\r\n",
			/* a browser asks for the key, and sends it with all that the page gets */
			route_is_status(req->job.facts.route) ? "Basic realm=\"pdrouter\""
							      : "Bearer");
	else
		retry_after_line(req, head, sizeof(head));
	relay_reply(req, status, head, strlen(head), "application/json", body, strlen(body));
}
