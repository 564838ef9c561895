/* The state ASK: what must be known before a leg can go out is asked of the engines. */
#include "shm/base/clock.h"
#include "worker/base/core.h"
#include "worker/attempt/eject.h"
#include "worker/attempt/exchange.h"
#include "worker/net/connpool.h"
#include "worker/request/request.h"
#include "worker/attempt/retry.h"

/* What was to be asked is known: the legs may run. */
static void
begin_legs(struct pair *pair)
{
	pair->asked = pair->begun = true;
	pair_start(pair, STARTS_AT_ONCE);
}

void
exchange_start(struct req *req, struct leg *leg)
{
	(void)leg;
	req_enter(req, REQ_EXCHANGE);
	for (uint32_t i = 0; i < req->npairs && req->state != REQ_DONE; i++)
		if (!req->pairs[i].begun)
			begin_legs(&req->pairs[i]);
}

void
ask_rest(struct req *req)
{
	bool all = true;

	for (uint32_t i = 0; i < req->npairs && req->state != REQ_DONE; i++) {
		struct pair *pair = &req->pairs[i];

		if (!pair->asked && !leg_active(&pair->leg[LEG_ASK]))
			pair_ask(pair);
		if (req->state != REQ_ASK && pair->asked && !pair->begun)
			begin_legs(pair); /* a later attempt, beside others that run */
		all = all && pair->asked;
	}
	/* an answer may come at once, and has seen to the rest then */
	if (all && req->state == REQ_ASK)
		req_event(req, RQ_ASKED, NULL);
}

void
planned(struct req *req, struct leg *leg)
{
	(void)leg;
	req->end = END_OK; /* of an earlier try to plan */
	for (uint32_t i = 0; i < req->npairs; i++) {
		enum req_end why = pair_begin(&req->pairs[i]);

		if (why != END_OK) {
			req_refuse_with(req, why);
			return;
		}
	}
	if (req->connector->ask == NULL) {
		req_event(req, RQ_ASKED, NULL);
		return;
	}
	req_enter(req, REQ_ASK);
	worker_need_tick(req->w);
	ask_rest(req);
}

static const char unanswered[] = "asked, it did not answer in time";

/* It will not be answered. */
static void
unknown(struct req *req, struct leg *leg)
{
	if (req->detail == NULL)
		req->detail = unanswered;
	if (leg->fail == LEG_FAIL_SHORT) {
		exchange_cut(req, END_OVERLOADED);
		return;
	}
	eject_bad(leg);
	if (!retry(leg))
		exchange_cut(req, req->connector->ask_fail);
}

/* No answer, or none that is of use: refused, or asked again at the next tick. */
static void
ask_in_vain(struct req *req, struct leg *leg)
{
	pair_ask_over(leg->pair);
	req->detail = leg->fail != LEG_FAIL_NONE ? exchange_fail_text(leg->fail)
		      : leg->status == 0         ? unanswered
		      : leg->status != 200       ? "asked, it answers with an error status"
						 : "asked, it answers without it";
	if (req->connector->asks_again) {
		const bool at_fault = leg->fail != LEG_FAIL_NONE && leg->fail != LEG_FAIL_SHORT;

		if (at_fault)
			eject_bad(leg);
		if (!at_fault || !retry(leg))
			leg_rewind(leg);
	} else if (leg->status >= 400 && leg->status < 500 && leg->state == LEG_DONE) {
		eject_busy(leg);
		if (leg->status != 429 || !retry(leg))
			exchange_pass_on(req, leg); /* of the client's own body */
	} else {
		unknown(req, leg);
	}
}

/* Others wait for the same answer: not until the next tick. */
static void
wake_waiters(const struct req *req)
{
	struct req *one, *next;

	for (one = TAILQ_FIRST(&req->w->reqs); one != NULL; one = next) {
		next = TAILQ_NEXT(one, link);
		if (one != req)
			ask_rest(one);
	}
}

void
ask_answered(struct req *req, struct leg *leg)
{
	if (leg->status != 200 || req->connector->asked(leg->pair) != TAKEN) {
		ask_in_vain(req, leg);
		return;
	}
	pair_ask_over(leg->pair);
	leg->pair->asked = true;
	leg->pair->failed = false;
	if (req->connector->asks_again)
		wake_waiters(req);
	ask_rest(req);
}

void
ask_failed(struct req *req, struct leg *leg)
{
	leg->status = 0;
	ask_in_vain(req, leg);
}

void
ask_late(struct req *req, struct leg *leg)
{
	leg_end(leg);
	ask_failed(req, leg);
}

void
ask_tick(struct req *req, uint64_t now_ms)
{
	for (uint32_t i = 0; i < req->npairs && req->state != REQ_DONE; i++) {
		struct pair *pair = &req->pairs[i];

		if (!pair->asked && pair->ask_deadline_ms != 0 && now_ms >= pair->ask_deadline_ms)
			unknown(req, &pair->leg[LEG_ASK]);
	}
	ask_rest(req);
}
