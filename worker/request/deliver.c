#include "worker/request/deliver.h"

#include <string.h>

#include "proto/json/json_small.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/decode.h"
#include "worker/attempt/failover.h"
#include "worker/attempt/resume.h"
#include "worker/base/core.h"
#include "worker/request/client.h"
#include "worker/request/relay.h"
#include "worker/request/request.h"

#define REWRITE_BURST (256u << 10) /* made of one read before the client's socket is asked */

/* --- failing ------------------------------------------------------------------------------------- */

void
deliver_cut(struct req *req, enum req_end end)
{
	if (!relay_started(req)) {
		req_refuse_with(req, end);
		return;
	}
	relay_cut(req, end_word(end), end_message(end));
	req_end(req, end);
}

void
deliver_pass_on(struct req *req, struct leg *leg, const char *who)
{
	static const char silent[] = "the engine refused without saying why";
	char message[400];

	req->detail = who;
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

void
deliver_drop_bytes(struct req *req)
{
	if (!relay_started(req) && req->facts.pool.rescue.retries > 0)
		return; /* a whole answer may break off, and be asked for again */
	for (uint32_t i = 0; i < req->nbranches; i++) {
		const struct attempt *a = req->branches[i].attempt;
		const struct leg *d = &a->leg[LEG_DECODE];

		if (leg_active(&a->leg[LEG_PREFILL]) || a->withheld == WITHHELD_SPECULATION)
			return;
		if (req->resume != NULL && !a->output_started && !attempt_decode_complete(a))
			return; /* nor has one that goes on with a stream said anything yet */
		if (leg_active(d) ? !leg_sent(d) || d->progress != LEG_BEGUN
				  : !attempt_decode_complete(a))
			return;
	}
	req_drop_bytes(req);
}

/* --- what is sent -------------------------------------------------------------------------------- */

/* The answer to the client begins. */
static void
answer_begins(struct req *req)
{
	req_relaying(req);
	req_first_byte(req);
}

void
deliver_begin(struct attempt *a)
{
	relay_begin(a->branch->req, attempt_decode(a));
	req_relaying(a->branch->req);
	attempt_set_decode(a, DECODE_RELAYING, WITHHELD_NOT);
}

/* A decode engine whose stream is followed does not go on, by its own words. */
static void
decode_gave_up(struct req *req)
{
	struct attempt *a = req->branches[0].attempt;
	struct outcome o = failover_outcome(a, LEG_DECODE, CAUSE_UNUSABLE);
	char message[400];

	if (failover_others(a, LEG_DECODE, &o))
		return;
	if (!relay_started(req) || !resume_engine_message(req, message, sizeof(message))) {
		deliver_cut(req, END_DECODE_ANSWER);
		return;
	}
	req->detail = "the decode engine's";
	relay_cut(req, end_word(END_ENGINE_STATUS), message);
	req_end(req, END_ENGINE_STATUS);
}

/* Empties `out`.  False: the request is over, or other engines go on with it. */
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

/* What proto/answer.c says of an engine's words; false if the request is over with them. */
static bool
rewritten(struct req *req, struct membuf *out, int r, enum req_end bad)
{
	if ((r == ANSWER_OK || r == ANSWER_ERROR) && !send_events(req, out))
		return false;
	if (r == ANSWER_ERROR) {
		relay_end_events(req);
		req_end(req, END_ENGINE_STATUS);
	} else if (r != ANSWER_OK) {
		deliver_cut(req, bad);
	}
	return r == ANSWER_OK && req->state != REQ_DONE;
}

/* Every branch has said all: the end of a rewritten answer. */
static void
finish_if_done(struct req *req)
{
	struct membuf out = {NULL, 0, 0};
	int r;

	for (uint32_t i = 0; i < req->nbranches; i++)
		if (req->branches[i].attempt->decode != DECODE_ENDED)
			return;
	r = answer_end(req->answer, &out);
	if (r != ANSWER_OK) {
		deliver_cut(req, END_DECODE_ANSWER);
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

void
deliver_part_ended(struct attempt *a)
{
	struct req *req = a->branch->req;
	struct membuf out = {NULL, 0, 0};
	int r = answer_part_end(req->answer, a->branch->index, &out);

	attempt_set_decode(a, DECODE_ENDED, WITHHELD_NOT);
	if (rewritten(req, &out, r, END_DECODE_ANSWER))
		finish_if_done(req);
	membuf_free(&out);
}

void
deliver_followed_ended(struct attempt *a)
{
	struct req *req = a->branch->req;
	const struct leg *d = attempt_decode(a);
	const bool good = d->status < 300 && !a->sse.error;

	if (a->withheld == WITHHELD_SLOW_CLIENT)
		return;     /* deliver_drained() */
	if (a->event.n > 0) /* behind the last event */
		relay_events(req, a->event.p, a->event.n);
	if (req->state == REQ_DONE)
		return;
	relay_end_events(req);
	if (!good)
		req->detail = "the decode engine's";
	req_end(req, good ? END_OK : END_ENGINE_STATUS);
}

/* --- events -------------------------------------------------------------------------------------- */

/* What the client is to get of an event, but for what follows it (resume.h). */
static int
rewrite_event(struct attempt *a, const char *event, size_t n, struct membuf *out)
{
	struct req *req = a->branch->req;

	if (req->answer != NULL)
		return answer_event(req->answer, a->branch->index, event, n, out);
	membuf_add(out, event, n);
	return ANSWER_OK;
}

/* An event that no engine may send, or an error.  True: the attempt goes on nevertheless. */
static bool
bad_event(struct attempt *a, int r, struct membuf *out)
{
	struct req *req = a->branch->req;
	struct outcome o = failover_outcome(a, LEG_DECODE, CAUSE_UNUSABLE);

	if (r == ANSWER_ERROR && !a->output_started && failover_others(a, LEG_DECODE, &o))
		return false;
	a->output_started = true;
	if (r != ANSWER_ERROR && req->resume != NULL) {
		if (send_events(req, out))
			failover(a, LEG_DECODE, CAUSE_UNUSABLE, END_DECODE_ANSWER);
		return false;
	}
	return rewritten(req, out, r, END_DECODE_ANSWER);
}

/* Where the decode side stands once events have been sent. */
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

/* Until the client has enough to read: one event may become much larger. */
void
deliver_events(struct attempt *a)
{
	struct req *req = a->branch->req;
	struct membuf out = {NULL, 0, 0};
	size_t at = 0, n;
	bool on = true, full = false;

	while (on && !full && (n = sse_next(a->event.p + at, a->event.n - at)) > 0) {
		int r = rewrite_event(a, a->event.p + at, n, &out);

		at += n;
		if (r != ANSWER_OK) {
			on = bad_event(a, r, &out);
			continue;
		}
		a->output_started = true;
		if (out.n >= REWRITE_BURST) {
			on = send_events(req, &out);
			full = on && client_full(req->client);
		}
	}
	if (on)
		on = send_events(req, &out);
	membuf_free(&out);
	if (!on || a->life != ATTEMPT_SERVING)
		return;
	memmove(a->event.p, a->event.p + at, a->event.n - at);
	a->event.n -= at;
	events_sent(a, full && sse_next(a->event.p, a->event.n) > 0);
	if (a->event.n == 0)
		membuf_free(&a->event); /* an idle stream owns no buffer */
	else if (a->event.n > a->w->conf->max_answer)
		deliver_cut(req, END_DECODE_ANSWER);
}

/* Nothing of decode's waits any more: what it says next is read, or that was all. */
static void
catch_up(struct attempt *a, bool complete)
{
	if (!complete)
		leg_hold(attempt_decode(a), false);
	else if (a->branch->req->answer == NULL)
		deliver_followed_ended(a);
	else
		deliver_part_ended(a);
}

void
deliver_drained(struct req *req)
{
	for (uint32_t i = 0; i < req->nbranches && req->state == REQ_SERVE; i++) {
		struct attempt *a = req->branches[i].attempt;
		const bool behind = a->withheld == WITHHELD_SLOW_CLIENT;
		const bool complete = attempt_decode_complete(a);

		if (behind)
			deliver_events(a);
		if (req->state != REQ_SERVE || client_full(req->client))
			return;
		if (behind && a->life == ATTEMPT_SERVING && a->withheld != WITHHELD_SLOW_CLIENT)
			catch_up(a, complete);
		else if (!behind && !attempt_waits_for_prefill(a))
			leg_hold(attempt_decode(a), false);
	}
}

bool
deliver_prefill_part(struct attempt *a)
{
	struct req *req = a->branch->req;
	const struct leg *p = attempt_prefill(a);
	const bool waited = a->withheld == WITHHELD_PREFILL_PART;
	const bool complete = leg_active(attempt_decode(a)) ? false : waited;
	struct membuf out = {NULL, 0, 0};
	bool on;

	if (!req->takes_prefill ||
		a->branch->prefill_part_sent) /* what the first one said still holds */
		return true;
	a->branch->prefill_part_sent = true;
	if (req->how.first_token && req->facts.stream)
		a->output_started = true;
	on = rewritten(req, &out,
		answer_prefill(req->answer, a->branch->index, p->answer, p->answer_len, &out),
		END_PREFILL_ANSWER);
	membuf_free(&out);
	if (!on || !waited)
		return on && a->life == ATTEMPT_SERVING;
	if (a->event.n > 0) /* decode's events have waited for it */
		deliver_events(a);
	if (a->life == ATTEMPT_SERVING && a->withheld != WITHHELD_SLOW_CLIENT)
		catch_up(a, complete);
	return a->life == ATTEMPT_SERVING;
}
