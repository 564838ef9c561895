#include "worker/attempt/lookup_answer.h"

#include "worker/attempt/attempt.h"
#include "worker/attempt/failover.h"
#include "worker/attempt/lookup.h"
#include "worker/attempt/suspects.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"

static const char unanswered[] = "asked, it did not answer in time";

/* The cause where the router is at fault; else CAUSE_UNUSABLE. */
static enum failure_cause
cause_of(enum leg_fail fail)
{
	if (fail == LEG_FAIL_OLD_KEYS)
		return CAUSE_OLD_KEYS;
	return fail == LEG_FAIL_SHORTAGE ? CAUSE_SHORTAGE : CAUSE_UNUSABLE;
}

/* The lookup will not be answered: tries other engines, or ends the request.  Every cause but the
 * router's own becomes CAUSE_UNUSABLE, a refused connection too; job->detail has the reason. */
static void
give_up(struct attempt *a)
{
	const enum failure_cause cause = cause_of(a->leg[LEG_LOOKUP].fail);
	struct job *job = a->branch->job;

	if (job->detail == NULL)
		job->detail = unanswered;
	(void)failover(a, LEG_LOOKUP, cause,
		cause == CAUSE_UNUSABLE ? a->t.connector->lookup_end : failover_end(a, LEG_LOOKUP));
}

/*
 * The engine could not be reached: the attempts that wait for the same answer go to other
 * engines too, or each would send the lookup in turn.  A step of one attempt may end any
 * other attempt, so the loop takes the head of the list each time.
 */
static void
fail_shared(
	struct worker *w, const struct endpoint *ep, enum leg_fail fail, const struct outcome *o)
{
	struct attempt *a;
	size_t n = 0;

	TAILQ_FOREACH(a, &w->lookups, link)
	n++;
	for (; n > 0 && (a = TAILQ_FIRST(&w->lookups)) != NULL; n--) {
		attempt_set_lookup(a, LOOKUP_DUE); /* takes the attempt off the list */
		if (a->t.engine[a->what.role] != ep) {
			/* puts the attempt at the list's end */
			attempt_set_lookup(a, LOOKUP_SHARED);
			continue;
		}
		a->leg[LEG_LOOKUP].fail = fail; /* for the log */
		if (!failover_others(a, LEG_LOOKUP, o) && a->life == ATTEMPT_SERVING)
			leg_rewind(&a->leg[LEG_LOOKUP]); /* due at the next tick */
	}
}

/* An engine that all its attempts ask for the same: other engines are tried.  False: the attempt asks again. */
static bool
go_elsewhere(struct attempt *a)
{
	const struct endpoint *ep = a->t.engine[a->what.role];
	const enum leg_fail fail = a->leg[LEG_LOOKUP].fail;
	struct worker *w = a->w;
	struct outcome o;
	bool elsewhere;

	if (fail == LEG_FAIL_NONE || fail == LEG_FAIL_SHORTAGE)
		return false;
	o = failover_outcome(
		a, LEG_LOOKUP, fail == LEG_FAIL_OLD_KEYS ? CAUSE_OLD_KEYS : CAUSE_BROKEN);
	elsewhere = failover_others(a, LEG_LOOKUP, &o);
	fail_shared(w, ep, fail, &o);
	return elsewhere || a->life != ATTEMPT_SERVING;
}

/* The answer is missing or unusable: the engine refused, or the lookup is sent again at the
 * next tick. */
static void
failed(struct attempt *a)
{
	struct leg *leg = &a->leg[LEG_LOOKUP];
	struct job *job = a->branch->job;

	attempt_unlock_lookup(a);
	job->detail = leg->fail != LEG_FAIL_NONE ? leg_fail_text(leg)
		      : leg->status == 0         ? unanswered
		      : leg->status != 200       ? "asked, it answers with an error status"
						 : "asked, it answers without it";
	if (a->t.connector->lookup_repeats) {
		if (go_elsewhere(a))
			return;
		if (leg->fail == LEG_FAIL_OLD_KEYS) { /* the worker gets no others */
			give_up(a);
			return;
		}
		leg_rewind(leg);
		attempt_set_lookup(a, LOOKUP_DUE);
	} else if (leg->status >= 400 && leg->status < 500 && leg->state == LEG_DONE) {
		(void)failover(a, LEG_LOOKUP, CAUSE_STATUS,
			END_ENGINE_STATUS); /* the engine refused the client's own body */
	} else {
		give_up(a);
	}
}

void
lookup_answered(struct attempt *a)
{
	const struct connector *c = a->t.connector;
	struct job *job = a->branch->job;
	struct worker *w = a->w;

	if (a->leg[LEG_LOOKUP].status != 200 || c->looked_up(&a->t) != HANDOFF_OK) {
		failed(a);
		return;
	}
	suspects_accepted(a, LEG_LOOKUP);
	attempt_unlock_lookup(a);
	attempt_set_lookup(a, LOOKUP_KNOWN);
	a->failure_counted = false;
	if (c->lookup_repeats)
		lookup_wake(w);
	if (a->life == ATTEMPT_SERVING)
		lookup_go_on(job);
}

void
lookup_failed(struct attempt *a)
{
	a->leg[LEG_LOOKUP].status = 0;
	failed(a);
}

void
lookup_late(struct attempt *a)
{
	leg_end(&a->leg[LEG_LOOKUP]);
	lookup_failed(a);
}

/*
 * learn_timeout is over.  One failure is recorded for all attempts that have waited for the same
 * answer: for an attempt whose wait began before the last recorded failure, none is.
 */
static void
never_learned(struct attempt *a, uint64_t now_ms)
{
	struct endpoint *ep = a->t.engine[a->what.role];

	attempt_unlock_lookup(a);
	if (ep->unlearned_ms > a->lookup_deadline_ms - a->t.of.facts->pool->shake.learn_ms)
		a->reserved.of[a->what.role].recorded = true;
	else
		ep->unlearned_ms = now_ms;
	give_up(a);
}

void
lookup_tick(struct attempt *a, uint64_t now_ms)
{
	if (a->lookup == LOOKUP_NOT_NEEDED || a->lookup == LOOKUP_KNOWN)
		return;
	/* the attempt that sent the lookup may have ended without an answer */
	if (a->lookup == LOOKUP_SHARED)
		attempt_set_lookup(a, LOOKUP_DUE);
	if (a->lookup_deadline_ms != 0 && now_ms >= a->lookup_deadline_ms)
		never_learned(a, now_ms);
}
