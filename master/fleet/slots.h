/*
 * Which endpoint has which slot of the endpoint words in shared memory.
 *
 * Process: master.
 *
 *   free --slots_fill (tag + 1)--> STARTING, UP, DOWN --slots_drop--> DRAINING
 *    ^                               ^                                |     |
 *    |                               '---------slots_revive-----------'     | next publication:
 *    |                               '---------slots_revive-----------.     v dropped
 *    '-- slots_reap: grace period of the last table with its row is over, count is 0 -- dropped
 */
#pragma once
#include <stdbool.h>

struct endpoint;
struct fleet;
struct slots;

struct slots *slots_new(const struct fleet *f);
void slots_free(struct slots **);

/*
 * Gives free slots to the endpoints that wait for one, in the order of the configuration, and
 * starts their probes.  Returns true if any endpoint got one.
 */
bool slots_fill(struct fleet *f);
/* Frees the endpoints that have drained, and their slots. */
void slots_reap(struct fleet *f);

/*
 * The endpoint is no longer configured: it is DRAINING at once, no longer drained by the operator,
 * and without a row in the next table.
 */
void slots_drop(struct endpoint *ep);
/* The endpoint is configured again before it was reaped: same slot, same tag, STARTING. */
void slots_revive(struct endpoint *ep);

/* The endpoint in each slot, draining ones too; NULL: none is there.  [max_endpoints]; the caller frees the array. */
const struct endpoint **slots_map(const struct fleet *f);
