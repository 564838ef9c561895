/*
 * Drains and weights of the operator (weight.h) that outlive what they are of:
 * - over a restart: the state_file has those of all endpoints (saved.h, state_file.h). It is written
 *   when one has changed, and read before the first table is published, so no request reaches an endpoint
 *   that was drained before the restart.
 * - of an endpoint that its source does not name for a while: they are kept for KEEP_AWAY_MS, since an
 *   engine that is restarted during a drain is away from DNS, silent, or not in the endpoints_file.
 * An endpoint that a reload removes from the configuration's lists has neither when it is added again.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "master/fleet/saved.h"

struct endpoint;
struct membuf;
struct fleet;
struct keep;

#define KEEP_AWAY_MS (3600 * UINT64_C(1000))
#define KEEP_AWAY_MAX                                                                              \
	1024 /* drains and weights of endpoints that are away; the oldest are forgotten first */

/* A drain or a weight of an endpoint that is not there now. */
struct away {
	TAILQ_ENTRY(away) link;
	struct saved_one key;
	uint64_t since_ms;
};
TAILQ_HEAD(away_list, away);

struct keep *keep_new(struct fleet *f);
void keep_free(struct keep **);

/* Reads the state_file; from now on it is written.  Before the first fold. */
void keep_file(struct keep *k, const char *path);

/* --- upgrades: one instance passes the drains to the next, and writes the file no more --- */
/* Appends the text of drains and weights as they are now, as the file has it. */
void keep_pass(const struct keep *k, struct membuf *out);
int keep_lock(const struct keep *k); /* of the file; -1: none */
/* The file, if there is one, is not written, or is again. */
void keep_hold(struct keep *k, bool hold);
/* Another instance has the file for ever: its lock is closed here. */
void keep_leave(struct keep *k);
bool keep_is_held(const struct keep *k);
/* Takes the drains and weights that another instance passed. */
void keep_take(struct keep *k, const struct membuf *text);
/* After keep_take(): the file (NULL: none) with its lock. */
void keep_take_file(struct keep *k, const char *path, int lock);
/*
 * An endpoint that was away has its weight again.  True if it was also drained; the caller drains it.  It no longer counts
 * as away.
 */
bool keep_back(struct keep *k, struct endpoint *ep);
/* An endpoint goes away.  Its drain and its weight end if it was written in the configuration itself. */
void keep_away(struct keep *k, const struct endpoint *ep);
/*
 * A drain may have begun or ended, a weight may have changed: forgets those that cannot come back, and writes the file if it has another text.  One
 * process at a time writes it; after that the text of then is written if it is another one.
 */
void keep_changed(struct keep *k);
void keep_sigchld(struct keep *k);
/* The file has the drains and weights of now, or keep_error() says why not. */
bool keep_is_settled(const struct keep *k);

/* Those that are away, the oldest first. */
struct away *keep_first(const struct keep *k);
void keep_forget(struct keep *k, struct away *a);
uint64_t keep_left_ms(const struct away *a, uint64_t now_ms);

/* NULL: there is none. */
const char *keep_path(const struct keep *k);
/* Why a restart would lose the drains as they are now; "" if it would not.  Without a file: NULL. */
const char *keep_error(const struct keep *k);
