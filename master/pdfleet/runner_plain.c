/*
 * The runner without systemd: pdfleet starts the processes itself, each in a session of its own, and leaves them alone.
 * Each has RUN/UNIT.log of its last start, RUN/UNIT.log.1 of the start before, and RUN/UNIT.pid with its pid and start time, and the word "stopping" once it has been told to end.
 * A process that ends by itself is not started again: its pid file stays, and tells that it failed.
 * `pdctl upgrade` puts another process in the place of the router's: it is known by its environment.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/pdfleet/complain.h"
#include "master/pdfleet/process.h"
#include "master/pdfleet/program.h"
#include "master/pdfleet/runner.h"
#include "master/pdfleet/tree.h"
#include "master/pdfleet/unit_file.h"

#define ROUTER "pdrouter"
/* All processes of a unit have it in their environment: the path of the unit's pid file. */
#define ENV_PID_FILE TOPO_ENV_PREFIX "PID_FILE"
#define STOPPING "stopping" /* third word of a pid file */

/* The router stands beside this program. */
static int
define_router(const struct runner *r, struct unit_file *d)
{
	char exe[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	const char *slash;

	if (n <= 0)
		return complain_of("/proc/self/exe", strerror(errno));
	exe[n] = '\0';
	slash = strrchr(exe, '/');
	words_add(&d->argv, mem_printf("%.*s/" ROUTER, (int)(slash - exe), exe));
	words_add(&d->argv, mem_strdup("-c"));
	words_add(&d->argv, mem_strdup(r->paths.router));
	return 0;
}

static int
define_env(const char *path, struct unit_file *d)
{
	char *text = tree_read(path, NULL);
	int rc = text == NULL ? complain_of(path, strerror(errno)) : 0;

	if (rc == 0 && unit_file_read_env(text, &d->env) != 0)
		rc = complain_of(path, "is not as pdctl fleet writes it");
	free(text);
	return rc;
}

static int
define(const struct runner *r, const char *unit, struct unit_file *d)
{
	char *path, *text;
	int rc;

	if (strcmp(unit, ROUTER) == 0)
		return define_router(r, d);
	path = runner_drop_in(r, unit);
	text = tree_read(path, NULL);
	if (text == NULL)
		rc = complain_of(path, strerror(errno));
	else if (unit_file_read(text, d) != 0)
		rc = complain_of(path, "is not as pdctl fleet writes it");
	else
		rc = d->env_path != NULL ? define_env(d->env_path, d) : 0;
	free(text);
	free(path);
	return rc;
}

/* Whether a file defines the unit. */
static bool
is_defined(const struct runner *r, const char *unit)
{
	bool router = strcmp(unit, ROUTER) == 0;
	char *path = router ? mem_strdup(r->paths.router) : runner_drop_in(r, unit);
	bool there = access(path, F_OK) == 0;

	free(path);
	return there;
}

/* --- pid files
 * ----------------------------------------------------------------------------------- */

static char *
run_path(const struct runner *r, const char *unit, const char *ext)
{
	return mem_printf("%s%s.%s", r->run, unit, ext);
}

struct pid_file {
	bool there;
	pid_t pid; /* 0: it has ended */
	uint64_t start;
	enum unit_state state; /* UNIT_RUNNING or UNIT_STOPPING, of a pid */
	time_t written;        /* when the state began; 0: unknown */
};

/* The newest master of the router has another pid than the file after an upgrade.  The former one may still be there. */
static void
find_heir(const char *path, struct pid_file *f)
{
	const pid_t heir = process_find(ENV_PID_FILE, path);

	if (heir != 0 && heir != f->pid)
		*f = (struct pid_file){.there = true,
			.pid = heir,
			.start = process_start(heir),
			.state = UNIT_RUNNING};
}

static struct pid_file
pid_read(const struct runner *r, const char *unit)
{
	char *path = run_path(r, unit, "pid"), *text = tree_read(path, NULL);
	struct pid_file f = {.there = text != NULL};
	char word[16] = "";
	struct stat st;
	int pid = 0;

	if (text != NULL && sscanf(text, "%d %" SCNu64 " %15s", &pid, &f.start, word) >= 2 &&
		pid > 0 && f.start != 0 && process_start(pid) == f.start)
		f.pid = pid;
	if (f.pid != 0 && stat(path, &st) == 0)
		f.written = st.st_mtime;
	f.state = strcmp(word, STOPPING) == 0 ? UNIT_STOPPING : UNIT_RUNNING;
	if (f.there && strcmp(unit, ROUTER) == 0)
		find_heir(path, &f);
	free(text);
	free(path);
	return f;
}

static int
pid_write(const char *path, pid_t pid, const char *word)
{
	char *text = mem_printf("%d %" PRIu64 "%s\n", (int)pid, process_start(pid), word);
	const struct topo_file f = {.mode = 0644, .bytes = text, .n = strlen(text)};
	int rc = tree_put(path, &f);

	free(text);
	return rc;
}

/* What the main process has left, wherever it is: children in sessions of their own, too. */
static int
end_rest(const struct runner *r, const char *unit)
{
	char *path = run_path(r, unit, "pid");
	int rc = process_stop_all(ENV_PID_FILE, path);

	free(path);
	return rc;
}

static int
status(const struct runner *r, const char *unit, struct unit_status *ret)
{
	struct pid_file f = pid_read(r, unit);

	*ret = (struct unit_status){.state = UNIT_STOPPED, .pid = f.pid};
	if (f.pid != 0) {
		ret->state = f.state;
		ret->since = f.written;
	} else if (f.there)
		ret->state = UNIT_FAILED;
	else if (!is_defined(r, unit))
		ret->state = UNIT_ABSENT;
	return 0;
}

/* --- starting
 * ------------------------------------------------------------------------------------ */

/* So the log has the lines of one start. */
static void
keep_log(const char *log)
{
	char *former = mem_printf("%s.1", log);

	(void)rename(log, former); /* there may be none */
	free(former);
}

/*
 * The child writes its own pid file before it becomes the program.  So there is no moment at which the unit
 * runs and no file says so, whenever its parent is killed.  The child has the lock of `apply` until then.
 */
static _Noreturn void
become(const struct unit_file *d, const char *log, const char *pid_path, int report)
{
	int in = open("/dev/null", O_RDONLY), out, err;

	(void)setsid();
	keep_log(log);
	out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
	if (out != -1 && pid_write(pid_path, getpid(), "") == 0 && chdir("/") == 0) {
		(void)dup2(in, STDIN_FILENO);
		(void)dup2(out, STDOUT_FILENO);
		(void)dup2(out, STDERR_FILENO);
		(void)close(in);
		(void)close(out);
		for (size_t i = 0; i < d->env.n; i++)
			(void)putenv(d->env.v[i]);
		(void)setenv(ENV_PID_FILE, pid_path, 1);
		(void)execv(d->argv.v[0], d->argv.v);
	}
	err = errno;
	(void)fprintf(stderr, "%s: %s\n", d->argv.v[0], strerror(err)); /* its log */
	while (write(report, &err, sizeof(err)) == -1 && errno == EINTR)
		;
	_exit(1);
}

/* 0 when the child has become the program. */
static int
spawn(const struct runner *r, const char *unit, const struct unit_file *d)
{
	char *log = run_path(r, unit, "log"), *pid_path = run_path(r, unit, "pid");
	int report[2], err = 0, rc = 0;
	pid_t pid;

	if (pipe2(report, O_CLOEXEC) != 0)
		err = errno;
	else {
		(void)fflush(NULL);
		pid = fork();
		if (pid == 0)
			become(d, log, pid_path, report[1]);
		err = pid == -1 ? errno : 0;
		(void)close(report[1]);
		while (err == 0 && read(report[0], &err, sizeof(err)) == -1 && errno == EINTR)
			;
		(void)close(report[0]);
		if (err != 0 && pid > 0)
			(void)waitpid(pid, NULL, 0); /* so it has ended for everyone who looks */
	}
	if (err != 0)
		rc = complain_of(d->argv.v[0], strerror(err));
	free(log);
	free(pid_path);
	return rc;
}

static int stop(const struct runner *r, const char *unit);

static int
start(const struct runner *r, const char *unit)
{
	const struct pid_file f = pid_read(r, unit);
	struct unit_file d = {.env_path = NULL};
	int rc = 0;

	if (f.pid != 0 && f.state == UNIT_RUNNING)
		return 0;
	if (f.there && stop(r, unit) != 0)
		return -1;
	if (define(r, unit, &d) != 0 || tree_folders(r->run) != 0)
		rc = -1;
	else
		rc = spawn(r, unit, &d);
	unit_file_free(&d);
	return rc;
}

/* --- ending
 * -------------------------------------------------------------------------------------- */

static int
forget(const struct runner *r, const char *unit)
{
	char *path = run_path(r, unit, "pid");
	int rc = unlink(path) == 0 || errno == ENOENT ? 0 : complain_of(path, strerror(errno));

	free(path);
	return rc;
}

/* The pid file says first that the process is stopping. */
static int
stop_main(const struct runner *r, const char *unit, const struct pid_file *f)
{
	char *path = run_path(r, unit, "pid");
	int rc = f->state != UNIT_STOPPING ? pid_write(path, f->pid, " " STOPPING) : 0;

	free(path);
	return rc == 0 ? process_stop(f->pid, f->start, r->stop_s) : -1;
}

/* The pid file goes last: a stop that is killed in between is done again.  A router has two main processes while the former
 * one finishes its requests; the newest one ends first, because it is in the process group of the other one. */
static int
stop(const struct runner *r, const char *unit)
{
	struct pid_file f = pid_read(r, unit);

	if (!f.there)
		return 0;
	for (; f.pid != 0; f = pid_read(r, unit))
		if (stop_main(r, unit, &f) != 0)
			return -1;
	return end_rest(r, unit) == 0 ? forget(r, unit) : -1;
}

static int
reload(const struct runner *r)
{
	(void)r;
	return 0; /* start() reads the definition */
}

/* --- logs
 * ---------------------------------------------------------------------------------------- */

static int
last(const struct runner *r, const char *unit, unsigned n, struct membuf *out)
{
	char *path = run_path(r, unit, "log"), *lines = mem_printf("%u", n);
	const char *const argv[] = {"tail", "-n", lines, "--", path, NULL};
	int rc = access(path, F_OK) == 0 ? program_run(argv, out) : 0;

	free(lines);
	free(path);
	return rc == 0 ? 0 : -1;
}

static int
follow(const struct runner *r, const char *unit, unsigned n)
{
	char *path = run_path(r, unit, "log"), *lines = mem_printf("%u", n);
	const char *const argv[] = {"tail", "-F", "-n", lines, "--", path, NULL};

	(void)program_become(argv);
	free(lines);
	free(path);
	return -1;
}

const struct runner_ops runner_plain_ops = {
	.name = "plain",
	.status = status,
	.start = start,
	.stop = stop,
	.forget = forget,
	.reload = reload,
	.last = last,
	.follow = follow,
};
