#include "master/pdfleet/process.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/pdfleet/tree.h"
#include "shm/base/mem.h"

/* Of the text of /proc/PID/stat: the state and field 22.  The name in brackets may have blanks and brackets. */
static uint64_t
start_of(const char *stat)
{
	const char *s = strrchr(stat, ')');
	uint64_t start = 0;
	char state = 'X';

	if (s == NULL ||
		sscanf(s,
			") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
			"%*s %" SCNu64,
			&state, &start) != 2)
		return 0;
	return state == 'Z' || state == 'X' ? 0 : start;
}

uint64_t
process_start(pid_t pid)
{
	char *path = mem_printf("/proc/%d/stat", (int)pid), *text = tree_read(path, NULL);
	uint64_t start = text != NULL ? start_of(text) : 0;

	free(path);
	free(text);
	return start;
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
				errno != ESRCH)) {
		(void)fprintf(stderr, "pdctl fleet: process %d: %s\n", (int)pid, strerror(errno));
		rc = -1;
	} else if (!ended(fd, (int)stop_s * 1000)) {
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

/* Ends the process if it was started with NAME=VALUE.  1: it was; -1 after a message. */
static int
stop_if(pid_t pid, const char *name, const char *value)
{
	const uint64_t start = process_start(pid); /* before the look at it: of the same process */
	char *has = start != 0 ? process_env(pid, name) : NULL;
	int rc = 0;

	if (has != NULL && strcmp(has, value) == 0)
		rc = process_stop(pid, start, 0) == 0 ? 1 : -1;
	free(has);
	return rc;
}

int
process_stop_all(const char *name, const char *value)
{
	const struct dirent *entry;
	bool again = true;
	int rc = 0;
	DIR *d;

	while (again && rc == 0) { /* one that ends may have started another one */
		again = false;
		d = opendir("/proc");
		while (d != NULL && rc == 0 && (entry = readdir(d)) != NULL) {
			const pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
			const int one = pid > 0 && pid != getpid() ? stop_if(pid, name, value) : 0;

			again = again || one == 1;
			rc = one == -1 ? -1 : 0;
		}
		if (d != NULL)
			(void)closedir(d);
	}
	return rc;
}
