/*
 * Suspects: engines that failed or refused a branch, until it is known whether the engine or the request is at
 * fault.  Another engine of the same leg decides:
 *
 *	another engine...          the engine had refused (4xx)        ... had failed (5xx, reset, silence, no answer)
 *	serves the request         it is charged                       it is charged
 *	refuses or fails likewise  the request is wrong: no charge     the request is to blame: no charge
 *	none was asked, or it      neither good nor bad                the first engine stays charged
 *	could not tell
 *
 * The first engine that fails is charged at once, since most failures are an engine's.  That charge is taken back if
 * the request fails on a second engine and no engine serves it.  While such requests come, the first engine is charged
 * only once another engine serves the request: the retry budget may not suffice to try each of them again.  An engine that refuses connections never becomes a
 * suspect: it has not seen the request.
 *
 * Process: worker.
 * Ownership: the branch's.  suspects_end() frees them.
 */
#pragma once
#include <stdbool.h>

#include "worker/attempt/attempt.h"
#include "worker/schedule/outcome.h"

enum suspected {
	SUSPECT_CHARGED, /* the first failure of a leg: charged already */
	SUSPECT_FAILED, /* a further failure, or one while requests fail on several engines: not charged yet */
	SUSPECT_REFUSED, /* not charged yet */
};

/* Returns true if an engine has failed this leg of the branch before, or has refused. */
bool suspects_failed(const struct branch *b, enum leg_kind kind);
bool suspects_refused(const struct branch *b, enum leg_kind kind);
/* An engine becomes a suspect by what this leg has met: the leg's engine or, for KV that could not be used, the prefill
 * engine.  Its half-open trial, if it has one, moves to the suspect.  With SUSPECT_REFUSED the refusal is kept for the
 * client.  Returns false if there are too many. */
bool suspects_add(
	struct attempt *a, enum leg_kind kind, const struct exchange *x, enum suspected as);
/* No other engine could be asked: the last suspect is none any more. */
void suspects_drop_last(struct branch *b);
/* An engine has accepted the request of this leg: those that did not, and are not charged yet, are charged. */
void suspects_accepted(struct attempt *a, enum leg_kind kind);
/* Returns the refusal that was kept; NULL: none was. */
const struct reply *suspects_refusal(const struct branch *b);
/* The job has ended: each suspect of the branch is charged, acquitted, or left alone. */
void suspects_end(struct branch *b);
/* The branch is given up, although its job goes on. */
void suspects_forget(struct branch *b);
