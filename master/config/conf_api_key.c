#include "master/config/conf_api_key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/mem.h"

#define API_KEY_MAX 4096 /* bytes; tokens such as JWTs are one or two thousand */

ssize_t
conf_read_small(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	ssize_t n = -1;

	if (fd == -1)
		return -1;
	if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode))
		errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
	else
		n = read(fd, buf, size);
	(void)close(fd);
	return n;
}

/* What is wrong with a key, or NULL.  No message may show any of it. */
static const char *
key_fault(const char *key, size_t n)
{
	if (n == 0)
		return "is empty";
	if (n > API_KEY_MAX)
		return "holds more than 4096 bytes";
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)key[i] <= ' ' || (unsigned char)key[i] >= 0x7f)
			return "holds a byte that no header may carry: a blank, a second line, not ASCII";
	return NULL;
}

int
conf_api_key_read(struct conf_read *r, struct conf_pool *p, int line)
{
	char buf[API_KEY_MAX + 2]; /* the newline, and a byte too many */
	char *path = conf_beside(r->file, p->engine_api_key_file);
	size_t mark = conf_enter(r, ".engine_api_key_file");
	ssize_t n = conf_read_small(path, buf, sizeof(buf));
	const char *fault;
	int rc = 0;

	if (n > 0 && buf[n - 1] == '\n')
		n--;
	fault = n < 0 ? strerror(errno) : key_fault(buf, (size_t)n);
	if (fault != NULL)
		rc = conf_fail(
			r, line, "%.150s %s%s", path, n < 0 ? "cannot be read: " : "", fault);
	else
		p->api_key = mem_strndup(buf, (size_t)n);
	explicit_bzero(buf, sizeof(buf));
	free(path);
	if (rc == 0)
		conf_leave(r, mark);
	return rc;
}
