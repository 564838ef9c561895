/*
 * Refusals: an engine answered 4xx (not 413 or 429).  Either the request or the engine is wrong: another model after
 * a restart, another role, another key.  Another engine of the role shows which.  One word per endpoint:
 *
 *	contradicted:1 | key:1 | accepted:1 | 0:5 | level:8 | 0:8 | ms:40
 *
 *	accepted      the engine has accepted a request in this life of its slot
 *	contradicted  another engine has accepted what this engine refused, and this engine has accepted nothing
 *	              since; with `key` the refusal was 401 or 403
 *	level, ms     other engines have refused the same: since `ms` this engine's refusals are believed, for a
 *	              time that doubles with each level
 *
 * A second window of two words counts how many requests the engine has refused and accepted (shm/window.h).  The
 * share of refusals is compared with the share of its peers: the other endpoints of the role that are up, not
 * ejected, and serve the same models.
 *
 * Process: workers; refusal_begin() is the master's.  Times are clock_ms().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "shm/core/seg.h"
#include "shm/window.h"

struct table_pool;

#define REFUSAL_FIRST_MS 1000u    /* for how long refusals are believed first; doubled each time */
#define REFUSAL_LONGEST_MS 60000u /* the highest value that REFUSAL_FIRST_MS is doubled to */
#define FAILED_ALIKE_MS 10000u    /* for how long a request that failed everywhere is remembered */

/* The engine has accepted a request: its answer is 2xx.  Returns true if its refusals had been contradicted. */
bool refusal_accepted(struct seg *seg, uint32_t ep, uint64_t now_ms);
/* The engine has refused a request. */
void refusal_seen(struct seg *seg, uint32_t ep, uint64_t now_ms);

/* Refusals of the engine are believed now: other engines have said the same.  `sure`: refusal_is_sure(); then
 * they are believed for REFUSAL_FIRST_MS at most. */
bool refusal_believed(const struct seg *seg, uint32_t ep, bool sure, uint64_t now_ms);
/* Another engine of the role has accepted requests, and no refusal of that engine is contradicted. */
bool refusal_peers_accept(
	const struct seg *seg, const struct table_pool *tp, enum role role, uint32_t ep);
/* The share of refusals is so far above the share of the peers that it cannot be chance.  Never so where the policy
 * sends all requests of a client to one endpoint. */
bool refusal_is_sure(const struct seg *seg, const struct table_pool *tp, enum role role,
	uint32_t ep, uint64_t now_ms);

/* Identifies the word that a refusal met, for refusal_shared(). */
uint64_t refusal_mark(const struct seg *seg, uint32_t ep);
/* Another engine refused the same request.  Of several requests that met the same word one counts. */
void refusal_shared(struct seg *seg, uint32_t ep, uint64_t mark, uint64_t now_ms);
/* Another engine accepted what this engine refused with that status.  Returns refusal_text(); NULL if it was known. */
const char *refusal_contradicted(struct seg *seg, uint32_t ep, int status);
/* Refusals are contradicted, and the engine has accepted nothing since. */
bool refusal_is_contradicted(const struct seg *seg, uint32_t ep);
/* What its contradicted refusals mean, for log and status: "engine refuses our key".  "": none is contradicted. */
const char *refusal_text(const struct seg *seg, uint32_t ep);

/* A request failed on the engine and on another one, and no engine served it: the request is to blame. */
void refusal_failed_alike(struct seg *seg, uint32_t ep, uint64_t now_ms);
/* Such a request came within the last FAILED_ALIKE_MS: a failure needs an engine that serves the request. */
bool refusal_fails_alike(const struct seg *seg, uint32_t ep, uint64_t now_ms);

/* Master: its slot begins a new life. */
void refusal_begin(struct seg *seg, uint32_t ep);

/* --- pure, for tests */

/* A likelihood-ratio test (G) of two shares: the share of `one` is above the share of `others`, and by chance that
 * happens less than once in a hundred million times (six standard errors). */
bool refusal_far_above(const struct window_sum *one, const struct window_sum *others);
