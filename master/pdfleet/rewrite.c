#include "master/pdfleet/rewrite.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/config/conf.h"
#include "master/pdfleet/complain.h"
#include "master/pdfleet/tree.h"
#include "master/topology/topology.h"
#include "shm/base/mem.h"

int
rewrite_begin(const char *path, struct rewrite *ret)
{
	struct conf_error err;

	*ret = (struct rewrite){.path = realpath(path, NULL)};
	/* stat() comes first: a change between it and the reading is seen later */
	if (ret->path == NULL || stat(ret->path, &ret->was) != 0)
		return complain_of(path, strerror(errno));
	if (topo_read_file(ret->path, &ret->text, &ret->n, &err) == 0)
		return 0;
	return complain_error(&err);
}

void
rewrite_free(struct rewrite *r)
{
	free(r->path);
	free(r->text);
	*r = (struct rewrite){.path = NULL};
}

static bool
is_as_it_was(const struct rewrite *r)
{
	struct stat st;

	return stat(r->path, &st) == 0 && st.st_dev == r->was.st_dev &&
	       st.st_ino == r->was.st_ino && st.st_size == r->was.st_size &&
	       st.st_mtim.tv_sec == r->was.st_mtim.tv_sec &&
	       st.st_mtim.tv_nsec == r->was.st_mtim.tv_nsec;
}

/* Another owner is asked for only where it is needed: most users may give nothing away. */
static int
keep_owner(int fd, const struct stat *was)
{
	struct stat st;

	if (fstat(fd, &st) != 0)
		return -1;
	if (st.st_uid == was->st_uid && st.st_gid == was->st_gid)
		return 0;
	return fchown(fd, was->st_uid, was->st_gid);
}

/* The rename is on the disk when the folder is. */
static int
sync_folder(const char *path)
{
	char *copy = mem_strdup(path);
	int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc = fd != -1 ? fsync(fd) : -1;

	if (fd != -1)
		(void)close(fd);
	free(copy);
	return rc;
}

int
rewrite_end(const struct rewrite *r, const char *bytes, size_t n)
{
	char *temp = mem_printf("%s.XXXXXX", r->path);
	int fd = mkostemp(temp, O_CLOEXEC), rc = 0;

	/* the mode comes after the owner: a change of the owner clears bits of it */
	if (fd == -1 || tree_write_all(fd, bytes, n) != 0 || keep_owner(fd, &r->was) != 0 ||
		fchmod(fd, r->was.st_mode & 07777) != 0 || fsync(fd) != 0)
		rc = complain_of(r->path, strerror(errno));
	else if (!is_as_it_was(r))
		rc = complain_of(r->path, "has been changed meanwhile; nothing was written");
	else if (rename(temp, r->path) != 0 || sync_folder(r->path) != 0)
		rc = complain_of(r->path, strerror(errno));
	if (fd != -1)
		(void)close(fd);
	if (fd != -1 && rc != 0)
		(void)unlink(temp);
	free(temp);
	return rc;
}
