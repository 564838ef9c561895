/*
 * The lookup before the legs: what must be known to make them is asked of an engine (the prompt's tokens, where KV
 * is fetched).  An attempt's legs begin once no branch of its request has a lookup left.
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

struct attempt;
struct req;

/* Sends the lookups that are due.  Begins the legs of all branches when no lookup is left. */
void lookup_go_on(struct req *req);
/* Each tick: ends lookups whose time is over, and sends again those that have failed. */
void lookup_tick(struct req *req, uint64_t now_ms);
/* Other attempts of this worker may send the engine the same lookup. */
void lookup_unlock(struct attempt *a);

/* Handlers of the lookup leg. */
void lookup_answered(struct attempt *a);
void lookup_failed(struct attempt *a);
void lookup_late(struct attempt *a);
