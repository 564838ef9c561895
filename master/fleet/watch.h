/*
 * Watched files: reports that the file at a path may have changed, in whatever way: written in place,
 * renamed over, deleted and made anew, or a symbolic link in its path switched over (as Kubernetes does
 * with a ConfigMap's `..data`).
 *
 * Process: master.  One inotify instance; the kernel reports no changes that other hosts make (NFS).
 */
#pragma once
#include <stddef.h>

struct event_base;
struct watch;

/*
 * The file has changed and has been quiet for about 100 ms, or has kept changing for 1 s.  Also
 * called once for a new path, because it is unknown when the caller read it.
 */
typedef void watch_fn(void *arg);

/* Aborts when out of memory.  Without inotify (limits) nothing is watched, which is logged. */
struct watch *watch_new(struct event_base *base, watch_fn *fn, void *arg);
void watch_free(struct watch **);

/* From now on these paths (copied; n may be 0) and no others. */
void watch_set(struct watch *w, const char *const *paths, size_t n);
