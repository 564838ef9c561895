/*
 * Files that are watched: says when what stands behind a path may have changed, however that was done:
 * written in place, renamed over, deleted and made anew, or a symbolic link on the way to it switched
 * over (as Kubernetes does with a ConfigMap's `..data`).
 *
 * Process: master.  One inotify instance; the kernel tells of nothing on file systems that others write
 * (NFS).
 */
#pragma once
#include <stddef.h>

struct event_base;
struct watch;

/*
 * Something has changed and has been quiet for about 100 ms, or goes on changing since 1 s.  Also called
 * once for a path that is new, since nobody knows when it was read.
 */
typedef void watch_fn(void *arg);

/* Aborts when out of memory.  Without inotify (limits) nothing is watched, which is logged. */
struct watch *watch_new(struct event_base *base, watch_fn *fn, void *arg);
void watch_free(struct watch **);

/* From now on these paths (copied; n may be 0) and no others. */
void watch_set(struct watch *w, const char *const *paths, size_t n);
