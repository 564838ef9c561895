#include "master/pdfleet/process.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/pdfleet/complain.h"
#include "master/pdfleet/tree.h"
#include "shm/base/mem.h"

/* What is used of /proc/PID/stat: fields 4 and 22. */
struct life {
	pid_t parent;
	uint64_t start; /* 0: it does not run, or is a zombie */
};

/* The name in brackets may have blanks and brackets. */
static struct life
life_of(const char *stat)
{
	const char *s = strrchr(stat, ')');
	struct life l = {.start = 0};
	char state = 'X';

	if (s == NULL ||
		sscanf(s,
			") %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
			"%*s %" SCNu64,
			&state, &l.parent, &l.start) != 3 ||
		state == 'Z' || state == 'X')
		l = (struct life){.start = 0};
	return l;
}

static struct life
look_at(pid_t pid)
{
	char *path = mem_printf("/proc/%d/stat", (int)pid), *text = tree_read(path, NULL);
	struct life l = {.start = 0};

	if (text != NULL)
		l = life_of(text);
	free(path);
	free(text);
	return l;
}

uint64_t
process_start(pid_t pid)
{
	return look_at(pid).start;
}

/* True: the process has ended within the time (-1: none). */
static bool
ended(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int n;

	do
		n = poll(&p, 1, ms);
	while (n == -1 && errno == EINTR);
	return n == 1;
}

int
process_stop(pid_t pid, uint64_t start, unsigned stop_s)
{
	int fd = pidfd_open(pid, 0), rc = 0;

	if (fd == -1 && errno == ESRCH)
		return 0;
	/* the descriptor names one process; only then its start time is compared */
	if (fd != -1 && process_start(pid) != start) {
		(void)close(fd);
		return 0;
	}
	if (fd == -1 || (pidfd_send_signal(fd, stop_s > 0 ? SIGTERM : SIGKILL, NULL, 0) != 0 &&
				errno != ESRCH))
		rc = complain("process %d: %s", (int)pid, strerror(errno));
	else if (!ended(fd, (int)stop_s * 1000)) {
		(void)pidfd_send_signal(fd, SIGKILL, NULL, 0);
		(void)ended(fd, -1);
	}
	if (fd != -1)
		(void)close(fd);
	if (rc != 0)
		return rc;
	/* the group keeps the number for as long as it has a member */
	(void)kill(-pid, SIGKILL);
	(void)waitpid(pid, NULL, WNOHANG); /* it may be our child */
	return 0;
}

char *
process_env(pid_t pid, const char *name)
{
	char *path = mem_printf("/proc/%d/environ", (int)pid), *ret = NULL;
	size_t n = 0, len = strlen(name);
	char *text = tree_read(path, &n);

	for (const char *s = text; s != NULL && s < text + n && ret == NULL; s += strlen(s) + 1)
		if (strncmp(s, name, len) == 0 && s[len] == '=')
			ret = mem_strdup(s + len + 1);
	free(path);
	free(text);
	return ret;
}

/* --- its command line
 * ------------------------------------------------------------------------------- */

/* The file of `-c FILE`, `--config FILE` or `--config=FILE`; NULL: the word is none of them. */
static const char *
file_in(const char *word, const char *next)
{
	static const char name[] = "--config=";
	const size_t len = sizeof(name) - 1;

	if (strcmp(word, "-c") == 0 || strcmp(word, "--config") == 0)
		return next;
	return strncmp(word, name, len) == 0 ? word + len : NULL;
}

/* What the process means by the path; `path` where that cannot be told. */
static char *
full_path(pid_t pid, const char *path)
{
	char *from =
		path[0] == '/' ? mem_strdup(path) : mem_printf("/proc/%d/cwd/%s", (int)pid, path);
	char full[PATH_MAX];
	char *ret = mem_strdup(realpath(from, full) != NULL ? full : path);

	free(from);
	return ret;
}

char *
process_file(pid_t pid, const char *program)
{
	char *path = mem_printf("/proc/%d/cmdline", (int)pid);
	size_t n = 0;
	char *text = tree_read(path, &n);
	const char *slash = text != NULL ? strrchr(text, '/') : NULL, *found = NULL;
	char *ret;

	if (text != NULL && strcmp(slash != NULL ? slash + 1 : text, program) == 0)
		for (const char *s = text, *next; s < text + n && found == NULL; s = next) {
			next = s + strlen(s) + 1;
			found = file_in(s, next < text + n ? next : NULL);
		}
	ret = found != NULL ? full_path(pid, found) : NULL;
	free(text);
	free(path);
	return ret;
}

/* --- all processes with a variable
 * ----------------------------------------------------------------------- */

struct variable {
	const char *name, *value;
};

static bool
has(pid_t pid, const struct variable *v)
{
	char *value = process_env(pid, v->name);
	bool yes = value != NULL && strcmp(value, v->value) == 0;

	free(value);
	return yes;
}

/* Returns 0 to go on. */
typedef int each_fn(pid_t pid, const struct life *l, void *arg);

/* Calls `fn` with each process but this one that has the variable; what that returned last. */
static int
each(const struct variable *v, each_fn *fn, void *arg)
{
	const struct dirent *entry;
	DIR *d = opendir("/proc");
	int rc = 0;

	while (d != NULL && rc == 0 && (entry = readdir(d)) != NULL) {
		const pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
		/* before the look at the environment: of the same process */
		const struct life l = look_at(pid);

		if (l.start != 0 && pid != getpid() && has(pid, v))
			rc = fn(pid, &l, arg);
	}
	if (d != NULL)
		(void)closedir(d);
	return rc;
}

static int
stop_one(pid_t pid, const struct life *l, void *arg)
{
	*(bool *)arg = true;
	return process_stop(pid, l->start, 0);
}

int
process_stop_all(const char *name, const char *value)
{
	const struct variable v = {name, value};
	bool again = true;
	int rc = 0;

	while (again && rc == 0) { /* one that ends may have started another one */
		again = false;
		rc = each(&v, stop_one, &again);
	}
	return rc;
}

struct search {
	struct variable v;
	pid_t pid;
	uint64_t start;
};

static int
take_younger(pid_t pid, const struct life *l, void *arg)
{
	struct search *s = arg;

	if (l->start > s->start && !has(l->parent, &s->v)) {
		s->pid = pid;
		s->start = l->start;
	}
	return 0;
}

pid_t
process_find(const char *name, const char *value)
{
	struct search s = {.v = {name, value}};

	(void)each(&s.v, take_younger, &s);
	return s.pid;
}
