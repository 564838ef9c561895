/*
 * Engines that announced themselves over ZMQ, as the notifier received them: a small table that the notifier
 * alone writes and the master reads.
 *
 * Process: announce_put, announce_begin in the notifier; announce_get in the master.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "shm/core/seg.h"

struct announcement {
	enum role role;
	char http[ANNOUNCED_ADDRESS]; /* host:port of its HTTP server */
	char kv[ANNOUNCED_ADDRESS];   /* host:port of its KV transfers */
	uint64_t seen_ms;             /* clock_ms */
};

/* Clocks of two processes are not so far apart: what was seen later than that cannot be. */
#define ANNOUNCED_AHEAD_MS 1000

/* A notifier begins: it removes all entries of its predecessor, half-written ones too. */
void announce_begin(struct seg *seg);
/*
 * Stores an announcement: refreshes the entry of the same role and http, else takes an empty entry,
 * or one not refreshed for forget_ms.  Returns true if the master should read the table (a new
 * entry, or other addresses).  *ret_full is set when there was no room.
 */
bool announce_put(
	struct seg *seg, const struct announcement *a, uint64_t forget_ms, bool *ret_full);
/* A consistent copy of entry i (< ANNOUNCED_MAX); false if the entry is empty, or is being
 * written now. */
bool announce_get(const struct seg *seg, uint32_t i, struct announcement *ret);
