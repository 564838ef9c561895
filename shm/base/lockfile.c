#include "shm/base/lockfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "shm/base/mem.h"

/* A child that a killed master has just forked holds the lock until it has closed what it inherited. */
#define TRIES 10
#define WAIT_MS 20

static int
lock(int fd)
{
	int r = flock(fd, LOCK_EX | LOCK_NB);

	for (int i = 1; r == -1 && errno == EWOULDBLOCK && i < TRIES; i++) {
		(void)usleep(WAIT_MS * 1000);
		r = flock(fd, LOCK_EX | LOCK_NB);
	}
	return r;
}

int
lockfile_take(const char *path)
{
	char *name = mem_printf("%s.lock", path);
	int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), r = fd;

	if (fd == -1) {
		r = -errno;
	} else if (lock(fd) == -1) {
		r = -errno;
		(void)close(fd);
	}
	free(name);
	return r;
}
