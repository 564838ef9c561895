/*
 * Outcomes: what an exchange with an engine says about its endpoint.  shm/eject.h and shm/busy.h keep the books
 * of all workers.
 *
 * Process: worker.  Not inside a read section.  No function here ends or frees a leg.
 *
 * Each exchange of a prefill or decode leg has one outcome, good or bad; leg->recorded says that it is recorded.
 * An abort, a client that left and a drain have none: they say nothing about the engine.  A lookup that
 * fails the attempt is the fault of the engine that was asked.  Only the leg at fault is charged: the other leg of
 * the attempt, which ended because of it, has no outcome.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"

struct leg;

/* The facts of one exchange; worker/attempt fills them. */
struct outcome_of {
	struct leg *leg;            /* of the endpoint; has not been recorded yet */
	const struct leg *answered; /* what answered or failed: `leg`, or a lookup on its behalf */
	enum role role;
	uint32_t pool; /* number */
	const struct conf_ejection *ejection;
	const char *pool_name, *request; /* for the log */
};

/*
 * The engine did its part: a prefill answer that was taken, a decode answer with its last byte.  A 4xx too, which is
 * the client's mistake (sglang#25811: breakers that 4xx had opened).  429 makes the endpoint busy.
 */
void outcome_good(const struct outcome_of *of);
/*
 * The first byte of a decode answer with status below 500.  It ends the half-open trials well, since a stream may last,
 * but it is not recorded: the answer may break off.
 */
void outcome_begun(const struct outcome_of *of);
/*
 * The engine is at fault: refused, silent for its time, reset, garbage, an answer cut short, 5xx, a 200 that cannot be
 * used, an error event in a stream.  503 with Retry-After makes the endpoint busy instead.  Call before leg_end() where
 * a clock ran out: whether that was while connecting is read from the leg.
 */
void outcome_bad(const struct outcome_of *of);
/* A lookup was answered: nothing is recorded, but an answer without room makes the endpoint busy. */
void outcome_busy(const struct outcome_of *of);
/* The leg will have no outcome: another request may have its half-open trials.  leg_fini() and leg_give_back() call
 * it. */
void outcome_none(struct leg *leg);

/* The answer is 429, or 503 with Retry-After: the engine has no room (shm/busy.h). */
bool outcome_says_busy(const struct leg *leg);
