/*
 * The state words of endpoints: the results of health probes, the configuration and the operator's commands,
 * folded into the one word that workers read.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>

#include "shm/load.h"

struct endpoint;

/*
 * Sets the state by health or configuration.  While the operator has drained the endpoint, its word
 * stays DRAINING and `state` is only stored.  `ramps`: its weight ramps up from now on if its pool
 * has a slow_start.  Wakes waiters afterwards.
 */
void state_set(struct endpoint *ep, enum ep_state state, bool ramps);

/* The operator's command: no new requests, whatever the health. */
void state_drain(struct endpoint *ep);

/* What state_undrain() has ended. */
enum { ENDED_DRAIN = 1, ENDED_EJECTION = 2, ENDED_BUSY = 4 };
/*
 * The operator has seen to the endpoint: ends a drain, an ejection, and that it is busy.  An endpoint that was
 * drained or ejected and is up is learned anew before requests go there: the operator may have
 * restarted its engine.  It has a slow start if its pool has one: it is idle, and would get all
 * requests at once.  Returns what has ended; 0: nothing, and nothing has changed.
 */
unsigned state_undrain(struct endpoint *ep);
