#include "worker/attempt/failover.h"

#include <string.h>

#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/budget.h"
#include "shm/tally.h"
#include "worker/attempt/branches.h"
#include "worker/attempt/leg_span.h"
#include "worker/attempt/lookup.h"
#include "worker/attempt/release.h"
#include "worker/attempt/resume.h"
#include "worker/attempt/rewrite.h"
#include "worker/attempt/suspects.h"
#include "worker/attempt/symptom.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/schedule/outcome.h"
#include "worker/schedule/plan.h"

/* --- facts --------------------------------------------------------------------------------------- */

static const enum failure_leg failure_legs[LEG_N] = {
	[LEG_PREFILL] = FAILED_PREFILL, [LEG_DECODE] = FAILED_DECODE, [LEG_LOOKUP] = FAILED_LOOKUP};

enum failure_cause
failover_cause(const struct leg *leg)
{
	static const enum failure_cause causes[LEG_FAIL_N] = {[LEG_FAIL_NONE] = CAUSE_UNUSABLE,
		[LEG_FAIL_CONNECT] = CAUSE_CONNECT,
		[LEG_FAIL_DOWN] = CAUSE_DOWN,
		[LEG_FAIL_SHORTAGE] = CAUSE_SHORTAGE,
		[LEG_FAIL_OLD_KEYS] = CAUSE_OLD_KEYS,
		[LEG_FAIL_STALE] = CAUSE_STALE,
		[LEG_FAIL_BROKEN] = CAUSE_BROKEN,
		[LEG_FAIL_GARBAGE] = CAUSE_GARBAGE,
		[LEG_FAIL_TOO_LARGE] = CAUSE_TOO_LARGE};

	return causes[leg->fail];
}

enum req_end
failover_end(const struct attempt *a, enum leg_kind kind)
{
	const enum leg_fail fail = a->leg[kind].fail;

	if (fail == LEG_FAIL_SHORTAGE)
		return END_OVERLOADED;
	if (fail == LEG_FAIL_DOWN)
		return failover_down_end(a, kind);
	if (fail == LEG_FAIL_OLD_KEYS) /* 503: another worker may serve the request */
		return kind == LEG_DECODE ? END_NO_DECODE : END_NO_PREFILL;
	if (a->t.connector->engines == ENGINES_SINGLE)
		return END_ENGINE_BROKEN;
	if (kind == LEG_DECODE)
		return fail == LEG_FAIL_TOO_LARGE ? END_DECODE_ANSWER : END_DECODE_BROKEN;
	return fail == LEG_FAIL_GARBAGE || fail == LEG_FAIL_TOO_LARGE ? END_PREFILL_ANSWER
								      : END_PREFILL_BROKEN;
}

enum req_end
failover_late_end(const struct attempt *a, enum leg_kind kind)
{
	const bool connecting = leg_connecting(&a->leg[kind]);

	if (connecting && a->t.connector->engines == ENGINES_SINGLE)
		return END_ENGINE_CONNECT;
	if (kind != LEG_DECODE)
		return connecting ? END_PREFILL_CONNECT : END_PREFILL_TIMEOUT;
	if (connecting)
		return END_DECODE_CONNECT;
	if (a->leg[kind].progress == LEG_BEGUN)
		return END_STREAM_IDLE;
	return a->t.of.facts->stream ? END_FIRST_BYTE : END_WHOLE_ANSWER;
}

enum req_end
failover_down_end(const struct attempt *a, enum leg_kind kind)
{
	if (a->t.connector->engines == ENGINES_SINGLE)
		return END_ENGINE_DOWN;
	return kind == LEG_DECODE ? END_DECODE_DOWN : END_PREFILL_DOWN;
}

/* Returns true if the client's answer is complete without this leg: an engine may break off
 * after its last event, and a prefill engine may fail once decode is relayed. */
static bool
not_missing(const struct attempt *a, enum leg_kind kind)
{
	if (kind == LEG_LOOKUP || (kind == LEG_PREFILL && attempt_waits_for_prefill(a)))
		return false;
	if (kind == LEG_DECODE) /* the withheld answer may turn out to be unusable */
		return a->decode == DECODE_ENDED;
	return attempt_decode_complete(a) || a->decode == DECODE_RELAYING ||
	       a->withheld == WITHHELD_SLOW_CLIENT;
}

/* Returns true if the leg's engine has answered other requests since the leg's time limit began.
 * An engine that is dead, or a black hole, answers no request. */
static bool
answers_others(const struct attempt *a, enum leg_kind kind)
{
	const struct endpoint *ep = a->reserved.of[attempt_role_of(a, kind)].ep;

	return ep != NULL && tally_alive_ms(a->w->seg, ep->slot) > a->leg[kind].since_ms;
}

/* Returns true if decode was given KV of a prefill engine, and has shown no token. */
static bool
kv_unproven(const struct attempt *a)
{
	return connector_two_engines(a->t.connector) && a->proof == PROOF_OPEN &&
	       a->leg[LEG_DECODE].progress >= LEG_REACHED &&
	       (a->prefill == PREFILL_SENT || a->prefill == PREFILL_ANSWERED);
}

/* Returns true if the leg's engine reports that KV did not pass between the two engines. */
static bool
kv_suspect(const struct attempt *a, enum leg_kind kind, enum failure_cause cause)
{
	const struct leg *leg = &a->leg[kind];
	struct span text = {leg->answer, leg->answer_len};

	if (kind == LEG_DECODE) /* its error comes first; what was kept is an answer */
		text = leg->piece != NULL ? *leg->piece : (struct span){NULL, 0};
	return kv_unproven(a) && symptom_of_kv(a->t.connector->info->engine, failure_legs[kind],
					 cause, leg->status, text);
}

/* Returns true if former decode engines had most of the limit of an answer in one piece. */
static bool
had_little_time(const struct attempt *a, enum leg_kind kind)
{
	const uint64_t by_ms = a->branch->answer_by_ms;

	return kind == LEG_DECODE && by_ms != 0 &&
	       (leg_active(&a->leg[LEG_PREFILL]) ||
		       a->leg[kind].since_ms + a->leg[kind].first_ms / 2 > by_ms);
}

/* Returns the exchange for which an outcome is recorded: a lookup counts for the engine of the
 * later leg. */
static struct exchange
leg_exchange(struct attempt *a, enum leg_kind kind, enum tally_cause cause)
{
	const struct leg *leg = &a->leg[kind];

	return (struct exchange){.w = a->w,
		.facts = a->t.of.facts,
		.engine = &a->reserved.of[attempt_role_of(a, kind)],
		.status = leg->status,
		.head = {leg->head, leg->head_len},
		.reached = leg->fail != LEG_FAIL_CONNECT && !leg_connecting(leg),
		.cause = cause};
}

/* Returns true if the client has or will have a part of this attempt's answer.  An answer that
 * waits for the prefill part does not count. */
static bool
output_started(const struct attempt *a)
{
	const struct job *job = a->branch->job;

	return a->output_started || (attempt_decode_complete(a) && !attempt_waits_for_prefill(a)) ||
	       (job->answer == NULL && job->resume == NULL && job_started(job));
}

/* Returns true if another attempt can follow: other engines can continue the sent part, or
 * nothing was sent and the bytes for the bodies are still here. */
static bool
replaceable(const struct attempt *a)
{
	struct job *job = a->branch->job;

	if (job->w->quit_ms != 0 || job_over(job))
		return false;
	return output_started(a) ? resume_may(job) : job->text != NULL;
}

/* Returns true if the budget of the pool allows one more try. */
static bool
budget_allows(struct job *job)
{
	return budget_left(job->w->seg, job->facts.pool->id, BUDGET_RETRY,
		job->facts.pool->rescue.retry_budget, clock_ms());
}

static uint32_t
tries_left(const struct job *job)
{
	const uint32_t made = job->tries - job->moves, most = job->facts.pool->rescue.retries;

	return made < most ? most - made : 0;
}

/* Returns true if the answer is a refusal, and another engine may be asked about it. */
static bool
doubtful(struct attempt *a, enum leg_kind kind, enum failure_cause cause)
{
	const struct exchange x = leg_exchange(a, kind, TALLY_4XX);
	struct job *job = a->branch->job;

	return cause == CAUSE_STATUS && failure_status_refusal(x.status) && tries_left(job) > 0 &&
	       replaceable(a) && budget_allows(job) && outcome_doubtful(&x);
}

/* Returns true if only an engine that serves the request can show that this engine is at fault. */
static bool
may_fail_alike(const struct attempt *a, enum leg_kind kind, const struct exchange *x)
{
	return suspects_failed(a->branch, kind) || outcome_fails_alike(x);
}

static struct failure
facts_of(struct attempt *a, enum leg_kind kind, enum failure_cause cause)
{
	const struct leg *leg = &a->leg[kind], *d = &a->leg[LEG_DECODE];
	const struct exchange x = leg_exchange(a, kind, TALLY_GOOD);

	return (struct failure){
		.leg = failure_legs[kind],
		.cause = cause,
		.status = leg->status,
		.hung_up = leg->reading == LEG_HUNG_UP,
		.speculative = kind == LEG_DECODE && attempt_speculates(a),
		.stream_done = kind == LEG_DECODE && a->sse.done && !leg->keep,
		.stream_error = a->sse.error,
		.not_missing = not_missing(a, kind),
		.decode_waits = leg_active(d) && !leg_connecting(d) && d->progress < LEG_ANSWERING,
		.whole = kind == LEG_DECODE && !a->t.of.facts->stream,
		.kv_suspect = kv_suspect(a, kind, cause),
		.excused = leg->progress < LEG_BEGUN &&
			   (answers_others(a, kind) || had_little_time(a, kind)),
		.doubtful = doubtful(a, kind, cause),
		.refused = suspects_refused(a->branch, kind),
		.failed = may_fail_alike(a, kind, &x),
		.only = a->t.of.facts->holder != 0,
		.trial = a->reserved.of[attempt_role_of(a, kind)].trial != 0,
	};
}

const char *
failover_who(enum leg_kind kind)
{
	static const char *const who[LEG_N] = {[LEG_PREFILL] = "the prefill engine's",
		[LEG_DECODE] = "the decode engine's",
		[LEG_LOOKUP] = "the answer to a lookup before the legs"};

	return who[kind];
}

/* --- outcomes ---------------------------------------------------------------------------------- */

void
failover_record_good(struct attempt *a, enum leg_kind kind)
{
	const struct exchange x = leg_exchange(a, kind, TALLY_GOOD);

	if (kind == LEG_LOOKUP)
		return;
	if (kind == LEG_DECODE)
		failover_decode_works(a);
	outcome_good(&x);
}

void
failover_prefill_answered(struct attempt *a, bool kv_missing)
{
	const struct exchange x =
		leg_exchange(a, LEG_PREFILL, kv_missing ? TALLY_KV_MISSING : TALLY_GOOD);
	const struct span id = transfer_engine_id(&a->t);

	outcome_accepted(&x);
	outcome_named(&x, id.p, id.n);
	suspects_accepted(a, LEG_PREFILL);
	a->branch->job->kv = kv_missing ? "missing" : NULL;
	if (kv_missing)
		a->proof = PROOF_NO_KV;
	if (a->proof != PROOF_OPEN)
		outcome_good(&x);
}

/* The KV of the request was used well, which shows that this engine works. */
static void
works(struct attempt *a, enum leg_kind kind)
{
	const struct exchange x = leg_exchange(a, kind, TALLY_GOOD);

	outcome_works(&x);
}

void
failover_decode_works(struct attempt *a)
{
	if (a->proof == PROOF_GIVEN || a->t.connector->engines == ENGINES_SINGLE ||
		a->reserved.of[ROLE_DECODE].recorded)
		return;
	if (kv_unproven(a))
		works(a, LEG_PREFILL);
	works(a, LEG_DECODE);
	a->proof = PROOF_GIVEN;
	if (a->prefill == PREFILL_ANSWERED)
		failover_record_good(a, LEG_PREFILL);
}

void
failover_record_begun(struct attempt *a)
{
	struct exchange x = leg_exchange(a, LEG_DECODE, TALLY_GOOD);

	outcome_begun(&x);
	suspects_accepted(a, LEG_DECODE);
}

static void
record_bad(struct attempt *a, enum leg_kind kind, enum tally_cause cause)
{
	struct exchange x = leg_exchange(a, kind, cause);

	outcome_bad(&x);
}

/* A lookup that is given up reports one cause, whatever it met (lookup_answer.c). */
static enum failure_cause
lookup_cause(const struct leg *leg)
{
	if (leg->fail != LEG_FAIL_NONE)
		return failover_cause(leg);
	if (leg->status == 0)
		return CAUSE_TIMEOUT;
	return leg->status == 200 ? CAUSE_UNUSABLE : CAUSE_STATUS;
}

static enum tally_cause
tally_of(const struct attempt *a, enum leg_kind kind, enum failure_cause cause)
{
	const struct leg *leg = &a->leg[kind];

	return failure_tally(kind == LEG_LOOKUP ? lookup_cause(leg) : cause, leg->status);
}

/* No engine is asked about this refusal.  Together with the refusal of another engine it shows the client's mistake. */
static void
refused(struct attempt *a, enum leg_kind kind, const struct exchange *x)
{
	if (x->engine->recorded || !suspects_refused(a->branch, kind) ||
		!suspects_add(a, kind, x, SUSPECT_REFUSED))
		outcome_refused(x);
}

/* An engine is charged for the failure of this leg, now or once another engine has served the request. */
static void
charge(struct attempt *a, enum leg_kind kind, const struct exchange *x, const struct outcome *o)
{
	/* The same failure may be reported again, and an engine without room does not fail. */
	const bool first = !x->engine->recorded && !outcome_says_busy(x);
	const bool later =
		o->fault == FAULT_REQUEST ||
		(o->fault == FAULT_KV && x->engine->trial == 0 && may_fail_alike(a, kind, x));

	if (first && later && suspects_add(a, kind, x, SUSPECT_FAILED))
		return;
	outcome_bad(x);
	if (first && o->revocable)
		(void)suspects_add(a, kind, x, SUSPECT_CHARGED);
}

/* Decode, or the prefill engine whose KV it was to get, is at fault.  The engine of this leg has reported it. */
static void
record_kv(struct attempt *a, enum leg_kind kind, enum tally_cause seen, const struct outcome *o)
{
	struct exchange p =
		leg_exchange(a, LEG_PREFILL, kind == LEG_PREFILL ? seen : TALLY_KV_UNUSABLE);
	struct exchange d =
		leg_exchange(a, LEG_DECODE, kind == LEG_DECODE ? seen : TALLY_KV_UNUSABLE);

	if (d.engine->recorded)
		return; /* the same failure is reported again */
	a->blame = outcome_kv_blame(&p, &d, kind == LEG_PREFILL ? &p : &d);
	if (a->blame == BLAME_PREFILL) {
		a->branch->job->kv = "unusable";
		charge(a, kind, &p, o);
		outcome_doubt(&p); /* after a restart it holds no KV */
		if (a->t.connector->failed != NULL)
			a->t.connector->failed(&a->t, ROLE_PREFILL);
		d.cause = TALLY_GOOD;
	} else {
		p.cause = TALLY_GOOD;
	}
	if (a->blame == BLAME_DECODE)
		charge(a, kind, &d, o);
	outcome_excused(&p); /* not the engine that was charged */
	outcome_excused(&d);
}

/* Returns true if an engine with another model, role or key would answer so, and others have not. */
static bool
refuses(const struct exchange *x)
{
	return x->facts->holder == 0 &&
	       (x->status == 401 || x->status == 403 || x->status == 404) && !outcome_believed(x);
}

static void
record(struct attempt *a, enum leg_kind kind, enum failure_cause cause, const struct outcome *o)
{
	const struct connector *c = a->t.connector;
	const enum tally_cause seen = tally_of(a, kind, cause);
	/* an engine that broke off after the end of its answer has done its part */
	struct exchange x = leg_exchange(a, kind, cause == CAUSE_STATUS ? seen : TALLY_GOOD);

	if (o->forget && c->failed != NULL)
		c->failed(&a->t, (enum role)kind);
	if (o->forget || refuses(&x))
		outcome_doubt(&x);
	switch (o->fault) {
	case FAULT_UNKNOWN:
		break;
	case FAULT_NONE:
		if (kind == LEG_LOOKUP)
			outcome_busy(&x);
		else
			outcome_good(&x);
		break;
	case FAULT_BOTH:
		/* a speculation may have sent decode wrong parameters */
		if (!attempt_speculates(a) && !answers_others(a, LEG_DECODE))
			record_bad(a, LEG_DECODE, seen);
		if (!answers_others(a, kind))
			record_bad(a, kind, seen);
		break;
	case FAULT_REFUSAL:
		outcome_refusal_seen(&x);
		if (o->action != ACTION_ASK) /* ask() */
			refused(a, kind, &x);
		break;
	case FAULT_ENGINE:
	case FAULT_REQUEST:
		x.cause = seen;
		charge(a, kind, &x, o);
		break;
	case FAULT_KV:
		record_kv(a, kind, seen, o);
		break;
	}
	/* a prefill engine that is not at fault has done its part */
	if (kind == LEG_DECODE && a->leg[LEG_DECODE].progress >= LEG_REACHED &&
		a->prefill == PREFILL_ANSWERED)
		failover_record_good(a, LEG_PREFILL);
}

/* For the log: the line of a request that ended well does not have the failure otherwise. */
static const char *
how_it_failed(const struct attempt *a, enum leg_kind kind, enum blame blame)
{
	const struct endpoint *ep = a->reserved.of[attempt_role_of(a, kind)].ep;
	const struct leg *leg = &a->leg[kind];
	const char *text = leg_fail_text(leg);

	if (blame == BLAME_PREFILL)
		return "its KV could not be used";
	if (blame == BLAME_DECODE && leg == &a->leg[LEG_PREFILL])
		return "it did not fetch the KV";
	if (text == NULL && leg->status == 429)
		text = "it was full";
	if (text == NULL && leg->status >= 500)
		text = "its status was 5xx";
	if (text == NULL && leg->status >= 400)
		text = "it refused, and another engine is asked";
	if (text == NULL && ep->gone_ms != 0)
		text = "it went down";
	if (text == NULL)
		text = leg->status == 200 ? "its answer is of no use" : "it was late";
	return text;
}

/* The span of a leg that another attempt, or an error, follows. */
static void
end_span(struct attempt *a, enum leg_kind kind, enum failure_cause cause, const struct outcome *o)
{
	const struct leg_failure why = {.type = tally_cause_name(tally_of(a, kind, cause)),
		.detail = how_it_failed(a, kind, o->blame),
		.status = a->leg[kind].status};

	if (o->action >= ACTION_PASS_ON)
		leg_span_failed(a->spans, kind, &why);
}

struct outcome
failover_decide(struct attempt *a, enum leg_kind kind, enum failure_cause cause)
{
	const struct failure f = facts_of(a, kind, cause);

	return failure_outcome(&f);
}

void
failover_record(struct attempt *a, enum leg_kind kind, enum failure_cause cause, struct outcome *o)
{
	record(a, kind, cause, o);
	if (o->fault == FAULT_KV)
		o->blame = a->blame;
	if (a->spans != NULL)
		end_span(a, kind, cause, o);
}

struct outcome
failover_outcome(struct attempt *a, enum leg_kind kind, enum failure_cause cause)
{
	struct outcome o = failover_decide(a, kind, cause);

	failover_record(a, kind, cause, &o);
	return o;
}

/* --- other engines ------------------------------------------------------------------------------- */

/*
 * Returns true if another decode engine may get the KV parameters: the failed decode engine
 * was sent nothing, and the parameters are not bound to one engine.  Once an engine was
 * reached the parameters are spent: a second fetch gives another prompt's answer
 * (protocols.md 2.7).
 */
static bool
kv_usable(const struct attempt *a, enum leg_kind kind)
{
	return kind == LEG_DECODE && a->leg[LEG_DECODE].progress == LEG_UNREACHED &&
	       !a->t.connector->info->kv_bound && connector_two_engines(a->t.connector);
}

/* Resets the answer that had begun; none of its bytes were sent. */
static void
void_answer(struct branch *b)
{
	struct job *job = b->job;

	b->prefill_part_sent = false;
	if (job->answer != NULL && job->nbranches > 1)
		answer_part_again(job->answer, b->index);
	if (job->answer != NULL || job_started(job))
		return; /* started by former engines, whose stream this attempt continued */
	job->ops->reset(job);
}

/* The attempt has its engines: makes it the branch's attempt and begins it. */
static void
take_over(struct branch *b, struct attempt *next)
{
	struct job *job = b->job;
	enum req_end why;

	b->attempt = next;
	job->t_prefill_us = 0; /* of the attempt before */
	job->kv = NULL;
	why = attempt_begin(next);
	if (next->t.detail != NULL)
		job->detail = next->t.detail;
	if (why != END_OK) {
		job->ops->cut(job, why, NULL);
		return;
	}
	lookup_go_on(job);
	worker_need_tick(job->w);
	job->ops->moved(job);
}

/* A search for other engines: the parameters and the limits. */
struct search {
	struct attempt *failed;
	enum leg_kind kind;
	const struct outcome *outcome;
	bool resumes; /* the new attempt continues the part that the client has */
	/* the strongest reason for absence of an engine that may still be chosen */
	enum ep_away most;
	const char *why; /* why the attempt failed, for the log */
	bool spent;      /* fact: the budget of fallbacks did not allow one */
};

/* The role of the engine that failed, which is not chosen again for this request.  Where two engines cannot be told, that
 * is the engine that reported the failure. */
static enum role
failed_role(const struct search *s)
{
	if (s->outcome->blame == BLAME_PREFILL)
		return ROLE_PREFILL;
	if (s->outcome->blame == BLAME_DECODE)
		return ROLE_DECODE;
	return attempt_role_of(s->failed, s->kind);
}

static bool
both_suspect(const struct search *s)
{
	return s->outcome->fault == FAULT_BOTH || s->outcome->fault == FAULT_KV;
}

static uint32_t
slot_of(const struct search *s, enum role role)
{
	return s->failed->reserved.of[role].ep->slot;
}

/* The access log's line names the engines that served the request; this line names the engines
 * that did not. */
static void
log_failed(const struct search *s)
{
	const struct attempt *a = s->failed;
	const struct reservation *engine = &a->reserved.of[failed_role(s)];

	log_info("attempt failed", LOG_S("req", a->t.of.facts->id), LOG_S("attempt", a->t.id),
		LOG_S("pool", a->t.of.facts->pool->name), LOG_S("url", engine->ep->url),
		LOG_S("role", role_name(engine->role)), LOG_S("why", s->why));
}

/* Chooses and reserves engines for another attempt by connector `c`.  If both engines are suspect, both are excluded while
 * there are others; then the one that failed; and if neither is known to be at fault, the other. */
static bool
choose_others(const struct search *s, const struct connector *c, enum plan_for what,
	enum ep_away most, struct reserved *ret, bool *last_resort)
{
	struct attempt *of = s->failed;
	struct job *job = of->branch->job;
	struct facts *facts = &job->facts;
	const struct tried saved = tried_of(facts);
	const struct plan_other other = {.w = job->w,
		.of = {facts, job->text},
		.connector = c,
		.what = what,
		.failed = &of->reserved,
		.most = most};
	const enum role one = failed_role(s), two = one == ROLE_DECODE ? ROLE_PREFILL : ROLE_DECODE;

	if (both_suspect(s)) {
		(void)tried_add(facts, slot_of(s, two));
		if (plan_again(&other, ret, last_resort))
			return true;
		tried_set(facts, &saved);
	}
	if (plan_again(&other, ret, last_resort))
		return true;
	if (s->outcome->blame != BLAME_NEITHER)
		return false;
	tried_drop(facts, slot_of(s, one));
	(void)tried_add(facts, slot_of(s, two));
	if (plan_again(&other, ret, last_resort))
		return true;
	tried_set(facts, &saved);
	return false;
}

/* Returns true if `retries` and `retry_budget` allow another try; checked before an engine is
 * chosen. */
static bool
may_try(const struct search *s)
{
	struct job *job = s->failed->branch->job;

	if (!s->outcome->a_try)
		return true;
	if (tries_left(job) == 0)
		return false;
	if (budget_allows(job))
		return true;
	if (s->most < EP_AWAY_EJECTED) /* the second search of one failure counts */
		metric_add(job->w->slab, M_BUDGET_SPENT, 1);
	return false;
}

/* Returns true if the request may move from a full engine to one that is not known to be busy.
 * Such a move costs neither a retry nor budget, because a full engine answers at once.  Moves
 * end when all engines have answered that they are full. */
static bool
may_move(const struct search *s)
{
	const struct job *job = s->failed->branch->job;
	const struct exchange x = leg_exchange(s->failed, s->kind, TALLY_GOOD);

	return outcome_says_busy(&x) && s->outcome->a_try && job->facts.pool->rescue.retries > 0 &&
	       tried_count(&job->facts) < REQ_TRIED_MAX;
}

/* A stale connection is counted, but is no try: it costs neither a retry nor budget. */
static void
count_try(const struct search *s, bool moved, bool last_resort)
{
	struct job *job = s->failed->branch->job;

	if (!s->outcome->a_try) {
		metric_add(job->w->slab, M_UP_STALE, 1);
	} else {
		job->tries++;
		job->moves += moved;
		if (!moved)
			budget_take(job->w->seg, job->w->slot, job->facts.pool->id, BUDGET_RETRY,
				clock_ms());
	}
	if (last_resort) {
		metric_add(job->w->slab, M_LAST_RESORT, 1);
		log_info("an ejected endpoint is asked, no other is left",
			LOG_S("why", "last_resort"), LOG_S("req", job->facts.id),
			LOG_S("pool", job->facts.pool->name));
	}
}

/* Replaces the decode engine within the attempt: the KV parameters stay. */
static void
replace_decode(struct attempt *a, struct reserved *chosen)
{
	attempt_set_decode(a, DECODE_FAILED, WITHHELD_NOT);
	attempt_decode_again(a);
	attempt_take_decode(a, &chosen->of[ROLE_DECODE]);
	a->failure_counted = false;
	transfer_next_rank(&a->t, ROLE_DECODE);
	a->timing.decode_us = clock_us(); /* the time of the failed engine is not this one's */
	attempt_send_decode(a);
}

/* Puts a new attempt in place of the failed one, which releases what its engines hold. */
static void
replace_attempt(const struct search *s, struct reserved *chosen)
{
	struct attempt *a = s->failed;
	struct branch *b = a->branch;
	struct job *job = b->job;
	struct attempt *next = attempt_new(b, a->t.connector, ATTEMPT_OTHER);

	attempt_take_engines(next, chosen);
	release_attempt(a);
	if (s->resumes)
		leg_spans_resume(next->spans);
	if (s->resumes)
		b->prefill_part_sent = false;
	else
		void_answer(b);
	if (s->resumes || (job->answer != NULL && job->nbranches == 1))
		rewrite_plan(job); /* the parts of the answer may differ */
	take_over(b, next);
}

static bool
another(const struct search *s)
{
	struct attempt *a = s->failed;
	struct job *job = a->branch->job;
	const bool keep = !s->resumes && kv_usable(a, s->kind);
	const enum plan_for what = keep                                    ? FOR_DECODE
				   : connector_two_engines(a->t.connector) ? FOR_BOTH
									   : FOR_ONE;
	const struct connector *c = a->t.connector;
	struct reserved chosen;
	bool last_resort = false, moved;

	moved = may_move(s) && choose_others(s, c, what, EP_AWAY_NOT, &chosen, NULL);
	if (!moved && !(may_try(s) && choose_others(s, c, what, s->most, &chosen, &last_resort)))
		return false;
	count_try(s, moved, last_resort);
	job->detail = NULL;
	if (keep)
		replace_decode(a, &chosen);
	else
		replace_attempt(s, &chosen);
	return true;
}

/* The prefill engines have failed: the decode engine serves the unchanged request alone. */
static bool
fall_back(struct search *s)
{
	struct attempt *a = s->failed, *next;
	const struct exchange x = leg_exchange(a, s->kind, TALLY_GOOD);
	struct job *job = a->branch->job;
	struct reserved chosen;

	if (job->facts.pool->rescue.fallback != FALLBACK_DIRECT || job_started(job) ||
		!connector_two_engines(a->t.connector) ||
		(s->kind != LEG_LOOKUP && failed_role(s) == ROLE_DECODE) ||
		/* the engine is full: its Retry-After is for the client */
		outcome_says_busy(&x))
		return false;
	s->spent = plan_fallback_ms(job->w, &job->facts) > 0;
	if (s->spent)
		metric_add(job->w->slab, M_FALLBACK_SPENT, 1);
	if (s->spent ||
		!choose_others(s, &connector_direct, FOR_FALLBACK, EP_AWAY_BUSY, &chosen, NULL))
		return false;
	next = attempt_new(&job->branches[0], &connector_direct, ATTEMPT_OTHER);
	next->t.prompt = (struct span){NULL, 0};
	next->t.seeded = false;
	attempt_take_engines(next, &chosen);
	for (uint32_t i = 0; i < job->nbranches; i++)
		release_attempt(job->branches[i].attempt);
	branches_go_direct(job, "fallback", s->why);
	take_over(&job->branches[0], next);
	return true;
}

static bool
search_all(struct search *s)
{
	struct job *job = s->failed->branch->job;

	if (s->resumes) {
		if (resume_finish(job))
			return true;
		if (!resume_prepare(job))
			return false;
		resume_go(job);
	}
	if (s->outcome->action == ACTION_ASK) { /* one that is not in trouble itself */
		s->most = EP_AWAY_NOT;
		return another(s);
	}
	s->most = EP_AWAY_BUSY;
	if (another(s) || (!s->resumes && fall_back(s)))
		return true;
	s->most = EP_AWAY_EJECTED;
	return another(s);
}

/* Counts a failure once per attempt, and not if no engine is at fault.  A lookup, or an error's
 * answer in two halves, reports the same failure again.  Returns true if it was counted now. */
static bool
count_failure(struct attempt *a, const struct outcome *o)
{
	const bool first = !a->failure_counted && o->a_try;

	if (first)
		metric_add(a->w->slab, M_ATTEMPTS_FAILED, 1);
	a->failure_counted = a->failure_counted || first;
	return first;
}

/* The decode engine that may have the KV parameters has failed, or is not waited for any longer. */
static void
spend_kv(struct attempt *a, enum leg_kind kind)
{
	if (kind == LEG_DECODE && a->leg[LEG_DECODE].progress >= LEG_REACHED &&
		a->t.connector->info->cleanup == CLEANUP_KV)
		attempt_spend_kv(a);
}

bool
failover_others(struct attempt *a, enum leg_kind kind, const struct outcome *o)
{
	struct job *job = a->branch->job;
	const bool first = count_failure(a, o);
	struct search s = {.failed = a,
		.kind = kind,
		.outcome = o,
		.resumes = output_started(a),
		.why = how_it_failed(a, kind, o->blame)};

	if (!s.resumes)
		spend_kv(a, kind);
	if (!replaceable(a))
		return false;
	if (first)
		log_failed(&s);
	if (o->a_try)
		(void)tried_add(&job->facts, slot_of(&s, failed_role(&s)));
	if (search_all(&s))
		return true;
	if (a->kv == KV_SPENT)
		release_spent(a); /* while the attempt still has the parameters */
	if (!s.spent || suspects_refusal(a->branch) != NULL)
		return false;
	job->detail = s.why;
	job->ops->cut(job, END_FALLBACK_BUDGET, NULL);
	return true;
}

/* --- the actions ------------------------------------------------------------------------------- */

/* Ends the leg; the attempt continues without it. */
static void
go_without(struct attempt *a, enum leg_kind kind)
{
	leg_end(&a->leg[kind]);
	if (kind == LEG_PREFILL && a->prefill == PREFILL_SENT)
		attempt_set_prefill(a, PREFILL_FAILED);
	branches_drop_text_if_sent(a->branch->job);
}

/* No other engine is tried: the router has no descriptor, or the time for an answer in one piece
 * is over. */
static void
try_no_other(
	struct attempt *a, enum leg_kind kind, enum failure_cause cause, const struct outcome *o)
{
	struct job *job = a->branch->job;

	if (!job_started(job))
		job->detail = leg_fail_text(&a->leg[kind]);
	if (cause != CAUSE_TIMEOUT)
		return;
	if (answers_others(a, kind) && !job_started(job))
		job->detail = "the engine has answered other requests meanwhile";
	(void)count_failure(a, o);
	if (!output_started(a))
		spend_kv(a, kind);
	if (a->kv == KV_SPENT)
		release_spent(a);
}

/* Asks another engine about a refusal.  Returns false if there is none. */
static bool
ask(struct attempt *a, enum leg_kind kind, const struct outcome *o)
{
	struct branch *b = a->branch;
	struct exchange x = leg_exchange(a, kind, TALLY_4XX);

	if (!suspects_add(a, kind, &x, SUSPECT_REFUSED)) {
		outcome_refused(&x);
		return false;
	}
	if (failover_others(a, kind, o)) {
		metric_add(x.w->slab, M_SECOND_OPINIONS, 1);
		return true;
	}
	suspects_drop_last(b);
	return false;
}

struct reply
failover_reply(const struct leg *leg)
{
	return (struct reply){.status = leg->status,
		.head = {leg->head, leg->head_len},
		.body = {leg->answer, leg->answer_len}};
}

bool
failover_pass_refusal(struct attempt *a, enum leg_kind kind)
{
	struct job *job = a->branch->job;
	const struct reply *refusal = suspects_refusal(a->branch);

	if (refusal == NULL || job_started(job))
		return false;
	job->detail = failover_who(kind);
	job->ops->pass_on(job, refusal);
	return true;
}

/* Ends the job: no other engine serves the request.  A refusal by one engine tells the client more than the failure of
 * another. */
static void
give_up(struct attempt *a, enum leg_kind kind, enum failure_cause cause, enum req_end end)
{
	struct job *job = a->branch->job;
	const struct reply own = failover_reply(&a->leg[kind]);

	if (!(cause == CAUSE_STATUS && failure_status_refusal(own.status)) &&
		failover_pass_refusal(a, kind))
		return;
	if (cause == CAUSE_STATUS) {
		job->detail = failover_who(kind);
		job->ops->pass_on(job, &own);
	} else {
		job->ops->cut(job, end, NULL);
	}
}

enum failure_action
failover(struct attempt *a, enum leg_kind kind, enum failure_cause cause, enum req_end end)
{
	struct job *job = a->branch->job;
	const struct outcome o = failover_outcome(a, kind, cause);

	switch (o.action) {
	case ACTION_CORRECT:
	case ACTION_FINISH:
		return o.action;
	case ACTION_IGNORE:
		go_without(a, kind);
		return o.action;
	case ACTION_OTHERS:
		if (cause != CAUSE_STATUS && cause != CAUSE_UNUSABLE && kind != LEG_LOOKUP &&
			!job_started(job))
			job->detail = leg_fail_text(&a->leg[kind]);
		if (failover_others(a, kind, &o))
			return o.action;
		break;
	case ACTION_ASK:
		if (ask(a, kind, &o))
			return o.action;
		break;
	case ACTION_REFUSE:
		try_no_other(a, kind, cause, &o);
		break;
	case ACTION_PASS_ON:
		break;
	}
	give_up(a, kind, cause, end);
	return o.action;
}

bool
failover_prefill_again(struct attempt *a)
{
	struct branch *b = a->branch;
	struct job *job = b->job;
	const struct outcome o = {.a_try = false};
	struct search s = {.failed = a,
		.kind = LEG_PREFILL,
		.outcome = &o,
		.most = EP_AWAY_BUSY,
		.why = "its KV became too old"};
	struct reserved chosen;
	struct attempt *next;

	if (!attempt_kv_lease_over(a))
		release_spent(a);   /* a new life may be counted after its first answer */
	attempt_set_kv(a, KV_NONE); /* the blocks are free by now */
	if (choose_others(&s, a->t.connector, FOR_BOTH, EP_AWAY_EJECTED, &chosen, NULL)) {
		metric_add(a->w->slab, M_PREFILL_AGAIN, 1);
		next = attempt_new(b, a->t.connector, ATTEMPT_PREFILL_AGAIN);
		attempt_take_engines(next, &chosen);
		attempt_end(a);
		take_over(b, next);
		return true;
	}
	if (fall_back(&s))
		return true;
	job->detail = "the KV parameters became too old, and no engine is free to prefill again";
	if (s.spent)
		job->ops->cut(job, END_FALLBACK_BUDGET, NULL);
	return s.spent;
}
