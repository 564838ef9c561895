/* The state ASK: what must be known before a leg can go out is asked of the engines. */
#include "shm/base/clock.h"
#include "worker/core.h"
#include "worker/exchange.h"
#include "worker/pool.h"
#include "worker/req.h"

void
ask_rest(struct req *req)
{
	bool all = true;

	for (uint32_t i = 0; i < req->npairs && req->state == REQ_ASK; i++) {
		struct pair *pair = &req->pairs[i];

		if (!pair->asked && !leg_active(&pair->leg[LEG_ASK]))
			pair_ask(pair);
		all = all && pair->asked;
	}
	/* an answer may come at once, and has seen to the rest then */
	if (all && req->state == REQ_ASK)
		req_event(req, RQ_ASKED, NULL);
}

void
planned(struct req *req, struct leg *leg)
{
	const struct connector *c = req->connector;

	(void)leg;
	req->end = END_OK; /* of an earlier try to plan */
	for (uint32_t i = 0; i < req->npairs; i++) {
		struct pair *pair = &req->pairs[i];
		enum req_end why;

		pair_new_id(pair);
		pair_next_ranks(pair);
		why = c->begin != NULL ? c->begin(pair) : END_OK;
		if (why != END_OK) {
			req_refuse_with(req, why);
			return;
		}
	}
	if (c->ask != NULL) {
		req_enter(req, REQ_ASK);
		if (c->asks_again)
			req->deadline_ms = clock_ms() + req->pool.shake.learn_ms;
		worker_need_tick(req->w);
		ask_rest(req);
	} else {
		req_event(req, RQ_ASKED, NULL);
	}
}

static const char unanswered[] = "asked, it did not answer in time";

/* No answer, or none that is of use: refused, or asked again at the next tick. */
static void
ask_in_vain(struct req *req, struct leg *leg)
{
	pair_ask_over(leg->pair);
	req->detail = leg->fail != LEG_FAIL_NONE ? exchange_fail_text(leg->fail)
		      : leg->status == 0         ? unanswered
		      : leg->status != 200       ? "asked, it answers with an error status"
						 : "asked, it answers without it";
	if (req->connector->asks_again)
		leg_rewind(leg);
	else if (leg->status >= 400 && leg->status < 500 && leg->state == LEG_DONE)
		exchange_pass_on(req, leg); /* of the client's own body */
	else
		req_refuse_with(req, req->connector->ask_fail);
}

/* Others wait for the same answer: not until the next tick. */
static void
wake_waiters(const struct req *req)
{
	struct req *one, *next;

	for (one = TAILQ_FIRST(&req->w->reqs); one != NULL; one = next) {
		next = TAILQ_NEXT(one, link);
		if (one != req && one->state == REQ_ASK)
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
	if (leg == NULL) {
		if (req->detail == NULL)
			req->detail = unanswered;
		req_refuse_with(req, req->connector->ask_fail);
		return;
	}
	leg_end(leg);
	ask_failed(req, leg);
}
