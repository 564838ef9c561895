#include "master/pdctl/ask.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "master/pdctl/print.h"

#define ANSWER_S 5 /* for all commands but reload and upgrade, which wait for new workers */

/* A connected socket, or NULL with errno. */
static FILE *
connect_to(const char *path, bool slow)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct timeval limit = {.tv_sec = ANSWER_S};
	int fd;

	if (strlen(path) >= sizeof(sun.sun_path)) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	memcpy(sun.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return NULL;
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (!slow)
		(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (connect(fd, (struct sockaddr *)&sun, sizeof(sun)) == -1) {
		int err = errno;

		(void)close(fd);
		errno = err;
		return NULL;
	}
	return fdopen(fd, "r");
}

/* If no process answers, the user often means another socket. */
static int
unreachable(const char *path, int err)
{
	(void)print_fail(path, strerror(err));
	if (err == ENOENT || err == ECONNREFUSED)
		print_hint("pdctl: is pdrouter running, and is this its control_socket? -s "
			   "names another");
	return 1;
}

static bool
send_all(int fd, const char *p, size_t n)
{
	while (n > 0) {
		const ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);

		if (sent < 0)
			return false;
		p += sent;
		n -= (size_t)sent;
	}
	return true;
}

/* Reads the lines up to OK or ERR, and sends what is to follow when it is asked for. */
static int
read_answer(
	FILE *in, const struct ask_more *more, void (*fn)(const char *line, void *arg), void *arg)
{
	char *line = NULL;
	size_t size = 0;
	int r = -1;

	errno = 0;
	while (r == -1 && getline(&line, &size, in) != -1) {
		line[strcspn(line, "\n")] = '\0';
		if (more != NULL && strcmp(line, "MORE") == 0) {
			if (!send_all(fileno(in), more->p, more->n))
				break;
			more = NULL;
		} else if (strcmp(line, "OK") == 0) {
			r = 0;
		} else if (strncmp(line, "ERR ", 4) == 0) {
			r = print_error(line + 4);
		} else {
			fn(line, arg);
		}
	}
	if (r == -1)
		r = print_fail("no full answer",
			errno == EAGAIN ? "timed out" : "pdrouter closed the connection");
	free(line);
	return r;
}

int
ask(const char *socket, const char *line, const struct ask_more *more, bool slow,
	void (*fn)(const char *line, void *arg), void *arg)
{
	FILE *in = connect_to(socket, slow);
	int r;

	if (in == NULL)
		return unreachable(socket, errno);
	if (send_all(fileno(in), line, strlen(line)))
		r = read_answer(in, more, fn, arg);
	else
		r = print_fail(socket, strerror(errno));
	(void)fclose(in);
	return r;
}
