/*
 * The SHA-256 of the last key that came on a connection: mostly the next request has the same key, and the
 * digest costs as much as a tenth of a request.
 *
 * Process: worker.
 */
#pragma once
#include "proto/http/http.h"
#include "shm/base/conf.h"

struct key_seen; /* NULL: no key was seen */

/* The SHA-256 of `key`, which *seen remembers from now on. */
void key_seen_digest(struct key_seen **seen, struct span key, unsigned char ret[CONF_SHA256]);
/* Overwrites and frees it. */
void key_seen_free(struct key_seen **seen);
