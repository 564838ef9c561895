#include "master/exporter/collector.h"

#include <arpa/inet.h>
#include <assert.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "shm/base/clock.h"
#include "shm/base/mem.h"

#define HEAD_MAX (16u << 10)
#define BODY_MAX (4u << 20) /* an answer that is longer is none */

enum state {
	IDLE,
	NO_CONNECTION, /* none could be begun: the next turn of the loop reports it */
	HEAD,
	BODY
};

struct collector {
	struct event_base *base;
	collector_fn *fn;
	void *arg;
	struct sockaddr_storage addr;
	socklen_t addr_len;
	char *head_lines; /* of each request, without Content-Length */
	enum state state;
	struct bufferevent *bev; /* NULL: no connection */
	bool reused;             /* fact: the connection has served a request before */
	struct event *clock;
	const char *body;
	size_t nbody;

	/* the answer */
	size_t scanned; /* http_head_end()'s memory */
	int status;
	bool keep_alive;
	uint64_t retry_after_s;
	struct http_body framing;
	struct membuf answer;
	size_t answer_bytes; /* kept or not */
};

static void send_request(struct collector *c);

/* --- the end of an exchange ---------------------------------------------------------------------- */

static void
hang_up(struct collector *c)
{
	if (c->bev != NULL)
		bufferevent_free(c->bev);
	c->bev = NULL;
}

static void
finish(struct collector *c, const char *error)
{
	struct membuf kept = c->answer;
	const struct collector_answer a = {.status = error == NULL ? c->status : 0,
		.error = error,
		.retry_after_s = c->retry_after_s,
		.body = {kept.p, kept.n}};

	c->answer = (struct membuf){0};
	c->state = IDLE;
	(void)event_del(c->clock);
	/* what is left of the request refers to the caller's text; what is left of the answer is of no request */
	if (error != NULL || !c->keep_alive ||
		evbuffer_get_length(bufferevent_get_output(c->bev)) > 0 ||
		evbuffer_get_length(bufferevent_get_input(c->bev)) > 0)
		hang_up(c);
	c->fn(c->arg, &a); /* it may post again */
	membuf_free(&kept);
}

static void
on_clock(evutil_socket_t fd, short what, void *arg)
{
	struct collector *c = arg;

	(void)fd;
	(void)what;
	finish(c, c->state == NO_CONNECTION ? "no connection could be begun"
					    : "it did not answer in time");
}

/* --- reading the answer -------------------------------------------------------------------------- */

static uint64_t
retry_after(const struct http_head *h)
{
	const struct http_header *f = http_header(h, "retry-after");
	uint64_t s = 0;

	if (f == NULL || f->value.n == 0 || f->value.n > 5)
		return 0;
	for (size_t i = 0; i < f->value.n; i++) {
		if (f->value.p[i] < '0' || f->value.p[i] > '9')
			return 0; /* a date */
		s = s * 10 + (uint64_t)(f->value.p[i] - '0');
	}
	return s;
}

/* Returns false if the answer is no HTTP. */
static bool
take_head(struct collector *c, struct evbuffer *in)
{
	const size_t have = evbuffer_get_length(in);
	const char *p = (const char *)evbuffer_pullup(in, -1);
	const ssize_t n = have == 0 ? 0 : http_head_end(p, have, &c->scanned);
	struct http_head h;

	if (n == 0)
		return have <= HEAD_MAX;
	if (n < 0 || http_head_parse(&h, HTTP_KIND_RESPONSE, p, (size_t)n, false) != 0 ||
		h.status < 200)
		return false;
	c->status = h.status;
	c->keep_alive = h.keep_alive;
	c->retry_after_s = retry_after(&h);
	http_body_init(&c->framing, h.framing, h.content_length);
	c->state = BODY;
	(void)evbuffer_drain(in, (size_t)n);
	return true;
}

static void
keep(struct collector *c, struct span piece)
{
	const size_t room = COLLECTOR_ANSWER_MAX - c->answer.n;

	c->answer_bytes += piece.n;
	membuf_add(&c->answer, piece.p, piece.n < room ? piece.n : room);
}

static bool
take_body(struct collector *c, struct evbuffer *in)
{
	while (!c->framing.done && evbuffer_get_length(in) > 0) {
		const size_t have = evbuffer_get_contiguous_space(in);
		const char *p = (const char *)evbuffer_pullup(in, (ev_ssize_t)have);
		struct span piece;
		const ssize_t n = http_body_next(&c->framing, p, have, &piece);

		if (n <= 0)
			return false;
		keep(c, piece);
		(void)evbuffer_drain(in, (size_t)n);
	}
	return c->answer_bytes <= BODY_MAX;
}

static void
on_readable(struct bufferevent *bev, void *arg)
{
	struct collector *c = arg;
	struct evbuffer *in = bufferevent_get_input(bev);
	bool good = c->state != IDLE; /* bytes that belong to no request */

	if (c->state == HEAD)
		good = take_head(c, in);
	if (good && c->state == BODY)
		good = take_body(c, in);
	if (!good && c->state == IDLE)
		hang_up(c);
	else if (!good)
		finish(c, "its answer is no HTTP, or too long");
	else if (c->state == BODY && c->framing.done)
		finish(c, NULL);
}

/* --- the connection ------------------------------------------------------------------------------ */

static void
on_event(struct bufferevent *bev, short what, void *arg)
{
	struct collector *c = arg;
	const bool answering =
		c->state == BODY || evbuffer_get_length(bufferevent_get_input(bev)) > 0;

	if ((what & BEV_EVENT_CONNECTED) != 0)
		return;
	if (c->state == IDLE) {
		hang_up(c);
	} else if (c->reused && !answering) {
		hang_up(c);
		send_request(c);
	} else if (c->state == BODY && c->framing.framing == HTTP_BODY_UNTIL_CLOSE &&
		   (what & BEV_EVENT_EOF) != 0) {
		c->keep_alive = false;
		finish(c, NULL);
	} else {
		finish(c, (what & BEV_EVENT_EOF) != 0 ? "it closed the connection"
						      : "the connection failed");
	}
}

/* Returns false if the kernel has no socket, or no way to that address; a connection that is refused later is an event. */
static bool
dial(struct collector *c)
{
	c->bev = bufferevent_socket_new(
		c->base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
	if (c->bev == NULL)
		return false;
	bufferevent_setcb(c->bev, on_readable, NULL, on_event, c);
	(void)bufferevent_setwatermark(c->bev, EV_READ, 0, HEAD_MAX + 1);
	(void)bufferevent_enable(c->bev, EV_READ | EV_WRITE);
	return bufferevent_socket_connect(c->bev, (struct sockaddr *)&c->addr, (int)c->addr_len) ==
	       0;
}

/* From its first byte, over a connection that is there or a new one. */
static void
send_request(struct collector *c)
{
	struct evbuffer *out;

	c->reused = c->bev != NULL;
	c->state = HEAD;
	c->scanned = c->answer_bytes = 0;
	c->status = 0;
	c->retry_after_s = 0;
	c->keep_alive = false;
	if (c->bev == NULL && !dial(c)) {
		hang_up(c);
		c->state = NO_CONNECTION;
		event_active(c->clock, EV_TIMEOUT,
			0); /* fn is never called from within collector_post() */
		return;
	}
	out = bufferevent_get_output(c->bev);
	(void)evbuffer_add_printf(out, "%sContent-Length: %zu\r\n\r\n", c->head_lines, c->nbody);
	(void)evbuffer_add_reference(out, c->body, c->nbody, NULL, NULL);
}

void
collector_post(struct collector *c, const char *body, size_t n)
{
	const struct timeval limit = clock_tv(COLLECTOR_MS);

	assert(c->state == IDLE);
	c->body = body;
	c->nbody = n;
	(void)event_add(c->clock, &limit);
	send_request(c);
}

/* --- life ---------------------------------------------------------------------------------------- */

static void
set_address(struct collector *c, const struct http_url *url)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)&c->addr;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&c->addr;

	if (url->ipv6) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(url->port);
		(void)inet_pton(AF_INET6, url->host, &v6->sin6_addr);
		c->addr_len = sizeof(*v6);
	} else {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(url->port);
		(void)inet_pton(AF_INET, url->host, &v4->sin_addr);
		c->addr_len = sizeof(*v4);
	}
}

struct collector *
collector_new(struct event_base *base, const char *url, collector_fn *fn, void *arg)
{
	struct collector *c = MEM_NEW(struct collector);
	struct http_url parsed;
	const char *why;

	c->base = base;
	c->fn = fn;
	c->arg = arg;
	c->clock = evtimer_new(base, on_clock, c);
	assert(c->clock != NULL);
	if (http_url_parse(url, &parsed, &why) != 0)
		abort(); /* the configuration has checked it */
	set_address(c, &parsed);
	c->head_lines = mem_printf("POST %s/v1/traces HTTP/1.1\r\nHost: %s%s%s:%u\r\n"
				   "User-Agent: pdrouter/" PDROUTER_VERSION
				   "\r\nContent-Type: application/json\r\n",
		parsed.prefix, parsed.ipv6 ? "[" : "", parsed.host, parsed.ipv6 ? "]" : "",
		parsed.port);
	return c;
}

void
collector_free(struct collector **pc)
{
	struct collector *c = *pc;

	if (c == NULL)
		return;
	hang_up(c);
	event_free(c->clock);
	membuf_free(&c->answer);
	free(c->head_lines);
	free(c);
	*pc = NULL;
}
