/*
 * The keys that seal the session tickets of TLS clients: the newest and the one before.  All workers of all
 * generations have the same, so a session is resumed at any worker.  A ticket of an older instance of pdrouter, or one
 * whose key is gone, is no error: the client gets a full handshake.
 *
 * Writer: the master, at the start and every TICKETS_MS.  Readers: workers.  Lock-free: a reader never waits.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/seg.h"

#define TICKETS_MS                                                                                 \
	(UINT64_C(12) * 3600 * 1000) /* a key seals for so long, and opens for twice that */

struct ticket_key {
	unsigned char name[16]; /* stands in the ticket */
	unsigned char cipher[32], mac[32];
};

/* Master: draws a new key when the newest is due, at the first call always. */
void tickets_keep(struct seg *seg, uint64_t now_ms);
/* The newest key first.  False: the keys change just now, or there are none. */
bool tickets_get(const struct seg *seg, struct ticket_key ret[TICKET_KEYS]);
