/*
 * Planning: which pool serves a request, in which way, and which endpoints of it are reserved.
 *
 * Process: worker.  One read section per plan: look at the table, reserve, copy out what is kept.
 * Ownership: struct plan is part of the request, which takes the reservations over.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/view.h"
#include "worker/base/end_list.h"
#include "worker/base/facts.h"
#include "worker/schedule/wait.h"
#include "worker/schedule/way.h"

struct reserved;

#define CLIENT_DEADLINE_WRONG UINT64_MAX

struct plan {
	struct worker *w;
	void *user; /* of woken() */

	/* asked for */
	struct demand of; /* read while the request is planned; plan_make() fills facts->pool */
	/* of X-Request-Timeout-Ms; 0: none, or CLIENT_DEADLINE_WRONG */
	uint64_t client_deadline_ms;
	int32_t priority_max; /* the most urgent that its key allows */

	/* chosen */
	struct way way;

	/* PLAN_WAITS: how the request ends at waiter.deadline_ms.  PLAN_REFUSED: how it ends now. */
	enum req_end end;
	const char *detail; /* static text for the log and the error body, or NULL */
	struct waiter waiter;
};

enum plan_result {
	/* worker->reserved has the engines of way.nbranches branches: the caller takes them over before anything else
	 * is planned */
	PLAN_DONE,
	/* Nothing is reserved.  waiter.waits: plan again when the waiter is woken; else plan again at the next tick. */
	PLAN_WAITS,
	PLAN_REFUSED, /* nothing is reserved */
};

/* `woken`: see struct waiter. */
void plan_init(struct plan *p, struct worker *w, bool (*woken)(struct waiter *), void *user);
struct plan *plan_of(struct waiter *q);
/* Plans a request that has no engines. */
enum plan_result plan_make(struct plan *p);

/* What another attempt needs: both engines, a decode engine beside the prefill engine of the attempt before, the one
 * engine that does it all, or the decode engine that does it all because the prefill engines have failed. */
enum plan_for { FOR_BOTH, FOR_DECODE, FOR_ONE, FOR_FALLBACK };

struct plan_other {
	struct worker *w;
	struct demand of;
	const struct connector *connector;
	enum plan_for what;
	/* of the attempt that has failed.  FOR_DECODE: the decode engine goes beside its prefill engine.  Else where no
	 * other slot is free, a slot that is held here will do, and moves. */
	struct reserved *failed;
	/* engines that are away for this reason at most, where no other could serve */
	enum ep_away most;
};

/*
 * Chooses and reserves, for another attempt, engines that were not tried before (facts->tried).  The cursors of first
 * choices do not move.  *ret_last_resort (or NULL): an ejected endpoint was chosen.  False: no engine is left, nothing
 * has changed, and *ret is empty.
 */
bool plan_again(const struct plan_other *o, struct reserved *ret, bool *ret_last_resort);
/* The time until plan_again() may be called with FOR_FALLBACK, within the pool's budget; 0: now. */
uint64_t plan_fallback_ms(struct worker *w, const struct facts *facts);
