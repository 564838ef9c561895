#include "master/fleet/watch.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"

/* Two polls with the same result: the file has not changed in between. */
#define POLL_MS 50
#define SETTLE_MS 1000 /* longest wait for a file that keeps changing */
#define LINKS_MAX 40   /* symbolic links of one path, as the kernel has it (ELOOP) */
/* events of a name in a directory, and of the directory itself */
#define CHANGES                                                                                    \
	(IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_MODIFY | IN_CLOSE_WRITE |        \
		IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF)

/* The stat() data of a file; all 0: the file does not exist, or was not polled yet. */
struct looks {
	dev_t dev;
	ino_t ino;
	off_t size;
	struct timespec mtime, ctime;
};

struct file {
	char *path;
	bool told; /* fn has been called for `last` */
	struct looks last, seen;
};

/* A name in a watched directory whose events matter. */
struct spot {
	int wd;
	char *name;
};

/*
 * inotify watches directories, not files, since a file may be removed and created again.  All directories of
 * a path are watched, also those behind symbolic links.  In each directory only one name matters.
 */
struct watch {
	watch_fn *fn;
	void *arg;
	int fd; /* of inotify, or -1 */
	struct event *readable, *look;
	bool looking;      /* the timer runs */
	uint64_t since_ms; /* clock_ms() of the first change that fn was not called for; 0: none */
	struct file *files;
	size_t n;
	struct spot *spots;
	size_t nspots;
	int failed; /* errno that has been logged, or 0 */
};

/* --- directories ------------------------------------------------------------------------- */

static bool
has_wd(const struct spot *spots, size_t n, int wd)
{
	for (size_t i = 0; i < n; i++)
		if (spots[i].wd == wd)
			return true;
	return false;
}

/*
 * inotify gives one directory the same number under all its names.  `needed` is false for a directory above
 * the file: its events only report that a directory below was replaced, and it may be unreadable.
 */
static void
add_spot(struct watch *w, const char *dir, const char *name, size_t len, bool needed)
{
	int wd = inotify_add_watch(w->fd, dir, CHANGES | IN_ONLYDIR);

	if (wd != -1) {
		w->spots = mem_resize(w->spots, w->nspots + 1, sizeof(*w->spots));
		w->spots[w->nspots++] = (struct spot){wd, mem_strndup(name, len)};
		return;
	}
	if (!needed || errno == ENOENT || errno == ENOTDIR || errno == w->failed)
		return; /* removed meanwhile: the directory above reports that */
	w->failed = errno;
	log_warn("a directory cannot be watched: a changed file there counts with the next SIGHUP "
		 "only",
		LOG_S("directory", dir),
		LOG_S("reason", errno == ENOSPC ? "fs.inotify.max_user_watches is reached"
						: strerror(errno)));
}

/* "dir" and "name" to "dir/name"; false if that is too long. */
static bool
append(char dir[PATH_MAX], const char *name, size_t len)
{
	size_t at = strlen(dir);
	bool slash = at > 0 && dir[at - 1] != '/';

	if (at + slash + len + 1 > PATH_MAX)
		return false;
	if (slash)
		dir[at++] = '/';
	memcpy(dir + at, name, len);
	dir[at + len] = '\0';
	return true;
}

/* Replaces the name of a link by the link's target, before the rest of the path. */
static bool
follow(const char *link, const char *left, char rest[PATH_MAX])
{
	char target[PATH_MAX], whole[PATH_MAX];
	ssize_t n = readlink(link, target, sizeof(target) - 1);
	int len;

	if (n < 0)
		return false;
	target[n] = '\0';
	len = snprintf(whole, sizeof(whole), "%s/%s", target, left);
	if (len < 0 || (size_t)len >= sizeof(whole))
		return false;
	memcpy(rest, whole, (size_t)len + 1);
	return true;
}

/* Resolves the path name by name, as the kernel does.  `dir` is the current directory. */
static void
add_path(struct watch *w, const char *path)
{
	char dir[PATH_MAX], rest[PATH_MAX], here[PATH_MAX];
	int links = 0;

	if (strlen(path) >= sizeof(rest))
		return;
	memcpy(rest, path, strlen(path) + 1);
	memcpy(dir, path[0] == '/' ? "/" : ".", 2);
	while (links <= LINKS_MAX) {
		const char *name = rest + strspn(rest, "/");
		size_t len = strcspn(name, "/");
		const char *left = name + len + strspn(name + len, "/");
		struct stat st;
		int r;

		memcpy(here, dir, sizeof(here));
		if (len == 0 || !append(here, name, len))
			return;
		r = lstat(here, &st);
		add_spot(w, dir, name, len, r == -1 || *left == '\0' || S_ISLNK(st.st_mode));
		if (r == -1)
			return; /* until the name exists */
		if (S_ISLNK(st.st_mode)) {
			links++;
			if (!follow(here, left, rest))
				return;
			if (rest[0] == '/')
				memcpy(dir, "/", 2);
		} else if (*left == '\0') {
			return;
		} else {
			memcpy(dir, here, sizeof(dir));
			memmove(rest, left, strlen(left) + 1);
		}
	}
}

static void
free_spots(struct spot *spots, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(spots[i].name);
	free(spots);
}

/* The directories of the paths may have changed: watches the current ones, and no others. */
static void
add_paths(struct watch *w)
{
	struct spot *old = w->spots;
	size_t nold = w->nspots;

	if (w->fd == -1)
		return;
	w->spots = NULL;
	w->nspots = 0;
	for (size_t i = 0; i < w->n; i++)
		add_path(w, w->files[i].path);
	for (size_t i = 0; i < nold; i++)
		if (!has_wd(w->spots, w->nspots, old[i].wd) && !has_wd(old, i, old[i].wd))
			(void)inotify_rm_watch(
				w->fd, old[i].wd); /* fails if the directory was removed */
	free_spots(old, nold);
}

/* --- files ------------------------------------------------------------------------------- */

static struct looks
look_at(const char *path)
{
	struct stat st;

	if (stat(path, &st) == -1)
		return (struct looks){0};
	return (struct looks){st.st_dev, st.st_ino, st.st_size, st.st_mtim, st.st_ctim};
}

static bool
same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool
same_looks(const struct looks *a, const struct looks *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
	       same_time(&a->mtime, &b->mtime) && same_time(&a->ctime, &b->ctime);
}

static void
look_soon(struct watch *w)
{
	struct timeval tv = clock_tv(POLL_MS);

	if (w->looking)
		return;
	w->looking = true;
	(void)event_add(w->look, &tv);
}

/* True if a file differs from its last reported state; *ret_moving: also from the previous poll. */
static bool
look(struct watch *w, bool *ret_moving)
{
	bool changed = false;

	for (size_t i = 0; i < w->n; i++) {
		struct file *f = &w->files[i];
		struct looks now = look_at(f->path);

		if (f->told && same_looks(&now, &f->last) && same_looks(&now, &f->seen))
			continue;
		changed = true;
		*ret_moving |= !same_looks(&now, &f->seen);
		f->seen = now;
	}
	return changed;
}

static void
on_look(evutil_socket_t fd, short what, void *arg)
{
	struct watch *w = arg;
	bool moving = false;

	(void)fd;
	(void)what;
	w->looking = false;
	add_paths(w); /* first: each later change is an event */
	if (!look(w, &moving)) {
		w->since_ms = 0;
		return;
	}
	if (w->since_ms == 0)
		w->since_ms = clock_ms();
	if (moving && clock_ms() - w->since_ms < SETTLE_MS) {
		look_soon(w);
		return;
	}
	for (size_t i = 0; i < w->n; i++) {
		w->files[i].told =
			!moving; /* false: a later state may be equal, so fn is called again */
		w->files[i].last = w->files[i].seen;
	}
	w->since_ms = 0;
	if (moving)
		look_soon(w);
	w->fn(w->arg);
}

static bool
matters(const struct watch *w, const struct inotify_event *ev)
{
	if (ev->len == 0) /* the directory itself, or events were lost */
		return true;
	for (size_t i = 0; i < w->nspots; i++)
		if (w->spots[i].wd == ev->wd && strcmp(w->spots[i].name, ev->name) == 0)
			return true;
	return false;
}

static void
on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct watch *w = arg;
	char buf[8192] __attribute__((aligned(__alignof__(struct inotify_event))));
	ssize_t n;

	(void)what;
	n = read(fd, buf,
		sizeof(buf)); /* one read per event: a busy directory must not occupy the loop */
	for (const char *at = buf; n > 0 && at < buf + n;) {
		const struct inotify_event *ev = (const void *)at;

		if (matters(w, ev))
			look_soon(w);
		at += sizeof(*ev) + ev->len;
	}
}

/* --- outside ----------------------------------------------------------------------------- */

static struct file
file_for(struct watch *w, const char *path)
{
	for (size_t i = 0; i < w->n; i++)
		if (w->files[i].path != NULL && strcmp(w->files[i].path, path) == 0) {
			struct file kept = w->files[i];

			w->files[i].path = NULL;
			return kept;
		}
	return (struct file){.path = mem_strdup(path)};
}

static void
free_files(struct watch *w)
{
	for (size_t i = 0; i < w->n; i++)
		free(w->files[i].path);
	free(w->files);
}

void
watch_set(struct watch *w, const char *const *paths, size_t n)
{
	struct file *files = mem_array(n + 1, sizeof(*files));
	bool fresh = false;

	for (size_t i = 0; i < n; i++) {
		files[i] = file_for(w, paths[i]);
		fresh |= !files[i].told;
	}
	free_files(w);
	w->files = files;
	w->n = n;
	w->failed = 0;
	add_paths(w);
	if (fresh && w->fd != -1)
		look_soon(w);
}

struct watch *
watch_new(struct event_base *base, watch_fn *fn, void *arg)
{
	struct watch *w = MEM_NEW(struct watch);

	w->fn = fn;
	w->arg = arg;
	w->look = event_new(base, -1, 0, on_look, w);
	assert(w->look != NULL);
	w->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (w->fd == -1) {
		log_warn("no file can be watched: a changed file counts with the next SIGHUP only",
			LOG_S("reason", errno == EMFILE ? "fs.inotify.max_user_instances is reached"
							: strerror(errno)));
		return w;
	}
	w->readable = event_new(base, w->fd, EV_READ | EV_PERSIST, on_readable, w);
	assert(w->readable != NULL);
	(void)event_add(w->readable, NULL);
	return w;
}

void
watch_free(struct watch **pw)
{
	struct watch *w = *pw;

	if (w == NULL)
		return;
	if (w->fd != -1) {
		event_free(w->readable);
		(void)close(w->fd);
	}
	event_free(w->look);
	free_files(w);
	free_spots(w->spots, w->nspots);
	free(w);
	*pw = NULL;
}
