#include "master/supervise/sd.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"

#define RETRY_MS 100

struct sd {
	int fd; /* -1: not under systemd */
	bool mute;
	struct sockaddr_un addr;
	socklen_t addr_len;
	char unsent[128];
	struct event *ev_retry;
	struct event *ev_ping; /* NULL: no watchdog */
};

static bool
send_now(const struct sd *sd, const char *text)
{
	ssize_t n = sendto(sd->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT,
		(const struct sockaddr *)&sd->addr, sd->addr_len);

	return n != -1 || (errno != EAGAIN && errno != ENOBUFS);
}

static void
on_retry(evutil_socket_t fd, short what, void *arg)
{
	const struct timeval again = clock_tv(RETRY_MS);
	struct sd *sd = arg;

	(void)fd;
	(void)what;
	if (!send_now(sd, sd->unsent)) {
		(void)evtimer_add(sd->ev_retry, &again);
		return;
	}
	sd->unsent[0] = '\0';
	(void)evtimer_del(sd->ev_retry); /* an older message may have started the timer */
}

static void
tell(struct sd *sd, const char *text)
{
	if (sd->fd == -1 || sd->mute)
		return;
	(void)snprintf(sd->unsent, sizeof(sd->unsent), "%s", text);
	on_retry(-1, 0, sd);
}

void
sd_tell_ready(struct sd *sd)
{
	tell(sd, "READY=1\nSTATUS=serving");
}

/* MONOTONIC_USEC: systemd 253 and later use it to match a READY=1 with its reload. */
void
sd_tell_reloading(struct sd *sd)
{
	char text[128];

	(void)snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%llu\nSTATUS=reloading",
		(unsigned long long)clock_us());
	tell(sd, text);
}

void
sd_tell_stopping(struct sd *sd)
{
	tell(sd, "STOPPING=1\nSTATUS=draining");
}

void
sd_store(const struct sd *sd, int fd)
{
	static char text[] = "FDSTORE=1\nFDNAME=" SD_STORED;
	struct iovec line = {text, sizeof(text) - 1};
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr head;
	} control = {.bytes = {0}};
	struct sockaddr_un addr = sd->addr;
	struct msghdr msg = {.msg_name = &addr,
		.msg_namelen = sd->addr_len,
		.msg_iov = &line,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	struct cmsghdr *head = CMSG_FIRSTHDR(&msg);

	if (sd->fd == -1 || sd->mute)
		return;
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &fd, sizeof(fd));
	/* without room there: a restart refuses connections for a moment, as without a store */
	(void)sendmsg(sd->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool
sd_is_there(const struct sd *sd)
{
	return sd->fd != -1;
}

void
sd_mute(struct sd *sd, bool mute)
{
	sd->mute = mute;
	(void)evtimer_del(sd->ev_retry);
}

bool
sd_tell_main_pid(struct sd *sd, pid_t pid)
{
	char text[64];

	(void)snprintf(text, sizeof(text), "MAINPID=%ld", (long)pid);
	return sd->fd == -1 || send_now(sd, text);
}

/* A ping that the socket has no room for is dropped: the next one is sent in time. */
static void
on_ping(evutil_socket_t fd, short what, void *arg)
{
	const struct sd *sd = arg;

	(void)fd;
	(void)what;
	if (!sd->mute)
		(void)send_now(sd, "WATCHDOG=1");
}

/* $NOTIFY_SOCKET: a path, or an abstract name with @ for its leading NUL (sd_notify(3)). */
static void
open_socket(struct sd *sd)
{
	const char *path = getenv("NOTIFY_SOCKET");
	size_t len = path != NULL ? strlen(path) : 0;

	if (len == 0 || (path[0] != '/' && path[0] != '@') || len >= sizeof(sd->addr.sun_path))
		return;
	sd->addr.sun_family = AF_UNIX;
	memcpy(sd->addr.sun_path, path, len);
	sd->addr_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (path[0] == '/'));
	if (path[0] == '@')
		sd->addr.sun_path[0] = '\0';
	sd->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

struct sd *
sd_new(struct event_base *base)
{
	struct sd *sd = MEM_NEW(struct sd);
	uint64_t usec = 0;
	struct timeval tv;

	sd->fd = -1;
	open_socket(sd);
	sd->ev_retry = evtimer_new(base, on_retry, sd);
	assert(sd->ev_retry != NULL);
	if (sd->fd == -1 || sd_watchdog_enabled(0, &usec) <= 0)
		return sd;
	usec /= 2;
	tv = clock_tv(usec / 1000);
	sd->ev_ping = event_new(base, -1, EV_PERSIST, on_ping, sd);
	assert(sd->ev_ping != NULL);
	(void)event_add(sd->ev_ping, &tv);
	log_info("watchdog", LOG_U("ping_every_ms", usec / 1000));
	return sd;
}

void
sd_free(struct sd **psd)
{
	struct sd *sd = *psd;

	if (sd == NULL)
		return;
	event_free(sd->ev_retry);
	if (sd->ev_ping != NULL)
		event_free(sd->ev_ping);
	if (sd->fd != -1)
		(void)close(sd->fd);
	free(sd);
	*psd = NULL;
}
