#include "worker/net/sock.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <limits.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "worker/base/core.h"
#include "worker/net/tls.h"

#define PEER_PROBES 2 /* without an answer: the peer is silent */
/* written at one wake-up: others have their turn then */
#define RECORDS 16
#define PIECE (512u << 10) /* bytes */
#define PIECE_PARTS 64     /* of a piece, at most */

/* Inlined, these would cost plain sockets instructions at each event. */
#define OFF_THE_PLAIN_PATH __attribute__((noinline, cold))

static void on_readable(evutil_socket_t fd, short what, void *arg);
static void on_writable(evutil_socket_t fd, short what, void *arg);
static void on_ahead(evutil_socket_t fd, short what, void *arg);

/* Most sockets never wait for room, so most have no event for it. */
static void
want_room(struct sock *s, bool want)
{
	if ((s->ev_write != NULL) == want)
		return;
	if (want) {
		s->ev_write = MEM_NEW(struct event);
		event_assign(s->ev_write, s->w->base, s->fd, EV_WRITE | EV_PERSIST, on_writable, s);
		event_add(s->ev_write, NULL);
	} else {
		event_del(s->ev_write);
		free(s->ev_write);
		s->ev_write = NULL;
	}
}

void
sock_init(struct sock *s, struct worker *w, int fd, bool connecting, void *arg)
{
	const int one = 1;

	s->w = w;
	s->fd = fd;
	s->arg = arg;
	s->connecting = connecting;
	s->out = NULL;
	s->tls = NULL;
	s->reading = s->reset = false;
	s->ev_write = NULL;
	/* An event must not wait for the previous one's acknowledgement (Nagle: 42 ms a stream). */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	event_assign(&s->ev_read, w->base, fd, EV_READ | EV_PERSIST, on_readable, s);
	if (connecting)
		want_room(s, true);
	else
		sock_read_start(s);
}

/* The probes begin when half of the time is over; the second of them has no answer when all of it is. */
void
sock_watch_peer(const struct sock *s, uint64_t ms, bool unsent)
{
	const int idle_s = ms < 2000 ? 1 : (int)(ms / 2000),
		  each_s = ms < 4000 ? 1 : (int)(ms / 4000);
	const int on = ms > 0, probes = PEER_PROBES;
	const unsigned int user_ms = (unsigned int)ms;

	(void)setsockopt(s->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	if (!on)
		return;
	(void)setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	(void)setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPINTVL, &each_s, sizeof(each_s));
	/* with the second one the kernel does not count probes, but compares the time (tcp_keepalive_timer()) */
	if (!unsent)
		(void)setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	else
		(void)setsockopt(s->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof(user_ms));
}

bool
sock_peer_silent(const struct sock *s, uint64_t *ret_ms, bool *ret_acked)
{
	struct tcp_info ti = {0};
	socklen_t len = sizeof(ti);

	*ret_acked = false;
	if (getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &ti, &len) == -1)
		return false;
	*ret_ms = ti.tcpi_last_ack_recv;
	*ret_acked = ti.tcpi_unacked == 0 && ti.tcpi_notsent_bytes == 0 && sock_queued(s) == 0;
	/* one probe may be on its way: its answer is due */
	return ti.tcpi_retransmits + ti.tcpi_probes >= PEER_PROBES;
}

void
sock_close(struct sock *s)
{
	if (s->fd == -1)
		return;
	worker_gauge(s->w, G_SEND_QUEUE, -(int64_t)sock_queued(s));
	event_del(&s->ev_read);
	want_room(s, false);
	if (s->tls != NULL)
		event_del(&s->tls->ev_ahead);
	if (s->tls != NULL && s->out == NULL)
		tls_end_writing(s->tls); /* bytes that are dropped are no orderly end */
	if (s->out != NULL)
		evbuffer_free(s->out);
	s->out = NULL;
	s->reading = false;
	if (s->tls != NULL)
		tls_free(&s->tls);
	(void)close(s->fd);
	s->fd = -1;
}

/* --- TLS --------------------------------------------------------------------------------------- */

bool
sock_is_shaking(const struct sock *s)
{
	return s->tls != NULL && s->tls->state == TLS_SHAKING;
}

static bool
start_tls(struct sock *s, struct tls *tls)
{
	s->tls = tls;
	if (tls != NULL)
		event_assign(&tls->ev_ahead, s->w->base, -1, 0, on_ahead, s);
	return tls != NULL;
}

bool
sock_start_tls(struct sock *s, struct tls_server *server)
{
	return start_tls(s, tls_accept(server, s->fd));
}

bool
sock_connect_tls(struct sock *s, struct tls_engines *engines, const struct tls_client *client,
	const char *host, struct tls_memory *memory)
{
	return start_tls(s, tls_connect(engines, client, s->fd, host, memory));
}

const char *
sock_tls_why(const struct sock *s)
{
	return s->tls != NULL ? s->tls->why : NULL;
}

/* Continues the handshake; after its end the first bytes may be there already. */
static void
shake(struct sock *s)
{
	int r = tls_shake(s->tls);

	if (r == -EAGAIN) {
		want_room(s, s->tls->wants == TLS_WANTS_ROOM);
		return;
	}
	if (r < 0) {
		s->on_error(s->arg, -r);
		return;
	}
	want_room(s, s->out != NULL);
	if (s->out == NULL)
		s->on_drained(s->arg);
}

/*
 * The next turn of the loop reads on.  Not event_active(): the loop would call an event that its own callback makes active
 * in the same turn, before it looks at any other descriptor.
 */
static void
read_on(struct sock *s)
{
	static const struct timeval next_turn = {0};

	event_add(&s->tls->ev_ahead, &next_turn);
}

/*
 * What the loop does with a socket that is readable.  OpenSSL may have read more than it has returned: the descriptor
 * does not become readable for that.  One turn reads once, as of a plain socket.
 */
OFF_THE_PLAIN_PATH static void
readable_tls(struct sock *s)
{
	event_del(&s->tls->ev_ahead);
	if (s->tls->state == TLS_SHAKING) {
		shake(s);
		if (s->tls == NULL || s->tls->state == TLS_SHAKING || !s->tls->ahead)
			return;
	}
	if (!s->reading)
		return;
	s->on_read(s->arg);
	if (s->tls == NULL)
		return;
	if (s->reading && s->tls->ahead)
		read_on(s);
	/* a write may have waited for what was read, and a read waits for room */
	want_room(s, s->out != NULL || s->tls->wants == TLS_WANTS_ROOM);
}

static void
on_ahead(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	readable_tls(arg);
}

/* Writes from the queue.  Returns the bytes that were written, or -1 with errno. */
static ssize_t
flush_tls(struct sock *s)
{
	size_t done = 0, n;
	ssize_t r = 0;

	for (int i = 0; i < RECORDS && (n = evbuffer_get_length(s->out)) > 0; i++) {
		struct iovec iov = {.iov_len = n < TLS_RECORD ? n : TLS_RECORD};

		iov.iov_base = evbuffer_pullup(s->out, (ev_ssize_t)iov.iov_len);
		r = tls_writev(s->tls, &iov, 1);
		if (r < 0)
			break;
		(void)evbuffer_drain(s->out, (size_t)r);
		done += (size_t)r;
	}
	if (s->tls->wants == TLS_WANTS_BYTES)
		want_room(s, false); /* until the socket has been read */
	if (done > 0 || r >= 0)
		return (ssize_t)done;
	errno = (int)-r;
	return -1;
}

/* As read(2) and writev(2): -1 with errno. */
OFF_THE_PLAIN_PATH static ssize_t
read_tls(struct sock *s, void *buf, size_t n)
{
	const ssize_t r = tls_read(s->tls, buf, n);

	errno = r < 0 ? (int)-r : errno;
	return r < 0 ? -1 : r;
}

OFF_THE_PLAIN_PATH static ssize_t
writev_tls(struct sock *s, const struct iovec *iov, int n)
{
	const ssize_t r = tls_writev(s->tls, iov, n);

	errno = r < 0 ? (int)-r : errno;
	return r < 0 ? -1 : r;
}

/* The socket has room, and no bytes are queued: the handshake, or a read, has waited for it. */
static bool
room_for_session(struct sock *s)
{
	if (s->tls == NULL || (s->out != NULL && !sock_is_shaking(s)))
		return false;
	want_room(s, false);
	readable_tls(s);
	return true;
}

void
sock_end_writing(struct sock *s)
{
	if (s->tls != NULL && s->out == NULL) /* behind a part of a record nothing can be sent */
		tls_end_writing(s->tls);
	(void)shutdown(s->fd, SHUT_WR);
}

void
sock_cut(struct sock *s)
{
	if (s->tls != NULL)
		s->tls->cut = true;
}

/* --- events ------------------------------------------------------------------------------------ */

static void
take_readable(struct sock *s)
{
	clock_hold();
	if (s->tls != NULL)
		readable_tls(s);
	else
		s->on_read(s->arg);
	clock_go_on();
}

static void
on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct sock *s = arg;

	(void)fd;
	(void)what;
	worker_turn_handles(s->w);
	take_readable(s);
}

/* The connect has ended: SO_ERROR has the result. */
static void
connect_ended(struct sock *s)
{
	int err = 0;
	socklen_t len = sizeof(err);

	if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &len) == -1)
		err = errno;
	want_room(s, false);
	s->connecting = false;
	if (err != 0) {
		s->on_error(s->arg, err);
		return;
	}
	sock_read_start(s);
	if (s->tls != NULL)
		shake(s);
	else
		s->on_drained(s->arg);
}

/* Notes a reset.  A write to a connection that the peer had closed returns EPIPE. */
static int
failed(struct sock *s, int err)
{
	s->reset = s->reset || (err != EAGAIN && err != EPIPE);
	return -err;
}

static void
on_writable(evutil_socket_t fd, short what, void *arg)
{
	struct sock *s = arg;
	int n;

	(void)what;
	worker_turn_handles(s->w);
	if (s->connecting) {
		connect_ended(s);
		return;
	}
	if (room_for_session(s))
		return;
	n = s->tls != NULL ? (int)flush_tls(s) : evbuffer_write_atmost(s->out, fd, PIECE);
	if (n == -1) {
		if (errno != EAGAIN && errno != EINTR)
			s->on_error(s->arg, -failed(s, errno));
		return;
	}
	worker_gauge(s->w, G_SEND_QUEUE, -n);
	if (evbuffer_get_length(s->out) != 0)
		return;
	/* an idle stream owns no buffer */
	evbuffer_free(s->out);
	s->out = NULL;
	want_room(s, false);
	s->on_drained(s->arg);
}

ssize_t
sock_read(struct sock *s, void *buf, size_t n)
{
	ssize_t r;

	do
		r = s->tls == NULL ? read(s->fd, buf, n) : read_tls(s, buf, n);
	while (r == -1 && errno == EINTR);
	return r == -1 ? failed(s, errno) : r;
}

ssize_t
sock_peek(struct sock *s, void *buf, size_t n)
{
	const ssize_t r = recv(s->fd, buf, n, MSG_PEEK);

	return r == -1 ? failed(s, errno) : r;
}

bool
sock_is_quiet(struct sock *s)
{
	char c;

	if (s->tls != NULL)
		return tls_read(s->tls, &c, 1) == -EAGAIN && !s->tls->ahead;
	return recv(s->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == -1 && errno == EAGAIN;
}

bool
sock_is_due(const struct sock *s)
{
	/* event_pending() does not tell an event that is active from one that was added */
	return (s->ev_read.ev_evcallback.evcb_flags & EVLIST_ACTIVE) != 0;
}

/* Queues the bytes after the first `done` bytes. */
static void
queue_rest(struct sock *s, const struct iovec *iov, int n, int ncopy, size_t done)
{
	if (s->out == NULL)
		s->out = evbuffer_new();
	for (int i = 0; i < n; i++) {
		const char *p = iov[i].iov_base;
		size_t len = iov[i].iov_len;

		if (done >= len) {
			done -= len;
			continue;
		}
		p += done;
		len -= done;
		done = 0;
		if (i < ncopy)
			(void)evbuffer_add(s->out, p, len);
		else
			(void)evbuffer_add_reference(s->out, p, len, NULL, NULL);
		worker_gauge(s->w, G_SEND_QUEUE, (int64_t)len);
	}
	/* a session in its handshake, or that waits for bytes, would find room again and again */
	if (s->tls == NULL || (!sock_is_shaking(s) && s->tls->wants != TLS_WANTS_BYTES))
		want_room(s, true);
}

/* As writev(2). */
static ssize_t
send_parts(struct sock *s, const struct iovec *iov, int n)
{
	const struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov,
		.msg_iovlen = (size_t)(n < IOV_MAX ? n : IOV_MAX)};
	ssize_t r;

	do
		r = s->tls == NULL ? sendmsg(s->fd, &msg, MSG_NOSIGNAL) : writev_tls(s, iov, n);
	while (r == -1 && errno == EINTR);
	return r;
}

/* A long body: the kernel would copy what the socket has room for at once, 30 MiB on one machine, and others would wait. */
OFF_THE_PLAIN_PATH static ssize_t
send_piece(struct sock *s, const struct iovec *iov, int n)
{
	struct iovec part[PIECE_PARTS];
	size_t left = PIECE;
	int k = 0;

	for (; k < n && k < PIECE_PARTS && left > 0; k++) {
		part[k] = iov[k];
		if (part[k].iov_len > left)
			part[k].iov_len = left;
		left -= part[k].iov_len;
	}
	return send_parts(s, part, k);
}

int
sock_writev(struct sock *s, const struct iovec *iov, int n, int ncopy)
{
	size_t total = 0;
	ssize_t r = 0;

	if (s->fd == -1)
		return -EPIPE;
	for (int i = 0; i < n; i++)
		total += iov[i].iov_len;
	if (s->out == NULL && !s->connecting) {
		r = total <= PIECE ? send_parts(s, iov, n) : send_piece(s, iov, n);
		if (r == -1 && errno != EAGAIN)
			return failed(s, errno);
		if (r == -1)
			r = 0;
	}
	if ((size_t)r < total)
		queue_rest(s, iov, n, ncopy, (size_t)r);
	return 0;
}

int
sock_write(struct sock *s, const void *p, size_t n)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)p, .iov_len = n};

	return sock_writev(s, &iov, 1, 1);
}

size_t
sock_queued(const struct sock *s)
{
	return s->out == NULL ? 0 : evbuffer_get_length(s->out);
}

void
sock_read_stop(struct sock *s)
{
	if (s->fd == -1 || !s->reading)
		return;
	event_del(&s->ev_read);
	s->reading = false;
}

void
sock_read_start(struct sock *s)
{
	if (s->fd == -1 || s->reading)
		return;
	event_add(&s->ev_read, NULL);
	s->reading = true;
	if (s->tls != NULL && (s->tls->ahead || s->tls->wants == TLS_WANTS_ROOM))
		read_on(s);
}

bool
sock_hung_up(const struct sock *s)
{
	struct pollfd p = {.fd = s->fd, .events = POLLRDHUP};

	return poll(&p, 1, 0) == 1;
}

bool
sock_look(struct sock *s)
{
	struct pollfd p = {.fd = s->fd};
	const bool ahead = s->tls != NULL && s->tls->state != TLS_SHAKING && s->tls->ahead;

	p.events = s->connecting ? POLLOUT : POLLIN;
	if ((!s->connecting && !s->reading) || (!ahead && poll(&p, 1, 0) != 1))
		return false;
	if (s->connecting)
		connect_ended(s);
	else
		take_readable(s);
	return true;
}
