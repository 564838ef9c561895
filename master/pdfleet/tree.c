#include "master/pdfleet/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/pdfleet/complain.h"
#include "shm/base/mem.h"

/* Makes the folders of the path, up to its last slash. */
static int
make_folders(char *path)
{
	for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(path, 0755) != 0 && errno != EEXIST)
			return complain_of(path, strerror(errno));
		*slash = '/';
	}
	return 0;
}

int
tree_begin(const char *dir)
{
	char *path = mem_printf("%s/", dir);
	int rc = make_folders(path);
	const struct dirent *entry;
	DIR *d = NULL;

	free(path);
	if (rc != 0)
		return -1;
	d = opendir(dir);
	if (d == NULL)
		return complain_of(dir, strerror(errno));
	while (rc == 0 && (entry = readdir(d)) != NULL)
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			rc = complain_of(
				dir, "is not empty: files of an older plan could stay there");
	(void)closedir(d);
	return rc;
}

int
tree_write_all(int fd, const char *p, size_t n)
{
	ssize_t k;

	while (n > 0) {
		k = write(fd, p, n);
		if (k < 0 && errno != EINTR)
			return -1;
		if (k > 0) {
			p += k;
			n -= (size_t)k;
		}
	}
	return 0;
}

int
tree_put(const char *path, const struct topo_file *f)
{
	char *temp = mem_printf("%s.new", path);
	int rc = 0, fd = -1;

	if (unlink(temp) == 0 || errno == ENOENT) /* a killed run has left it */
		fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, f->mode);
	if (fd == -1 || tree_write_all(fd, f->bytes, f->n) != 0 || fsync(fd) != 0 ||
		fchmod(fd, f->mode) != 0 || rename(temp, path) != 0)
		rc = complain_of(path, strerror(errno));
	if (fd != -1)
		(void)close(fd);
	free(temp);
	return rc;
}

int
tree_write(const char *dir, const struct topo_file *f)
{
	char *path = mem_printf("%s/%s", dir, f->path);
	int rc = make_folders(path) == 0 ? tree_put(path, f) : -1;

	free(path);
	return rc;
}

int
tree_folders(const char *path)
{
	char *copy = mem_strdup(path);
	int rc = make_folders(copy);

	free(copy);
	return rc;
}

/* A descriptor of a regular file, or -1 with errno; a fifo does not hold it up. */
static int
open_regular(const char *path)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), err = EINVAL;
	struct stat st;

	if (fd == -1)
		return -1;
	if (fstat(fd, &st) != 0)
		err = errno;
	else if (S_ISREG(st.st_mode))
		return fd;
	(void)close(fd);
	errno = err;
	return -1;
}

/* 0, or an errno. */
static int
read_all(int fd, struct membuf *b)
{
	char buf[4096];
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf))) != 0) {
		if (n == -1 && errno != EINTR)
			return errno;
		membuf_add(b, buf, n > 0 ? (size_t)n : 0);
		if (b->n > TREE_MAX)
			return EFBIG;
	}
	return 0;
}

char *
tree_read(const char *path, size_t *ret_n)
{
	struct membuf b = {.p = NULL};
	int fd = open_regular(path), err = fd == -1 ? errno : read_all(fd, &b);

	if (fd != -1)
		(void)close(fd);
	if (err != 0) {
		membuf_free(&b);
		errno = err;
		return NULL;
	}
	if (ret_n != NULL)
		*ret_n = b.n;
	membuf_add(&b, "", 1);
	return b.p;
}
