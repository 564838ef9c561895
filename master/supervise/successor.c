#include "master/supervise/successor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/supervise/inherit.h"
#include "shm/base/mem.h"

#define EXIT_NO_PROGRAM 127 /* as a shell has it */

/* --- the program -------------------------------------------------------------------------------- */

static char *
find_in_path(const char *name)
{
	const char *dirs = getenv("PATH");

	for (size_t n; dirs != NULL && *dirs != '\0'; dirs += n + (dirs[n] == ':')) {
		char *path;

		n = strcspn(dirs, ":");
		path = mem_printf("%.*s/%s", (int)n, dirs, name);
		if (path[0] == '/' && access(path, X_OK) == 0)
			return path;
		free(path);
	}
	return NULL;
}

char *
successor_path(const char *argv0)
{
	char *dir, *path;

	if (argv0 == NULL || strchr(argv0, '/') == NULL)
		return argv0 != NULL ? find_in_path(argv0) : NULL;
	if (argv0[0] == '/')
		return mem_strdup(argv0);
	dir = getcwd(NULL, 0);
	path = dir != NULL ? mem_printf("%s/%s", dir, argv0) : NULL;
	free(dir);
	return path;
}

/* --- between fork() and the program ------------------------------------------------------------- */

/* As the first instance found it: no signal is blocked or ignored. */
static void
signals_for_program(void)
{
	sigset_t none;

	for (int sig = 1; sig <= SIGRTMAX; sig++)
		(void)signal(sig, SIG_DFL);
	(void)sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static void
pass_fd(int fd, void *arg)
{
	(void)arg;
	(void)fcntl(fd, F_SETFD, 0);
}

/* Only what is passed stays open. */
static void
descriptors_for_program(const struct inherit *in)
{
	(void)close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
	if (in != NULL)
		inherit_each(in, pass_fd, NULL);
}

/* systemd's pings are for one process. */
static void
environment_for_program(const char *inherited)
{
	char pid[16];

	(void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
	if (getenv("WATCHDOG_PID") != NULL)
		(void)setenv("WATCHDOG_PID", pid, 1);
	(void)setenv(INHERIT_ENV, inherited, 1);
}

static _Noreturn void
no_program(const char *path)
{
	(void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
	_exit(EXIT_NO_PROGRAM);
}

/* --- the check ---------------------------------------------------------------------------------- */

static _Noreturn void
be_check(const char *path, char *const *argv, int err)
{
	static char test[] = "-t";
	size_t n = 0;
	char **args;
	int null;

	while (argv[n] != NULL)
		n++;
	args = mem_array(n + 2, sizeof(char *));
	args[0] = argv[0];
	args[1] = test;
	memcpy(args + 2, argv + 1, (n - 1) * sizeof(char *)); /* args[n + 1] stays NULL */
	null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (null == -1 || dup2(null, STDOUT_FILENO) == -1 || dup2(err, STDERR_FILENO) == -1)
		_exit(EXIT_NO_PROGRAM);
	signals_for_program();
	descriptors_for_program(NULL);
	(void)execv(path, args);
	no_program(path);
}

pid_t
successor_check(const char *path, char *const *argv, int *ret_fd)
{
	int p[2];
	pid_t pid;

	if (pipe2(p, O_CLOEXEC | O_NONBLOCK) == -1)
		return -errno;
	pid = fork();
	if (pid == 0) {
		(void)fcntl(p[1], F_SETFL, 0);
		be_check(path, argv, p[1]);
	}
	if (pid == -1)
		pid = -errno;
	(void)close(p[1]);
	if (pid > 0)
		*ret_fd = p[0];
	else
		(void)close(p[0]);
	return pid;
}

/* --- the instance ------------------------------------------------------------------------------- */

static _Noreturn void
be_successor(const char *path, char *const *argv, const struct inherit *in, const char *inherited)
{
	char go;

	/* the older instance has a pidfd by then, or it has ended */
	if (recv(in->from.talk, &go, 1, 0) != 1)
		_exit(EXIT_NO_PROGRAM);
	signals_for_program();
	descriptors_for_program(in);
	environment_for_program(inherited);
	(void)execv(path, argv);
	no_program(path);
}

/* The process in between: it ends at once, so that its child gets another parent. */
static _Noreturn void
be_between(const char *path, char *const *argv, const struct inherit *in, int talk)
{
	char *inherited = inherit_text(in);
	pid_t pid;

	(void)close(talk); /* the end of the older instance must be seen */
	pid = fork();
	if (pid == 0)
		be_successor(path, argv, in, inherited);
	if (pid == -1)
		pid = -errno;
	_exit(send(in->from.talk, &pid, sizeof(pid), MSG_NOSIGNAL) != (ssize_t)sizeof(pid));
}

int
successor_start(const char *path, char *const *argv, const struct inherit *in, int talk,
	struct successor *ret)
{
	const pid_t between = fork();
	pid_t pid = 0;

	if (between == 0)
		be_between(path, argv, in, talk);
	if (between == -1)
		return -errno;
	while (waitpid(between, NULL, 0) == -1 && errno == EINTR)
		;
	if (recv(talk, &pid, sizeof(pid), MSG_DONTWAIT) != (ssize_t)sizeof(pid))
		return -EIO;
	if (pid <= 0)
		return pid;
	ret->pid = pid;
	ret->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (ret->pidfd == -1)
		return -errno;
	return send(talk, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 ? 0 : -errno;
}
