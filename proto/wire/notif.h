/*
 * "The KV cache of request R has arrived": the msgpack map LMCache sends over ZMQ (protocols.md 4.3).
 *
 * Reads without allocating; a count above the bytes that are left is refused before it is believed.
 */
#pragma once
#include <stddef.h>

#define NOTIF_MAX_ID 200 /* longer request ids are refused: ours are 53 characters at most */

struct notif {
	char req_id[NOTIF_MAX_ID + 1];
};

enum notif_error {
	NOTIF_E_SYNTAX = -1, /* not one complete msgpack map */
	NOTIF_E_TYPE = -2,   /* a map, but its "type" is none we know */
	NOTIF_E_ID = -3,     /* no usable req_id */
};

/* Reads one message.  Maps of any size and order, both message names, and bare dicts (no "type") are
 * accepted.  Returns 0 or a notif_error. */
int notif_read(const void *msg, size_t len, struct notif *ret);
