/*
 * pdtop: `pdctl top`, a program of its own, so that pdctl needs no library.  Asks the control socket once a second and
 * shows engines and requests on the whole screen.  Exits 0 with the key q, 1 if pdrouter never answered.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "master/pdctl/ask.h"
#include "master/pdctl/print.h"
#include "master/pdtop/sample.h"
#include "master/pdtop/screen.h"

struct answer {
	char *text;
	size_t n;
};

static void
take_line(const char *line, void *arg)
{
	struct answer *a = arg;
	const size_t n = strlen(line);
	char *text = realloc(a->text, a->n + n + 2);

	if (text == NULL)
		abort();
	memcpy(text + a->n, line, n);
	text[a->n + n] = '\n';
	text[a->n + n + 1] = '\0';
	a->text = text;
	a->n += n + 1;
}

/* 0, and the sample is a new one; or 1, and the error is in print_last_error(). */
static int
look(const char *socket, struct sample *s)
{
	struct answer status = {0}, requests = {0};
	char line[64];
	struct sample now;
	int r;

	(void)snprintf(line, sizeof(line), "requests json within=%d\n", SAMPLE_MS);
	r = ask(socket, "status json\n", NULL, false, take_line, &status);
	if (r == 0)
		r = ask(socket, line, NULL, false, take_line, &requests);
	if (r == 0 && (status.text == NULL || requests.text == NULL ||
			      sample_parse(status.text, requests.text, &now) != 0))
		r = print_fail("no full answer", "pdrouter is of another version");
	free(status.text);
	free(requests.text);
	if (r != 0)
		return r;
	sample_free(s);
	*s = now;
	return 0;
}

static volatile sig_atomic_t told_to_end;

/* The terminal is put back before the program ends. */
static void
on_signal(int sig)
{
	(void)sig;
	told_to_end = 1;
}

static double
now_s(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void
run(const char *socket, struct sample *s)
{
	struct choice c = {.sort = SORT_POOL};
	const char *error = NULL;
	double due = now_s() + 1;

	while (!c.quit && !told_to_end) {
		sample_sort(s, c.sort);
		screen_draw(s, &c, error);
		(void)screen_key(&c);
		if (now_s() < due)
			continue;
		error = look(socket, s) != 0 ? print_last_error() : NULL;
		due = now_s() + 1;
	}
}

int
main(int argc, char **argv)
{
	struct sample s = {0};

	if (argc != 2) {
		(void)fprintf(stderr, "pdtop: pdctl top starts this program\n");
		return 2;
	}
	if (look(argv[1], &s) != 0)
		return 1;
	if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO)) {
		(void)fprintf(stderr, "pdctl: top needs a terminal\n");
		sample_free(&s);
		return 1;
	}
	print_quiet();
	(void)signal(SIGINT, on_signal);
	(void)signal(SIGTERM, on_signal);
	screen_begin();
	run(argv[1], &s);
	screen_end();
	sample_free(&s);
	return 0;
}
