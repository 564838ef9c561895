#include "worker/attempt/prefill.h"

#include "shm/base/clock.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/branches.h"
#include "worker/attempt/deliver.h"
#include "worker/attempt/decode.h"
#include "worker/attempt/failover.h"
#include "worker/attempt/release.h"
#include "worker/attempt/rewrite.h"
#include "worker/attempt/symptom.h"
#include "worker/attempt/timing.h"
#include "worker/base/core.h"
#include "worker/schedule/outcome.h"
#include "worker/schedule/plan.h"

void
prefill_more(struct attempt *a)
{
	const struct connector *c = a->t.connector;

	if (c->prefill_more != NULL && a->leg[LEG_PREFILL].status == 200 &&
		c->prefill_more(&a->t) == HANDOFF_OK)
		attempt_start(a, STARTS_AFTER_PREFILL);
}

/* Takes the KV parameters from the answer, and notes the time of the prefill. */
static enum handoff
take(struct attempt *a)
{
	struct job *job = a->branch->job;
	enum handoff r;

	if (a->leg[LEG_PREFILL].status != 200)
		return HANDOFF_BAD;
	job->t_prefilled_us = clock_us();
	if (job->t_prefill_us != 0)
		metric_observe(a->w->slab, job->facts.pool->id, H_PREFILL,
			job->t_prefilled_us - job->t_prefill_us);
	r = attempt_take_handoff(a);
	if (r != HANDOFF_BAD)
		timing_prefilled(a, job->t_prefilled_us);
	return r;
}

/* Starts or continues decode, or sends decode the right parameters. */
static void
go_on(struct attempt *a, enum handoff r)
{
	const bool withheld = a->withheld == WITHHELD_SPECULATION;

	if (r == HANDOFF_RETRY && (withheld || attempt_decode_leg(a)->progress < LEG_BEGUN)) {
		attempt_decode_again(a);
		attempt_new_id(a); /* the engine may still be busy with releasing the first */
		attempt_send_decode(a);
	} else if (withheld) {
		decode_confirmed(a);
	} else {
		attempt_go_on(a);
	}
}

#define ABORTED_MAX (8u << 10) /* bytes of an aborted answer: it has no KV parameters */

/* Returns true if the engine has aborted its leg, so that it holds nothing for decode. */
static bool
was_aborted(const struct attempt *a)
{
	const struct leg *p = &a->leg[LEG_PREFILL];

	return p->status == 200 && a->leg[LEG_DECODE].progress < LEG_BEGUN &&
	       p->answer_len <= ABORTED_MAX &&
	       symptom_of_abort((struct span){p->answer, p->answer_len});
}

/* Tries other engines after an aborted leg.  Returns false if there are none: decode does without
 * the KV, as far as the connector can.  Where the fallback_budget is spent the request has ended. */
static bool
replaced(struct attempt *a)
{
	struct outcome o;

	if (!was_aborted(a))
		return false;
	o = failover_outcome(a, LEG_PREFILL, CAUSE_UNUSABLE);
	return failover_others(a, LEG_PREFILL, &o);
}

void
prefill_answered(struct attempt *a)
{
	const struct leg *leg = attempt_prefill_leg(a);
	struct job *job = a->branch->job;
	enum handoff r;

	if (leg->status >= 400) {
		(void)failover(a, LEG_PREFILL, CAUSE_STATUS, END_ENGINE_STATUS);
		return;
	}
	if (replaced(a))
		return;
	r = take(a);
	if (r == HANDOFF_NONE && job->how.first_token && !rewrite_without_first_token(job))
		r = HANDOFF_BAD;
	if (a->t.detail != NULL)
		job->detail = a->t.detail;
	if (r == HANDOFF_BAD) {
		(void)failover(a, LEG_PREFILL, CAUSE_UNUSABLE, END_PREFILL_ANSWER);
		return;
	}
	failover_prefill_answered(a, attempt_kv_missing(a, r));
	if (!deliver_prefill_part(a))
		return;
	if (a->t.connector->complete != NULL && a->t.connector->complete(&a->t)) {
		failover_record_good(a, LEG_PREFILL);
		/* the KV that was pushed to the decode engine is fetched there */
		deliver_part_ended(release_pushed(a));
		return;
	}
	go_on(a, r);
	if (a->life == ATTEMPT_SERVING) {
		job->ops->moved(job);
		branches_drop_text_if_sent(job);
	}
}

void
prefill_failed(struct attempt *a)
{
	(void)failover(a, LEG_PREFILL, failover_cause(attempt_prefill_leg(a)),
		failover_end(a, LEG_PREFILL));
}

void
prefill_gone(struct attempt *a)
{
	if (leg_connecting(attempt_prefill_leg(a)))
		prefill_late(a);
	else
		(void)failover(a, LEG_PREFILL, CAUSE_DOWN, failover_down_end(a, LEG_PREFILL));
}

void
prefill_down(struct attempt *a)
{
	if (attempt_prefill_leg(a)->progress < LEG_ANSWERING)
		prefill_gone(a);
}

void
prefill_late(struct attempt *a)
{
	const bool connecting = leg_connecting(attempt_prefill_leg(a));

	(void)failover(a, LEG_PREFILL, connecting ? CAUSE_CONNECT_TIMEOUT : CAUSE_TIMEOUT,
		failover_late_end(a, LEG_PREFILL));
}
