#include "tests/fuzz/fake_os.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/rnd.h"
#include "tests/fuzz/check.h"

#define FDS 1024
#define FIRST_US UINT64_C(3600000000) /* the clock of a host that has been up for an hour */
#define OWN_FDS 64
#define BUSY_TURNS 100000 /* of a loop to which nothing happens: it spins */
#define SEND_BUFFER 4096  /* towards clients: larger answers wait for room */

static const struct fake_os *os;
static uint64_t now_us, rnd;
static unsigned turns;
static int far_end[FDS]; /* of a socket towards an engine */
static bool refused[FDS];

void
fake_os_begin(const struct fake_os *is)
{
	now_us = FIRST_US;
	rnd = 1;
	rnd_forget(); /* what an input before this one has drawn */
	turns = 0;
	memset(far_end, 0, sizeof(far_end));
	memset(refused, 0, sizeof(refused));
	os = is;
}

void
fake_os_end(void)
{
	os = NULL;
}

uint64_t
fake_os_ms(void)
{
	return (now_us - FIRST_US) / 1000;
}

void
fake_os_advance(uint64_t ms)
{
	now_us += ms * 1000;
}

/* --- the clock, and chance --------------------------------------------------------------------- */

int
clock_gettime(clockid_t clock, struct timespec *ts)
{
	if (os == NULL || (clock != CLOCK_MONOTONIC && clock != CLOCK_MONOTONIC_COARSE))
		return (int)syscall(SYS_clock_gettime, clock, ts);
	now_us++;
	*ts = (struct timespec){
		.tv_sec = (time_t)(now_us / 1000000), .tv_nsec = (long)(now_us % 1000000 * 1000)};
	return 0;
}

static uint64_t
next_rnd(void)
{
	rnd += UINT64_C(0x9e3779b97f4a7c15);
	return (rnd ^ rnd >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
}

void
arc4random_buf(void *to, size_t n)
{
	for (unsigned char *p = to; n > 0; n--)
		*p++ = (unsigned char)(next_rnd() >> 56);
}

uint32_t
arc4random(void)
{
	return (uint32_t)(next_rnd() >> 32);
}

uint32_t
arc4random_uniform(uint32_t below)
{
	return below < 2 ? 0 : arc4random() % below;
}

/* --- the loop ---------------------------------------------------------------------------------- */

static int
look(int epfd, struct epoll_event *events, int max, int timeout_ms)
{
	return (int)syscall(SYS_epoll_pwait, epfd, events, max, timeout_ms, NULL, 8);
}

int
epoll_wait(int epfd, struct epoll_event *events, int max, int timeout_ms)
{
	int n;

	if (os == NULL)
		return look(epfd, events, max, timeout_ms);
	while ((n = look(epfd, events, max, 0)) == 0 && timeout_ms != 0) {
		turns = 0;
		if (os->sleeps(timeout_ms < 0 ? UINT32_MAX : (uint64_t)timeout_ms))
			return 0;
	}
	CHECK(n >= 0 && turns++ < BUSY_TURNS);
	return n;
}

#ifndef __clang__
#pragma GCC diagnostic ignored                                                                     \
	"-Wmaybe-uninitialized" /* glibc declares that poll() only writes to fds */
#endif

/* The log's reader takes nothing: lines are written, and dropped. */
int
poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	const struct timespec ts = {
		.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000L};

	if (os != NULL && n == 1 && fds->fd == STDERR_FILENO)
		return 0;
	return (int)syscall(SYS_ppoll, fds, n, timeout_ms < 0 ? NULL : &ts, NULL, 8);
}

/* A worker counts its descriptors at its start: these few are all. */
int
fcntl(int fd, int cmd, ...)
{
	va_list ap;
	long arg;

	if (os != NULL && cmd == F_GETFD && fd >= OWN_FDS)
		return -1;
	va_start(ap, cmd);
	arg = va_arg(ap, long);
	va_end(ap);
	return (int)syscall(SYS_fcntl, fd, cmd, arg);
}

/* --- sockets ----------------------------------------------------------------------------------- */

int
socket(int domain, int type, int protocol)
{
	int fds[2];

	if (os == NULL || (domain != AF_INET && domain != AF_INET6))
		return (int)syscall(SYS_socket, domain, type, protocol);
	if (socketpair(AF_UNIX, type, 0, fds) == -1)
		return -1;
	CHECK(fds[0] < FDS);
	refused[fds[0]] = false;
	far_end[fds[0]] = fds[1];
	return fds[0];
}

/* No room to write is how a connection looks that is not established. */
static void
fill(int fd)
{
	static const char nothing[SEND_BUFFER];
	const int least = 1;

	(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof(least));
	while (send(fd, nothing, sizeof(nothing), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
}

int
connect(int fd, const struct sockaddr *to, socklen_t len)
{
	const struct sockaddr_in *sin = (const struct sockaddr_in *)(const void *)to;
	int peer, r;

	if (os == NULL || to->sa_family != AF_INET)
		return (int)syscall(SYS_connect, fd, to, len);
	peer = far_end[fd];
	r = os->connects(ntohs(sin->sin_port), peer);
	refused[fd] = r == EINPROGRESS;
	if (r == EALREADY)
		fill(fd);
	else if (r != 0)
		(void)close(peer);
	errno = r == ECONNREFUSED ? r : EINPROGRESS;
	return -1;
}

int
getsockopt(int fd, int level, int name, void *to, socklen_t *len)
{
	struct tcp_info ti = {0};

	if (os != NULL && level == SOL_SOCKET && name == SO_ERROR && fd < FDS && refused[fd]) {
		*(int *)to = ECONNREFUSED;
		return 0;
	}
	if (os == NULL || level != IPPROTO_TCP || name != TCP_INFO)
		return (int)syscall(SYS_getsockopt, fd, level, name, to, len);
	ti.tcpi_bytes_acked = 1 + os->acknowledged(far_end[fd]); /* the SYN counts as one */
	*len = *len < sizeof(ti) ? *len : sizeof(ti);
	memcpy(to, &ti, *len);
	return 0;
}

/* Clients come from this host. */
int
accept4(int fd, struct sockaddr *from, socklen_t *len, int flags)
{
	const struct sockaddr_in loopback = {
		.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	const int room = SEND_BUFFER;
	int conn;

	if (os == NULL)
		return (int)syscall(SYS_accept4, fd, from, len, flags);
	conn = (int)syscall(SYS_accept4, fd, NULL, NULL, flags);
	if (conn == -1)
		return -1;
	(void)setsockopt(conn, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	memcpy(from, &loopback, sizeof(loopback));
	*len = sizeof(loopback);
	return conn;
}
