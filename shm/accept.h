/*
 * Which workers accept: all workers that have no more than their share of the load.  A worker's load
 * is its open connections, and one more for each MiB of bodies that it holds or has been declared
 * (shm/stored.h).
 *
 * The listening sockets are shared, and a connection wakes one of the workers that watch them
 * (worker/net/listen.c).  A worker above its share rests: it does not watch the sockets.  A worker
 * that stops accepting wakes one that may accept.
 *
 * Process: worker.  The words are in struct proc_slot.  accept.c argues why at least one worker
 * always accepts.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct seg;

#define ACCEPT_NOBODY UINT32_MAX

/* A worker's state; 0 in a slot without a worker. */
enum accept_state {
	ACCEPT_UNABLE, /* it drains, or has no descriptor for a connection: it has no share */
	ACCEPT_RESTS,  /* it is above its share */
	ACCEPT_WOKEN,  /* another worker has woken it: it will check its share */
	ACCEPT_LISTENS,
};

/* Worker `me` has `n` open connections. */
void accept_count(struct seg *seg, uint32_t me, uint64_t n);
/*
 * Worker `me` checks its share.  `able`: it could accept.  Workers without a heartbeat since
 * `alive_since_ms`, or for two seconds, have no share.  True: the worker should watch its listening
 * sockets.  *ret_wake is the slot of the worker whose eventfd the caller writes, or ACCEPT_NOBODY.
 * To be called after each accept_count(), when woken, and from time to time while not listening.
 */
bool accept_poll(
	struct seg *seg, uint32_t me, bool able, uint64_t alive_since_ms, uint32_t *ret_wake);
/* Another worker that listens and is alive: the one with the lowest load.  ACCEPT_NOBODY: none. */
uint32_t accept_listener(const struct seg *seg, uint32_t me, uint64_t alive_since_ms);
/* Whether another worker of this segment serves: it listens or rests, or begins to listen, and
 * then sees what waits. */
bool accept_others(const struct seg *seg, uint32_t me, uint64_t alive_since_ms);
