/*
 * What `pdctl requests` shows of a request (shm/notes.h): while it runs, and when it has ended.
 *
 * Process: worker.
 */
#pragma once

#include <stdint.h>

struct req;
struct tokens;

/* Its state, its engines or what they do may have changed.  The first call is after its head. */
void req_note_moved(struct req *req);
/* It has ended, before its attempts are released.  What the router answers by itself is not kept. */
void req_note_end(struct req *req, const struct tokens *tokens, uint64_t now_us);
