#include "shm/base/lockfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "shm/base/mem.h"

int
lockfile_take(const char *path)
{
	char *name = mem_printf("%s.lock", path);
	int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), r = fd;

	if (fd == -1) {
		r = -errno;
	} else if (flock(fd, LOCK_EX | LOCK_NB) == -1) {
		r = -errno;
		(void)close(fd);
	}
	free(name);
	return r;
}
