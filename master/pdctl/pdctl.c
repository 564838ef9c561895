/*
 * pdctl: the operator's command.  Sends one line to pdrouter's control socket and prints the answer.  The exit
 * code is 0 for OK, 1 for an error, 2 for a wrong command line, 3 when the time of --timeout is over.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "master/pdctl/print.h"
#include "master/pdctl/ask.h"
#include "master/pdctl/command.h"
#include "master/pdctl/completion.h"
#include "master/pdctl/key.h"

#define DEFAULT_SOCKET "/run/pdrouter/control.sock"
#define LINE_MAX_BYTES 900          /* pdrouter takes 1 KiB */
#define PROMPT_MAX_BYTES (4u << 20) /* and a prompt of this size */
#define POLL_MS 50                  /* interval of --wait and --when-up */
#define EXIT_TIME_OVER 3

/* The command line. */
struct line {
	const struct command *command;
	const char *name; /* of the command; NULL: none is given */
	char **words;     /* the rest, up to NULL */
	int nwords;
	/* values of options, "" of those without a value; NULL: not given */
	const char *socket, *json, *role, *pool, *host, *group, *wait, *when_up, *timeout, *dry_run,
		*prompt, *slower;
	double timeout_s;     /* INFINITY: none given */
	struct ask_more text; /* of --prompt */
	char text_bytes[32];
	char slower_ms[32];
};

static void
usage(FILE *out)
{
	(void)fprintf(out, "usage: pdctl [-s SOCKET] [--json] COMMAND ...\n\n");
	for (size_t i = 0; i < ncommands; i++) {
		const struct command *c = &commands[i];
		int n = fprintf(out, "  %s%s%s", c->name, c->words[0] != '\0' ? " " : "", c->words);

		for (size_t k = 0; k < noptions; k++)
			if ((c->takes & option_rows[k].takes) != 0)
				n += fprintf(out, " [--%s%s%s]", option_rows[k].name,
					option_rows[k].value != NULL ? " " : "",
					option_rows[k].value != NULL ? option_rows[k].value : "");
		(void)fprintf(
			out, "%s%*s%s\n", n > 22 ? "\n" : "", n > 22 ? 24 : 24 - n, "", c->help);
	}
	(void)fprintf(out, "\n");
	for (size_t k = 0; k < noptions; k++) {
		const struct option_row *o = &option_rows[k];
		char text[64], letter[8] = "";

		if (o->letter != 0)
			(void)snprintf(letter, sizeof(letter), "-%c, ", o->letter);
		(void)snprintf(text, sizeof(text), "%s--%s %s", letter, o->name,
			o->value != NULL ? o->value : "");
		(void)fprintf(out, "  %-20s  %s\n", text, o->help);
	}
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

/* --- what is sent ------------------------------------------------------------------------- */

static void
add_word(char line[static LINE_MAX_BYTES], const char *name, const char *value)
{
	const size_t n = strlen(line);

	if (value != NULL)
		(void)snprintf(
			line + n, LINE_MAX_BYTES - n, "%s%s%s", n > 0 ? " " : "", name, value);
}

/* pdrouter takes the endpoints behind all else. */
static bool
compose(const struct line *l, const char *name, char ret[static LINE_MAX_BYTES])
{
	const bool engine =
		(l->command->takes & TAKES_ENGINES) != 0 && l->host == NULL && l->group == NULL;
	size_t n;

	ret[0] = '\0';
	add_word(ret, name, "");
	if (l->prompt != NULL)
		add_word(ret, "bytes=", l->text_bytes);
	if (l->command->json && l->json != NULL)
		add_word(ret, "json", "");
	if (l->dry_run != NULL)
		add_word(ret, "dry-run", "");
	if (l->slower != NULL)
		add_word(ret, "slower=", l->slower_ms);
	for (int i = engine; i < l->nwords && name == l->name; i++)
		add_word(ret, "", l->words[i]);
	if (engine)
		add_word(ret, "", l->words[0]);
	add_word(ret, "host=", l->host);
	add_word(ret, "group=", l->group);
	add_word(ret, "role=", l->role);
	add_word(ret, "pool=", l->pool);
	n = strlen(ret);
	if (n + 1 >= LINE_MAX_BYTES || strpbrk(ret, "\r\n") != NULL)
		return false;
	memcpy(ret + n, "\n", 2);
	return true;
}

/* --- waiting ------------------------------------------------------------------------------ */

static double
now_s(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* What is left at the engines, as pdrouter answers, and how many of them are up. */
struct left {
	unsigned long requests, kv, up, n;
	char word[16];
	bool read;
};

static void
take_left(const char *line, void *arg)
{
	struct left *l = arg;

	l->read = sscanf(line, "%lu in flight, %lu KV outstanding, %15s (%lu of %lu up)",
			  &l->requests, &l->kv, l->word, &l->up, &l->n) == 5;
}

/* The engines as the operator has named them. */
static const char *
subject(const struct line *l)
{
	return l->host != NULL ? l->host : l->group != NULL ? l->group : l->words[0];
}

/* 0: it is over, -1: not yet, else an exit code. */
static int
is_over(const struct line *l, const struct left *left)
{
	if (l->when_up != NULL && strcmp(left->word, "gone") == 0)
		return print_fail(subject(l), "has been removed from the configuration");
	if (l->when_up != NULL)
		return left->up == left->n ? 0 : -1;
	if (strcmp(left->word, "serving") == 0)
		return print_fail(subject(l), "has been undrained meanwhile, or added again");
	return left->requests == 0 && left->kv == 0 ? 0 : -1;
}

static int
give_up(const struct line *l, const struct left *left)
{
	char text[300];

	if (l->when_up != NULL)
		(void)snprintf(text, sizeof(text),
			"%lu of %lu up after %g s; it gets requests as soon as it is up", left->up,
			left->n, l->timeout_s);
	else
		(void)snprintf(text, sizeof(text),
			"%lu still in flight, %lu KV outstanding after %g s; it stays drained",
			left->requests, left->kv, l->timeout_s);
	(void)print_fail(subject(l), text);
	return EXIT_TIME_OVER;
}

static int
wait_for_it(const struct line *l)
{
	const double from = now_s();
	char line[LINE_MAX_BYTES], text[128];
	int r = -1;

	if (!compose(l, "in-flight", line))
		return print_fail(l->name, "too long");
	while (r == -1) {
		struct left left = {0};

		if (ask(l->socket, line, NULL, false, take_left, &left) != 0)
			return 1;
		if (!left.read)
			return print_fail("no full answer", "pdrouter is of another version");
		r = is_over(l, &left);
		if (r == -1 && now_s() - from >= l->timeout_s)
			return give_up(l, &left);
		if (r == -1)
			(void)usleep(POLL_MS * 1000);
	}
	if (r != 0)
		return r;
	(void)snprintf(text, sizeof(text),
		l->when_up != NULL
			? "It is up, and gets requests, after %.1f s."
			: "Nothing is in flight there any more, and no KV is outstanding, after %.1f s.",
		now_s() - from);
	print_line(text);
	return 0;
}

/* --- commands ----------------------------------------------------------------------------- */

static void
print_answer(const char *line, void *arg)
{
	(void)arg;
	print_line(line);
}

static int
talk(const struct line *l)
{
	char line[LINE_MAX_BYTES];
	int r;

	print_begin(l->json == NULL ? PRINT_TEXT : l->command->json ? PRINT_OBJECT : PRINT_LINES);
	if (!compose(l, l->name, line))
		return print_end(print_fail(l->name, "too long, or with a line break"));
	r = ask(l->socket, line, l->prompt != NULL ? &l->text : NULL, l->command->slow,
		print_answer, NULL);
	if (r == 0 && (l->wait != NULL || l->when_up != NULL))
		r = wait_for_it(l);
	return print_end(r);
}

static int
print_version(const struct line *l)
{
	print_begin(l->json != NULL ? PRINT_LINES : PRINT_TEXT);
	print_line("pdctl " PDROUTER_VERSION);
	return print_end(0);
}

/* Becomes another program that stands beside this one.  Returns on failure only. */
static int
become(const char *name, char **argv)
{
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
	char *slash;

	if (n < 0 || (size_t)n >= sizeof(path))
		return print_fail(
			"/proc/self/exe", n < 0 ? strerror(errno) : "the path is too long");
	path[n] = '\0';
	slash = strrchr(path, '/');
	if (slash == NULL || (size_t)(slash - path) + strlen(name) + 2 > sizeof(path))
		return print_fail(path, "the path is too long");
	memcpy(slash + 1, name, strlen(name) + 1);
	(void)execv(path, argv);
	return print_fail(path, strerror(errno));
}

static int
run_top(const struct line *l)
{
	char name[] = "pdtop", socket[4096];
	char *argv[] = {name, socket, NULL};

	if (l->json != NULL)
		return wrong("--json is not for top: requests and status have it");
	(void)snprintf(socket, sizeof(socket), "%s", l->socket);
	return become(name, argv);
}

static int
run_local(const struct line *l)
{
	if (strcmp(l->name, "version") == 0)
		return print_version(l);
	if (strcmp(l->name, "top") == 0)
		return run_top(l);
	if (strcmp(l->name, "completion") == 0)
		return completion_print(l->words[0]) == 0
			       ? print_end(0)
			       : wrong("completion: bash or zsh is needed");
	if (strcmp(l->name, "key") == 0)
		return wrong("key is the first word: pdctl key new NAME");
	return wrong("%s is the first word: pdctl %s ...", l->name, l->name);
}

/* --- the command line --------------------------------------------------------------------- */

/* Where an option's value belongs; NULL: it is neither of these. */
static const char **
value_of(struct line *l, const char *name)
{
	const struct {
		const char *name;
		const char **at;
	} values[] = {{"socket", &l->socket}, {"json", &l->json}, {"role", &l->role},
		{"pool", &l->pool}, {"host", &l->host}, {"group", &l->group}, {"wait", &l->wait},
		{"when-up", &l->when_up}, {"timeout", &l->timeout}, {"dry-run", &l->dry_run},
		{"prompt", &l->prompt}, {"slower", &l->slower}};

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		if (strcmp(values[i].name, name) == 0)
			return values[i].at;
	return NULL;
}

/* 0, or 2 after a message about an option that the command does not take. */
static int
check_options(struct line *l)
{
	for (size_t i = 0; i < noptions; i++) {
		const char **at = value_of(l, option_rows[i].name);

		if (at != NULL && *at != NULL && !command_takes(l->command, &option_rows[i]))
			return wrong("--%s is not for %s", option_rows[i].name, l->name);
	}
	return 0;
}

static int
check_timeout(struct line *l)
{
	char *end = NULL;

	if (l->timeout != NULL && l->wait == NULL && l->when_up == NULL)
		return wrong("--timeout is of --wait or --when-up");
	l->timeout_s = l->timeout == NULL ? INFINITY : strtod(l->timeout, &end);
	if (end != NULL && (end == l->timeout || *end != '\0' || !(l->timeout_s >= 0)))
		return wrong("--timeout %s: a number of seconds is needed", l->timeout);
	return 0;
}

/* 0, or 2 after a message about the error. */
static int
check_slower(struct line *l)
{
	static const struct {
		const char *unit;
		double ms;
	} units[] = {{"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3}};
	char *end = NULL;
	double n;

	if (l->slower == NULL)
		return 0;
	n = strtod(l->slower, &end);
	for (size_t i = 0; end != l->slower && n >= 0 && i < sizeof(units) / sizeof(units[0]); i++)
		if (strcmp(end, units[i].unit) == 0 && n * units[i].ms < UINT32_MAX) {
			(void)snprintf(l->slower_ms, sizeof(l->slower_ms), "%.0f", n * units[i].ms);
			return 0;
		}
	return wrong("--slower %s: a time such as 10s or 500ms is needed", l->slower);
}

/* 0, or 1 after a message about the file. */
static int
read_prompt(struct line *l)
{
	char *text;
	FILE *in;
	size_t n;
	int err;

	if (l->prompt == NULL)
		return 0;
	in = fopen(l->prompt, "re");
	if (in == NULL)
		return print_fail(l->prompt, strerror(errno));
	text = malloc(PROMPT_MAX_BYTES + 1);
	if (text == NULL) {
		(void)fclose(in);
		return print_fail(l->prompt, "out of memory");
	}
	l->text.p = text; /* run() frees it */
	l->text.n = n = fread(text, 1, PROMPT_MAX_BYTES + 1, in);
	err = ferror(in) != 0 ? errno : 0;
	(void)fclose(in);
	if (err != 0)
		return print_fail(l->prompt, strerror(err));
	if (n == 0 || n > PROMPT_MAX_BYTES)
		return print_fail(l->prompt, n == 0 ? "it is empty" : "longer than 4 MiB");
	(void)snprintf(l->text_bytes, sizeof(l->text_bytes), "%zu", n);
	return 0;
}

static int
check_words(const struct line *l)
{
	const bool engines = (l->command->takes & TAKES_ENGINES) != 0;
	const int named = (l->host != NULL) + (l->group != NULL);
	const int want = l->command->nwords + (engines && named == 0);

	if (named > 1)
		return wrong("%s: --host or --group, not both", l->name);
	if (engines && named == 0 && l->nwords == 0)
		return wrong("%s: an engine is needed, or --host or --group", l->name);
	if (l->nwords < want)
		return wrong("%s: %s is needed", l->name, l->command->words);
	if (l->nwords > want)
		return wrong("one command only; too much behind %s: %s", l->name, l->words[want]);
	return 0;
}

static int
run(struct line *l)
{
	int r;

	if (l->name == NULL)
		return wrong("a command is needed");
	l->command = command_named(l->name);
	if (l->command == NULL)
		return wrong("%s is not a command", l->name);
	if ((r = check_options(l)) != 0 || (r = check_timeout(l)) != 0 ||
		(r = check_words(l)) != 0 || (r = check_slower(l)) != 0)
		return r;
	r = read_prompt(l);
	if (r == 0)
		r = l->command->local ? run_local(l) : talk(l);
	free(l->text.p);
	return r;
}

static int
run_key(char **argv)
{
	const char *what;
	const int code = key_command(argv, &what);

	return what != NULL ? wrong("%s", what) : code;
}

#define LONG 256 /* an option without a letter: this, and its row */

/* The row of what getopt_long() has found; NULL: an unknown one. */
static const struct option_row *
row_of(int opt)
{
	for (size_t i = 0; i < noptions; i++)
		if (opt == (int)i + LONG || (opt == option_rows[i].letter && opt != 0))
			return &option_rows[i];
	return NULL;
}

/* -1: all options have been read; else an exit code. */
static int
read_options(int argc, char **argv, struct line *l)
{
	struct option longs[32] = {0};
	char letters[64] = "";
	int opt;

	for (size_t i = 0, at = 0; i < noptions && i + 1 < 32; i++) {
		const struct option_row *o = &option_rows[i];

		longs[i] = (struct option){o->name,
			o->value != NULL ? required_argument : no_argument, NULL, (int)i + LONG};
		if (o->letter != 0)
			at += (size_t)snprintf(letters + at, sizeof(letters) - at, "%c%s",
				o->letter, o->value != NULL ? ":" : "");
	}
	while ((opt = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
		const struct option_row *o = row_of(opt);

		if (o == NULL) {
			usage(stderr);
			return 2;
		}
		if (o->letter == 'h') {
			usage(stdout);
			return 0;
		}
		if (o->letter == 'V')
			return print_version(l);
		*value_of(l, o->name) = o->value != NULL ? optarg : "";
	}
	return -1;
}

int
main(int argc, char **argv)
{
	struct line l = {.socket = DEFAULT_SOCKET};
	int r;

	if (argc > 1 && strcmp(argv[1], "fleet") == 0)
		return become("pdfleet", argv + 1);
	if (argc > 1 && strcmp(argv[1], "key") == 0)
		return run_key(argv + 2);
	r = read_options(argc, argv, &l);
	if (r != -1)
		return r;
	l.name = optind < argc ? argv[optind] : NULL;
	l.words = argv + optind + (optind < argc);
	l.nwords = argc - optind - (optind < argc);
	return run(&l);
}
