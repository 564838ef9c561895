#include "master/supervise/talk.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/base/mem.h"

struct talk {
	int fd;
	struct event *ev;
	struct talk_hooks hooks;
};

/* One line per event: a hook may free the talk. */
static void
on_line(evutil_socket_t fd, short what, void *arg)
{
	struct talk *t = arg;
	char line[TALK_BYTES + 1];
	ssize_t n = recv(fd, line, sizeof(line) - 1, MSG_DONTWAIT);
	size_t word;

	(void)what;
	if (n == -1 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		(void)event_del(t->ev);
		t->hooks.end(t->hooks.arg);
		return;
	}
	line[n] = '\0';
	word = strcspn(line, " ");
	if (line[word] == ' ')
		line[word++] = '\0';
	t->hooks.line(t->hooks.arg, line, line + word);
}

struct talk *
talk_new(struct event_base *base, int fd, const struct talk_hooks *hooks)
{
	struct talk *t = MEM_NEW(struct talk);

	t->fd = fd;
	t->hooks = *hooks;
	t->ev = event_new(base, fd, EV_READ | EV_PERSIST, on_line, t);
	assert(t->ev != NULL);
	(void)event_add(t->ev, NULL);
	return t;
}

void
talk_free(struct talk **pt)
{
	struct talk *t = *pt;

	if (t == NULL)
		return;
	event_free(t->ev);
	(void)close(t->fd);
	free(t);
	*pt = NULL;
}

void
talk_pause(struct talk *t, bool pause)
{
	if (pause)
		(void)event_del(t->ev);
	else
		(void)event_add(t->ev, NULL);
}

int
talk_fd(const struct talk *t)
{
	return t->fd;
}

static void
say(int fd, const char *fmt, va_list ap)
{
	char line[TALK_BYTES];
	int n = vsnprintf(line, sizeof(line), fmt, ap);

	if (n >= (int)sizeof(line))
		n = sizeof(line) - 1;
	(void)send(fd, line, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void
talk_say(const struct talk *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(t->fd, fmt, ap);
	va_end(ap);
}

void
talk_say_on(int fd, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(fd, fmt, ap);
	va_end(ap);
}
