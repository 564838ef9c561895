#include "tests/engine/conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/engine/fault.h"
#include "tests/engine/gen.h"
#include "tests/engine/last.h"
#include "tests/engine/route.h"
#include "tests/engine/sim.h"

#define IN_MAX ((size_t)256 * 1024) /* pipelined bytes kept while a request is being answered */
#define KEEP_CAP 65536              /* buffers larger than this are given back between requests */

static void feed(struct conn *c, const char *p, size_t n);

/* ---- idle connections: one list in order of time, one timer for its head ----
 * As uvicorn: only a connection that has had an answer is closed for being idle. */

static void
arm_idle(struct sim *sim)
{
	struct conn *c = TAILQ_FIRST(&sim->idle);
	uint64_t due, now = sim_now_us();
	struct timeval tv;

	if (c == NULL || event_pending(&sim->idle_timer, EV_TIMEOUT, NULL))
		return;
	due = c->idle_since_us + (uint64_t)(sim->o.idle_timeout_s * 1e6);
	due = due > now ? due - now : 0;
	tv.tv_sec = (time_t)(due / 1000000);
	tv.tv_usec = (suseconds_t)(due % 1000000);
	(void)event_add(&sim->idle_timer, &tv);
}

static void
on_idle(evutil_socket_t fd, short what, void *arg)
{
	struct sim *sim = arg;
	uint64_t limit = (uint64_t)(sim->o.idle_timeout_s * 1e6), now = sim_now_us();
	struct conn *c;

	(void)fd;
	(void)what;
	while ((c = TAILQ_FIRST(&sim->idle)) != NULL && now - c->idle_since_us >= limit)
		conn_kill(c, false);
	arm_idle(sim);
}

void
conn_idle_start(struct sim *sim)
{
	(void)evtimer_assign(&sim->idle_timer, sim->base, on_idle, sim);
}

static void
idle_enter(struct conn *c)
{
	if (c->sim->o.idle_timeout_s <= 0)
		return;
	c->is_idle = true;
	c->idle_since_us = sim_now_us();
	TAILQ_INSERT_TAIL(&c->sim->idle, c, idle);
	arm_idle(c->sim);
}

static void
idle_leave(struct conn *c)
{
	if (c->is_idle)
		TAILQ_REMOVE(&c->sim->idle, c, idle);
	c->is_idle = false;
}

/* ---- the end ---- */

static void
set_paused(struct conn *c, bool on)
{
	if (c->paused != on)
		c->sim->paused += on ? 1 : -1;
	c->paused = on;
}

void
conn_kill(struct conn *c, bool reset)
{
	struct linger hard = {1, 0};

	if (c->state == CONN_DEAD)
		return;
	if (reset)
		(void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	idle_leave(c);
	set_paused(c, false);
	(void)event_del(&c->rd);
	(void)event_del(&c->wr);
	(void)event_del(&c->tmr);
	(void)close(c->fd);
	c->state = CONN_DEAD;
	c->sim->nconns--;
	TAILQ_REMOVE(&c->sim->conns, c, all);
	TAILQ_INSERT_TAIL(&c->sim->dead, c, all);
	if (c->gen != NULL)
		gen_gone(c->gen);
	c->gen = NULL;
	fault_put(&c->fault);
}

void
conn_reap(struct sim *sim)
{
	struct conn *c;

	while ((c = TAILQ_FIRST(&sim->dead)) != NULL) {
		TAILQ_REMOVE(&sim->dead, c, all);
		buf_free(&c->url);
		buf_free(&c->head);
		buf_free(&c->body);
		buf_free(&c->in);
		buf_free(&c->out);
		free(c);
	}
}

/* ---- writing ---- */

bool
conn_can_write(const struct conn *c)
{
	return c->state != CONN_DEAD && !c->broken && c->out.len == 0;
}

bool
conn_left(const struct conn *c)
{
	char byte;

	return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

void
conn_write(struct conn *c, const char *p, size_t n)
{
	ssize_t w = 0;

	if (c->state == CONN_DEAD || c->broken)
		return;
	if (c->out.len == 0)
		w = send(c->fd, p, n, MSG_NOSIGNAL);
	if (w == -1 && errno != EAGAIN && errno != EINTR) {
		c->broken = true; /* the read event sees the same and cleans up */
		(void)event_add(&c->rd, NULL);
		return;
	}
	if (w < 0)
		w = 0;
	if ((size_t)w < n) {
		buf_add(&c->out, p + w, n - (size_t)w);
		(void)event_add(&c->wr, NULL);
	}
}

bool
conn_chunk(struct conn *c, char *p, size_t n)
{
	static const char digits[] = "0123456789abcdef";
	char *from = p;
	size_t left = n;

	if (c->chunked) {
		*--from = '\n';
		*--from = '\r';
		do
			*--from = digits[left & 15];
		while ((left >>= 4) != 0);
		p[n] = '\r';
		p[n + 1] = '\n';
		n += (size_t)(p - from) + 2;
	}
	conn_write(c, from, n);
	if (c->out.len)
		set_paused(c, true);
	return conn_can_write(c);
}

static void
on_writable(evutil_socket_t fd, short what, void *arg)
{
	struct conn *c = arg;
	ssize_t w = send(fd, c->out.p, c->out.len, MSG_NOSIGNAL);

	(void)what;
	if (w == -1 && (errno == EAGAIN || errno == EINTR)) {
		(void)event_add(&c->wr, NULL);
		return;
	}
	if (w == -1) {
		conn_kill(c, false);
		return;
	}
	buf_cut(&c->out, (size_t)w);
	if (c->out.len) {
		(void)event_add(&c->wr, NULL);
		return;
	}
	buf_trim(&c->out, 0);
	set_paused(c, false);
	if (c->state == CONN_FLUSH)
		conn_finish(c);
	else if (c->gen != NULL)
		gen_go_on(c->gen);
}

/* ---- answers ---- */

static const char *
date_line(void)
{
	static char line[64];
	static time_t made;
	struct timespec now;
	struct tm tm;

	(void)clock_gettime(CLOCK_REALTIME_COARSE, &now);
	if (now.tv_sec != made) {
		made = now.tv_sec;
		(void)gmtime_r(&made, &tm);
		(void)strftime(line, sizeof(line), "date: %a, %d %b %Y %H:%M:%S GMT\r\n", &tm);
	}
	return line;
}

void
conn_status(struct conn *c, int status)
{
	route_count(c->sim, c->route, status);
	last_status(c->sim->last[!c->is_gen], c->last_seq, status);
}

static void
head_begin(struct conn *c, struct buf *b, int status)
{
	const char *rid;
	size_t n;

	conn_status(c, status);
	BUF_LIT(b, "HTTP/1.1 ");
	buf_u64(b, (uint64_t)status);
	BUF_LIT(b, " ");
	buf_str(b, http_status_str((enum http_status)status));
	BUF_LIT(b, "\r\n");
	buf_str(b, date_line());
	buf_str(b, c->sim->o.engine == FLAVOUR_VLLM ? "server: uvicorn\r\n" : "server: pdsim\r\n");
	if (!c->keep_alive)
		BUF_LIT(b, "connection: close\r\n");
	rid = c->sim->o.echo_request_id ? conn_header(c, "x-request-id", &n) : NULL;
	if (rid != NULL) {
		BUF_LIT(b, "x-request-id: ");
		buf_add(b, rid, n);
		BUF_LIT(b, "\r\n");
	}
}

void
conn_reply(struct conn *c, int status, const char *type, const char *extra, const char *body,
	size_t len)
{
	static struct buf b; /* not sim->scratch: `body` may be that */
	size_t head;

	b.len = 0;
	head_begin(c, &b, status);
	BUF_LIT(&b, "content-length: ");
	buf_u64(&b, len);
	BUF_LIT(&b, "\r\n");
	if (type != NULL)
		buf_fmt(&b, "content-type: %s\r\n", type);
	if (extra != NULL)
		buf_str(&b, extra);
	BUF_LIT(&b, "\r\n");
	head = b.len;
	if (c->parser.method != HTTP_HEAD)
		buf_add(&b, body, len);
	if (c->fault == NULL || !fault_on_reply(c, b.p, head, b.len)) {
		conn_write(c, b.p, b.len);
		conn_finish(c);
	}
	buf_trim(&b, 4 << 20);
}

void
conn_error_json(struct conn *c, struct buf *b, int status, const char *type, const char *msg)
{
	int flat = c->sim->o.flat_errors;

	if (flat && status == 400 && strcmp(buf_cstr(&c->url), "/generate") == 0) { /* SGLang */
		BUF_LIT(b, "{\"error\":{\"message\":");
		buf_json(b, msg, strlen(msg));
		BUF_LIT(b, "}}");
		return;
	}
	/* AnthropicErrorResponse of vLLM's entrypoints/anthropic/protocol.py */
	if (strncmp(buf_cstr(&c->url), "/v1/messages", 12) == 0) {
		buf_fmt(b, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
		buf_json(b, msg, strlen(msg));
		BUF_LIT(b, "}}");
		return;
	}
	buf_str(b, flat ? "{\"object\":\"error\"," : "{\"error\":{");
	BUF_LIT(b, "\"message\":");
	buf_json(b, msg, strlen(msg));
	buf_fmt(b, ",\"type\":\"%s\",\"param\":null,\"code\":%d%s", type, status,
		flat ? "}" : "}}");
}

void
conn_error(struct conn *c, int status, const char *type, const char *fmt, ...)
{
	struct buf b = {0};
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	conn_error_json(c, &b, status, type, text);
	conn_reply(c, status, "application/json", NULL, b.p, b.len);
	buf_free(&b);
}

void
conn_stream_head(struct conn *c)
{
	static struct buf b;

	b.len = 0;
	c->chunked = c->parser.http_minor >= 1;
	if (!c->chunked)
		c->keep_alive = false;
	head_begin(c, &b, 200);
	BUF_LIT(&b, "content-type: text/event-stream; charset=utf-8\r\n");
	if (c->chunked)
		BUF_LIT(&b, "transfer-encoding: chunked\r\n");
	BUF_LIT(&b, "\r\n");
	conn_write(c, b.p, b.len);
}

void
conn_finish(struct conn *c)
{
	if (c->state == CONN_DEAD || c->broken)
		return;
	if (c->out.len) {
		c->state = CONN_FLUSH;
		return;
	}
	c->gen = NULL;
	fault_put(&c->fault);
	(void)event_del(&c->tmr);
	if (!c->keep_alive) {
		conn_kill(c, false);
		return;
	}
	c->served++;
	c->begun = false;
	c->state = CONN_READ;
	buf_trim(&c->body, KEEP_CAP);
	idle_enter(c);
	if (c->feeding)
		return;
	(void)event_add(&c->rd, NULL);
	while (c->in.len && c->state == CONN_READ) {
		struct buf in = c->in;

		c->in = (struct buf){0};
		feed(c, in.p, in.len);
		buf_free(&in);
	}
}

void
conn_park(struct conn *c)
{
	conn_status(c, 0);
}

void
conn_close_after(struct conn *c)
{
	c->keep_alive = false;
	conn_finish(c);
}

static void
on_tmr(evutil_socket_t fd, short what, void *arg)
{
	struct conn *c = arg;

	(void)fd;
	(void)what;
	c->on_timer(c);
}

void
conn_after(struct conn *c, double ms, void (*fn)(struct conn *))
{
	uint64_t us = ms > 0 ? (uint64_t)(ms * 1000) : 0;
	struct timeval tv = {(time_t)(us / 1000000), (suseconds_t)(us % 1000000)};

	c->on_timer = fn;
	(void)event_add(&c->tmr, &tv);
}

/* ---- reading ---- */

const char *
conn_header(struct conn *c, const char *name, size_t *ret_len)
{
	size_t n = strlen(name);
	unsigned i;

	for (i = 0; i < c->nhdr; i++) {
		struct span s = c->hdr[i].name, v = c->hdr[i].value;

		if (s.len != n || strncasecmp(c->head.p + s.at, name, n) != 0)
			continue;
		*ret_len = v.len;
		return c->head.p + v.at;
	}
	return NULL;
}

int64_t
conn_header_int(struct conn *c, const char *name)
{
	size_t i, n = 0;
	const char *v = conn_header(c, name, &n);
	int64_t x = 0;

	for (i = 0; i < n && n < 10 && v[i] >= '0' && v[i] <= '9'; i++)
		x = x * 10 + (v[i] - '0');
	return n > 0 && i == n ? x : -1;
}

static int
on_begin(http_parser *p)
{
	struct conn *c = p->data;

	idle_leave(c);
	c->begun = true;
	c->url.len = c->head.len = c->body.len = 0;
	c->nhdr = 0;
	c->in_value = c->too_big = c->chunked = c->is_gen = false;
	c->refuse = 0;
	return 0;
}

static int
on_url(http_parser *p, const char *at, size_t n)
{
	struct conn *c = p->data;

	buf_add(&c->url, at, n);
	return 0;
}

static int
on_field(http_parser *p, const char *at, size_t n)
{
	struct conn *c = p->data;

	if (c->in_value || c->nhdr == 0) {
		if (c->nhdr == MAX_HDRS) {
			c->refuse = 431;
			return 1;
		}
		memset(&c->hdr[c->nhdr], 0, sizeof(c->hdr[0]));
		c->hdr[c->nhdr++].name.at = (uint32_t)c->head.len;
		c->in_value = false;
	}
	c->hdr[c->nhdr - 1].name.len += (uint32_t)n;
	buf_add(&c->head, at, n);
	return 0;
}

static int
on_value(http_parser *p, const char *at, size_t n)
{
	struct conn *c = p->data;
	struct span *v = &c->hdr[c->nhdr - 1].value;

	if (!c->in_value)
		v->at = (uint32_t)c->head.len;
	c->in_value = true;
	v->len += (uint32_t)n;
	buf_add(&c->head, at, n);
	return 0;
}

static int
on_head_end(http_parser *p)
{
	struct conn *c = p->data;
	const char *v;
	size_t n;

	p->upgrade = 0; /* uvicorn without a WebSocket answers an upgrade as if it were not there */
	c->keep_alive = http_should_keep_alive(p);
	v = conn_header(c, "expect", &n);
	if (v != NULL && n == 12 && strncasecmp(v, "100-continue", n) == 0)
		conn_write(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
	return 0;
}

static int
on_body(http_parser *p, const char *at, size_t n)
{
	struct conn *c = p->data;

	if ((int64_t)(c->body.len + n) > c->sim->o.max_body) {
		c->refuse = 413;
		return 1;
	}
	buf_add(&c->body, at, n);
	return 0;
}

static int
on_complete(http_parser *p)
{
	http_parser_pause(p, 1);
	return 0;
}

static const http_parser_settings settings = {
	.on_message_begin = on_begin,
	.on_url = on_url,
	.on_header_field = on_field,
	.on_header_value = on_value,
	.on_headers_complete = on_head_end,
	.on_body = on_body,
	.on_message_complete = on_complete,
};

static void
refuse(struct conn *c)
{
	int status = c->refuse ? c->refuse : 400;
	static const char text[] = "Invalid HTTP request received.";

	count(c->sim, CTR_bad_requests);
	idle_leave(c);
	c->state = CONN_BUSY;
	c->keep_alive = false;
	c->route = ROUTE_OTHER;
	c->last_seq = 0;
	conn_reply(c, status, "text/plain; charset=utf-8", NULL, text, sizeof(text) - 1);
}

static void
feed(struct conn *c, const char *p, size_t n)
{
	c->feeding = true;
	while (n > 0 && c->state == CONN_READ) {
		size_t k = http_parser_execute(&c->parser, &settings, p, n);

		p += k;
		n -= k;
		if (HTTP_PARSER_ERRNO(&c->parser) == HPE_PAUSED) {
			http_parser_pause(&c->parser, 0);
			c->state = CONN_BUSY;
			route_request(c);
		} else if (HTTP_PARSER_ERRNO(&c->parser) != HPE_OK) {
			refuse(c);
			n = 0;
		}
	}
	c->feeding = false;
	if (n > 0 && c->state != CONN_DEAD)
		buf_add(&c->in, p, n);
}

static void
on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct conn *c = arg;
	struct sim *sim = c->sim;
	ssize_t n;

	(void)what;
	if (c->state == CONN_READ && !c->begun && c->served && fault_take_keepalive(sim, fd)) {
		conn_kill(c, true); /* unread input makes this an RST in any case */
		return;
	}
	n = recv(fd, sim->rbuf, sizeof(sim->rbuf), 0);
	if (n == -1 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n == 0 && c->state == CONN_FLUSH) { /* as asyncio: what is written is sent first */
		c->keep_alive = false;
		(void)event_del(&c->rd);
		return;
	}
	if (n <= 0) {
		conn_kill(c, false);
		return;
	}
	if (c->state == CONN_READ) {
		feed(c, sim->rbuf, (size_t)n);
		return;
	}
	buf_add(&c->in, sim->rbuf, (size_t)n);
	if (c->in.len > IN_MAX && !c->broken)
		(void)event_del(&c->rd);
}

void
conn_new(struct sim *sim, int fd)
{
	struct conn *c = calloc(1, sizeof(*c));
	int one = 1;

	if (c == NULL)
		abort();
	c->sim = sim;
	c->fd = fd;
	c->id = ++sim->next_conn;
	c->state = CONN_READ;
	http_parser_init(&c->parser, HTTP_REQUEST);
	c->parser.data = c;
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (sim->o.sndbuf)
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sim->o.sndbuf, sizeof(sim->o.sndbuf));
	(void)event_assign(&c->rd, sim->base, fd, EV_READ | EV_PERSIST, on_readable, c);
	(void)event_assign(&c->wr, sim->base, fd, EV_WRITE, on_writable, c);
	(void)evtimer_assign(&c->tmr, sim->base, on_tmr, c);
	TAILQ_INSERT_TAIL(&sim->conns, c, all);
	sim->nconns++;
	count(sim, CTR_connections);
	(void)event_add(&c->rd, NULL);
}
