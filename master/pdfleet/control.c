#include "master/pdfleet/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* A reload waits for the new workers: systemd/pdrouter.service allows it as much. */
#define ANSWER_S 180
#define ANSWER_MAX (8u << 20)
#define ERR "ERR "

/* -1: no router answers there. */
static int
connect_to(const char *path)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	const struct timeval limit = {.tv_sec = ANSWER_S};
	int fd;

	if (strlen(path) >= sizeof(sun.sun_path))
		return -1;
	memcpy(sun.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return -1;
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (connect(fd, (struct sockaddr *)&sun, sizeof(sun)) == 0)
		return fd;
	(void)close(fd);
	return -1;
}

static bool
is_error(const char *line, size_t n)
{
	return n >= sizeof(ERR) - 1 && memcmp(line, ERR, sizeof(ERR) - 1) == 0;
}

/* Only the reason behind ERR stays. */
static enum control_answer
take_reason(struct membuf *answer, const char *line, size_t n)
{
	answer->n = n - (sizeof(ERR) - 1);
	memmove(answer->p, line + sizeof(ERR) - 1, answer->n);
	return CONTROL_ERR;
}

/* Looks at the whole lines from *at on; CONTROL_NONE: none of them is the last one. */
static enum control_answer
find_last(struct membuf *answer, size_t *at)
{
	while (*at < answer->n) {
		const char *line = answer->p + *at, *eol = memchr(line, '\n', answer->n - *at);
		const size_t n = eol != NULL ? (size_t)(eol - line) : 0;

		if (eol == NULL)
			break;
		if (is_error(line, n))
			return take_reason(answer, line, n);
		if (n == 2 && memcmp(line, "OK", n) == 0) {
			answer->n = *at;
			return CONTROL_OK;
		}
		*at += n + 1;
	}
	return CONTROL_NONE;
}

/* The lines up to OK or ERR. */
static enum control_answer
read_answer(int fd, struct membuf *answer)
{
	enum control_answer ret = CONTROL_NONE;
	char buf[65536];
	size_t at = 0;
	ssize_t n = 1;

	answer->n = 0;
	while (ret == CONTROL_NONE && n != 0 && answer->n < ANSWER_MAX) {
		n = recv(fd, buf, sizeof(buf), 0);
		if (n == -1 && errno != EINTR)
			break;
		membuf_add(answer, buf, n > 0 ? (size_t)n : 0);
		ret = find_last(answer, &at);
	}
	if (n == 0 && ret == CONTROL_NONE && at < answer->n &&
		is_error(answer->p + at, answer->n - at)) /* cut off before its newline */
		ret = take_reason(answer, answer->p + at, answer->n - at);
	return ret;
}

enum control_answer
control_say(const char *path, const char *command, struct membuf *answer)
{
	enum control_answer ret = CONTROL_NONE;
	char *line = mem_printf("%s\n", command);
	int fd = connect_to(path);

	if (fd != -1 && send(fd, line, strlen(line), MSG_NOSIGNAL) == (ssize_t)strlen(line))
		ret = read_answer(fd, answer);
	if (fd != -1)
		(void)close(fd);
	free(line);
	membuf_add(answer, "", 1);
	answer->n--;
	return ret;
}

pid_t
control_peer(const char *path)
{
	int fd = connect_to(path);
	struct ucred peer = {.pid = 0};
	socklen_t len = sizeof(peer);

	if (fd == -1)
		return 0;
	(void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len);
	(void)close(fd);
	return peer.pid;
}
