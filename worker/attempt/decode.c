#include "worker/attempt/decode.h"

#include "shm/base/clock.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/branches.h"
#include "worker/attempt/deliver.h"
#include "worker/attempt/failover.h"
#include "worker/attempt/release.h"
#include "worker/attempt/resume.h"
#include "worker/attempt/symptom.h"
#include "worker/attempt/timing.h"
#include "worker/base/core.h"

static void failed(struct attempt *a, enum failure_cause cause, enum req_end end);

/* Returns true if decode was sent its request first and may still answer that it has too little
 * of the prompt's KV. */
static bool
may_miss(const struct attempt *a)
{
	return a->t.connector->decode_first != NULL && a->prefill == PREFILL_NOT_NEEDED;
}

static void
withhold(struct attempt *a, enum withheld why, bool keep)
{
	attempt_set_decode(a, DECODE_WITHHELD, why);
	attempt_decode_leg(a)->keep = keep;
}

/* Prepares to send decode its request again when prefill has answered: decode was sent wrong
 * parameters. */
static void
correct(struct attempt *a)
{
	attempt_decode_again(a);
	a->t.starts[ROLE_DECODE] = STARTS_AFTER_PREFILL;
	a->t.kv = (struct span){NULL, 0};
}

/* Carries out what the status means for the engine and the attempt.  Returns true if the
 * attempt was replaced or has ended, or waits for the rest of a refusal. */
static bool
status_settles(struct attempt *a)
{
	const struct leg *d = attempt_decode_leg(a);
	struct outcome o;

	if (d->status < 300) {
		failover_record_begun(a);
		return false;
	}
	o = failover_decide(a, LEG_DECODE, CAUSE_STATUS);
	if (o.action == ACTION_ASK) {
		withhold(a, WITHHELD_REFUSAL, true);
		return true;
	}
	failover_record(a, LEG_DECODE, CAUSE_STATUS, &o);
	if (o.action != ACTION_OTHERS) {
		if (o.action != ACTION_CORRECT) /* then decode has yet to be sent the KV */
			release_refused(a);
		return false;
	}
	return failover_others(a, LEG_DECODE, &o) || failover_pass_refusal(a, LEG_DECODE);
}

void
decode_first(struct attempt *a)
{
	struct job *job = a->branch->job;
	const struct leg *d = attempt_decode_leg(a);
	const bool speculative = attempt_speculates(a), ok = d->status == 200;
	const bool whole = !job->facts.stream || !ok || !d->sse;

	a->notices_deadline_ms = 0;
	transfer_drop_flag(&a->t, a->t.notices == NOTICES_READY);
	if (status_settles(a))
		return;
	timing_begun(a);
	if (speculative && !ok)
		correct(a);
	else if (speculative)
		withhold(a, WITHHELD_SPECULATION, true);
	else if (job->answer != NULL || (job_started(job) && (!may_miss(a) || !ok)))
		withhold(a, WITHHELD_COLLECTING, whole);
	else if (may_miss(a) && ok)
		withhold(a, WITHHELD_CACHE_CHECK, true);
	else
		deliver_begin(a);
}

/* Starts prefill before decode: this decode engine has too little of the prompt's KV. */
static void
prefill_first(struct attempt *a)
{
	metric_add(a->w->slab, M_KV_MISS, 1);
	a->branch->answer_by_ms = 0; /* the engine has generated nothing yet */
	attempt_decode_again(a);
	attempt_set_prefill(a, PREFILL_IDLE);
	a->t.starts[ROLE_PREFILL] = STARTS_AT_ONCE;
	a->t.starts[ROLE_DECODE] = STARTS_AFTER_PREFILL;
	attempt_new_id(a);
	attempt_start(a, STARTS_AT_ONCE);
}

/* Sends the kept start of a decode answer to the client.  Returns false if the request is over
 * or continues with another attempt. */
static bool
pass_kept(struct attempt *a, bool done)
{
	struct leg *d = attempt_decode_leg(a);
	const struct span kept = {d->answer, d->answer_len};

	d->keep = false;
	attempt_drop_engine(a, ROLE_PREFILL); /* not needed; decode may last long */
	deliver_begin(a);
	decode_payload(a, &kept, 1, done);
	if (a->life != ATTEMPT_SERVING)
		return false;
	leg_forget_answer(d); /* a stream may last */
	return true;
}

void
decode_more(struct attempt *a)
{
	const struct leg *d = attempt_decode_leg(a);
	enum handoff r;

	if (a->withheld != WITHHELD_CACHE_CHECK || !d->sse || d->status != 200)
		return;
	r = a->t.connector->decode_first(&a->t);
	if (r == HANDOFF_RETRY)
		prefill_first(a);
	else if (r == HANDOFF_OK)
		(void)pass_kept(a, false);
}

/* Returns true for a stream that fails before its first token: vLLM sends such an error as an
 * event under a 200. */
static bool
begins_with_error(const struct attempt *a, const struct span *pieces, size_t n)
{
	const struct leg *d = &a->leg[LEG_DECODE];
	struct sse sse = a->sse;

	if (!d->sse || d->status != 200)
		return false;
	for (size_t i = 0; i < n; i++)
		(void)sse_feed(&sse, pieces[i].p, pieces[i].n);
	return sse.error;
}

/* Returns true for an empty 200, which is no answer of a model. */
static bool
says_nothing(const struct attempt *a, size_t n)
{
	const struct job *job = a->branch->job;

	return a->leg[LEG_DECODE].status == 200 && n == 0 && !job_started(job) &&
	       !job->ops->holds(job) && a->t.connector->engines != ENGINES_SINGLE;
}

/* Returns true if an aborted answer of the decode leg may be had from another engine.  /generate is
 * left out: it is for trainers, who abort on purpose and take what there is. */
static bool
abort_is_failure(const struct attempt *a)
{
	const struct job *job = a->branch->job;
	const enum route route = job->facts.route;

	return a->leg[LEG_DECODE].status == 200 && !job_started(job) &&
	       (route == ROUTE_CHAT || route == ROUTE_COMPLETIONS);
}

/* Returns true if an engine has aborted a request, and nothing of its answer was sent. */
static bool
was_aborted(const struct attempt *a, const struct span *pieces, size_t n, bool done)
{
	const struct job *job = a->branch->job;

	return (done || a->leg[LEG_DECODE].sse) && abort_is_failure(a) &&
	       job->ops->contains(job, pieces, n, SYMPTOM_ABORT);
}

/* Returns true if an answer that passes unchanged shows a failure in its first bytes, and
 * handles the failure. */
static bool
fails_at_once(struct attempt *a, const struct span *pieces, size_t n, bool done)
{
	struct job *job = a->branch->job;

	if (!job_started(job) && begins_with_error(a, pieces, n)) {
		struct outcome o = failover_outcome(a, LEG_DECODE, CAUSE_UNUSABLE);

		if (failover_others(a, LEG_DECODE, &o))
			return true;
	}
	if (was_aborted(a, pieces, n, done)) {
		struct outcome o = failover_outcome(a, LEG_DECODE, CAUSE_UNUSABLE);

		if (failover_others(a, LEG_DECODE, &o))
			return true;
		job->detail = "the decode engine has aborted the request";
	}
	if (!done || !says_nothing(a, n))
		return false;
	failed(a, CAUSE_UNUSABLE, END_DECODE_ANSWER);
	return true;
}

static void
pass_payload(struct attempt *a, const struct span *pieces, size_t n, bool done)
{
	struct job *job = a->branch->job;

	if (n > 0 && attempt_decode_leg(a)->status == 200)
		failover_decode_works(a);
	if (done && !job->facts.stream)
		timing_answered(a);
	job->ops->payload(job, attempt_decode_leg(a), &a->sse, pieces, n, done);
	branches_drop_text_if_sent(job);
}

void
decode_payload(struct attempt *a, const struct span *pieces, size_t n, bool done)
{
	struct job *job = a->branch->job;
	struct leg *d = attempt_decode_leg(a);
	bool whole = false; /* an event has ended; a half event is not searched again and again */

	for (size_t i = 0; i < n; i++)
		usage_tail_take(&a->tail, pieces[i].p, pieces[i].n);
	if (job->answer == NULL && fails_at_once(a, pieces, n, done))
		return;
	if (job->answer == NULL && (job->resume == NULL || !resume_follows(job, d))) {
		pass_payload(a, pieces, n, done);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		whole |= sse_feed(&a->sse, pieces[i].p, pieces[i].n) > 0;
		membuf_add(&a->event, pieces[i].p, pieces[i].n);
	}
	if (attempt_waits_for_prefill(a)) {
		attempt_set_decode(a, DECODE_WITHHELD, WITHHELD_PREFILL_PART);
		leg_hold(d, true);
	} else if (a->withheld == WITHHELD_SLOW_CLIENT) {
		leg_hold(d, true);
	} else if (whole) {
		deliver_events(a);
	} else if (a->event.n > a->w->conf->live.max_answer) {
		job->ops->cut(job, END_DECODE_ANSWER, NULL);
	}
	if (a->life == ATTEMPT_SERVING)
		branches_drop_text_if_sent(job);
}

/*
 * Returns true if the answer has an end, but other engines should continue it: a followed
 * stream without [DONE], or an answer that should continue a stream and is no stream.
 */
static bool
ended_too_soon(struct attempt *a)
{
	struct job *job = a->branch->job;
	const struct leg *d = attempt_decode_leg(a);

	if (job->resume == NULL || !job_started(job))
		return false;
	if (d->keep)
		return d->status == 200 && !d->sse;
	return resume_follows(job, d) && !a->sse.done && resume_may(job);
}

/* Ends a stream whose events have passed unchanged, except those that were followed or
 * rewritten. */
static void
stream_ended(struct attempt *a)
{
	struct job *job = a->branch->job;

	if (a->sse.error) { /* vLLM's error in a stream, under a 200 */
		(void)failover_outcome(a, LEG_DECODE, CAUSE_UNUSABLE);
	} else if (job->facts.stream) {
		timing_stream_ended(a);
	}
	failover_record_good(a, LEG_DECODE);
	if (resume_follows(job, attempt_decode_leg(a)))
		deliver_followed_ended(a);
	else
		deliver_end(a);
}

/* Decode was sent its request first, and its whole answer is here. */
static void
first_answered(struct attempt *a)
{
	struct job *job = a->branch->job;

	failover_record_good(a, LEG_DECODE);
	if (a->t.connector->decode_first(&a->t) == HANDOFF_RETRY) {
		prefill_first(a);
		return;
	}
	if (!pass_kept(a, true))
		return;
	if (!resume_follows(job, attempt_decode_leg(a)))
		job->ops->end(job, a->sse.error ? END_ENGINE_STATUS : END_OK);
	else if (ended_too_soon(a))
		failed(a, CAUSE_UNUSABLE, END_DECODE_ANSWER);
	else
		deliver_followed_ended(a);
}

/* Sends the engine's own refusal to the client. */
static void
pass_on(struct attempt *a)
{
	struct job *job = a->branch->job;
	const struct reply refusal = failover_reply(attempt_decode_leg(a));

	job->detail = failover_who(LEG_DECODE);
	job->ops->pass_on(job, &refusal);
}

/* The same as was_aborted(), of a whole answer that is rewritten.  Returns true if other engines
 * are asked. */
static bool
part_aborted(struct attempt *a)
{
	struct leg *d = attempt_decode_leg(a);
	struct job *job = a->branch->job;
	struct outcome o;

	if (!d->keep || !abort_is_failure(a) ||
		!symptom_of_abort((struct span){d->answer, d->answer_len}))
		return false;
	o = failover_outcome(a, LEG_DECODE, CAUSE_UNUSABLE);
	d->fail = LEG_FAIL_GARBAGE; /* the answer is not complete: attempt_decode_complete() */
	if (failover_others(a, LEG_DECODE, &o))
		return true;
	d->fail = LEG_FAIL_NONE;
	job->detail = "the decode engine has aborted the request";
	return false;
}

/* A rewritten answer is whole. */
static void
part_answered(struct attempt *a)
{
	struct job *job = a->branch->job;
	struct leg *d = attempt_decode_leg(a);

	if (part_aborted(a))
		return;
	if (d->keep && (job->facts.stream || answer_whole(job->answer, a->branch->index, d->answer,
						     d->answer_len) != ANSWER_OK)) {
		failed(a, CAUSE_UNUSABLE, END_DECODE_ANSWER);
		return;
	}
	if (d->keep) {
		usage_tail_take(&a->tail, d->answer, d->answer_len);
		timing_answered(a);
	} else {
		timing_stream_ended(a);
	}
	failover_record_good(a, LEG_DECODE);
	if (attempt_waits_for_prefill(a)) { /* deliver_prefill_part() continues */
		attempt_set_decode(a, DECODE_WITHHELD, WITHHELD_PREFILL_PART);
	} else if (a->withheld != WITHHELD_SLOW_CLIENT) { /* else deliver_drained() continues */
		/* the answer was taken over, and other branches may have answers too */
		leg_forget_answer(d);
		deliver_part_ended(a);
	}
}

void
decode_answered(struct attempt *a)
{
	struct job *job = a->branch->job;
	struct leg *d = attempt_decode_leg(a);

	if (a->withheld == WITHHELD_SPECULATION)
		return; /* decode_confirmed() */
	if (a->withheld == WITHHELD_REFUSAL) {
		(void)failover(a, LEG_DECODE, CAUSE_STATUS, END_ENGINE_STATUS);
		return;
	}
	if (ended_too_soon(a))
		failed(a, CAUSE_UNUSABLE, END_DECODE_ANSWER);
	else if (d->keep && d->status != 200)
		pass_on(a);
	else if (job->answer != NULL)
		part_answered(a);
	else if (!d->keep)
		stream_ended(a);
	else
		first_answered(a);
	if (a->life == ATTEMPT_SERVING)
		branches_drop_text_if_sent(job);
}

void
decode_confirmed(struct attempt *a)
{
	struct leg *d = attempt_decode_leg(a);
	const struct span kept = {d->answer, d->answer_len};
	const bool done = !leg_active(d);

	d->keep = false;
	decode_first(a);
	if (a->life == ATTEMPT_SERVING && !d->keep)
		decode_payload(a, &kept, 1, done);
	if (a->life != ATTEMPT_SERVING)
		return;
	if (!d->keep)
		leg_forget_answer(d); /* a stream may last */
	if (done)
		decode_answered(a);
}

/* The engine broke off after [DONE].  `end`: how the job ends if the client has not got all of the stream. */
static void
finish(struct attempt *a, enum req_end end)
{
	struct job *job = a->branch->job;
	struct leg *d = attempt_decode_leg(a);

	leg_end(d);
	d->fail = LEG_FAIL_NONE; /* the answer is complete: attempt_decode_complete() */
	if (job->answer != NULL || resume_follows(job, d))
		decode_answered(a);
	else if (job->ops->complete(job, &a->sse))
		job->ops->end(job, END_OK);
	else
		job->ops->cut(job, end, NULL);
}

/* A failure of the decode leg. */
static void
failed(struct attempt *a, enum failure_cause cause, enum req_end end)
{
	const enum failure_action action = failover(a, LEG_DECODE, cause, end);

	if (action == ACTION_CORRECT)
		correct(a);
	else if (action == ACTION_FINISH)
		finish(a, end);
}

void
decode_failed(struct attempt *a)
{
	failed(a, failover_cause(attempt_decode_leg(a)), failover_end(a, LEG_DECODE));
}

void
decode_gone(struct attempt *a)
{
	if (leg_connecting(attempt_decode_leg(a)))
		failed(a, CAUSE_CONNECT_TIMEOUT, failover_late_end(a, LEG_DECODE));
	else
		failed(a, CAUSE_DOWN, failover_down_end(a, LEG_DECODE));
}

/* An answer in one piece may be nearly generated, and a stream has been begun: they have time for the engine to come
 * up. */
void
decode_down(struct attempt *a)
{
	if (a->t.of.facts->stream && attempt_decode_leg(a)->progress < LEG_BEGUN)
		decode_gone(a);
}

void
decode_late(struct attempt *a)
{
	struct leg *d = attempt_decode_leg(a);
	const bool connecting = leg_connecting(d);

	if (!connecting && d->progress < LEG_ANSWERING && leg_active(attempt_prefill_leg(a)) &&
		!attempt_limit_over(a, clock_ms())) {
		/* decode waits for the prefill engine, which has its own time limit */
		leg_wait_anew(d);
		return;
	}
	failed(a, connecting ? CAUSE_CONNECT_TIMEOUT : CAUSE_TIMEOUT,
		failover_late_end(a, LEG_DECODE));
}
