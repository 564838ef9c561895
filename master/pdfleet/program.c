#include "master/pdfleet/program.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/pdfleet/complain.h"

#define OUTPUT_MAX (1u << 20)

int
program_become(const char *const argv[])
{
	union {
		const char *const *given;
		char *const *wanted; /* execvp() changes nothing: POSIX, exec, rationale */
	} u = {.given = argv};

	(void)execvp(argv[0], u.wanted);
	return complain_of(argv[0], strerror(errno));
}

/* To the end, so that the program can write it; what is behind the bound is dropped. */
static int
read_all(int fd, struct membuf *out)
{
	char buf[4096];
	ssize_t n;

	do {
		n = read(fd, buf, sizeof(buf));
		if (n > 0 && out->n < OUTPUT_MAX)
			membuf_add(out, buf, (size_t)n);
	} while (n > 0 || (n < 0 && errno == EINTR));
	return n < 0 ? complain_of("pipe", strerror(errno)) : 0;
}

static _Noreturn void
child(const char *const argv[], int out)
{
	if (out != -1)
		(void)dup2(out, STDOUT_FILENO);
	(void)program_become(argv);
	_exit(127);
}

int
program_run(const char *const argv[], struct membuf *out)
{
	int pipes[2] = {-1, -1}, status = 0, rc = 0;
	pid_t pid;

	if (out != NULL && pipe(pipes) != 0)
		return complain_of("pipe", strerror(errno));
	(void)fflush(NULL); /* else the child would have what is not printed yet too */
	pid = fork();
	if (pid == 0)
		child(argv, pipes[1]);
	if (pid == -1)
		rc = complain_of("fork", strerror(errno));
	if (out != NULL)
		(void)close(pipes[1]);
	if (out != NULL && rc == 0)
		rc = read_all(pipes[0], out);
	if (out != NULL)
		(void)close(pipes[0]);
	while (pid != -1 && waitpid(pid, &status, 0) == -1)
		if (errno != EINTR)
			return complain_of(argv[0], strerror(errno));
	if (rc != 0)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
