#include "worker/request/client.h"

#include <errno.h>
#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/http/http.h"
#include "proto/wire/proxy.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/accept.h"
#include "shm/base/mem.h"
#include "worker/base/buffered.h"
#include "worker/base/core.h"
#include "worker/net/listen.h"
#include "worker/request/forwarded.h"
#include "worker/request/key_seen.h"

/* bytes a client may send ahead of its answer before it is not read any more */
#define CLIENT_AHEAD (64u << 10)
#define CLIENT_LINGER_MS                                                                           \
	1000 /* time for the client to read an answer to an incomplete request before the reset */
#define LOOKS 4              /* at a client's connection within client.tcp_user */
#define CLIENT_DRAIN_MS 2000 /* time for a request that may have been sent when draining begins */

static void on_client_read(void *arg);
static void on_proxy_read(void *arg);
static void on_client_drained(void *arg);
static void on_client_error(void *arg, int err);
static size_t consume(struct client *c, const char *p, size_t n);

/* The handshake has the time of a head. */
static void
start_tls(struct client *c)
{
	c->deadline_ms = clock_ms() + c->w->conf->live.client_head_ms;
	visit_soon(&c->w->client_rounds, &c->visit);
	if (!sock_start_tls(&c->sock, c->w->tls))
		client_end(c);
}

void
client_new(struct worker *w, int fd, const struct client_origin *from, const struct client_ops *ops)
{
	struct client *c = MEM_NEW(struct client);

	c->w = w;
	c->ops = ops;
	c->from = *from;
	if (w->conf->proxy_protocol != 0 && from->door == DOOR_CLIENTS &&
		forwarded_by_proxy(w->conf, &from->address))
		c->first = FIRST_PROXY;
	c->sock.on_read = on_client_read;
	c->sock.on_drained = on_client_drained;
	c->sock.on_error = on_client_error;
	sock_init(&c->sock, w, fd, false, c);
	sock_watch_peer(&c->sock, w->conf->live.client_tcp_user_ms, false);
	visit_soon(&w->client_rounds, &c->visit);
	TAILQ_INSERT_TAIL(&w->clients, c, link);
	w->nclients[from->door]++;
	accept_count(w->seg, w->slot, w->nclients[DOOR_CLIENTS]);
	metric_add(w->slab, M_CONNS, 1);
	worker_gauge(w, G_OPEN_CONNS, 1);
	c->deadline_ms = clock_ms() + w->conf->live.client_idle_ms;
	c->look_ms = clock_ms() + w->conf->live.client_tcp_user_ms / LOOKS;
	silent_begin(&c->silence, clock_ms());
	worker_need_tick(w);
	if (from->transport == TRANSPORT_TLS && c->first == FIRST_PROXY)
		c->sock.on_read = on_proxy_read;
	else if (from->transport == TRANSPORT_TLS)
		start_tls(c);
}

static void
end(struct client *c, bool stalled)
{
	struct req *req = c->req;

	if (c->ended)
		return;
	c->ended = true;
	c->req = NULL;
	silent_end(c->w, &c->silence);
	sock_close(&c->sock);
	visit_drop(&c->w->client_rounds, &c->visit);
	TAILQ_REMOVE(&c->w->clients, c, link);
	TAILQ_INSERT_TAIL(&c->w->ended_clients, c, link);
	c->w->nclients[c->from.door]--;
	accept_count(c->w->seg, c->w->slot, c->w->nclients[DOOR_CLIENTS]);
	worker_gauge(c->w, G_OPEN_CONNS, -1);
	listen_update(c->w);
	if (req != NULL)
		c->ops->gone(req, stalled);
}

void
client_end(struct client *c)
{
	end(c, false);
}

static size_t
ahead(const struct client *c)
{
	return c->in == NULL ? 0 : evbuffer_get_length(c->in);
}

void
client_free(struct client *c)
{
	buffered_add(c->w, -(int64_t)ahead(c));
	if (c->in != NULL)
		evbuffer_free(c->in);
	key_seen_free(&c->key_seen);
	free(c);
}

/* Returns true if the request reads its head or body now; any other request leaves the bytes in
 * `in`. */
static bool
wants_bytes(const struct client *c)
{
	if (c->closing || (c->req == NULL && c->full))
		return false; /* a client that does not read its answers sends no more requests */
	return c->req == NULL || c->ops->wants_bytes(c->req);
}

/* The tick still notices that the client has left. */
static void
stop_reading(struct client *c)
{
	sock_read_stop(&c->sock);
	visit_soon(&c->w->client_rounds, &c->visit);
}

static void
keep_rest(struct client *c, const char *p, size_t n)
{
	if (n == 0)
		return;
	if (c->in == NULL)
		c->in = evbuffer_new();
	(void)evbuffer_add(c->in, p, n);
	buffered_add(c->w, (int64_t)n);
	if (!wants_bytes(c) && ahead(c) >= CLIENT_AHEAD)
		stop_reading(c);
}

/* Offers the bytes in `in` to the next request. */
static void
consume_ahead(struct client *c)
{
	c->consuming = true;
	while (c->in != NULL && !c->ended && wants_bytes(c)) {
		size_t n = ahead(c), used = consume(c, (const char *)evbuffer_pullup(c->in, -1), n);

		(void)evbuffer_drain(c->in, used);
		buffered_add(c->w, -(int64_t)used);
		if (used == n) {
			evbuffer_free(c->in);
			c->in = NULL;
		} else if (used == 0) {
			break;
		}
	}
	c->consuming = false;
	if (!c->ended && wants_bytes(c))
		sock_read_start(&c->sock);
}

/* Where the next bytes are read to. */
static struct iovec
room(const struct client *c)
{
	struct iovec to = {.iov_len = 0};

	if (c->req != NULL && c->in == NULL)
		to = c->ops->room(c->req);
	return to.iov_len > 0 ? to : (struct iovec){c->w->buf, WORKER_BUF};
}

static void
on_client_read(void *arg)
{
	struct client *c = arg;
	const struct iovec to = room(c);
	const char *got = to.iov_base;
	ssize_t n = sock_read(&c->sock, to.iov_base, to.iov_len);
	size_t used = 0;

	worker_follow(c->w);
	if (n == -EAGAIN)
		return;
	if (n <= 0) {
		client_end(c);
		return;
	}
	metric_add(c->w->slab, M_BYTES_IN, (uint64_t)n);
	if (c->lingering)
		return;
	if (c->in != NULL) {
		keep_rest(c, got, (size_t)n);
		consume_ahead(c);
		return;
	}
	c->consuming = true;
	while (used < (size_t)n && !c->ended && wants_bytes(c)) {
		size_t k = consume(c, got + used, (size_t)n - used);

		used += k;
		if (k == 0)
			break;
	}
	c->consuming = false;
	if (!c->ended)
		keep_rest(c, got + used, (size_t)n - used);
}

/* Of a client that the proxy does not name nothing is known: what its requests say is not believed either. */
static struct address
named_by(const struct proxy_from *from)
{
	struct address a = {.family = AF_UNSPEC};
	struct in6_addr six;

	if (from->version == 6) {
		memcpy(&six, from->ip, sizeof(six));
		return address_of_ipv6(&six);
	}
	if (from->version == 4) {
		a.family = AF_INET;
		memcpy(a.ip, from->ip, 4);
	}
	return a;
}

/* A peer that writes no header, or a broken one, is not served: its requests would be taken for the proxy's own. */
static size_t
consume_proxy(struct client *c, const char *p, size_t n)
{
	struct proxy_from from;
	const ssize_t used = proxy_read(p, n, &from);

	if (used < 0) {
		metric_add(c->w->slab, M_BAD_PROXY, 1);
		client_end(c);
		return n;
	}
	if (used == 0 && c->first == FIRST_PROXY) {
		c->first = FIRST_PROXY_REST;
		c->deadline_ms = clock_ms() + c->w->conf->live.client_head_ms;
		visit_soon(&c->w->client_rounds, &c->visit);
	}
	if (used > 0) {
		c->first = FIRST_REQUEST;
		c->deadline_ms = clock_ms() + c->w->conf->live.client_idle_ms;
		c->from.address = named_by(&from);
	}
	return (size_t)used;
}

/* Before a handshake the header alone is read: all that follows it is the session's. */
static void
on_proxy_read(void *arg)
{
	struct client *c = arg;
	const size_t had = ahead(c);
	ssize_t n = sock_peek(&c->sock, c->w->buf, WORKER_BUF);
	size_t used;

	if (n == -EAGAIN)
		return;
	if (n <= 0) {
		client_end(c);
		return;
	}
	keep_rest(c, c->w->buf, (size_t)n);
	used = consume_proxy(c, (const char *)evbuffer_pullup(c->in, -1), ahead(c));
	if (c->ended)
		return;
	/* of an unfinished header all bytes are its own */
	(void)sock_read(&c->sock, c->w->buf, used > 0 ? used - had : (size_t)n);
	if (used == 0)
		return;
	buffered_add(c->w, -(int64_t)ahead(c));
	evbuffer_free(c->in);
	c->in = NULL;
	c->sock.on_read = on_client_read;
	start_tls(c);
}

static size_t
consume(struct client *c, const char *p, size_t n)
{
	size_t blank;

	if (c->first != FIRST_REQUEST)
		return consume_proxy(c, p, n);

	if (c->req == NULL) {
		blank = http_skip_blank(p, n);
		if (blank > 0)
			return blank;
		if (n == 1 && *p == '\r')
			return 0; /* perhaps half of an empty line */
		c->scanned = 0;
	}
	return c->ops->bytes(c, p, n);
}

static void
on_client_drained(void *arg)
{
	struct client *c = arg;

	c->full = false;
	c->queued_before = 0;
	if (c->closing)
		client_done(c, false, c->unread);
	else if (c->req != NULL)
		c->ops->drained(c->req);
	else {
		/* the idle period begins now, not when the answer was queued */
		if (c->w->phase != WORKER_DRAINS)
			c->deadline_ms = clock_ms() + c->w->conf->live.client_idle_ms;
		visit_soon(&c->w->client_rounds, &c->visit);
		consume_ahead(c);
	}
}

static void
on_client_error(void *arg, int err)
{
	(void)err;
	client_end(arg);
}

size_t
client_write(struct client *c, const struct iovec *iov, int n)
{
	size_t total = 0;

	for (int i = 0; i < n; i++)
		total += iov[i].iov_len;
	if (c == NULL || c->ended)
		return total;
	metric_add(c->w->slab, M_BYTES_OUT, total);
	/* A write error is not handled here, inside a caller's work: the socket's reader sees
	 * the reset in its own callback. */
	(void)sock_writev(&c->sock, iov, n, n);
	c->full = sock_queued(&c->sock) > 0;
	c->acked = false;
	if (c->full)
		visit_soon(&c->w->client_rounds, &c->visit);
	return total;
}

bool
client_full(const struct client *c)
{
	return c != NULL && c->full;
}

void
client_cut(struct client *c)
{
	if (c != NULL && !c->ended)
		sock_cut(&c->sock);
}

/* Lets the client read the written bytes before the close: data that the client still sends
 * would make the kernel reset the connection and drop the answer. */
static void
linger(struct client *c)
{
	c->lingering = true;
	c->deadline_ms = clock_ms() + CLIENT_LINGER_MS;
	worker_need_tick(c->w);
	visit_soon(&c->w->client_rounds, &c->visit);
	sock_end_writing(&c->sock);
	sock_read_start(&c->sock);
}

void
client_done(struct client *c, bool keep_alive, bool unread)
{
	if (c->ended || c->lingering)
		return;
	if (c->req != NULL)
		c->unread = unread;
	c->req = NULL;
	if (!keep_alive || c->w->phase == WORKER_DRAINS)
		c->closing = true;
	if (c->closing && sock_queued(&c->sock) > 0)
		return; /* on_client_drained() calls this function again */
	if (c->closing && (c->unread || c->in != NULL)) {
		linger(c);
		return;
	}
	if (c->closing) {
		client_end(c);
		return;
	}
	c->deadline_ms = clock_ms() + c->w->conf->live.client_idle_ms;
	worker_need_tick(c->w);
	visit_soon(&c->w->client_rounds, &c->visit);
	if (!c->consuming)
		consume_ahead(c); /* else the caller's loop continues with `in` */
}

/* Closes a client that takes no byte of its answer for client.write_timeout, so that its engine
 * becomes free. */
static void
watch_writes(struct client *c, size_t queued, uint64_t now_ms)
{
	if (queued != c->queued_before) {
		c->queued_before = queued;
		c->write_deadline_ms = now_ms + c->w->conf->live.client_write_ms;
		return;
	}
	if (now_ms < c->write_deadline_ms)
		return;
	end(c, true);
}

/*
 * Notices a host that has vanished while bytes are on their way to it.  A quiet connection is the kernel's to watch.
 * The last acknowledgement may be older than the first of the bytes, so the time counts from the look that finds the
 * host silent.
 */
static bool
is_lost(struct client *c, uint64_t now_ms)
{
	const uint64_t ms = c->w->conf->live.client_tcp_user_ms;
	uint64_t quiet_ms;

	if (c->req == NULL || ms == 0 || now_ms < c->look_ms)
		return false;
	c->look_ms = now_ms + ms / LOOKS;
	if (c->acked) {
		c->silent_ms = 0;
		return false;
	}
	if (!sock_peer_silent(&c->sock, &quiet_ms, &c->acked))
		c->silent_ms = 0;
	else if (c->silent_ms == 0)
		c->silent_ms = now_ms;
	else
		return quiet_ms >= ms && now_ms - c->silent_ms >= ms;
	return false;
}

/* Whether a request has arrived at this moment, not mere pieces of what precedes one: these have no end. */
static bool
came_just_now(struct client *c, uint64_t now_ms)
{
	if (sock_is_shaking(&c->sock) || !sock_look(&c->sock))
		return false;
	return c->ended || c->req != NULL || now_ms < c->deadline_ms;
}

/* Checks the time limits. */
static void
check_limits(struct client *c, uint64_t now_ms)
{
	size_t queued;

	if (c->ended)
		return;
	if (is_lost(c, now_ms) ||
		!silent_look(c->w, &c->silence, c->from.door, &c->from.address, now_ms)) {
		client_end(c);
		return;
	}
	queued = sock_queued(&c->sock);
	if (queued > 0)
		watch_writes(c, queued, now_ms);
	else if (!c->sock.reading && sock_hung_up(&c->sock))
		client_end(c);
	else if (now_ms < c->deadline_ms)
		return;
	else if (c->lingering || c->closing)
		client_end(c);
	else if (c->req == NULL && !came_just_now(c, now_ms))
		client_end(c);
}

/* Returns the milliseconds until the next tick that the client needs. */
static uint64_t
next_look(const struct client *c, uint64_t now_ms)
{
	const uint64_t most = VISIT_MOST * WORKER_TICK_MS;

	if (sock_queued(&c->sock) > 0 || !c->sock.reading)
		return 0;
	if (c->req == NULL || c->lingering || c->closing)
		return visit_sooner(most, c->deadline_ms, now_ms);
	return c->w->conf->live.client_tcp_user_ms == 0 ? most
							: visit_sooner(most, c->look_ms, now_ms);
}

void
client_tick(struct visit *v, uint64_t now_ms)
{
	struct client *c = (struct client *)(void *)((char *)v - offsetof(struct client, visit));

	check_limits(c, now_ms);
	if (!c->ended)
		visit_within(&c->w->client_rounds, v, next_look(c, now_ms));
}

void
client_drain(struct client *c)
{
	uint64_t by_ms = clock_ms() + CLIENT_DRAIN_MS;

	if (c->req != NULL || c->closing)
		return;
	if (c->deadline_ms > by_ms)
		c->deadline_ms = by_ms;
	worker_need_tick(c->w);
	visit_soon(&c->w->client_rounds, &c->visit);
}
