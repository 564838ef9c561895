#include "master/fleet/state_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/lockfile.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"

#define CHUNK 4096

struct state_file {
	char *path, *temporary, *broken, *directory;
	int lock;           /* of PATH.lock; -1: this process does not have it */
	const char *barred; /* why this process never writes the file; NULL: it may */
	const char *error;  /* why the last text is not in the file; "": it is */
	pid_t writer;       /* the process that writes it now; 0: none */
};

static char *
directory_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	if (slash == NULL)
		return mem_strdup(".");
	return slash == path ? mem_strdup("/") : mem_strndup(path, (size_t)(slash - path));
}

void
state_file_fail(struct state_file *sf, const char *why)
{
	if (strcmp(sf->error, why) != 0)
		log_error("state_file not written: drains will not outlive this process",
			LOG_S("path", sf->path), LOG_S("error", why));
	sf->error = why;
}

/* A directory that cannot be written now may be writable later. */
static void
take_lock(struct state_file *sf)
{
	int r = lockfile_take(sf->path);

	if (r >= 0)
		sf->lock = r;
	else if (r == -EWOULDBLOCK)
		sf->barred = "another process has this state_file";
	else
		state_file_fail(sf, strerrordesc_np(-r));
}

/* Whether the descriptor, of which another process has the lock, is PATH.lock. */
static bool
is_lock_of(int lock, const char *path)
{
	char *name = mem_printf("%s.lock", path);
	struct stat a, b;
	const bool same = lock != -1 && fstat(lock, &a) == 0 && stat(name, &b) == 0 &&
			  a.st_dev == b.st_dev && a.st_ino == b.st_ino;

	free(name);
	return same;
}

struct state_file *
state_file_new(const char *path, int lock)
{
	struct state_file *sf = MEM_NEW(struct state_file);
	struct stat st;

	sf->path = mem_strdup(path);
	sf->temporary = mem_printf("%s.new", path);
	sf->broken = mem_printf("%s.broken", path);
	sf->directory = directory_of(path);
	sf->lock = -1;
	sf->error = "";
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		sf->barred =
			"it is not a regular file"; /* a device is neither renamed nor replaced */
	else if (is_lock_of(lock, path))
		sf->lock = lock;
	else
		take_lock(sf);
	if (lock != -1 && sf->lock != lock)
		(void)close(lock);
	if (sf->barred != NULL)
		state_file_fail(sf, sf->barred);
	return sf;
}

void
state_file_free(struct state_file **psf)
{
	struct state_file *sf = *psf;

	if (sf == NULL)
		return;
	if (sf->writer != 0)
		(void)waitpid(sf->writer, NULL, 0);
	if (sf->lock != -1)
		(void)close(sf->lock);
	free(sf->path);
	free(sf->temporary);
	free(sf->broken);
	free(sf->directory);
	free(sf);
	*psf = NULL;
}

/* --- reading ------------------------------------------------------------------------------ */

void
state_file_set_aside(const struct state_file *sf, const char *why)
{
	const char *as = sf->broken, *not_renamed = "";

	if (sf->barred != NULL) {
		as = NULL;
		not_renamed = sf->barred;
	} else if (rename(sf->path, sf->broken) == -1) {
		as = NULL;
		not_renamed = strerror(errno);
	}
	log_warn("state_file cannot be used: no endpoint is drained", LOG_S("path", sf->path),
		LOG_S("error", why), LOG_S("set_aside_as", as), LOG_S("not_renamed", not_renamed));
}

/* NULL, or why not. */
static const char *
read_all(int fd, size_t max, struct membuf *out)
{
	char buf[CHUNK];
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		if (out->n + (size_t)n > max)
			return "the file is too large";
		membuf_add(out, buf, (size_t)n);
	}
	return n == 0 ? NULL : strerrordesc_np(errno);
}

bool
state_file_read(struct state_file *sf, size_t max, struct membuf *out)
{
	const char *why;
	struct stat st;
	int fd;

	if (stat(sf->path, &st) == 0 && !S_ISREG(st.st_mode))
		return true;
	fd = open(sf->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd == -1 && errno == ENOENT)
		return true;
	why = fd == -1 ? strerrordesc_np(errno) : read_all(fd, max, out);
	if (fd != -1)
		(void)close(fd);
	if (why == NULL)
		return true;
	state_file_set_aside(sf, why);
	return false;
}

/* --- writing ------------------------------------------------------------------------------ */

static int
write_all(int fd, const char *text, size_t n)
{
	while (n > 0) {
		const ssize_t written = write(fd, text, n);

		if (written <= 0)
			return written == 0 ? -ENOSPC : -errno;
		text += written;
		n -= (size_t)written;
	}
	return fsync(fd) == 0 ? 0 : -errno;
}

static bool
is_at(int fd, const char *path)
{
	struct stat a, b;

	return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
	       a.st_ino == b.st_ino;
}

/*
 * The temporary file, empty and locked, or -errno.  The writer of a master that was killed may still be in its last system
 * call, on a slow disk for long.  If that was rename(), the file has become the state_file.
 */
static int
open_temporary(const struct state_file *sf)
{
	for (;;) {
		int fd = open(sf->temporary,
			O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
		int r;

		if (fd == -1)
			return -errno;
		r = flock(fd, LOCK_EX) == 0 ? 0 : -errno;
		if (r == 0 && !is_at(fd, sf->temporary)) {
			(void)close(fd);
			continue;
		}
		if (r == 0 && ftruncate(fd, 0) == -1)
			r = -errno;
		if (r == 0)
			return fd;
		(void)close(fd);
		return r;
	}
}

/* The descriptor stays open: it has the lock until this process has ended. */
static int
write_temporary(const struct state_file *sf, const char *text, size_t n)
{
	int fd = open_temporary(sf);

	return fd < 0 ? fd : write_all(fd, text, n);
}

/* The name of a renamed file is on disk when its directory is. */
static int
sync_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;

	if (fd == -1 || fsync(fd) == -1)
		r = -errno;
	if (fd != -1)
		(void)close(fd);
	return r;
}

static int
replace(const struct state_file *sf, const char *text, size_t n)
{
	int r = write_temporary(sf, text, n);

	if (r == 0 && rename(sf->temporary, sf->path) == -1)
		r = -errno;
	if (r == 0)
		return sync_directory(sf->directory);
	(void)unlink(sf->temporary); /* a full disk needs the room */
	return r;
}

/*
 * The exit code is an errno.  The descriptors are closed first: a killed master must let its locks and sockets go, however
 * long the disk takes.  The writer dies with it, since the next master may have read the former text by then.
 */
static _Noreturn void
be_writer(const struct state_file *sf, pid_t master, const char *text, size_t n)
{
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	(void)close_range(STDERR_FILENO + 1, ~0u, 0);
	if (getppid() != master)
		_exit(ECHILD);
	_exit(-replace(sf, text, n));
}

bool
state_file_begin(struct state_file *sf, const void *text, size_t n)
{
	const pid_t self = getpid();

	assert(sf->writer == 0);
	if (sf->barred == NULL && sf->lock == -1)
		take_lock(sf);
	if (sf->barred != NULL)
		state_file_fail(sf, sf->barred);
	if (sf->lock == -1)
		return false;
	sf->writer = fork();
	if (sf->writer == 0)
		be_writer(sf, self, text, n);
	if (sf->writer > 0)
		return true;
	sf->writer = 0;
	state_file_fail(sf, strerrordesc_np(errno));
	return false;
}

bool
state_file_is_written(const struct state_file *sf)
{
	return sf->writer != 0;
}

bool
state_file_end(struct state_file *sf, bool *ret_good)
{
	int status;

	if (sf->writer == 0 || waitpid(sf->writer, &status, WNOHANG) != sf->writer)
		return false;
	sf->writer = 0;
	*ret_good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
	if (!*ret_good) {
		state_file_fail(sf, WIFEXITED(status) ? strerrordesc_np(WEXITSTATUS(status))
						      : "the process that writes it was killed");
		return true;
	}
	if (sf->error[0] != '\0')
		log_info("state_file written again", LOG_S("path", sf->path));
	sf->error = "";
	return true;
}

const char *
state_file_error(const struct state_file *sf)
{
	return sf->error;
}

const char *
state_file_path(const struct state_file *sf)
{
	return sf->path;
}

int
state_file_lock(const struct state_file *sf)
{
	return sf->lock;
}
