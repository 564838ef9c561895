#include "worker/attempt/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "proto/json/json_small.h"
#include "shm/base/clock.h"
#include "worker/base/core.h"
#include "worker/attempt/eject.h"
#include "worker/request/client.h"
#include "worker/schedule/plan.h"
#include "worker/net/connpool.h"
#include "worker/request/relay.h"
#include "worker/attempt/release.h"
#include "worker/request/request.h"
#include "worker/attempt/resume.h"
#include "worker/attempt/retry.h"

#define REWRITE_BURST (256u << 10) /* made of one read before the client's socket is asked */

/* --- failing ------------------------------------------------------------------------------------- */

void
exchange_cut(struct req *req, enum req_end end)
{
	if (!relay_started(req)) {
		req_refuse_with(req, end);
		return;
	}
	relay_cut(req, end_word(end), end_message(end));
	req_end(req, end);
}

static const char *const who_said[LEG_PAIR_N] = {[LEG_PREFILL] = "the prefill engine's",
	[LEG_DECODE] = "the decode engine's",
	[LEG_ASK] = "the answer to a question before the legs"};

void
exchange_pass_on(struct req *req, struct leg *leg)
{
	static const char silent[] = "the engine refused without saying why";
	char message[400];

	req->detail = who_said[leg->kind];

	if (relay_started(req)) {
		bool said =
			json_error_message(leg->answer, leg->answer_len, message, sizeof(message));

		relay_cut(req, end_word(END_ENGINE_STATUS), said ? message : silent);
	} else if (leg->answer_len == 0 && relay_has_body(leg->status)) {
		relay_error(req, leg->status, "server_error", end_word(END_ENGINE_STATUS), silent);
	} else {
		relay_reply(req, leg->status, leg->head, leg->head_len, NULL, leg->answer,
			leg->answer_len);
	}
	req_end(req, END_ENGINE_STATUS);
}

static enum req_end
fail_reason(const struct leg *leg)
{
	if (leg->fail == LEG_FAIL_SHORT)
		return END_OVERLOADED;
	if (leg->pair->req->connector == &connector_one_leg)
		return END_ENGINE_BROKEN;
	if (leg->kind == LEG_DECODE)
		return leg->fail == LEG_FAIL_TOO_LARGE ? END_DECODE_ANSWER : END_DECODE_BROKEN;
	return leg->fail == LEG_FAIL_GARBAGE || leg->fail == LEG_FAIL_TOO_LARGE
		       ? END_PREFILL_ANSWER
		       : END_PREFILL_BROKEN;
}

static enum req_end
late_reason(const struct leg *leg)
{
	if (leg->pair->req->connector == &connector_one_leg)
		return leg_connecting(leg) ? END_ENGINE_CONNECT : END_ENGINE_TIMEOUT;
	if (leg->kind == LEG_DECODE)
		return leg_connecting(leg) ? END_DECODE_CONNECT : END_DECODE_TIMEOUT;
	return leg_connecting(leg) ? END_PREFILL_CONNECT : END_PREFILL_TIMEOUT;
}

/* What was learned of an engine that fails may be of its former life. */
static void
forget(struct leg *leg)
{
	const struct connector *c = leg->pair->req->connector;

	if (c->failed != NULL && leg->kind != LEG_ASK)
		c->failed(leg->pair, (enum role)leg->kind);
}

/* Nothing is missing of what the client gets: an engine may break off after its last word, and a prefill
 * engine once decode has begun. */
static bool
harmless(struct req *req, struct leg *leg)
{
	struct pair *pair = leg->pair;

	if (leg->kind == LEG_PREFILL && pair_waits_for_prefill(pair))
		return false;
	if (leg->kind == LEG_PREFILL)
		return pair->decoded || (pair_decode(pair)->first_told && req->state == REQ_RELAY);
	return pair->decoded;
}

/* An engine is ill that says so; but one that cannot do what is asked (501) may be well. */
static bool
ill(int status)
{
	return status >= 500 && status != 501;
}

/*
 * Decode was told what is only believed of its prefill engine (NixlPush), whose answer is not here yet: until
 * then whatever it says may come of a wrong belief, be it a status, a reset or an error event under a 200.
 */
static bool
ahead(struct pair *pair)
{
	return pair->starts[ROLE_DECODE] == STARTS_AT_ONCE &&
	       pair->req->connector->starts[ROLE_DECODE] == STARTS_AFTER_PREFILL &&
	       leg_active(pair_prefill(pair));
}

/* The engine is at fault: it is charged, and it alone.  Not for what we told it wrong, for going when we
 * hung up, for an answer larger than we take, or for what comes after its last word. */
static void
blame(struct leg *leg)
{
	const struct pair *pair = leg->pair;
	const bool said_all = pair->decoded || (pair->sse.done && !pair->sse.error && !leg->keep);

	if (leg->fail == LEG_FAIL_SHORT || leg->stale)
		return; /* it was not even asked, or most likely not */
	forget(leg);
	if (leg->hung_up || leg->fail == LEG_FAIL_TOO_LARGE)
		return;
	if (leg->kind == LEG_DECODE && said_all)
		eject_good(leg);
	else if (leg->kind != LEG_DECODE || !ahead(leg->pair))
		eject_bad(leg);
}

/* Asked again, once prefill has said what is true. */
static void
decode_again(struct pair *pair)
{
	leg_rewind(pair_decode(pair));
	pair_reserve_again(pair, pair_decode(pair));
	pair_decode(pair)->keep = false;
	sse_init(&pair->sse);
	pair->early = false;
}

/* Decode was told something wrong. */
static void
retell(struct pair *pair)
{
	decode_again(pair);
	pair->starts[ROLE_DECODE] = STARTS_AFTER_PREFILL;
	pair->kv = (struct span){NULL, 0};
	pair->retold = true;
}

const char *
exchange_fail_text(enum leg_fail fail)
{
	static const char *const texts[LEG_FAIL_N] = {
		[LEG_FAIL_CONNECT] = "connection refused or unreachable",
		[LEG_FAIL_SHORT] = "out of file descriptors",
		[LEG_FAIL_BROKEN] = "connection closed before the end of the answer",
		[LEG_FAIL_GARBAGE] = "answer is not HTTP",
		[LEG_FAIL_TOO_LARGE] = "answer is larger than max_answer"};

	return texts[fail];
}

/* What the bodies were made of is not needed any more once no leg can be sent (again): prefill has answered, decode's answer
 * has begun and what it was told was right. */
static void
drop_bytes_if_heard(struct req *req)
{
	if (!relay_started(req) && req->facts.pool.rescue.retries > 0)
		return; /* a whole answer may break off, and be asked for again */
	for (uint32_t i = 0; i < req->npairs; i++) {
		const struct pair *pair = &req->pairs[i];
		const struct leg *d = &pair->leg[LEG_DECODE];

		if (leg_active(&pair->leg[LEG_PREFILL]) || pair->early)
			return;
		if (req->resume != NULL && !pair->spoke && !pair->decoded)
			return; /* nor has one that goes on with a stream said anything yet */
		if (leg_active(d) ? !leg_sent(d) || !d->first_told : !pair->decoded)
			return;
	}
	req_drop_bytes(req);
}

/* Goes on without a leg that nothing more is expected of. */
static void
without(struct req *req, struct leg *leg)
{
	leg_end(leg);
	if (req->state == REQ_RELAY)
		drop_bytes_if_heard(req);
}

/* The leg has failed, and with it this attempt. */
static void
give_up(struct req *req, struct leg *leg, enum req_end end)
{
	if (!relay_started(req))
		req->detail = exchange_fail_text(leg->fail);
	if (leg->fail == LEG_FAIL_SHORT || !retry(leg))
		exchange_cut(req, end);
}

/* A stream that had said [DONE] is complete, however its engine ends it.  False: it had not. */
static bool
end_said(struct req *req, struct leg *leg, enum req_end end)
{
	if (leg->kind != LEG_DECODE || !leg->pair->sse.done || leg->keep)
		return false;
	leg_end(leg);
	if (req->answer != NULL || resume_follows(req, leg))
		leg_answered(req, leg);
	else if (relay_complete(req))
		req_end(req, END_OK);
	else
		exchange_cut(req, end);
	return true;
}

void
leg_failed(struct req *req, struct leg *leg)
{
	if (leg->kind == LEG_ASK) {
		ask_failed(req, leg);
		return;
	}
	blame(leg);
	if (harmless(req, leg)) {
		without(req, leg);
		return;
	}
	if (leg->kind == LEG_DECODE && ahead(leg->pair)) {
		retell(leg->pair);
		return;
	}
	if (!end_said(req, leg, fail_reason(leg)))
		give_up(req, leg, fail_reason(leg));
}

/* A decode engine that was asked at the same time as its prefill engine, and has nothing to say yet. */
static bool
waits_for_kv(struct pair *pair)
{
	const struct leg *d = pair_decode(pair);

	return leg_active(d) && !leg_connecting(d) && !d->got_bytes;
}

void
leg_late(struct req *req, struct leg *leg)
{
	struct pair *pair = leg->pair;

	if (leg->kind == LEG_ASK) {
		ask_late(req, leg);
		return;
	}
	if (leg->kind == LEG_DECODE && waits_for_kv(pair) && leg_active(pair_prefill(pair))) {
		leg_wait_anew(leg); /* for the prefill engine, which has a clock of its own */
		return;
	}
	blame(leg);
	if (leg->kind == LEG_PREFILL && waits_for_kv(pair)) {
		blame(pair_decode(pair)); /* both are silent: the one at fault will collect them */
		pair->both_silent = req_tried(pair_decode(pair));
	}
	if (leg->kind == LEG_DECODE && ahead(pair))
		retell(pair);
	else if (harmless(req, leg))
		without(req, leg);
	else if (!end_said(req, leg, late_reason(leg)))
		give_up(req, leg, late_reason(leg));
}

/* --- EXCHANGE and RELAY --------------------------------------------------------------------------- */

/* The answer to the client begins. */
static void
answer_begins(struct req *req)
{
	if (req->state != REQ_RELAY)
		req_enter(req, REQ_RELAY);
	req_first_byte(req);
}

/* A decode engine whose stream is followed does not go on, by its own words. */
static void
decode_gave_up(struct req *req)
{
	struct leg *leg = pair_decode(&req->pairs[0]);
	char message[400];

	blame(leg);
	if (retry(leg))
		return;
	if (!relay_started(req) || !resume_last_words(req, message, sizeof(message))) {
		exchange_cut(req, END_DECODE_ANSWER);
		return;
	}
	req->detail = who_said[LEG_DECODE];
	relay_cut(req, end_word(END_ENGINE_STATUS), message);
	req_end(req, END_ENGINE_STATUS);
}

/* Empties `out`.  False: the request is over, or other engines go on with it, and the pair is not what it was. */
static bool
send_events(struct req *req, struct membuf *out)
{
	const bool on = req->resume == NULL || resume_events(req, out);

	if (out->n > 0) {
		answer_begins(req);
		relay_events(req, out->p, out->n);
	}
	out->n = 0;
	if (!on && req->client != NULL)
		decode_gave_up(req);
	return on && req->state != REQ_DONE;
}

/* What proto/answer/answer.c says of an engine's words; false if the request is over with them. */
static bool
rewritten(struct req *req, struct membuf *out, int r, enum req_end bad)
{
	if ((r == ANSWER_OK || r == ANSWER_ERROR) && !send_events(req, out))
		return false;
	if (r == ANSWER_ERROR) {
		relay_end_events(req);
		req_end(req, END_ENGINE_STATUS);
	} else if (r != ANSWER_OK) {
		exchange_cut(req, bad);
	}
	return r == ANSWER_OK && req->state != REQ_DONE;
}

/* Every pair has said all: the end of a rewritten answer. */
static void
finish_if_done(struct req *req)
{
	struct membuf out = {NULL, 0, 0};
	int r;

	for (uint32_t i = 0; i < req->npairs; i++)
		if (!req->pairs[i].decoded || req->pairs[i].behind ||
			pair_waits_for_prefill(&req->pairs[i]))
			return;
	r = answer_end(req->answer, &out);
	if (r != ANSWER_OK) {
		exchange_cut(req, END_DECODE_ANSWER);
	} else if (req->facts.stream) {
		if (send_events(req, &out)) {
			relay_end_events(req);
			req_end(req, END_OK);
		}
	} else {
		answer_begins(req);
		relay_reply(req, 200, NULL, 0, "application/json", out.p, out.n);
		req_end(req, END_OK);
	}
	membuf_free(&out);
}

static void
part_ended(struct pair *pair)
{
	struct req *req = pair->req;
	struct membuf out = {NULL, 0, 0};
	int r = answer_part_end(req->answer, pair->index, &out);

	pair->decoded = true;
	if (rewritten(req, &out, r, END_DECODE_ANSWER))
		finish_if_done(req);
	membuf_free(&out);
}

/* --- the decode answer */

/* An answer that may yet turn out to be no use is kept until that is known. */
static bool
undecided(const struct pair *pair)
{
	return pair->req->connector->decode_first != NULL && !pair->prefilled &&
	       pair->starts[ROLE_PREFILL] == STARTS_NEVER;
}

static void
pass_through(struct req *req, struct leg *leg)
{
	relay_begin(req, leg);
	if (req->state != REQ_RELAY)
		req_enter(req, REQ_RELAY);
}

/* Another engine may do better: this one is ill, or full; or what went out twice (replace_stale()) is refused because it
 * came twice. */
static bool
retriable(const struct leg *leg)
{
	return leg->status >= 500 || leg->status == 429 || (leg->status >= 400 && leg->resent);
}

void
leg_first(struct req *req, struct leg *leg)
{
	struct pair *pair = leg->pair;

	if (leg->kind != LEG_DECODE)
		return; /* a prefill answer counts when it is whole */
	pair_disarm(pair);
	if (ill(leg->status))
		blame(leg);
	else if (leg->status < 300)
		eject_begun(leg);
	else
		eject_good(leg);
	if (retriable(leg) && !ahead(pair) && retry(leg))
		return;
	if (ahead(pair) && leg->status != 200)
		retell(pair);
	else if (ahead(pair))
		pair->early = leg->keep = true;
	else if (req->answer != NULL ||
		 (relay_started(req) && (!undecided(pair) || leg->status != 200)))
		leg->keep = !req->facts.stream || leg->status != 200 || !leg->sse;
	else if (undecided(pair) && leg->status == 200)
		leg->keep = true;
	else
		pass_through(req, leg);
}

/* Prefill is to come first after all: this decode engine has too little of the prompt's KV. */
static void
prefill_first(struct req *req, struct pair *pair)
{
	metric_add(req->w->slab, M_KV_MISS, 1);
	leg_rewind(pair_decode(pair));
	pair_reserve_again(pair, pair_decode(pair));
	pair_decode(pair)->keep = false;
	pair->starts[ROLE_PREFILL] = STARTS_AT_ONCE;
	pair->starts[ROLE_DECODE] = STARTS_AFTER_PREFILL;
	pair_new_id(pair); /* the decode engine has seen the other */
	pair_start(pair, STARTS_AT_ONCE);
}

/* The kept start of a decode answer is the client's after all.  False: the request is over, or goes on elsewhere. */
static bool
pass_kept(struct req *req, struct leg *leg, bool done)
{
	const uint32_t attempt = leg->pair->attempt;
	struct span kept = {leg->answer, leg->answer_len};

	leg->keep = false;
	leg_give_back(pair_prefill(leg->pair)); /* not needed, however long this lasts */
	pass_through(req, leg);
	exchange_payload(leg, &kept, 1, done);
	if (req->state == REQ_DONE || leg->pair->attempt != attempt)
		return false;
	leg_forget_answer(leg); /* a stream may last */
	return true;
}

void
leg_more(struct req *req, struct leg *leg)
{
	const struct connector *c = req->connector;
	struct pair *pair = leg->pair;
	enum taken r;

	if (leg->kind == LEG_PREFILL) {
		if (c->prefill_more != NULL && leg->status == 200 && c->prefill_more(pair) == TAKEN)
			pair_start(pair, STARTS_AFTER_PREFILL);
		return;
	}
	if (leg->kind != LEG_DECODE || !undecided(pair) || !leg->sse || leg->status != 200)
		return;
	r = c->decode_first(pair);
	if (r == TAKEN_AGAIN)
		prefill_first(req, pair);
	else if (r == TAKEN)
		(void)pass_kept(req, leg, false);
}

/* What the client is to get of an event, but for what follows it (resume.h). */
static int
rewrite_event(struct pair *pair, const char *event, size_t n, struct membuf *out)
{
	if (pair->req->answer != NULL)
		return answer_event(pair->req->answer, pair->index, event, n, out);
	membuf_add(out, event, n);
	return ANSWER_OK;
}

/* Rewrites the whole events that have come, until the client has enough to read: one may become much larger. */
static void
rewrite_events(struct req *req, struct leg *leg)
{
	struct pair *pair = leg->pair;
	struct membuf out = {NULL, 0, 0};
	size_t at = 0, n;
	bool on = true;

	pair->behind = false;
	while (on && !pair->behind && (n = sse_next(pair->event.p + at, pair->event.n - at)) > 0) {
		int r = rewrite_event(pair, pair->event.p + at, n, &out);

		at += n;
		if (r != ANSWER_OK)
			blame(leg);
		if (r == ANSWER_ERROR && !pair->spoke && retry(leg)) {
			membuf_free(&out);
			return;
		}
		pair->spoke = true;
		if (r != ANSWER_OK && r != ANSWER_ERROR && req->resume != NULL) {
			on = false;
			if (send_events(req, &out))
				give_up(req, leg, END_DECODE_ANSWER);
		} else if (r != ANSWER_OK) {
			on = rewritten(req, &out, r, END_DECODE_ANSWER);
		} else if (out.n >= REWRITE_BURST) {
			on = send_events(req, &out);
			pair->behind = on && client_full(req->client);
		}
	}
	if (on)
		on = send_events(req, &out);
	membuf_free(&out);
	if (!on)
		return;
	memmove(pair->event.p, pair->event.p + at, pair->event.n - at);
	pair->event.n -= at;
	pair->behind = pair->behind && sse_next(pair->event.p, pair->event.n) > 0;
	if (pair->event.n == 0)
		membuf_free(&pair->event); /* an idle stream owns no buffer */
	else if (pair->event.n > req->w->conf->max_answer)
		exchange_cut(req, END_DECODE_ANSWER);
}

/* A stream that fails before its first token: vLLM says so by an event under a 200. */
static bool
begins_with_error(const struct leg *leg, const struct span *pieces, size_t n)
{
	struct sse sse = leg->pair->sse;

	if (!leg->sse || leg->status != 200)
		return false;
	for (size_t i = 0; i < n; i++)
		(void)sse_feed(&sse, pieces[i].p, pieces[i].n);
	return sse.error;
}

/* An empty 200 is no answer of a model. */
static bool
says_nothing(const struct req *req, const struct leg *leg, size_t n)
{
	return leg->status == 200 && n == 0 && !relay_started(req) && req->held == NULL &&
	       req->connector != &connector_one_leg;
}

void
exchange_payload(struct leg *leg, const struct span *pieces, size_t n, bool done)
{
	struct pair *pair = leg->pair;
	struct req *req = pair->req;
	bool whole = false; /* an event has ended: what is half is not searched again and again */

	if (req->state != REQ_RELAY && req->state != REQ_EXCHANGE)
		return; /* nobody reads it */
	if (req->answer == NULL) {
		if (!relay_started(req) && begins_with_error(leg, pieces, n)) {
			blame(leg);
			if (retry(leg))
				return;
		}
		if (done && says_nothing(req, leg, n)) {
			blame(leg);
			give_up(req, leg, END_DECODE_ANSWER);
			return;
		}
	}
	if (req->answer == NULL && (req->resume == NULL || !resume_follows(req, leg))) {
		if (req->state == REQ_RELAY)
			relay_payload(req, leg, pieces, n, done);
		if (req->t_first_us == 0 && relay_started(req))
			req_first_byte(req);
		leg->said_done = pair->sse.done;
		if (req->text != NULL && req->state == REQ_RELAY)
			drop_bytes_if_heard(req);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		whole |= sse_feed(&pair->sse, pieces[i].p, pieces[i].n) > 0;
		membuf_add(&pair->event, pieces[i].p, pieces[i].n);
	}
	leg->said_done = pair->sse.done;
	if (pair_waits_for_prefill(pair) || pair->behind)
		leg_hold(leg, true);
	else if (whole)
		rewrite_events(req, leg);
	else if (pair->event.n > req->w->conf->max_answer)
		exchange_cut(req, END_DECODE_ANSWER);
	if (req->state == REQ_RELAY)
		drop_bytes_if_heard(req);
}

/* It has been passed on as it came: what it said for itself. */
static void
decode_ended(struct req *req, struct leg *leg)
{
	const bool good = leg->status < 300 && !leg->pair->sse.error;

	if (!good)
		req->detail = who_said[LEG_DECODE];
	req_end(req, good ? END_OK : END_ENGINE_STATUS);
}

/* The same of a stream that is followed: its events have gone through send_events(). */
static void
followed_ended(struct req *req, struct leg *leg)
{
	struct pair *pair = leg->pair;

	if (pair->behind) {
		pair->decoded = true; /* exchange_drained() */
		return;
	}
	if (pair->event.n > 0) /* behind the last event */
		relay_events(req, pair->event.p, pair->event.n);
	if (req->state == REQ_DONE)
		return;
	relay_end_events(req);
	decode_ended(req, leg);
}

/*
 * The answer has an end, but not the one it must have for others not to go on with it: a followed stream without
 * [DONE], or, to go on with one, what is none.
 */
static bool
half_said(struct req *req, const struct leg *leg)
{
	if (req->resume == NULL || !relay_started(req))
		return false;
	if (leg->keep)
		return leg->status == 200 && !leg->sse;
	return !leg->pair->sse.done && resume_may(req);
}

static void
decode_answered(struct req *req, struct leg *leg)
{
	struct pair *pair = leg->pair;

	if (pair->early)
		return; /* early_taken() */
	if (half_said(req, leg)) {
		blame(leg);
		give_up(req, leg, END_DECODE_ANSWER);
		return;
	}
	if (leg->keep && leg->status != 200) {
		exchange_pass_on(req, leg);
	} else if (req->answer == NULL && !leg->keep) {
		if (pair->sse.error) /* as vLLM says it of a stream, under a 200 */
			blame(leg);
		eject_good(leg);
		if (resume_follows(req, leg))
			followed_ended(req, leg);
		else
			decode_ended(req, leg);
	} else if (req->answer == NULL) { /* decode was tried first */
		eject_good(leg);
		if (req->connector->decode_first(pair) == TAKEN_AGAIN) {
			prefill_first(req, pair);
			return;
		}
		if (!pass_kept(req, leg, true))
			return;
		if (resume_follows(req, leg) && half_said(req, leg))
			give_up(req, leg, END_DECODE_ANSWER);
		else if (resume_follows(req, leg))
			followed_ended(req, leg);
		else
			req_end(req, pair->sse.error ? END_ENGINE_STATUS : END_OK);
	} else if (leg->keep &&
		   (req->facts.stream || answer_whole(req->answer, pair->index, leg->answer,
						 leg->answer_len) != ANSWER_OK)) {
		blame(leg);
		if (!retry(leg))
			exchange_cut(req, END_DECODE_ANSWER);
	} else if (pair_waits_for_prefill(pair) || pair->behind) {
		eject_good(leg);
		pair->decoded = true; /* its events wait: prefill_taken(), exchange_drained() */
	} else {
		eject_good(leg);
		leg_forget_answer(leg); /* taken over, and there may be many of them */
		part_ended(pair);
	}
}

/* --- the prefill answer */

enum taken
exchange_take_handover(struct req *req, struct leg *leg)
{
	const struct connector *c = req->connector;
	struct pair *pair = leg->pair;
	enum taken r = TAKEN;

	req->t_prefilled_us = clock_us();
	pair->prefilled_ms = clock_ms();
	if (req->t_prefill_us != 0)
		metric_observe(req->w->slab, req->facts.pool.id, H_PREFILL,
			req->t_prefilled_us - req->t_prefill_us);
	if (c->prefilled != NULL)
		r = leg->answer_len == 0 ? TAKEN_BAD : c->prefilled(pair);
	if (r == TAKEN_NOTHING || (r == TAKEN_AGAIN && pair->kv.n == 0))
		metric_add(req->w->slab, M_KV_MISSING, 1);
	else
		pair->handed = r != TAKEN_BAD && c->leaves == LEAVES_KV;
	pair->prefilled = r != TAKEN_BAD;
	return r;
}

void
exchange_go_on(struct req *req, struct pair *pair)
{
	if (pair->retold)
		pair_new_id(pair); /* the decode engine has seen the other */
	if (waits_for_kv(pair))
		leg_wait_anew(pair_decode(pair)); /* its own silence begins here */
	pair_start(pair, STARTS_AFTER_PREFILL);
	if (req->state == REQ_DONE || pair->starts[ROLE_DECODE] != STARTS_AFTER_KV)
		return;
	if (pair->kv_ready || !pair->armed || flag_is_ready(req->w->flags, &pair->flag)) {
		pair_start(pair, STARTS_AFTER_KV);
		return;
	}
	pair->kv_deadline_ms = clock_ms() + req->facts.pool.timeouts.kv_ready_ms;
	worker_need_tick(req->w);
}

/* Nothing of decode's waits any more: what it says next is read, or that was all. */
static void
catch_up(struct pair *pair)
{
	if (!pair->decoded)
		leg_hold(pair_decode(pair), false);
	else if (pair->req->answer == NULL)
		followed_ended(pair->req, pair_decode(pair));
	else
		part_ended(pair);
}

void
exchange_drained(struct req *req)
{
	for (uint32_t i = 0; i < req->npairs && req->state == REQ_RELAY; i++) {
		struct pair *pair = &req->pairs[i];
		const bool behind = pair->behind;

		if (behind)
			rewrite_events(req, pair_decode(pair));
		if (req->state != REQ_RELAY || client_full(req->client))
			return;
		if (behind)
			catch_up(pair);
		else if (!pair_waits_for_prefill(pair))
			leg_hold(pair_decode(pair), false);
	}
}

/* The client's side of a prefill answer; false if the request, or this attempt, is over with it. */
static bool
prefill_taken(struct req *req, struct leg *leg)
{
	struct pair *pair = leg->pair;
	struct membuf out = {NULL, 0, 0};
	const uint32_t attempt = pair->attempt;
	bool on;

	if (!req->takes_prefill || pair->redone) /* what the first one said still holds */
		return true;
	pair->spoke = req->how.first_token && req->facts.stream;
	on = rewritten(req, &out,
		answer_prefill(req->answer, pair->index, leg->answer, leg->answer_len, &out),
		END_PREFILL_ANSWER);
	membuf_free(&out);
	if (!on || !req->needs_prefill)
		return on;
	if (pair->event.n > 0) /* decode's events have waited for it */
		rewrite_events(req, pair_decode(pair));
	if (req->state != REQ_DONE && !pair->behind)
		catch_up(pair);
	return req->state != REQ_DONE && pair->attempt == attempt;
}

/* Decode had answered before prefill's answer bore out what it was told. */
static void
early_taken(struct req *req, struct pair *pair)
{
	struct leg *d = pair_decode(pair);
	const struct span kept = {d->answer, d->answer_len};
	const bool done = !leg_active(d);
	const uint32_t attempt = pair->attempt;

	pair->early = d->keep = false;
	leg_first(req, d);
	if (!d->keep && pair->attempt == attempt)
		exchange_payload(d, &kept, 1, done);
	if (req->state == REQ_DONE || pair->attempt != attempt)
		return;
	if (!d->keep)
		leg_forget_answer(d); /* a stream may last */
	if (done)
		decode_answered(req, d);
}

static void
prefill_answered(struct req *req, struct leg *leg)
{
	struct pair *pair = leg->pair;
	enum taken r;

	if (leg->status >= 400) {
		if (ill(leg->status)) /* else it is the client's mistake, or it is full */
			blame(leg);
		else
			eject_good(leg);
		if (!harmless(req, leg) && !(retriable(leg) && retry(leg)))
			exchange_pass_on(req, leg);
		return;
	}
	r = leg->status == 200 ? exchange_take_handover(req, leg) : TAKEN_BAD;
	if (r == TAKEN_NOTHING && req->how.first_token && !plan_without_first_token(req))
		r = TAKEN_BAD;
	if (r == TAKEN_BAD) {
		blame(leg);
		if (!harmless(req, leg) && !retry(leg))
			exchange_cut(req, END_PREFILL_ANSWER);
		return;
	}
	eject_good(leg);
	if (!prefill_taken(req, leg))
		return;
	if (req->connector->complete != NULL && req->connector->complete(pair)) {
		release_attempt(pair); /* what was pushed to the decode engine all the same */
		leg_end(pair_decode(pair));
		pair_disarm(pair);
		part_ended(pair);
		return;
	}
	if (r == TAKEN_AGAIN && (pair->early || !pair_decode(pair)->first_told)) {
		decode_again(pair);
		pair_new_id(pair); /* it may still be busy with letting go of the first */
		leg_start(pair_decode(pair));
		return;
	}
	if (pair->early) {
		early_taken(req, pair);
		return;
	}
	exchange_go_on(req, pair);
}

void
leg_answered(struct req *req, struct leg *leg)
{
	if (leg->kind == LEG_ASK)
		ask_answered(req, leg);
	else if (leg->kind == LEG_DECODE)
		decode_answered(req, leg);
	else
		prefill_answered(req, leg);
	if (req->state == REQ_RELAY)
		drop_bytes_if_heard(req);
}

void
exchange_fetch_unheard(struct pair *pair)
{
	leg_end(pair_prefill(pair));
	pair_start(pair, STARTS_AFTER_KV);
}

void
kv_arrived(struct req *req, struct leg *leg)
{
	struct pair *pair = leg->pair;

	(void)req;
	pair->kv_ready = true;
	pair_disarm(pair);
	if (pair->prefilled)
		pair_start(pair, STARTS_AFTER_KV);
	else if (pair->released)
		exchange_fetch_unheard(pair);
}

/* --- time ---------------------------------------------------------------------------------------- */

/* The notices do not come: decode goes on, and finds what is there. */
static void
kv_late(struct req *req, struct pair *pair)
{
	if (!flag_is_ready(req->w->flags, &pair->flag)) { /* a lost wake-up is not lateness */
		metric_add(req->w->slab, M_KV_LATE, 1);
		req->detail = "not all notices of its KV came within kv_ready";
	}
	req_event(req, RQ_KV_READY, pair_decode(pair));
}

static void
tick_pair(struct req *req, struct pair *pair, uint64_t now_ms)
{
	if (pair->kv_deadline_ms != 0 && now_ms >= pair->kv_deadline_ms)
		kv_late(req, pair);
	for (enum leg_kind k = 0; k < LEG_PAIR_N && req->state != REQ_DONE; k++) {
		struct leg *leg = &pair->leg[k];

		if (leg_expired(leg, now_ms) && req->state != REQ_DONE)
			req_event(req, RQ_TIMEOUT, leg);
	}
}

void
exchange_look(struct req *req)
{
	for (uint32_t i = 0; i < req->npairs && req->state != REQ_DONE; i++)
		for (enum leg_kind k = 0; k < LEG_PAIR_N && req->state != REQ_DONE; k++)
			(void)leg_look(&req->pairs[i].leg[k]);
}

void
request_late(struct req *req, struct leg *none)
{
	(void)none;
	req->detail = NULL;
	exchange_cut(req, END_REQUEST_TIMEOUT);
}

void
exchange_tick(struct req *req, uint64_t now_ms)
{
	for (uint32_t i = 0; i < req->npairs && req->state != REQ_DONE; i++)
		tick_pair(req, &req->pairs[i], now_ms);
	ask_tick(req, now_ms);
}
