#include "worker/attempt/deliver.h"

#include <string.h>

#include "worker/attempt/attempt.h"
#include "worker/attempt/failover.h"
#include "worker/attempt/resume.h"
#include "worker/attempt/timing.h"
#include "worker/base/core.h"

/* bytes made of one read before the client's socket is checked */
#define REWRITE_BURST (256u << 10)

/* --- sending ----------------------------------------------------------------------------------- */

void
deliver_begin(struct attempt *a)
{
	struct job *job = a->branch->job;

	job->ops->begin(job, attempt_decode_leg(a));
	attempt_set_decode(a, DECODE_RELAYING, WITHHELD_NOT);
}

/* The decode engine of a followed stream has reported an error: tries other engines. */
static void
decode_gave_up(struct job *job)
{
	struct attempt *a = job->branches[0].attempt;
	struct outcome o = failover_outcome(a, LEG_DECODE, CAUSE_UNUSABLE);
	char message[400];

	if (failover_others(a, LEG_DECODE, &o))
		return;
	if (!job_started(job) || !resume_engine_message(job, message, sizeof(message))) {
		job->ops->cut(job, END_DECODE_ANSWER, NULL);
		return;
	}
	job->detail = failover_who(LEG_DECODE);
	job->ops->cut(job, END_ENGINE_STATUS, message);
}

/* Sends and empties `out`.  `on`: the engine has reported no error.  Returns false if the request is over or other engines
 * continue it. */
static bool
send_made(struct job *job, struct membuf *out, bool on)
{
	if (out->n > 0)
		job->ops->events(job, out->p, out->n);
	out->n = 0;
	if (!on)
		decode_gave_up(job);
	return on;
}

/* The same of events that the rewriter has made and that have not been followed yet. */
static bool
send_events(struct job *job, struct membuf *out)
{
	return send_made(job, out, job->resume == NULL || resume_events(job, out));
}

/* Handles the result of proto/answer.c for an engine's bytes.  Returns false if the request is
 * over. */
static bool
rewritten(struct job *job, struct membuf *out, int r, enum req_end bad)
{
	if ((r == ANSWER_OK || r == ANSWER_ERROR) && !send_events(job, out))
		return false;
	if (r == ANSWER_ERROR) {
		job->ops->end_events(job);
		job->ops->end(job, END_ENGINE_STATUS);
	} else if (r != ANSWER_OK) {
		job->ops->cut(job, bad, NULL);
	}
	return r == ANSWER_OK;
}

/* Ends a rewritten answer once every branch is complete. */
static void
finish_if_done(struct job *job)
{
	struct membuf out = {NULL, 0, 0};
	int r;

	for (uint32_t i = 0; i < job->nbranches; i++)
		if (job->branches[i].attempt->decode != DECODE_ENDED)
			return;
	r = answer_end(job->answer, &out);
	if (r != ANSWER_OK) {
		job->ops->cut(job, END_DECODE_ANSWER, NULL);
	} else if (job->facts.stream) {
		if (send_events(job, &out)) {
			job->ops->end_events(job);
			job->ops->end(job, END_OK);
		}
	} else {
		job->ops->reply(job, out.p, out.n);
		job->ops->end(job, END_OK);
	}
	membuf_free(&out);
}

void
deliver_part_ended(struct attempt *a)
{
	struct job *job = a->branch->job;
	struct membuf out = {NULL, 0, 0};
	int r = answer_part_end(job->answer, a->branch->index, &out);

	attempt_set_decode(a, DECODE_ENDED, WITHHELD_NOT);
	if (rewritten(job, &out, r, END_DECODE_ANSWER))
		finish_if_done(job);
	membuf_free(&out);
}

void
deliver_end(struct attempt *a)
{
	struct job *job = a->branch->job;
	const bool good = attempt_decode_leg(a)->status < 300 && !a->sse.error;

	if (!good)
		job->detail = failover_who(LEG_DECODE);
	job->ops->end(job, good ? END_OK : END_ENGINE_STATUS);
}

void
deliver_followed_ended(struct attempt *a)
{
	struct job *job = a->branch->job;

	if (a->withheld == WITHHELD_SLOW_CLIENT)
		return;     /* deliver_drained() */
	if (a->event.n > 0) /* behind the last event */
		job->ops->events(job, a->event.p, a->event.n);
	job->ops->end_events(job);
	deliver_end(a);
}

/* --- events -------------------------------------------------------------------------------------- */

/* Handles a malformed event or an error.  Returns true if the attempt continues nevertheless. */
static bool
bad_event(struct attempt *a, int r, struct membuf *out)
{
	struct job *job = a->branch->job;
	struct outcome o = failover_outcome(a, LEG_DECODE, CAUSE_UNUSABLE);

	if (r == ANSWER_ERROR && !a->output_started && failover_others(a, LEG_DECODE, &o))
		return false;
	a->output_started = true;
	if (r != ANSWER_ERROR && job->resume != NULL) {
		if (send_events(job, out))
			(void)failover(a, LEG_DECODE, CAUSE_UNUSABLE, END_DECODE_ANSWER);
		return false;
	}
	return rewritten(job, out, r, END_DECODE_ANSWER);
}

/* Sets the state of the decode side after events have been sent. */
static void
events_sent(struct attempt *a, bool full)
{
	if (full)
		attempt_set_decode(a, DECODE_WITHHELD, WITHHELD_SLOW_CLIENT);
	else if (a->output_started)
		attempt_set_decode(a, DECODE_RELAYING, WITHHELD_NOT);
	else
		attempt_set_decode(a, DECODE_WITHHELD, WITHHELD_COLLECTING);
}

/* Appends what the client gets of the events, until the client has enough to read: one event may become much larger.
 * Returns false if the request is over or other engines continue it; *ret_at: bytes of the events that are done. */
static bool
rewrite_events(struct attempt *a, struct membuf *out, size_t *ret_at, bool *ret_full)
{
	struct job *job = a->branch->job;
	bool on = true;
	size_t n;

	while (on && !*ret_full && (n = sse_next(a->event.p + *ret_at, a->event.n - *ret_at)) > 0) {
		int r = answer_event(job->answer, a->branch->index, a->event.p + *ret_at, n, out);

		*ret_at += n;
		if (r != ANSWER_OK) {
			on = bad_event(a, r, out);
			continue;
		}
		a->output_started = true;
		failover_decode_works(a);
		if (out->n >= REWRITE_BURST) {
			on = send_events(job, out);
			*ret_full = on && job->ops->full(job);
		}
	}
	return on && send_events(job, out);
}

/* The same of a stream that is followed and not rewritten: no event is looked for twice. */
static bool
follow_events(struct attempt *a, struct membuf *out, size_t *ret_at, bool *ret_full)
{
	struct job *job = a->branch->job;
	bool on = true;
	size_t n;

	while (on && !*ret_full && (n = sse_next(a->event.p + *ret_at, a->event.n - *ret_at)) > 0) {
		a->output_started = true;
		failover_decode_works(a);
		on = resume_event(job, a->event.p + *ret_at, n, out);
		*ret_at += n;
		if (on && out->n >= REWRITE_BURST) {
			(void)send_made(job, out, true);
			*ret_full = job->ops->full(job);
		}
	}
	resume_followed(job);
	return send_made(job, out, on);
}

void
deliver_events(struct attempt *a)
{
	struct job *job = a->branch->job;
	struct membuf out = {NULL, 0, 0};
	size_t at = 0;
	bool on, full = false;

	if (job->answer != NULL) {
		on = rewrite_events(a, &out, &at, &full);
	} else {
		resume_take_buffer(job, &out);
		on = follow_events(a, &out, &at, &full);
		if (on)
			resume_keep_buffer(job, &out);
	}
	membuf_free(&out);
	if (!on || a->life != ATTEMPT_SERVING)
		return;
	memmove(a->event.p, a->event.p + at, a->event.n - at);
	a->event.n -= at;
	events_sent(a, full && sse_next(a->event.p, a->event.n) > 0);
	if (a->event.n == 0)
		membuf_free(&a->event); /* an idle stream owns no buffer */
	else if (a->event.n > a->w->conf->live.max_answer)
		job->ops->cut(job, END_DECODE_ANSWER, NULL);
}

/* The engine is read again. */
static void
read_on(struct attempt *a)
{
	timing_read_on(a);
	leg_hold(attempt_decode_leg(a), false);
	a->branch->job->ops->look(a->branch->job);
}

/* No event of decode waits any more: reads the following payload, or ends the answer. */
static void
catch_up(struct attempt *a, bool complete)
{
	if (!complete)
		read_on(a);
	else if (a->branch->job->answer == NULL)
		deliver_followed_ended(a);
	else
		deliver_part_ended(a);
}

/* The client reads again: one attempt's events that were withheld for it. */
static void
send_withheld(struct attempt *a)
{
	const bool complete = attempt_decode_complete(a);

	deliver_events(a);
	if (a->life != ATTEMPT_SERVING || a->withheld == WITHHELD_SLOW_CLIENT)
		return;
	/* a complete answer ends here, though its last events may have filled the socket again: no other event of the
	 * engine will come */
	if (complete || !a->branch->job->ops->full(a->branch->job))
		catch_up(a, complete);
}

void
deliver_drained(struct job *job)
{
	for (uint32_t i = 0; i < job->nbranches && !job_over(job); i++) {
		struct attempt *a = job->branches[i].attempt;

		if (a->withheld == WITHHELD_SLOW_CLIENT)
			send_withheld(a);
		else if (!attempt_waits_for_prefill(a))
			read_on(a);
		if (!job_over(job) && job->ops->full(job))
			return;
	}
}

bool
deliver_prefill_part(struct attempt *a)
{
	struct job *job = a->branch->job;
	const struct leg *p = attempt_prefill_leg(a);
	const bool waited = a->withheld == WITHHELD_PREFILL_PART;
	const bool complete = leg_active(attempt_decode_leg(a)) ? false : waited;
	struct membuf out = {NULL, 0, 0};
	bool on;

	if (!job->takes_prefill ||
		/* the part that the first attempt sent stays valid */
		a->branch->prefill_part_sent)
		return true;
	a->branch->prefill_part_sent = true;
	if (job->how.first_token && job->facts.stream)
		a->output_started = true;
	on = rewritten(job, &out,
		answer_prefill(job->answer, a->branch->index, p->answer, p->answer_len, &out),
		END_PREFILL_ANSWER);
	membuf_free(&out);
	if (!on || !waited)
		return on && a->life == ATTEMPT_SERVING;
	if (a->event.n > 0) /* decode's events have waited for the prefill part */
		deliver_events(a);
	if (a->life == ATTEMPT_SERVING && a->withheld != WITHHELD_SLOW_CLIENT)
		catch_up(a, complete);
	return a->life == ATTEMPT_SERVING;
}
