#include "master/pdfleet/owned.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/pdfleet/complain.h"
#include "master/pdfleet/tree.h"
#include "shm/base/mem.h"

#define NOT_OURS "is not a file of this fleet: move it away"

static char *
full_path(const struct topo_file *f)
{
	return mem_printf("/%s", f->path);
}

static char *
beside_path(const struct topo_file *f, const char *ext)
{
	return mem_printf("/%s%s", f->path, ext);
}

static bool
has_head(const char *text, const char *fleet)
{
	char *head = mem_printf(TOPO_HEAD "\n", fleet);
	bool yes = strncmp(text, head, strlen(head)) == 0;

	free(head);
	return yes;
}

/* --- files beside it
 * ----------------------------------------------------------------------------- */

static const char former_ext[] = ".former", new_ext[] = ".new";

enum beside { BESIDE_NONE, BESIDE_OURS, BESIDE_BEGUN, BESIDE_FOREIGN };

/* Ours has the first line of `f`; one whose writing was interrupted has the begin of that line. */
static enum beside
beside_look(const struct topo_file *f, const char *ext)
{
	const char *eol = memchr(f->bytes, '\n', f->n);
	const size_t head = eol != NULL ? (size_t)(eol - f->bytes) + 1 : f->n;
	char *path = beside_path(f, ext), *text = NULL;
	enum beside ret = BESIDE_FOREIGN;
	struct stat st;
	size_t n = 0;

	if (lstat(path, &st) != 0)
		ret = errno == ENOENT ? BESIDE_NONE : BESIDE_FOREIGN;
	else if (S_ISREG(st.st_mode))
		text = tree_read(path, &n);
	if (text != NULL && memcmp(text, f->bytes, n < head ? n : head) == 0)
		ret = n < head ? BESIDE_BEGUN : BESIDE_OURS;
	free(text);
	free(path);
	return ret;
}

/* Before `f` is written: 0, or -1 after a message if that would destroy a file of another. */
static int
refuse_beside(const struct topo_file *f)
{
	const enum beside former = beside_look(f, former_ext), new = beside_look(f, new_ext);
	const bool bad = former == BESIDE_FOREIGN || former == BESIDE_BEGUN;
	char *path = beside_path(f, bad ? former_ext : new_ext);
	int rc = 0;

	if (bad || new == BESIDE_FOREIGN)
		rc = complain_of(path, NOT_OURS);
	free(path);
	return rc;
}

static bool
has_former(const struct topo_file *f)
{
	return beside_look(f, former_ext) == BESIDE_OURS;
}

/* --- the file itself
 * ----------------------------------------------------------------------------- */

bool
owned_is(const char *path, const char *fleet)
{
	char *text = tree_read(path, NULL);
	bool yes = text != NULL && has_head(text, fleet);

	free(text);
	return yes;
}

/* Of a file that cannot be read, by its errno. */
static enum owned_state
state_of_unread(int err)
{
	switch (err) {
	case ENOENT:
		return OWNED_MISSING;
	case EINVAL: /* no regular file */
	case EFBIG:
		return OWNED_FOREIGN;
	default:
		return OWNED_UNKNOWN;
	}
}

enum owned_state
owned_look(const struct topo_file *want, const char *fleet)
{
	char *path = full_path(want);
	size_t n = 0;
	char *text = tree_read(path, &n);
	enum owned_state ret = OWNED_DIFFERS;
	const int err = errno;

	if (text == NULL)
		ret = state_of_unread(err);
	else if (n == want->n && memcmp(text, want->bytes, n) == 0)
		ret = OWNED_SAME;
	else if (!has_head(text, fleet))
		ret = OWNED_FOREIGN;
	free(text);
	free(path);
	errno = err;
	return ret;
}

static int
refuse_one(const struct topo_file *f, const char *fleet)
{
	enum owned_state state = owned_look(f, fleet);
	char *path = full_path(f);
	int rc = 0;

	if (state == OWNED_UNKNOWN)
		rc = complain_of(path, strerror(errno));
	else if (state == OWNED_FOREIGN)
		rc = complain_of(path, NOT_OURS);
	else if (state != OWNED_SAME)
		rc = refuse_beside(f);
	free(path);
	return rc;
}

int
owned_refuse(const struct topo_files *want, const char *fleet)
{
	int rc = 0;

	for (size_t i = 0; i < want->n; i++)
		if (refuse_one(&want->v[i], fleet) != 0)
			rc = -1;
	return rc;
}

/* --- the difference
 * ------------------------------------------------------------------------------ */

static bool
has_line(const char *text, size_t size, const char *line, size_t n)
{
	const char *end = text + size;

	while (text < end) {
		const char *stop = memchr(text, '\n', (size_t)(end - text));
		size_t len = (size_t)((stop != NULL ? stop : end) - text);

		if (len == n && memcmp(text, line, n) == 0)
			return true;
		text += len + 1;
	}
	return false;
}

/* The lines of `a` that `b` does not have. */
static void
print_only(char sign, const char *a, size_t na, const char *b, size_t nb)
{
	const char *end = a + na;

	while (a < end) {
		const char *stop = memchr(a, '\n', (size_t)(end - a));
		size_t len = (size_t)((stop != NULL ? stop : end) - a);

		if (!has_line(b, nb, a, len))
			(void)printf("    %c %.*s\n", sign, (int)len, a);
		a += len + 1;
	}
}

void
owned_diff(const struct topo_file *want)
{
	char *path = full_path(want);
	size_t n = 0;
	char *text = tree_read(path, &n);

	(void)printf("write %s\n", path);
	if (text != NULL) {
		print_only('-', text, n, want->bytes, want->n);
		print_only('+', want->bytes, want->n, text, n);
	}
	free(text);
	free(path);
}

/* --- changes
 * ------------------------------------------------------------------------------------- */

/* A former text that is there already is the one that ran well: the present text never did. */
static int
keep_former(const struct topo_file *f, const char *path)
{
	char *former = beside_path(f, former_ext);
	int rc = link(path, former) == 0 || errno == EEXIST || errno == ENOENT ? 0 : -1;

	if (rc != 0)
		rc = complain_of(former, strerror(errno));
	free(former);
	return rc;
}

static int
write_one(const struct topo_file *f)
{
	char *path = full_path(f);
	int rc = tree_folders(path) == 0 && keep_former(f, path) == 0 ? tree_put(path, f) : -1;

	if (rc == 0)
		(void)printf("write %s\n", path);
	free(path);
	return rc;
}

int
owned_write(const struct topo_files *want, const char *fleet, bool *ret_changed)
{
	int rc = 0;

	*ret_changed = false;
	for (size_t i = 0; rc == 0 && i < want->n; i++) {
		if (owned_look(&want->v[i], fleet) == OWNED_SAME)
			continue;
		rc = refuse_one(&want->v[i], fleet) == 0 ? write_one(&want->v[i]) : -1;
		*ret_changed = true;
	}
	return rc;
}

int
owned_confirm(const struct topo_files *want)
{
	int rc = 0;

	for (size_t i = 0; i < want->n; i++) {
		char *former = beside_path(&want->v[i], former_ext);

		if (has_former(&want->v[i]) && unlink(former) != 0)
			rc = complain_of(former, strerror(errno));
		free(former);
	}
	return rc;
}

bool
owned_has_former(const struct topo_files *want)
{
	bool yes = false;

	for (size_t i = 0; !yes && i < want->n; i++)
		yes = has_former(&want->v[i]);
	return yes;
}

static int
restore_one(const struct topo_file *f)
{
	char *former = beside_path(f, former_ext), *path = full_path(f);
	int rc = rename(former, path) == 0 ? 0 : complain_of(path, strerror(errno));

	if (rc == 0)
		(void)printf("write %s (as it was)\n", path);
	free(former);
	free(path);
	return rc;
}

int
owned_restore(const struct topo_files *want)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < want->n; i++)
		if (has_former(&want->v[i]))
			rc = restore_one(&want->v[i]);
	return rc;
}

/* The file itself is the last one: it tells the next run that there is something left. */
static const char *const left_exts[] = {former_ext, new_ext, ""};
#define NLEFT (sizeof(left_exts) / sizeof(left_exts[0]))

bool
owned_is_left(const char *path, const char *fleet)
{
	bool yes = false;

	for (size_t i = 0; i < NLEFT && !yes; i++) {
		char *one = mem_printf("%s%s", path, left_exts[i]);

		yes = owned_is(one, fleet);
		free(one);
	}
	return yes;
}

int
owned_remove(const char *path, const char *fleet)
{
	int rc = 0;

	if (!owned_is_left(path, fleet))
		return 0;
	for (size_t i = 0; i < NLEFT && rc == 0; i++) {
		char *one = mem_printf("%s%s", path, left_exts[i]);

		if (owned_is(one, fleet) && unlink(one) != 0)
			rc = complain_of(one, strerror(errno));
		free(one);
	}
	if (rc == 0)
		(void)printf("remove %s\n", path);
	return rc;
}
