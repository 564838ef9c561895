/*
 * Drains that outlive what they are of:
 * - over a restart: the state_file has the drains of all endpoints (saved.h, state_file.h). It is written
 *   when one has changed, and read before the first table is published, so no request reaches an endpoint
 *   that was drained before the restart.
 * - of an endpoint that its source does not name for a while: the drain is kept for KEEP_AWAY_MS, since an
 *   engine that is restarted during a drain is away from DNS, silent, or not in the endpoints_file.
 * An endpoint that a reload removes from the configuration's lists is not drained when it is added again.
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
#define KEEP_AWAY_MAX 1024 /* endpoints that are away and drained; the oldest are forgotten first */

/* A drained endpoint that is not there now. */
struct away {
	TAILQ_ENTRY(away) link;
	struct saved_drain key;
	uint64_t since_ms;
};
TAILQ_HEAD(away_list, away);

struct keep *keep_new(struct fleet *f);
void keep_free(struct keep **);

/* Reads the state_file; from now on it is written.  Before the first fold. */
void keep_file(struct keep *k, const char *path);

/* --- upgrades: one instance passes the drains to the next, and writes the file no more --- */
/* Appends the text of the drains as they are now, as the file has it. */
void keep_pass(const struct keep *k, struct membuf *out);
int keep_lock(const struct keep *k); /* of the file; -1: none */
/* The file, if there is one, is not written, or is again. */
void keep_hold(struct keep *k, bool hold);
/* Another instance has the file for ever: its lock is closed here. */
void keep_leave(struct keep *k);
bool keep_is_held(const struct keep *k);
/* Takes the drains that another instance passed. */
void keep_take(struct keep *k, const struct membuf *text);
/* After keep_take(): the file (NULL: none) with its lock. */
void keep_take_file(struct keep *k, const char *path, int lock);
/* True if an endpoint of this key was away and drained; it no longer counts as away. */
bool keep_back(struct keep *k, const struct endpoint *ep);
/* A drained endpoint goes away.  Its drain ends if it was written in the configuration itself. */
void keep_away(struct keep *k, const struct endpoint *ep);
/*
 * A drain may have begun or ended: forgets those that cannot come back, and writes the file if it has another text.  One
 * process at a time writes it; after that the text of then is written if it is another one.
 */
void keep_changed(struct keep *k);
void keep_sigchld(struct keep *k);
/* The file has the drains of now, or keep_error() says why not. */
bool keep_is_settled(const struct keep *k);

/* Those that are away, the oldest first. */
struct away *keep_first(const struct keep *k);
void keep_forget(struct keep *k, struct away *a);
uint64_t keep_left_ms(const struct away *a, uint64_t now_ms);

/* NULL: there is none. */
const char *keep_path(const struct keep *k);
/* Why a restart would lose the drains as they are now; "" if it would not.  Without a file: NULL. */
const char *keep_error(const struct keep *k);
