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

#include "shm/base/decimal.h"
#include "shm/base/mem.h"

static const char *const names[TALK_NWORDS] = {
	[TALK_ERROR] = "error",
	[TALK_DRAIN_MS] = "drain_ms",
	[TALK_READY] = "ready",
	[TALK_COMMIT] = "commit",
	[TALK_REPORT] = "report",
	[TALK_END] = "end",
	[TALK_DRAIN] = "drain",
	[TALK_UNDRAIN] = "undrain",
	[TALK_IN_FLIGHT] = "in-flight",
	[TALK_WEIGHT] = "weight",
	[TALK_ANNOUNCED] = "announced",
	[TALK_TAKE] = "take",
	[TALK_FINAL] = "final",
	[TALK_LEFT] = "left",
	[TALK_LEFT_AT] = "left-at",
	[TALK_STOP] = "stop",
	[TALK_STOP_NOW] = "stop_now",
};

struct talk {
	int fd;
	struct event *ev;
	struct talk_hooks hooks;
};

static void
run(const struct talk *t, const char *name, const char *value)
{
	for (size_t i = 0; i < TALK_NWORDS; i++)
		if (t->hooks.on[i] != NULL && strcmp(names[i], name) == 0) {
			t->hooks.on[i](t->hooks.arg, value);
			return; /* t may be freed */
		}
}

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
	run(t, line, line + word);
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
say(int fd, enum talk_word word, const char *value)
{
	char line[TALK_BYTES];
	int n = snprintf(
		line, sizeof(line), "%s%s%s", names[word], value[0] != '\0' ? " " : "", value);

	if (n >= (int)sizeof(line))
		n = sizeof(line) - 1;
	(void)send(fd, line, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void
say_value(int fd, enum talk_word word, const char *fmt, va_list ap)
{
	char value[TALK_BYTES];

	(void)vsnprintf(value, sizeof(value), fmt, ap);
	say(fd, word, value);
}

void
talk_say(const struct talk *t, enum talk_word word)
{
	say(t->fd, word, "");
}

void
talk_say_value(const struct talk *t, enum talk_word word, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say_value(t->fd, word, fmt, ap);
	va_end(ap);
}

void
talk_say_value_on(int fd, enum talk_word word, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say_value(fd, word, fmt, ap);
	va_end(ap);
}

bool
talk_number(const char **value, uint64_t max, uint64_t *ret)
{
	if (!decimal_read(value, *value + strlen(*value), max, ret))
		return false;
	if (**value == ' ')
		(*value)++;
	else if (**value != '\0')
		return false;
	return true;
}
