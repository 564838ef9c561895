/*
 * Which workers accept: all that have no more than their share of the open connections.
 *
 * The listening sockets are shared, so connections go to whoever is awake.  A worker above its share
 * rests: it does not watch the sockets.  Whoever stops accepting wakes one that may accept.
 *
 * Process: worker.  The words stand in struct proc_slot; the argument why somebody always accepts
 * stands in accept.c.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct seg;

#define ACCEPT_NOBODY UINT32_MAX

/* What a worker says of itself; 0 of a slot that nobody has. */
enum accept_state {
	ACCEPT_UNABLE, /* it drains, or has no room for a connection: it has no share */
	ACCEPT_RESTS,  /* it is above its share */
	ACCEPT_WOKEN,  /* another worker has woken it: it will look at its share */
	ACCEPT_LISTENS,
};

/* Worker `me` has `n` open connections. */
void accept_count(struct seg *seg, uint32_t me, uint64_t n);
/*
 * Worker `me` looks at its share.  `able`: it could accept.  Workers without a heartbeat since
 * `alive_since_ms`, or for two seconds, have no share.  True: it should watch its listening sockets.
 * *ret_wake is the slot of the worker whose eventfd the caller writes, or ACCEPT_NOBODY.
 * To be called after each accept_count(), when woken, and now and then while not listening.
 */
bool accept_poll(
	struct seg *seg, uint32_t me, bool able, uint64_t alive_since_ms, uint32_t *ret_wake);
