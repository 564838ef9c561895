#include "worker/attempt/retry.h"

#include <stdlib.h>
#include <string.h>

#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "worker/schedule/budget.h"
#include "worker/schedule/outcome.h"
#include "worker/base/core.h"
#include "worker/attempt/exchange.h"
#include "worker/schedule/plan.h"
#include "worker/net/connpool.h"
#include "worker/request/relay.h"
#include "worker/attempt/release.h"
#include "worker/request/request.h"
#include "worker/attempt/resume.h"

/* The client has something of its answer, or will have: but not while that waits for the prefill engine's part. */
static bool
heard(const struct pair *pair)
{
	const struct req *req = pair->req;

	return pair->spoke || (pair->decoded && !pair_waits_for_prefill(pair)) ||
	       (req->answer == NULL && req->resume == NULL && relay_started(req));
}

/* Whether this attempt can be replaced: others can go on with what has been heard of it, or nobody has heard of it and
 * what the bodies are made of is here. */
static bool
replaceable(const struct pair *pair)
{
	struct req *req = pair->req;

	if (req->client == NULL || req->w->quit_ms != 0 ||
		(req->state != REQ_ASK && req->state != REQ_EXCHANGE && req->state != REQ_RELAY))
		return false;
	return heard(pair) ? resume_may(req) : req->text != NULL;
}

/*
 * A decode engine that nothing was sent to: another may have the hand-over, where that is for anybody.  Once one
 * was reached it is used up, and read again gives another prompt's answer (protocols.md 2.7).
 */
static bool
keeps_handover(const struct leg *leg)
{
	return leg->kind == LEG_DECODE && !leg->reached && !leg->pair->req->connector->bound &&
	       connector_pairs(leg->pair->req->connector);
}

/* The answer that had begun is void; nothing of it had gone out. */
static void
forget_answer(struct pair *pair)
{
	struct req *req = pair->req;

	if (req->answer != NULL && req->npairs > 1)
		answer_part_again(req->answer, pair->index);
	if (req->answer != NULL || relay_started(req))
		return; /* started by former engines, which this one went on for */
	relay_drop_held(req);
	req->relay_sse = req->half_event = req->hold_short = false;
	if (req->state == REQ_RELAY)
		req_enter(req, REQ_EXCHANGE);
}

/* The pair has new endpoints. */
static void
go(struct pair *pair)
{
	struct req *req = pair->req;
	enum req_end why = pair_begin(pair);

	if (why != END_OK) {
		exchange_cut(req, why);
		return;
	}
	ask_rest(req);
	worker_need_tick(req->w);
}

/* Engines for another attempt.  Of two that were silent together the decode engine is passed by only while there is another. */
static bool
plan_other(struct pair *next, enum plan_for what, struct pair *of, enum ep_away most, bool *last)
{
	if (plan_again(next, what, of, most, last))
		return true;
	if (!of->both_silent)
		return false;
	of->both_silent = false;
	req_not_tried(pair_decode(of));
	if (plan_again(next, what, of, most, last))
		return true;
	of->both_silent = req_tried(pair_decode(of));
	return false;
}

/* `retries` and `retry_budget` allow another try; asked before an engine is chosen. */
static bool
may_try(const struct leg *leg, enum ep_away most)
{
	struct req *req = leg->pair->req;
	struct worker *w = req->w;

	if (leg->stale)
		return true;
	if (req->tries - req->moves >= req->facts.pool.rescue.retries)
		return false;
	if (budget_left(&w->budgets[req->facts.pool.id], req->facts.pool.rescue.retry_budget,
		    clock_ms()))
		return true;
	if (most < EP_AWAY_EJECTED) /* of two questions about one failure */
		metric_add(w->slab, M_BUDGET_SPENT, 1);
	return false;
}

/* An engine that has no room says so at once: going on to one that is not known to be busy costs neither a retry nor
 * budget, and ends when all have said so. */
static bool
may_move(const struct leg *leg)
{
	const struct req *req = leg->pair->req;

	return outcome_says_busy(leg) && !leg->stale && req->facts.pool.rescue.retries > 0 &&
	       req->ntried < REQ_TRIED_MAX;
}

static void
count_try(const struct leg *leg, bool moved, bool last)
{
	struct req *req = leg->pair->req;

	if (leg->stale) {
		metric_add(req->w->slab, M_UP_STALE, 1);
	} else {
		req->tries++;
		req->moves += moved;
		if (!moved)
			budget_take(&req->w->budgets[req->facts.pool.id], clock_ms());
	}
	if (last) {
		metric_add(req->w->slab, M_LAST_RESORT, 1);
		log_info("an ejected endpoint is asked, nobody else is left",
			LOG_S("why", "last_resort"), LOG_S("req", req->facts.id),
			LOG_S("pool", req->facts.pool.name));
	}
}

/* With other engines; `on`: they go on with what has been heard; `most`: and with engines that are away for that reason
 * where nobody else is left.  A connection that had gone stale is no engine's failure: it may be the same ones, on fresh
 * connections, whatever has been tried. */
static bool
another(struct leg *leg, bool on, enum ep_away most)
{
	struct pair *pair = leg->pair;
	struct req *req = pair->req;
	const bool keep = !on && keeps_handover(leg);
	const enum plan_for what = keep                              ? FOR_DECODE
				   : connector_pairs(req->connector) ? FOR_PAIR
								     : FOR_ONE;
	struct pair *next = pair_scratch(req);
	bool last = false, moved, found;

	moved = may_move(leg) && plan_other(next, what, pair, EP_AWAY_NOT, NULL);
	found = moved || (may_try(leg, most) && plan_other(next, what, pair, most, &last));
	if (found)
		count_try(leg, moved, last);
	if (found) {
		req->detail = NULL;
		if (!keep) {
			release_attempt(pair);
			if (on)
				resume_go(req);
			else
				forget_answer(pair);
			pair_renew(pair);
			if (on || (req->answer != NULL && req->npairs == 1))
				plan_answer(req); /* what it was to be made of may differ */
			req->t_prefill_us = 0;
			pair_adopt(pair, ROLE_PREFILL, next);
		}
		pair_adopt(pair, ROLE_DECODE, next);
	}
	pair_scratch_free(&next); /* what it has borrowed goes back */
	if (found && keep) {
		pair->failed = false;
		pair_next_rank(pair, ROLE_DECODE);
		leg_start(pair_decode(pair));
	} else if (found)
		go(pair);
	return found;
}

/* For the log: a request that ended well does not say it otherwise. */
static const char *
how_it_failed(const struct leg *leg)
{
	const char *text = exchange_fail_text(leg->fail);

	if (text == NULL && leg->status == 429)
		text = "it was full";
	if (text == NULL && leg->status >= 500)
		text = "its status was 5xx";
	if (text == NULL && leg->status >= 400)
		text = "it refused what was sent again on a fresh connection";
	if (text == NULL)
		text = leg->status == 200 ? "its answer is of no use" : "it was late";
	return text;
}

/* The request's line names the engines that served it; this one those that did not. */
static void
log_failed(const struct leg *leg)
{
	const struct req *req = leg->pair->req;
	const struct leg *of = pair_asked_for(leg);

	log_info("attempt failed", LOG_S("req", req->facts.id), LOG_S("attempt", leg->pair->id),
		LOG_S("pool", req->facts.pool.name), LOG_S("url", of->ep->url),
		LOG_S("role", role_name(pair_role(of))), LOG_S("why", how_it_failed(leg)));
}

/* The prefill engines have failed: the decode engine does the untouched request alone. */
static bool
fall_back(struct leg *leg)
{
	const struct connector *was = leg->pair->req->connector;
	const char *why = how_it_failed(leg);
	struct req *req = leg->pair->req;
	struct pair *next;
	bool found;

	if (req->facts.pool.rescue.fallback != FALLBACK_DIRECT || relay_started(req) ||
		!connector_pairs(was) || leg->kind == LEG_DECODE ||
		leg->status == 429) /* it is full, and says so: its Retry-After is for the client */
		return false;
	next = pair_scratch(req);
	req->connector = &connector_direct;
	found = plan_other(next, FOR_ONE, leg->pair, EP_AWAY_BUSY, NULL);
	req->connector = was;
	if (found) {
		for (uint32_t i = 0; i < req->npairs; i++)
			release_attempt(&req->pairs[i]);
		answer_free(&req->answer);
		memset(&req->how, 0, sizeof(req->how));
		req->takes_prefill = req->needs_prefill = false;
		forget_answer(leg->pair);
		req->connector = &connector_direct;
		for (uint32_t i = 0; i < req->npairs; i++)
			pair_renew(&req->pairs[i]); /* their memory stays: a caller may be at one */
		req->npairs = 1;
		req->pairs[0].prompt = (struct span){NULL, 0};
		req->pairs[0].seeded = false;
		pair_adopt(&req->pairs[0], ROLE_DECODE, next);
		req->direct = "fallback";
		req->detail = why;
		req->fell_back = true;
		metric_add(req->w->slab, M_DIRECT, 1);
	}
	pair_scratch_free(&next);
	if (found) {
		if (req->state == REQ_ASK)
			req_enter(req, REQ_EXCHANGE);
		go(&req->pairs[0]);
	}
	return found;
}

bool
retry(struct leg *leg)
{
	struct pair *pair = leg->pair;
	struct req *req = pair->req;
	/* or it is said again (of a question, of half an error's answer), or no engine has failed */
	const bool first = !pair->failed && !leg->stale;

	if (first)
		metric_add(req->w->slab, M_ATTEMPTS_FAILED, 1);
	pair->failed = pair->failed || first;
	if (leg->kind == LEG_DECODE && leg->reached && !heard(pair))
		pair->used_up = true;
	if (!replaceable(pair))
		return false;
	if (first)
		log_failed(leg);
	if (!leg->stale)
		(void)req_tried(leg);
	if (heard(pair) ? resume_finish(req) ||
				  (resume_prepare(req) &&
					  (another(leg, true, EP_AWAY_BUSY) ||
						  another(leg, true, EP_AWAY_EJECTED)))
			: another(leg, false, EP_AWAY_BUSY) || fall_back(leg) ||
				  another(leg, false, EP_AWAY_EJECTED))
		return true;
	if (pair->used_up)
		release_used_up(pair); /* while it is known what that was */
	return false;
}
