#include "worker/net/sock.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "worker/base/core.h"

#define PEER_PROBES 2 /* without an answer: the peer is silent */

static void on_readable(evutil_socket_t fd, short what, void *arg);
static void on_writable(evutil_socket_t fd, short what, void *arg);

void
sock_init(struct sock *s, struct worker *w, int fd, bool connecting, void *arg)
{
	const int one = 1;

	s->w = w;
	s->fd = fd;
	s->arg = arg;
	s->connecting = connecting;
	s->out = NULL;
	s->reading = s->writing = s->reset = false;
	/* An event must not wait for the previous one's acknowledgement (Nagle: 42 ms a stream). */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	event_assign(&s->ev_read, w->base, fd, EV_READ | EV_PERSIST, on_readable, s);
	event_assign(&s->ev_write, w->base, fd, EV_WRITE | EV_PERSIST, on_writable, s);
	if (connecting) {
		event_add(&s->ev_write, NULL);
		s->writing = true;
	} else {
		sock_read_start(s);
	}
}

/* The probes begin when half of the time is over; the second of them has no answer when all of it is. */
void
sock_watch_peer(const struct sock *s, uint64_t ms, bool unsent)
{
	const int idle_s = ms < 2000 ? 1 : (int)(ms / 2000),
		  each_s = ms < 4000 ? 1 : (int)(ms / 4000);
	const int on = ms > 0, probes = PEER_PROBES;
	const unsigned int user_ms = unsent ? (unsigned int)ms : 0;

	(void)setsockopt(s->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	if (!on)
		return;
	(void)setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	(void)setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPINTVL, &each_s, sizeof(each_s));
	(void)setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	(void)setsockopt(s->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof(user_ms));
}

bool
sock_peer_silent(const struct sock *s, uint64_t *ret_ms)
{
	struct tcp_info ti = {0};
	socklen_t len = sizeof(ti);

	if (getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &ti, &len) == -1)
		return false;
	*ret_ms = ti.tcpi_last_ack_recv;
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
	event_del(&s->ev_write);
	if (s->out != NULL)
		evbuffer_free(s->out);
	s->out = NULL;
	s->reading = s->writing = false;
	(void)close(s->fd);
	s->fd = -1;
}

static void
on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct sock *s = arg;

	(void)fd;
	(void)what;
	s->on_read(s->arg);
}

/* The connect has ended: SO_ERROR has the result. */
static void
connect_ended(struct sock *s)
{
	int err = 0;
	socklen_t len = sizeof(err);

	if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &len) == -1)
		err = errno;
	event_del(&s->ev_write);
	s->writing = false;
	s->connecting = false;
	if (err != 0) {
		s->on_error(s->arg, err);
		return;
	}
	sock_read_start(s);
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
	if (s->connecting) {
		connect_ended(s);
		return;
	}
	n = evbuffer_write(s->out, fd);
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
	event_del(&s->ev_write);
	s->writing = false;
	s->on_drained(s->arg);
}

ssize_t
sock_read(struct sock *s, void *buf, size_t n)
{
	ssize_t r;

	do
		r = read(s->fd, buf, n);
	while (r == -1 && errno == EINTR);
	return r == -1 ? failed(s, errno) : r;
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
	if (!s->writing) {
		event_add(&s->ev_write, NULL);
		s->writing = true;
	}
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
		struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov,
			.msg_iovlen = (size_t)(n < IOV_MAX ? n : IOV_MAX)};

		do
			r = sendmsg(s->fd, &msg, MSG_NOSIGNAL);
		while (r == -1 && errno == EINTR);
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

	p.events = s->connecting ? POLLOUT : POLLIN;
	if ((!s->connecting && !s->reading) || poll(&p, 1, 0) != 1)
		return false;
	if (s->connecting)
		connect_ended(s);
	else
		s->on_read(s->arg);
	return true;
}
