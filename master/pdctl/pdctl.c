/*
 * pdctl: the operator's command.  Sends one line to pdrouter's control socket and prints the answer.  The exit
 * code is 0 for OK, 1 for an error, 2 for a wrong command line, 3 when the time of --wait is over.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "master/pdctl/key.h"

#define DEFAULT_SOCKET "/run/pdrouter/control.sock"
#define ANSWER_S 5 /* for all commands but reload, which waits for the new workers */

#define POLL_MS 50 /* interval of --wait */
#define EXIT_TIME_OVER 3

/* Arguments that a command accepts. */
enum { TAKES_JSON = 1, TAKES_ENDPOINT = 2, TAKES_WAIT = 4, TAKES_DRY_RUN = 8, TAKES_DIFF = 16 };

static const struct {
	const char *name;
	unsigned takes;
	bool slow;
	const char *help;
} commands[] = {
	{"reload", TAKES_DRY_RUN, true,
		"reads the configuration again; returns when it is in force; --dry-run: says what it would do"},
	{"upgrade", 0, true,
		"starts the program again in a new instance, which serves; this one finishes its requests"},
	{"config", TAKES_DIFF, false,
		"config diff: what a reload would change, and what each change costs"},
	{"status", TAKES_JSON, false,
		"the processes and the endpoint table; --json for one JSON object"},
	{"workers", 0, false, "the processes"},
	{"prefix", 0, false,
		"the prefix index of policy cache_aware, and what engines had in their caches"},
	{"check", 0, false,
		"checks the shared memory; prints ok, or the broken invariants and exits 1"},
	{"drain", TAKES_ENDPOINT | TAKES_WAIT, false,
		"gives ENDPOINT (URL or host:port) no new requests, until undrain"},
	{"undrain", TAKES_ENDPOINT, false,
		"ends a drain or an ejection: ENDPOINT gets new requests again"},
	{"fleet", 0, false, "the fleet file: pdctl fleet --help"},
	{"key", 0, false,
		"key new NAME: prints a new key, and its row for the api_keys_file or the admin.api_keys_file"},
	{"ping", 0, false, "prints nothing; exits 0 if pdrouter answers"},
	{"version", 0, false, "prints the version of pdctl"},
};

/* The command line. */
struct line {
	const char *path;
	const char *command;
	const char *endpoint, *role, *pool; /* NULL: not given */
	const char *diff;                   /* the word behind `config` */
	bool json, wait, dry_run;
	const char *timeout; /* seconds, as text */
	double timeout_s;    /* INFINITY: none given */
};

static void
usage(FILE *out)
{
	(void)fprintf(out, "usage: pdctl [-s SOCKET] COMMAND\n"
			   "       pdctl [-s SOCKET] reload [--dry-run] | config diff\n"
			   "       pdctl [-s SOCKET] drain ENDPOINT [--role ROLE] [--pool POOL] "
			   "[--wait [--timeout S]]\n"
			   "       pdctl [-s SOCKET] undrain ENDPOINT [--role ROLE] [--pool POOL]\n"
			   "       pdctl fleet check | plan ...\n"
			   "       pdctl key new NAME\n\n");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		(void)fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].help);
	(void)fprintf(out,
		"\n  -s SOCKET      pdrouter's control_socket (" DEFAULT_SOCKET ")\n"
		"  --role, --pool restrict the command to one role (prefill or decode) or pool\n"
		"  --wait         returns when ENDPOINT has no request and holds no KV for decode\n"
		"  --timeout S    longest wait in seconds: then exits 3, and ENDPOINT stays drained\n");
}

static int
fail(const char *what, const char *why)
{
	(void)fprintf(stderr, "pdctl: %s: %s\n", what, why);
	return 1;
}

static __attribute__((format(printf, 1, 2))) int
wrong(const char *fmt, ...)
{
	va_list ap;

	(void)fprintf(stderr, "pdctl: ");
	va_start(ap, fmt);
	(void)vfprintf(stderr, fmt, ap);
	va_end(ap);
	(void)fprintf(stderr, "\n\n");
	usage(stderr);
	return 2;
}

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

/* If no process answers, the user often means another socket. */
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

static void
add_option(char *at, size_t size, const char *name, const char *value)
{
	const size_t n = strlen(at);

	if (value != NULL)
		(void)snprintf(at + n, size - n, " %s%s", name, value);
}

/* Says one line.  0, or 1 after saying why not. */
static int
say(int fd, const struct line *l, const char *command)
{
	char line[900] = ""; /* pdrouter takes 1 KiB */
	size_t n;

	(void)snprintf(line, sizeof(line), "%s%s", command, l->json ? " json" : "");
	add_option(line, sizeof(line), "", l->dry_run ? "dry-run" : l->diff);
	add_option(line, sizeof(line), "", l->endpoint);
	add_option(line, sizeof(line), "role=", l->role);
	add_option(line, sizeof(line), "pool=", l->pool);
	n = strlen(line);
	if (n + 1 == sizeof(line))
		return fail(command, "too long");
	line[n++] = '\n';
	return send(fd, line, n, MSG_NOSIGNAL) == (ssize_t)n ? 0 : fail(l->path, strerror(errno));
}

static double
now_s(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* What is left at an endpoint, as pdrouter answers. */
struct left {
	unsigned long requests, kv;
	char word[16];
};

/* Reads what is left at the endpoint; returns an exit code. */
static int
read_left(FILE *in, struct left *ret)
{
	char line[256] = "";

	if (fgets(line, sizeof(line), in) == NULL)
		return fail("no full answer", "pdrouter closed the connection");
	if (strncmp(line, "ERR ", 4) == 0)
		return fail("in-flight", line + 4);
	if (sscanf(line, "%lu in flight, %lu KV outstanding, %15s", &ret->requests, &ret->kv,
		    ret->word) != 3)
		return fail("no full answer", line);
	return print_answer(in);
}

/* Asks what is left at the endpoint; returns an exit code.  Each time by a connection of its own: an upgrade may have
 * replaced the instance that was asked before. */
static int
look(const struct line *l, struct left *ret)
{
	FILE *in = connect_to(l->path, false);
	int r;

	if (in == NULL)
		return unreachable(l->path, errno);
	r = say(fileno(in), l, "in-flight");
	if (r == 0)
		r = read_left(in, ret);
	(void)fclose(in);
	return r;
}

/* Waits until the endpoint has no request and its engine holds no KV that decode has to fetch. */
static int
wait_for_none(const struct line *l)
{
	const double from = now_s();
	struct left left = {0};

	for (;;) {
		if (look(l, &left) != 0)
			return 1;
		if (strcmp(left.word, "serving") == 0)
			return fail(l->endpoint, "has been undrained meanwhile, or added again");
		if (left.requests == 0 && left.kv == 0)
			break;
		if (now_s() - from >= l->timeout_s) {
			(void)fprintf(stderr,
				"pdctl: %s: %lu still in flight, %lu KV outstanding after %g s; it stays "
				"drained\n",
				l->endpoint, left.requests, left.kv, l->timeout_s);
			return EXIT_TIME_OVER;
		}
		(void)usleep(POLL_MS * 1000);
	}
	(void)printf(
		"Nothing is in flight there any more, and no KV is outstanding, after %.1f s.\n",
		now_s() - from);
	return fflush(stdout) == 0 ? 0 : fail("stdout", strerror(errno));
}

static int
talk(const struct line *l, bool slow)
{
	FILE *in = connect_to(l->path, slow);
	int r;

	if (in == NULL)
		return unreachable(l->path, errno);
	r = say(fileno(in), l, l->command);
	if (r == 0)
		r = print_answer(in);
	(void)fclose(in);
	return r == 0 && l->wait ? wait_for_none(l) : r;
}

/* --- the command line --------------------------------------------------------------------------- */

/* 0, or 2 after a message about the error. */
static int
check_line(struct line *l, unsigned takes)
{
	char *end = NULL;

	if (l->json && (takes & TAKES_JSON) == 0)
		return wrong("--json is for status only");
	if (l->dry_run && (takes & TAKES_DRY_RUN) == 0)
		return wrong("--dry-run is for reload only");
	if ((takes & TAKES_DIFF) != 0 && (l->diff == NULL || strcmp(l->diff, "diff") != 0))
		return wrong("%s: diff is needed", l->command);
	if (l->endpoint == NULL && (takes & TAKES_ENDPOINT) != 0)
		return wrong("%s: an endpoint is needed", l->command);
	if ((l->role != NULL || l->pool != NULL) && (takes & TAKES_ENDPOINT) == 0)
		return wrong("--role and --pool are for drain and undrain only");
	if ((l->wait || l->timeout != NULL) && (takes & TAKES_WAIT) == 0)
		return wrong("--wait and --timeout are for drain only");
	if (l->timeout != NULL && !l->wait)
		return wrong("--timeout is of --wait");
	l->timeout_s = l->timeout == NULL ? INFINITY : strtod(l->timeout, &end);
	if (end != NULL && (end == l->timeout || *end != '\0' || !(l->timeout_s >= 0)))
		return wrong("--timeout %s: a number of seconds is needed", l->timeout);
	return 0;
}

static int
run(struct line *l, int nargs)
{
	size_t i = 0, n = sizeof(commands) / sizeof(commands[0]);

	if (l->command == NULL)
		return wrong("a command is needed");
	if (strcmp(l->command, "fleet") == 0)
		return wrong("fleet is the first word: pdctl fleet ...");
	if (strcmp(l->command, "key") == 0)
		return wrong("key is the first word: pdctl key new NAME");
	while (i < n && strcmp(l->command, commands[i].name) != 0)
		i++;
	if (i == n)
		return wrong("%s is not a command", l->command);
	if (nargs > ((commands[i].takes & (TAKES_ENDPOINT | TAKES_DIFF)) != 0 ? 2 : 1))
		return wrong("one command only; too much behind %s %s", l->command, l->endpoint);
	if ((commands[i].takes & TAKES_DIFF) != 0) {
		l->diff = l->endpoint;
		l->endpoint = NULL;
	}
	if (check_line(l, commands[i].takes) != 0)
		return 2;
	if (strcmp(l->command, "version") == 0)
		return puts("pdctl " PDROUTER_VERSION) < 0;
	return talk(l, commands[i].slow);
}

/* Becomes pdfleet, which stands beside this program and knows the arguments behind `fleet`.  Returns on
 * failure only. */
static int
run_fleet(char **argv)
{
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
	char *slash;

	if (n < 0 || (size_t)n >= sizeof(path))
		return fail("/proc/self/exe", n < 0 ? strerror(errno) : "the path is too long");
	path[n] = '\0';
	slash = strrchr(path, '/');
	if (slash == NULL || (size_t)(slash - path) + sizeof("/pdfleet") > sizeof(path))
		return fail(path, "the path is too long");
	memcpy(slash, "/pdfleet", sizeof("/pdfleet"));
	(void)execv(path, argv);
	return fail(path, strerror(errno));
}

static int
run_key(char **argv)
{
	const char *what;
	const int code = key_command(argv, &what);

	return what != NULL ? wrong("%s", what) : code;
}

int
main(int argc, char **argv)
{
	static const struct option longs[] = {
		{"socket", required_argument, NULL, 's'},
		{"json", no_argument, NULL, 'j'},
		{"role", required_argument, NULL, 'r'},
		{"pool", required_argument, NULL, 'p'},
		{"wait", no_argument, NULL, 'w'},
		{"timeout", required_argument, NULL, 't'},
		{"dry-run", no_argument, NULL, 'n'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{NULL, 0, NULL, 0},
	};
	struct line l = {.path = DEFAULT_SOCKET};
	int opt;

	if (argc > 1 && strcmp(argv[1], "fleet") == 0)
		return run_fleet(argv + 1);
	if (argc > 1 && strcmp(argv[1], "key") == 0)
		return run_key(argv + 2);
	while ((opt = getopt_long(argc, argv, "s:jhV", longs, NULL)) != -1) {
		switch (opt) {
		case 's':
			l.path = optarg;
			break;
		case 'j':
			l.json = true;
			break;
		case 'r':
			l.role = optarg;
			break;
		case 'p':
			l.pool = optarg;
			break;
		case 'n':
			l.dry_run = true;
			break;
		case 'w':
			l.wait = true;
			break;
		case 't':
			l.timeout = optarg;
			break;
		case 'h':
			usage(stdout);
			return 0;
		case 'V':
			return puts("pdctl " PDROUTER_VERSION) < 0;
		default:
			usage(stderr);
			return 2;
		}
	}
	l.command = optind < argc ? argv[optind] : NULL;
	l.endpoint = optind + 1 < argc ? argv[optind + 1] : NULL;
	return run(&l, argc - optind);
}
