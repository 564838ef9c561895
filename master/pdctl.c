/*
 * pdctl: the operator's command.  Says one line to pdrouter's control socket, prints the answer, and
 * exits 0 for OK, 1 for an error, 2 for a wrong command line.
 */
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_SOCKET "/run/pdrouter/control.sock"
#define ANSWER_S 5 /* for everything but a reload, which lasts as long as the new workers need */

static const struct {
	const char *name;
	bool slow;
	const char *help;
} commands[] = {
	{"reload", true, "read the configuration again; returns when it is in force"},
	{"status", false, "the processes and the endpoint table; --json for one JSON object"},
	{"workers", false, "the processes"},
	{"check", false,
		"looks over the shared memory; prints ok, or what is broken there and exits 1"},
	{"ping", false, "says nothing and exits 0 when pdrouter answers"},
	{"version", false, "prints the version of pdctl"},
};

static void
usage(FILE *out)
{
	(void)fprintf(out, "usage: pdctl [-s SOCKET] COMMAND\n\n");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		(void)fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].help);
	(void)fprintf(out, "\n  -s SOCKET  pdrouter's control_socket (" DEFAULT_SOCKET ")\n");
}

static int
fail(const char *what, const char *why)
{
	(void)fprintf(stderr, "pdctl: %s: %s\n", what, why);
	return 1;
}

/* What is wrong with a command line that names no command we have. */
static int
wrong(int nargs, const char *command, bool json)
{
	if (nargs == 0)
		(void)fprintf(stderr, "pdctl: a command is needed\n\n");
	else if (nargs > 1)
		(void)fprintf(stderr, "pdctl: one command only, and options before it\n\n");
	else if (json)
		(void)fprintf(stderr, "pdctl: --json is for status only\n\n");
	else
		(void)fprintf(stderr, "pdctl: %s is not a command\n\n", command);
	usage(stderr);
	return 2;
}

/* A connected socket, or -1 with errno. */
static int
connect_to(const char *path, bool slow)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct timeval limit = {.tv_sec = ANSWER_S};
	int fd;

	if (strlen(path) >= sizeof(sun.sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(sun.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return -1;
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (!slow)
		(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (connect(fd, (struct sockaddr *)&sun, sizeof(sun)) == -1) {
		int err = errno;

		(void)close(fd);
		errno = err;
		return -1;
	}
	return fd;
}

/* Prints the lines up to OK or ERR; the exit code. */
static int
print_answer(FILE *in)
{
	char *line = NULL;
	size_t size = 0;
	int r = -1;

	errno = 0;
	while (r == -1 && getline(&line, &size, in) != -1) {
		if (strcmp(line, "OK\n") == 0)
			r = 0;
		else if (strncmp(line, "ERR ", 4) == 0)
			r = 1;
		else
			(void)fputs(line, stdout);
	}
	if (r == 1)
		(void)fprintf(stderr, "%s", line + 4);
	free(line);
	if (r == -1)
		return fail("no full answer",
			errno == EAGAIN ? "timed out" : "pdrouter closed the connection");
	return fflush(stdout) == 0 ? r : fail("stdout", strerror(errno));
}

/* Nobody there is most often somebody elsewhere. */
static int
unreachable(const char *path, int err)
{
	(void)fail(path, strerror(err));
	if (err == ENOENT || err == ECONNREFUSED)
		(void)fprintf(stderr,
			"pdctl: is pdrouter running, and is this its control_socket? -s "
			"names another\n");
	return 1;
}

static int
talk(const char *path, const char *command, bool json, bool slow)
{
	char line[64];
	int fd = connect_to(path, slow), r;
	FILE *in;
	int n;

	if (fd == -1)
		return unreachable(path, errno);
	n = snprintf(line, sizeof(line), "%s%s\n", command, json ? " json" : "");
	if (send(fd, line, (size_t)n, MSG_NOSIGNAL) != n) {
		r = fail(path, strerror(errno));
		(void)close(fd);
		return r;
	}
	in = fdopen(fd, "r");
	if (in == NULL)
		return fail(path, strerror(errno));
	r = print_answer(in);
	(void)fclose(in);
	return r;
}

int
main(int argc, char **argv)
{
	static const struct option longs[] = {
		{"socket", required_argument, NULL, 's'},
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{NULL, 0, NULL, 0},
	};
	const char *path = DEFAULT_SOCKET, *command;
	bool json = false;
	int opt;

	while ((opt = getopt_long(argc, argv, "s:jhV", longs, NULL)) != -1) {
		if (opt == 's') {
			path = optarg;
		} else if (opt == 'j') {
			json = true;
		} else if (opt == 'h' || opt == 'V') {
			if (opt == 'h')
				usage(stdout);
			else
				(void)puts("pdctl " PDROUTER_VERSION);
			return 0;
		} else {
			usage(stderr);
			return 2;
		}
	}
	command = optind == argc - 1 ? argv[optind] : "";
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(command, commands[i].name) != 0)
			continue;
		if (json && strcmp(command, "status") != 0)
			break;
		if (strcmp(command, "version") == 0)
			return puts("pdctl " PDROUTER_VERSION) < 0;
		return talk(path, command, json, commands[i].slow);
	}
	return wrong(argc - optind, command, json);
}
