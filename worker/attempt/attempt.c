#include "worker/attempt/attempt.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/clock.h"
#include "shm/core/heritage.h"
#include "shm/core/seg.h"
#include "shm/load.h"
#include "shm/restart.h"
#include "worker/attempt/leg_span.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"

/* --- states -------------------------------------------------------------------------------------- */

static const char *const lookup_names[LOOKUP_N] = {"not needed", "due", "shared", "sent", "known"};
static const char *const prefill_names[PREFILL_N] = {
	"not needed", "idle", "sent", "answered", "failed"};
static const char *const decode_names[DECODE_N] = {
	"idle", "sent", "withheld", "relaying", "ended", "failed"};
static const char *const kv_names[KV_N] = {
	"none", "predicted", "held", "delivered", "fetched", "spent"};

#define TO(s) (1u << (s))

/* clang-format off */
static const uint32_t lookup_next[LOOKUP_N] = {
	[LOOKUP_NOT_NEEDED] = TO(LOOKUP_DUE),
	[LOOKUP_DUE]        = TO(LOOKUP_SHARED) | TO(LOOKUP_SENT) | TO(LOOKUP_KNOWN) | TO(LOOKUP_NOT_NEEDED),
	[LOOKUP_SHARED]     = TO(LOOKUP_DUE),
	[LOOKUP_SENT]       = TO(LOOKUP_DUE) | TO(LOOKUP_KNOWN),
	[LOOKUP_KNOWN]      = 0,
};
static const uint32_t prefill_next[PREFILL_N] = {
	[PREFILL_NOT_NEEDED] = TO(PREFILL_IDLE), /* decode, sent first, has too little of the KV */
	[PREFILL_IDLE]       = TO(PREFILL_NOT_NEEDED) | TO(PREFILL_SENT),
	[PREFILL_SENT]       = TO(PREFILL_ANSWERED) | TO(PREFILL_FAILED),
	[PREFILL_ANSWERED]   = 0,
	[PREFILL_FAILED]     = 0,
};
static const uint32_t decode_next[DECODE_N] = {
	/* the prefill answer was the whole answer */
	[DECODE_IDLE]     = TO(DECODE_SENT) | TO(DECODE_ENDED),
	[DECODE_SENT]     = TO(DECODE_IDLE) | TO(DECODE_WITHHELD) | TO(DECODE_RELAYING) | TO(DECODE_ENDED) |
	                    TO(DECODE_FAILED),
	[DECODE_WITHHELD] = TO(DECODE_IDLE) | TO(DECODE_WITHHELD) | TO(DECODE_RELAYING) | TO(DECODE_ENDED) |
	                    TO(DECODE_FAILED),
	[DECODE_RELAYING] = TO(DECODE_WITHHELD) | TO(DECODE_RELAYING) | TO(DECODE_ENDED) | TO(DECODE_FAILED),
	[DECODE_ENDED]    = 0,
	[DECODE_FAILED]   = TO(DECODE_IDLE), /* another engine for the same KV */
};
static const uint32_t kv_next[KV_N] = {
	[KV_NONE]      = TO(KV_PREDICTED) | TO(KV_HELD) | TO(KV_SPENT),
	[KV_PREDICTED] = TO(KV_NONE) | TO(KV_HELD) | TO(KV_DELIVERED) | TO(KV_SPENT),
	[KV_HELD]      = TO(KV_NONE) | TO(KV_DELIVERED) | TO(KV_SPENT),
	[KV_DELIVERED] = TO(KV_NONE) | TO(KV_HELD) | TO(KV_FETCHED) | TO(KV_SPENT),
	[KV_FETCHED]   = TO(KV_NONE),
	[KV_SPENT]     = TO(KV_NONE),
};
/* clang-format on */

/* A step that only an error of this router can cause: writes the step into the crash note and
 * aborts. */
static void __attribute__((noreturn))
impossible(const struct attempt *a, const char *what, const char *from, const char *to)
{
	char note[SHM_CRASH_NOTE];

	(void)snprintf(note, sizeof(note), "attempt: %s %s -> %s (prefill %s, decode %s %d, kv %s)",
		what, from, to, prefill_names[a->prefill], decode_names[a->decode],
		(int)a->withheld, kv_names[a->kv]);
	proc_crash_note_set(a->w->seg, a->w->slot, note);
	abort();
}

void
attempt_set_lookup(struct attempt *a, enum lookup_state to)
{
	if ((lookup_next[a->lookup] & TO(to)) == 0)
		impossible(a, "lookup", lookup_names[a->lookup], lookup_names[to]);
	if (a->lookup == LOOKUP_SHARED)
		TAILQ_REMOVE(&a->w->lookups, a, link);
	a->lookup = to;
	if (to == LOOKUP_SHARED)
		TAILQ_INSERT_TAIL(&a->w->lookups, a, link);
}

/* The prefill and KV states have changed: counts the KV for the prefill engine's endpoint.
 * `before`: what attempt_kv_handed() returned before the change. */
static void
count_kv(const struct attempt *a, bool before)
{
	const bool now = attempt_kv_handed(a);

	if (now != before)
		load_kv(a->w->seg, a->w->slot, a->reserved.of[ROLE_PREFILL].ep->slot, now ? 1 : -1);
}

void
attempt_set_prefill(struct attempt *a, enum prefill_state to)
{
	const bool handed = attempt_kv_handed(a);

	if ((prefill_next[a->prefill] & TO(to)) == 0)
		impossible(a, "prefill", prefill_names[a->prefill], prefill_names[to]);
	a->prefill = to;
	count_kv(a, handed);
}

void
attempt_set_decode(struct attempt *a, enum decode_state to, enum withheld why)
{
	if ((decode_next[a->decode] & TO(to)) == 0 ||
		(to == DECODE_WITHHELD) != (why != WITHHELD_NOT))
		impossible(a, "decode", decode_names[a->decode], decode_names[to]);
	a->decode = to;
	a->withheld = why;
}

void
attempt_set_kv(struct attempt *a, enum kv_state to)
{
	const bool handed = attempt_kv_handed(a);

	if (to == a->kv)
		return;
	if ((kv_next[a->kv] & TO(to)) == 0)
		impossible(a, "kv", kv_names[a->kv], kv_names[to]);
	a->kv = to;
	count_kv(a, handed);
}

void
attempt_spend_kv(struct attempt *a)
{
	/* KV that was fetched is not held any more; without parameters none can be spent */
	if (a->kv != KV_FETCHED && (a->kv != KV_NONE || a->prefill != PREFILL_ANSWERED))
		attempt_set_kv(a, KV_SPENT);
}

void
attempt_note_fetch(struct attempt *a)
{
	const struct leg *d = &a->leg[LEG_DECODE];

	/* A stream's first event may be an error.  vLLM's engines send one if the fetch failed.  A
	 * head alone may belong to an empty answer. */
	if (a->kv == KV_DELIVERED && d->progress == LEG_BEGUN && d->status == 200 &&
		(d->sse ? a->sse.events > 0 : d->piece != NULL || d->answer_len > 0) &&
		!a->sse.error)
		attempt_set_kv(a, KV_FETCHED);
}

/* The KV of an attempt follows its prefill engine's answer. */
static bool
kv_fits(const struct attempt_states *s)
{
	switch (s->kv) {
	case KV_NONE:
	case KV_SPENT: /* a decode engine may fail before the prefill engine has answered */
		return true;
	case KV_PREDICTED:
		return s->prefill != PREFILL_ANSWERED && s->prefill != PREFILL_NOT_NEEDED &&
		       s->decode != DECODE_IDLE;
	case KV_HELD:
		return s->prefill == PREFILL_ANSWERED;
	case KV_DELIVERED:
	case KV_FETCHED:
		return s->prefill == PREFILL_ANSWERED && s->decode != DECODE_IDLE;
	case KV_N:
		break;
	}
	return false;
}

bool
attempt_may_exist(const struct attempt_states *s)
{
	const bool unknown = s->lookup != LOOKUP_NOT_NEEDED && s->lookup != LOOKUP_KNOWN;
	const bool legs_rest = (s->prefill == PREFILL_IDLE || s->prefill == PREFILL_NOT_NEEDED) &&
			       s->decode == DECODE_IDLE && s->kv == KV_NONE;

	if (s->life == ATTEMPT_OVER)
		return true;
	if ((s->decode == DECODE_WITHHELD) != (s->withheld != WITHHELD_NOT))
		return false;
	if (unknown)
		return s->life == ATTEMPT_SERVING && legs_rest;
	if (!kv_fits(s))
		return false;
	if (s->withheld == WITHHELD_SPECULATION && s->life == ATTEMPT_SERVING &&
		s->prefill != PREFILL_SENT)
		return false;
	if (s->withheld == WITHHELD_CACHE_CHECK && s->prefill != PREFILL_NOT_NEEDED)
		return false;
	if (s->life == ATTEMPT_DETACHED) /* a detached attempt holds KV, or may hold KV */
		return s->decode != DECODE_ENDED && s->prefill != PREFILL_NOT_NEEDED;
	/* a failed leg has been replaced, or the request has ended, or the answer is complete
	 * without it */
	if (s->decode == DECODE_FAILED)
		return false;
	return s->prefill != PREFILL_FAILED || s->decode == DECODE_RELAYING ||
	       s->decode == DECODE_ENDED || s->withheld == WITHHELD_SLOW_CLIENT;
}

void
attempt_check(const struct attempt *a)
{
#ifdef PDROUTER_DEBUG
	const struct attempt_states s = {
		a->life, a->lookup, a->prefill, a->decode, a->withheld, a->kv};

	if (!attempt_may_exist(&s))
		impossible(a, "check", lookup_names[a->lookup],
			a->life == ATTEMPT_SERVING ? "serving" : "detached");
#else
	(void)a;
#endif
}

/* --- life ---------------------------------------------------------------------------------------- */

static void
leg_ready(struct attempt *a, enum leg_kind kind, const struct leg_ops *ops)
{
	const struct conf_timeouts *t = &a->t.of.facts->pool->timeouts;
	const bool repeats = kind == LEG_LOOKUP && a->t.connector->lookup_repeats;

	a->leg[kind] = (struct leg){.ops = ops,
		.owner = a,
		.w = a->w,
		.keep = kind != LEG_DECODE,
		.body_alone = kind != LEG_DECODE, /* the client gets the head of a refusal alone */
		/* idle connections may be as dead as the first attempt's */
		.route = a->kind == ATTEMPT_OTHER && kind != LEG_LOOKUP ? LEG_FRESH_CONN
									: LEG_ANY_CONN,
		.connect_ms = t->connect_ms,
		.wait_ms = kind == LEG_DECODE ? t->stream_idle_ms
			   : repeats          ? a->t.of.facts->pool->shake.learn_ms
					      : t->prefill_ms,
		/* an answer that is not streamed arrives in one piece: until then the engine is
		 * silent while it works */
		.first_ms = kind != LEG_DECODE      ? 0
			    : a->t.of.facts->stream ? t->first_byte_ms
						    : t->whole_answer_ms,
		.wait_each = kind == LEG_DECODE};
}

struct attempt *
attempt_new(struct branch *b, const struct connector *c, enum attempt_kind kind)
{
	struct job *job = b->job;
	struct text *text = job->text == NULL ? NULL : text_ref(job->text);
	const enum leg_kind nlegs = c->lookup != NULL ? LEG_N : LEG_LOOKUP;
	struct attempt *a = mem_zero(sizeof(*a) + nlegs * sizeof(a->leg[0]));

	a->w = job->w;
	a->branch = b;
	a->kind = kind;
	a->nlegs = nlegs;
	a->prompt_tokens = a->cached_tokens = USAGE_NONE;
	transfer_init(&a->t, job->w, c, (struct demand){&job->facts, text});
	a->t.prompt = b->prompt;
	a->t.seed = b->seed;
	a->t.seeded = b->seeded;
	a->t.stream_options = job->stream_options;
	a->lookup = c->lookup != NULL ? LOOKUP_DUE : LOOKUP_NOT_NEEDED;
	a->prefill = connector_two_engines(c) ? PREFILL_IDLE : PREFILL_NOT_NEEDED;
	for (enum leg_kind k = 0; k < a->nlegs; k++)
		leg_ready(a, k, job->leg_ops);
	sse_init(&a->sse);
	a->spans = leg_spans_new(job->w, &job->facts);
	return a;
}

static void
set_engine(struct attempt *a, enum role role)
{
	a->t.engine[role] = a->reserved.of[role].ep;
	a->leg[role].ep = a->reserved.of[role].ep;
}

void
attempt_take_engines(struct attempt *a, struct reserved *e)
{
	a->reserved = *e;
	*e = (struct reserved){0};
	for (enum role r = 0; r < ROLE_N; r++)
		set_engine(a, r);
}

void
attempt_drop_engine(struct attempt *a, enum role role)
{
	reservation_drop(a->w, &a->reserved.of[role]);
	set_engine(a, role);
}

void
attempt_take_decode(struct attempt *a, struct reservation *r)
{
	reservation_drop(a->w, &a->reserved.of[ROLE_DECODE]);
	a->reserved.of[ROLE_DECODE] = *r;
	*r = (struct reservation){.ep = NULL};
	set_engine(a, ROLE_DECODE);
}

void
attempt_drop_text(struct attempt *a)
{
	text_unref(&a->t.of.text);
	transfer_drop_texts(&a->t);
	if (a->nlegs > LEG_LOOKUP)
		leg_forget_answer(&a->leg[LEG_LOOKUP]);
	leg_forget_answer(&a->leg[LEG_PREFILL]);
	leg_forget_head(&a->leg[LEG_PREFILL]);
}

enum req_end
attempt_begin(struct attempt *a)
{
	const struct connector *c = a->t.connector;
	enum req_end why = END_OK;

	transfer_new_id(&a->t);
	for (enum role r = 0; r < ROLE_N; r++)
		transfer_next_rank(&a->t, r);
	if (c->lookup != NULL && c->lookup_repeats)
		a->lookup_deadline_ms = clock_ms() + a->t.of.facts->pool->shake.learn_ms;
	if (c->begin != NULL)
		why = c->begin(&a->t);
	if (a->kind == ATTEMPT_PREFILL_AGAIN && a->t.starts[ROLE_DECODE] == STARTS_AT_ONCE) {
		/* one speculation of this branch was wrong */
		a->t.starts[ROLE_DECODE] = STARTS_AFTER_PREFILL;
		a->t.kv = (struct span){NULL, 0};
	}
	if (why == END_OK && a->prefill == PREFILL_IDLE &&
		a->t.starts[ROLE_PREFILL] == STARTS_NEVER)
		attempt_set_prefill(a, PREFILL_NOT_NEEDED);
	return why;
}

void
attempt_unlock_lookup(struct attempt *a)
{
	if (a->lookup_lock == NULL)
		return;
	a->lookup_lock->lookup_runs = false;
	connpool_unref(a->w->connpool, &a->lookup_lock);
}

static void
leave_detached(struct attempt *a)
{
	struct worker *w = a->w;

	TAILQ_REMOVE(&w->detached, a, link);
	w->ndetached--;
	w->detached_bytes -= a->t.of.text == NULL ? 0 : a->t.of.text->body_len;
}

void
attempt_detach(struct attempt *a)
{
	struct worker *w = a->w;

	assert(a->lookup != LOOKUP_SHARED);       /* `link` is in one list at a time */
	a->own_facts = facts_copy(a->t.of.facts); /* a->spans has its own tracestate */
	a->t.of.facts = a->own_facts;
	a->t.release_only = true;
	a->t.stream_options = (struct span){NULL, 0}; /* back to the request's own */
	a->life = ATTEMPT_DETACHED;
	a->branch = NULL;
	TAILQ_INSERT_TAIL(&w->detached, a, link);
	w->ndetached++;
	w->detached_bytes += a->t.of.text->body_len;
	worker_need_tick(w);
}

void
attempt_end(struct attempt *a)
{
	struct worker *w = a->w;

	if (a->life == ATTEMPT_OVER)
		return;
	if (a->life == ATTEMPT_DETACHED)
		leave_detached(a);
	if (a->lookup == LOOKUP_SHARED)
		/* takes the attempt off the list of waiting ones */
		attempt_set_lookup(a, LOOKUP_DUE);
	a->life = ATTEMPT_OVER;
	/* no request of this router will fetch the KV: the engine's own lease frees it */
	attempt_set_kv(a, KV_NONE);
	attempt_unlock_lookup(a);
	transfer_drop_flag(&a->t, false);
	leg_spans_end(a->spans);
	for (enum leg_kind k = 0; k < a->nlegs; k++)
		leg_end(&a->leg[k]);
	for (enum role r = 0; r < ROLE_N; r++)
		reservation_release(w, &a->reserved.of[r]);
	TAILQ_INSERT_TAIL(&w->ended_attempts, a, link);
}

static void
attempt_free(struct attempt *a)
{
	struct worker *w = a->w;

	for (enum leg_kind k = 0; k < a->nlegs; k++)
		leg_fini(&a->leg[k]);
	for (enum role r = 0; r < ROLE_N; r++)
		reservation_drop(w, &a->reserved.of[r]);
	connpool_unref(w->connpool, &a->lookup_ep);
	text_unref(&a->t.of.text);
	transfer_fini(&a->t);
	usage_tail_free(&a->tail);
	membuf_free(&a->event);
	if (a->own_facts != NULL)
		facts_fini(a->own_facts);
	free(a->own_facts);
	leg_spans_free(&a->spans);
	free(a);
}

void
attempt_reap(struct worker *w)
{
	struct attempt *a;

	while ((a = TAILQ_FIRST(&w->ended_attempts)) != NULL) {
		TAILQ_REMOVE(&w->ended_attempts, a, link);
		attempt_free(a);
	}
}

/* --- predicates ---------------------------------------------------------------------------------- */

enum leg_kind
attempt_leg_kind(const struct attempt *a, const struct leg *leg)
{
	return (enum leg_kind)(leg - a->leg);
}

bool
attempt_speculates(const struct attempt *a)
{
	return a->t.starts[ROLE_DECODE] == STARTS_AT_ONCE &&
	       a->t.connector->starts[ROLE_DECODE] == STARTS_AFTER_PREFILL &&
	       a->prefill == PREFILL_SENT && leg_active(&a->leg[LEG_PREFILL]);
}

bool
attempt_waits_for_prefill(const struct attempt *a)
{
	return a->branch != NULL && a->branch->job->needs_prefill &&
	       !a->branch->prefill_part_sent && a->prefill != PREFILL_ANSWERED;
}

bool
attempt_decode_complete(const struct attempt *a)
{
	const struct leg *d = &a->leg[LEG_DECODE];

	if (a->decode == DECODE_ENDED)
		return true;
	return a->decode == DECODE_WITHHELD && d->state == LEG_DONE && d->fail == LEG_FAIL_NONE &&
	       (a->withheld == WITHHELD_PREFILL_PART || a->withheld == WITHHELD_SLOW_CLIENT);
}

bool
attempt_kv_handed(const struct attempt *a)
{
	return a->kv == KV_HELD || a->kv == KV_DELIVERED ||
	       (a->kv == KV_SPENT && a->prefill == PREFILL_ANSWERED);
}

bool
attempt_kv_lease_over(const struct attempt *a)
{
	return clock_ms() - a->prefilled_ms > a->t.of.facts->pool->shake.kv_lease_ms;
}

enum role
attempt_role_of(const struct attempt *a, enum leg_kind kind)
{
	return kind == LEG_LOOKUP ? a->what.role : (enum role)kind;
}

/* --- running ------------------------------------------------------------------------------------- */

/* Returns true if decode may have to be sent its request again although it has answered. */
static bool
keeps_slot(const struct attempt *a, enum role r)
{
	return r == ROLE_DECODE && a->life == ATTEMPT_SERVING &&
	       a->withheld == WITHHELD_SPECULATION;
}

void
attempt_settle(struct attempt *a)
{
	attempt_note_fetch(a);
	for (enum role r = 0; r < ROLE_N; r++) {
		if (!leg_active(&a->leg[r]))
			reservation_answered(a->w, &a->reserved.of[r]);
		if (a->leg[r].state == LEG_DONE && !keeps_slot(a, r))
			reservation_release(a->w, &a->reserved.of[r]);
	}
	attempt_check(a);
}

static void
start_leg(struct attempt *a, enum role r)
{
	a->reserved.of[r].recorded = false;
	if (r == ROLE_PREFILL)
		attempt_set_prefill(a, PREFILL_SENT);
	else
		attempt_set_decode(a, DECODE_SENT, WITHHELD_NOT);
	leg_start(&a->leg[r]);
}

void
attempt_start(struct attempt *a, enum leg_starts when)
{
	for (enum role r = 0; r < ROLE_N; r++)
		if (a->life != ATTEMPT_OVER && a->t.starts[r] == when &&
			a->leg[r].state == LEG_IDLE && a->leg[r].ep != NULL)
			start_leg(a, r);
}

void
attempt_begin_legs(struct attempt *a)
{
	attempt_start(a, STARTS_AT_ONCE);
	if (a->life == ATTEMPT_SERVING)
		attempt_settle(a);
}

void
attempt_decode_again(struct attempt *a)
{
	leg_rewind(&a->leg[LEG_DECODE]);
	reservation_answered(a->w, &a->reserved.of[ROLE_DECODE]);
	a->leg[LEG_DECODE].keep = false;
	sse_init(&a->sse);
	a->timing.stretch_us = 0;
	usage_tail_free(&a->tail);
	if (a->decode != DECODE_IDLE)
		attempt_set_decode(a, DECODE_IDLE, WITHHELD_NOT);
	if (a->kv == KV_DELIVERED)
		attempt_set_kv(a, KV_HELD);
	else if (a->kv == KV_PREDICTED)
		attempt_set_kv(a, KV_NONE);
}

void
attempt_send_decode(struct attempt *a)
{
	start_leg(a, ROLE_DECODE);
}

void
attempt_new_id(struct attempt *a)
{
	transfer_new_id(&a->t);
	a->decode_sends = 0;
}

void
attempt_begin_limit(struct attempt *a)
{
	const struct facts *facts = a->t.of.facts;

	if (a->branch != NULL && a->branch->answer_by_ms == 0 && !facts->stream &&
		a->prefill != PREFILL_SENT)
		a->branch->answer_by_ms = clock_ms() + facts->pool->timeouts.whole_answer_ms;
}

bool
attempt_limit_over(const struct attempt *a, uint64_t now_ms)
{
	const uint64_t by_ms = a->branch == NULL ? 0 : a->branch->answer_by_ms;

	return by_ms != 0 && now_ms >= by_ms;
}

void
attempt_go_on(struct attempt *a)
{
	struct leg *d = &a->leg[LEG_DECODE];

	if (leg_active(d) && !leg_connecting(d) && d->progress < LEG_ANSWERING) {
		leg_wait_anew(d); /* decode's time limit begins here */
		attempt_begin_limit(a);
	}
	if (a->decode == DECODE_IDLE && a->decode_sends > 0)
		attempt_new_id(a);
	attempt_start(a, STARTS_AFTER_PREFILL);
	if (a->life == ATTEMPT_OVER || a->t.starts[ROLE_DECODE] != STARTS_AFTER_KV)
		return;
	if (a->t.notices != NOTICES_AWAITED || transfer_kv_arrived(&a->t)) {
		attempt_start(a, STARTS_AFTER_KV);
		return;
	}
	a->notices_deadline_ms = clock_ms() + a->t.of.facts->pool->timeouts.kv_ready_ms;
	worker_need_tick(a->w);
}

static void
give_answer(struct engine_answer *to, const struct leg *leg)
{
	/* an answer without a body is an empty text, not a null pointer */
	*to = (struct engine_answer){
		leg->answer != NULL ? leg->answer : "", leg->answer_len, leg->sse};
}

void
attempt_give_answers(struct attempt *a)
{
	give_answer(&a->t.prefill_answer, &a->leg[LEG_PREFILL]);
	give_answer(&a->t.decode_answer, &a->leg[LEG_DECODE]);
	if (a->nlegs > LEG_LOOKUP)
		give_answer(&a->t.lookup_answer, &a->leg[LEG_LOOKUP]);
}

bool
attempt_kv_missing(const struct attempt *a, enum handoff r)
{
	return r == HANDOFF_NONE || (r == HANDOFF_RETRY && a->t.kv.n == 0);
}

enum handoff
attempt_take_handoff(struct attempt *a)
{
	const struct connector *c = a->t.connector;
	const struct leg *d = &a->leg[LEG_DECODE];
	enum handoff r = HANDOFF_OK;

	a->prefilled_ms = clock_ms();
	a->kv_life = restart_life(a->w->seg, a->reserved.of[ROLE_PREFILL].ep->slot);
	attempt_give_answers(a);
	if (c->prefilled != NULL)
		r = a->leg[LEG_PREFILL].answer_len == 0 ? HANDOFF_BAD : c->prefilled(&a->t);
	if (r == HANDOFF_BAD)
		return r;
	attempt_set_prefill(a, PREFILL_ANSWERED);
	if (attempt_kv_missing(a, r)) {
		metric_add(a->w->slab, M_KV_MISSING, 1);
		if (a->kv == KV_PREDICTED)
			attempt_set_kv(a, KV_NONE);
	} else if (c->info->cleanup == CLEANUP_KV && a->kv != KV_SPENT) {
		attempt_set_kv(a, KV_HELD);
		if (d->progress >= LEG_REACHED && r != HANDOFF_RETRY &&
			(leg_active(d) || d->progress == LEG_BEGUN))
			attempt_set_kv(a, KV_DELIVERED);
	} else if (a->kv == KV_PREDICTED) {
		attempt_set_kv(a, KV_NONE);
	}
	return r;
}
