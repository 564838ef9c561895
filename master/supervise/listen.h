/*
 * Listening sockets: one per address, non-blocking, shared by all workers of all generations.
 *
 * Process: master.  Owns the sockets; children inherit the descriptors of their configuration.
 * A socket comes from systemd or from an older instance of pdrouter (matched by its address), or is made here.  The
 * file of a unix socket is removed when the socket is dropped, unless another process needs it still.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "shm/base/conf.h"

struct door_fd;
struct inherit;
struct listeners;
struct resolver;
struct sd;

/* Takes the sockets that systemd or an older instance passed; the caller owns `resolver`, which must outlive the
 * listeners. */
struct listeners *listeners_new(struct resolver *resolver, const struct inherit *in);
/* Own sockets stop listening (waiting connections are reset); systemd keeps those it passed, and an older instance
 * those that it may still need. */
void listeners_free(struct listeners **);

/* Adds all sockets to what a new instance gets.  False: there are more than can be passed. */
bool listeners_pass(const struct listeners *ls, struct inherit *in);
/* The older instance no longer needs the sockets that it passed: they are own ones from now on. */
void listeners_own(struct listeners *ls);
/* systemd keeps own sockets over a restart. */
void listeners_store(const struct listeners *ls, const struct sd *sd);
/* Another process has all sockets, or will get them from systemd.  They are closed here and listen on. */
void listeners_leave(struct listeners *ls);

struct listen_error {
	enum listen_list list; /* of the address */
	char text[256];
};

/*
 * `fds` belongs to the caller (free()); n is at least 1.  Or fds is NULL and `error` has the failed
 * address and the reason; sockets that were opened before the failure are closed by the next
 * listeners_keep().
 */
typedef void listen_done(
	void *arg, struct door_fd *fds, size_t n, const struct listen_error *error);

/*
 * Finds or makes the sockets of all addresses in `conf`.  A socket whose address is open already is kept; a
 * host name means the addresses that it had when it was new.  `done` is called once, possibly
 * before this returns: only a new host name takes time.  One call at a time; `conf` must live until
 * done().
 */
void listeners_open(struct listeners *ls, const struct conf *conf, listen_done *done, void *arg);
/* Gives up waiting for a name: done() will not be called.  Nothing happens if nothing is under way. */
void listeners_cancel(struct listeners *ls);

/*
 * Closes every own socket that is not in `fds`, and drops the host names that are not in conf
 * (NULL: all): they are looked up again when they reappear.  Unix sockets get the permissions of conf.
 */
void listeners_keep(
	struct listeners *ls, const struct conf *conf, const struct door_fd *fds, size_t n);
