#include "worker/attempt/serve.h"

#include <stddef.h>

#include "shm/base/clock.h"
#include "shm/tally.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/compose.h"
#include "worker/attempt/decode.h"
#include "worker/attempt/failover.h"
#include "worker/attempt/leg_span.h"
#include "worker/attempt/lookup.h"
#include "worker/attempt/lookup_answer.h"
#include "worker/attempt/prefill.h"
#include "worker/attempt/release.h"
#include "worker/attempt/resume.h"
#include "worker/attempt/rewrite.h"
#include "worker/attempt/suspects.h"
#include "worker/attempt/timing.h"
#include "worker/base/core.h"
#include "worker/base/rounds.h"
#include "worker/base/text.h"
#include "worker/net/connpool.h"

/* --- events ------------------------------------------------------------------------------------ */

typedef void leg_handler(struct attempt *);

static void
ignore(struct attempt *a)
{
	(void)a;
}

/* clang-format off */
static leg_handler *const handlers[ATTEMPT_OVER + 1][LEG_N][LEG_EV_N] = {
	/*                        FIRST                  KEPT          ANSWER                    FAIL                    DOWN                    GONE */
	[ATTEMPT_SERVING] = {
		[LEG_LOOKUP]  = { ignore,                ignore,       lookup_answered,          lookup_failed,          lookup_late,            lookup_late },
		[LEG_PREFILL] = { ignore,                prefill_more, prefill_answered,         prefill_failed,         prefill_down,           prefill_gone },
		[LEG_DECODE]  = { decode_first,          decode_more,  decode_answered,          decode_failed,          decode_down,            decode_gone } },
	[ATTEMPT_DETACHED] = {
		[LEG_LOOKUP]  = { ignore,                ignore,       ignore,                   ignore,                 ignore,                 ignore },
		[LEG_PREFILL] = { release_prefill_first, ignore,       release_prefill_answered, release_prefill_failed, ignore,                 release_prefill_failed },
		[LEG_DECODE]  = { release_decode_first,  ignore,       attempt_end,              release_decode_failed,  ignore,                 release_decode_failed } },
	[ATTEMPT_OVER] = {
		[LEG_LOOKUP]  = { ignore,                ignore,       ignore,                   ignore,                 ignore,                 ignore },
		[LEG_PREFILL] = { ignore,                ignore,       ignore,                   ignore,                 ignore,                 ignore },
		[LEG_DECODE]  = { ignore,                ignore,       ignore,                   ignore,                 ignore,                 ignore } },
};
/* clang-format on */

/* The tick looks at the job: an attempt has changed.  `job` may be NULL or over. */
static void
look(struct job *job)
{
	if (job != NULL && !job_over(job))
		job->ops->look(job);
}

static void
note_span(struct attempt *a, const struct leg *leg, enum leg_event ev)
{
	const enum leg_kind kind = attempt_leg_kind(a, leg);

	if (ev == LEG_EV_FIRST)
		leg_span_first(a->spans, kind);
	else if (ev != LEG_EV_KEPT && ev != LEG_EV_DOWN)
		leg_span_over(a->spans, kind, leg->status);
}

static void
on_event(struct leg *leg, enum leg_event ev)
{
	struct attempt *a = leg->owner;
	struct job *job = a->branch == NULL ? NULL : a->branch->job;

	if (a->spans != NULL)
		note_span(a, leg, ev);
	attempt_give_answers(a);
	if (ev == LEG_EV_FIRST)
		timing_first_byte(a, leg);
	handlers[a->life][attempt_leg_kind(a, leg)][ev](a);
	attempt_settle(a);
	look(job);
}

static void
on_payload(struct leg *leg, const struct span *pieces, size_t n, bool done)
{
	struct attempt *a = leg->owner;

	if (leg->status < 300)
		tally_alive(a->w->seg, leg->ep->slot, leg->since_ms); /* since this read */
	if (a->life == ATTEMPT_SERVING)
		decode_payload(a, pieces, n, done);
	attempt_note_fetch(a);
	attempt_check(a);
}

static bool
stream_complete(const struct leg *leg)
{
	const struct attempt *a = leg->owner;

	return a->sse.done;
}

void
serve_kv_ready(struct transfer *t)
{
	struct attempt *a = (struct attempt *)((char *)t - offsetof(struct attempt, t));

	a->notices_deadline_ms = 0;
	transfer_drop_flag(&a->t, true);
	look(a->branch == NULL ? NULL : a->branch->job);
	if (a->prefill == PREFILL_ANSWERED)
		attempt_start(a, STARTS_AFTER_KV);
	else if (a->life == ATTEMPT_DETACHED)
		release_fetch_unheard(a);
	attempt_settle(a);
}

/* The notices do not come: decode is sent its request and finds the KV that is there. */
static void
notices_late(struct attempt *a)
{
	if (!transfer_kv_arrived(&a->t)) { /* a lost wake-up is not lateness */
		metric_add(a->w->slab, M_KV_LATE, 1);
		if (a->branch != NULL)
			a->branch->job->detail = "not all notices of its KV came within kv_ready";
	}
	serve_kv_ready(&a->t);
}

static void
leg_late(struct attempt *a, enum leg_kind kind)
{
	static leg_handler *const late[ATTEMPT_OVER + 1][LEG_N] = {
		[ATTEMPT_SERVING] = {[LEG_LOOKUP] = lookup_late,
			[LEG_PREFILL] = prefill_late,
			[LEG_DECODE] = decode_late},
		[ATTEMPT_DETACHED] = {[LEG_LOOKUP] = ignore,
			[LEG_PREFILL] = release_prefill_failed,
			[LEG_DECODE] = release_decode_failed},
		[ATTEMPT_OVER] = {
			[LEG_LOOKUP] = ignore, [LEG_PREFILL] = ignore, [LEG_DECODE] = ignore}};

	late[a->life][kind](a);
	attempt_settle(a);
}

/* Leaves decode what is left of the limit of an answer in one piece. */
static void
share_limit(struct attempt *a)
{
	struct leg *d = attempt_decode_leg(a);

	if (a->branch != NULL && a->branch->answer_by_ms != 0 && leg_active(d) &&
		!leg_connecting(d) && d->progress < LEG_BEGUN)
		leg_wait_until(d, a->branch->answer_by_ms);
}

static void
tick(struct attempt *a, uint64_t now_ms)
{
	if (a->notices_deadline_ms != 0 && now_ms >= a->notices_deadline_ms)
		notices_late(a);
	share_limit(a);
	for (enum leg_kind k = 0; k < a->nlegs; k++)
		if (a->life != ATTEMPT_OVER && leg_expired(&a->leg[k], now_ms))
			leg_late(a, k);
	timing_tick(a, now_ms);
}

/* --- jobs ---------------------------------------------------------------------------------------- */

static const struct leg_ops ops = {.compose = compose_leg,
	.event = on_event,
	.payload = on_payload,
	.complete = stream_complete};

void
serve_init(struct job *job, struct worker *w, const struct job_ops *job_ops)
{
	job_init(job, w, job_ops);
	job->leg_ops = &ops;
}

void
serve_free(struct job *job)
{
	resume_free(job);
	job_free(job);
}

static void
make_attempts(struct job *job, struct reserved *reserved, uint32_t n)
{
	job_make_branches(job, n);
	if (job->text->doc != NULL) {
		job_share_out(job);
		resume_plan(job);
		rewrite_plan(job);
	}
	for (uint32_t i = 0; i < n; i++) {
		struct branch *b = &job->branches[i];

		b->attempt = attempt_new(b, job->connector, ATTEMPT_FIRST);
		attempt_take_engines(b->attempt, &reserved[i]);
	}
}

enum req_end
serve_begin(struct job *job, struct reserved *reserved, uint32_t n)
{
	make_attempts(job, reserved, n);
	for (uint32_t i = 0; i < job->nbranches; i++) {
		struct attempt *a = job->branches[i].attempt;
		enum req_end why = attempt_begin(a);

		if (a->t.detail != NULL)
			job->detail = a->t.detail;
		if (why != END_OK)
			return why;
	}
	return END_OK;
}

void
serve_start(struct job *job)
{
	bool lookups = false;

	for (uint32_t i = 0; i < job->nbranches; i++)
		lookups = lookups || job->branches[i].attempt->lookup == LOOKUP_DUE;
	if (lookups)
		job->ops->step(job, 'a');
	worker_need_tick(job->w);
	lookup_go_on(job);
}

/* The limit of an answer in one piece has ended before another decode engine was sent the request. */
static void
no_time_left(struct attempt *a, uint64_t now_ms)
{
	struct job *job = a->branch->job;

	if (a->decode != DECODE_IDLE || !attempt_limit_over(a, now_ms))
		return;
	job->detail = "no other engine could answer within timeouts.whole_answer";
	job->ops->cut(job, failover_late_end(a, LEG_DECODE), NULL);
}

void
serve_tick(struct job *job, uint64_t now_ms)
{
	for (uint32_t i = 0; i < job->nbranches && !job_over(job); i++)
		tick(job->branches[i].attempt, now_ms);
	for (uint32_t i = 0; i < job->nbranches && !job_over(job); i++)
		no_time_left(job->branches[i].attempt, now_ms);
	for (uint32_t i = 0; i < job->nbranches && !job_over(job); i++)
		lookup_tick(job->branches[i].attempt, now_ms);
	if (!job_over(job))
		lookup_go_on(job);
}

/* Returns the milliseconds until the tick must look at the attempt, at most `most`. */
static uint64_t
next_look(const struct attempt *a, uint64_t most, uint64_t now_ms)
{
	if (a->lookup != LOOKUP_NOT_NEEDED && a->lookup != LOOKUP_KNOWN)
		return 0;
	most = visit_sooner(most, a->notices_deadline_ms, now_ms);
	most = visit_sooner(most, a->branch->answer_by_ms, now_ms);
	most = visit_sooner(most, timing_next_ms(a), now_ms);
	for (enum leg_kind k = 0; k < a->nlegs; k++)
		if (leg_active(&a->leg[k]))
			most = visit_sooner(most, a->leg[k].deadline_ms, now_ms);
	return most;
}

uint64_t
serve_next_look(const struct job *job, uint64_t most, uint64_t now_ms)
{
	for (uint32_t i = 0; i < job->nbranches; i++)
		most = next_look(job->branches[i].attempt, most, now_ms);
	return most;
}

static void
poll(struct attempt *a)
{
	for (enum leg_kind k = 0; k < a->nlegs; k++)
		if (a->life != ATTEMPT_OVER)
			(void)leg_look(&a->leg[k]);
}

void
serve_poll(struct job *job)
{
	for (uint32_t i = 0; i < job->nbranches && !job_over(job); i++)
		poll(job->branches[i].attempt);
}

void
serve_end(struct job *job)
{
	for (uint32_t i = 0; i < job->nbranches; i++) {
		struct attempt *a = job->branches[i].attempt;

		suspects_end(&job->branches[i]);
		if (a != NULL && job->end == END_OK)
			attempt_end(a);
		else if (a != NULL)
			release_attempt(a);
	}
}

/* --- detached attempts --------------------------------------------------------------------------- */

/* A step of one attempt may end any other attempt: a visited attempt moves to the list's end. */
void
serve_tick_detached(struct worker *w, uint64_t now_ms)
{
	struct attempt *a;

	for (uint32_t n = w->ndetached; n > 0 && (a = TAILQ_FIRST(&w->detached)) != NULL; n--) {
		TAILQ_REMOVE(&w->detached, a, link);
		TAILQ_INSERT_TAIL(&w->detached, a, link);
		tick(a, now_ms);
	}
}

void
serve_end_detached(struct worker *w)
{
	while (!TAILQ_EMPTY(&w->detached))
		attempt_end(TAILQ_FIRST(&w->detached));
}
