#include "master/supervise/unix_socket.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/log.h"
#include "shm/base/mem.h"

/* True if a process accepts on the socket file. */
static bool
answered(const struct sockaddr_un *sun)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	bool yes;

	if (fd == -1)
		return false;
	/* EAGAIN: the backlog is full, so the process lives */
	yes = connect(fd, (const struct sockaddr *)sun, sizeof(*sun)) == 0 || errno == EAGAIN;
	(void)close(fd);
	return yes;
}

void
unix_socket_directory(const char *path)
{
	char *dir = mem_strdup(path), *slash = strrchr(dir, '/');

	if (slash != NULL && slash != dir) {
		*slash = '\0';
		(void)mkdir(dir, 0755);
	}
	free(dir);
}

static int
bind_socket(int fd, const struct sockaddr_un *sun)
{
	mode_t mask = umask(0177);
	int r = bind(fd, (const struct sockaddr *)sun, sizeof(*sun)) == 0 ? 0 : -errno;

	(void)umask(mask);
	return r;
}

int
unix_socket_listen(const char *path, int backlog)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct stat st;
	int fd, r;

	if (strlen(path) >= sizeof(sun.sun_path))
		return -ENAMETOOLONG;
	memcpy(sun.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return -errno;
	r = bind_socket(fd, &sun);
	if (r == -EADDRINUSE && answered(&sun)) {
		r = -EWOULDBLOCK;
	} else if (r == -EADDRINUSE && lstat(path, &st) == 0 && S_ISSOCK(st.st_mode) &&
		   unlink(path) == 0) {
		/* left by a killed pdrouter; a file that is not a socket is not removed */
		r = bind_socket(fd, &sun);
	}
	if (r == 0 && listen(fd, backlog) == -1)
		r = -errno;
	if (r == 0)
		return fd;
	(void)close(fd);
	return r;
}

bool
unix_socket_file(int fd, struct unix_file *ret)
{
	struct sockaddr_un sun = {.sun_family = AF_UNSPEC};
	socklen_t len = sizeof(sun);
	struct stat st;

	if (getsockname(fd, (struct sockaddr *)&sun, &len) == -1 || sun.sun_family != AF_UNIX ||
		sun.sun_path[0] != '/' || sun.sun_path[sizeof(sun.sun_path) - 1] != '\0')
		return false;
	if (lstat(sun.sun_path, &st) == -1 || !S_ISSOCK(st.st_mode))
		return false;
	memcpy(ret->path, sun.sun_path, sizeof(ret->path));
	ret->dev = st.st_dev;
	ret->ino = st.st_ino;
	return true;
}

bool
unix_file_is_there(const struct unix_file *f)
{
	struct stat st;

	return lstat(f->path, &st) == 0 && st.st_dev == f->dev && st.st_ino == f->ino;
}

/* False: errno says why.  The group comes before the permissions that it gets. */
static bool
permit(const char *path, gid_t group, mode_t mode)
{
	struct stat st;

	if (lstat(path, &st) == 0 && st.st_gid == group && (st.st_mode & 0777) == mode)
		return true;
	return chmod(path, 0600) == 0 && chown(path, (uid_t)-1, group) == 0 &&
	       chmod(path, mode) == 0;
}

void
unix_socket_permit(const char *what, const char *path, uint32_t mode, const char *group)
{
	const struct group *gr = group != NULL ? getgrnam(group) : NULL;
	char line[80];

	(void)snprintf(line, sizeof(line), "%s: only its owner can connect", what);
	if (group != NULL && gr == NULL) {
		(void)chmod(path, 0600);
		log_warn(line, LOG_S("path", path), LOG_S("error", "there is no such group"),
			LOG_S("group", group));
	} else if (!permit(path, gr != NULL ? gr->gr_gid : getegid(), (mode_t)mode)) {
		log_warn(line, LOG_S("path", path), LOG_S("error", strerror(errno)));
	}
}
