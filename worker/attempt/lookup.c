#include "worker/attempt/lookup.h"

#include <string.h>

#include "shm/base/clock.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/decode.h"
#include "worker/attempt/failover.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/request/request.h"

void
lookup_unlock(struct attempt *a)
{
	if (a->lookup_lock == NULL)
		return;
	a->lookup_lock->lookup_runs = false;
	connpool_unref(a->w->connpool, &a->lookup_lock);
}

/* Sends the next lookup, if anything is left to look up. */
static void
start(struct attempt *a)
{
	const struct connector *c = a->t.connector;
	struct endpoint *ep;

	memset(&a->what, 0, sizeof(a->what));
	if (!c->lookup(&a->t, &a->what)) {
		attempt_set_lookup(a, LOOKUP_KNOWN);
		return;
	}
	ep = a->t.engine[a->what.role];
	if (c->lookup_repeats) { /* once for all who wait for the answer; they look again each tick */
		if (ep->lookup_runs)
			return;
		ep->lookup_runs = true;
		a->lookup_lock = connpool_ref(ep);
	}
	if (a->lookup_ep == NULL)
		a->lookup_ep =
			a->what.port == 0 ? connpool_ref(ep) : connpool_aside(ep, a->what.port);
	a->leg[LEG_LOOKUP].ep = a->lookup_ep;
	attempt_set_lookup(a, LOOKUP_SENT);
	leg_start(&a->leg[LEG_LOOKUP]);
}

static bool
is_known(const struct attempt *a)
{
	return a->lookup == LOOKUP_KNOWN || a->lookup == LOOKUP_NOT_NEEDED;
}

static bool
legs_rest(const struct attempt *a)
{
	return (a->prefill == PREFILL_IDLE || a->prefill == PREFILL_NOT_NEEDED) &&
	       a->decode == DECODE_IDLE && a->decode_sends == 0;
}

void
lookup_go_on(struct req *req)
{
	bool all = true;

	for (uint32_t i = 0; i < req->nbranches && req->state == REQ_SERVE; i++)
		if (req->branches[i].attempt->lookup == LOOKUP_DUE)
			start(req->branches[i].attempt);
	for (uint32_t i = 0; i < req->nbranches && req->state == REQ_SERVE; i++)
		all = all && is_known(req->branches[i].attempt);
	if (!all || req->state != REQ_SERVE)
		return;
	for (uint32_t i = 0; i < req->nbranches && req->state == REQ_SERVE; i++)
		if (legs_rest(req->branches[i].attempt)) {
			req_trace(req, 'x');
			attempt_begin_legs(req->branches[i].attempt);
		}
}

static const char unanswered[] = "asked, it did not answer in time";

/* It will not be answered: other engines, or the request ends. */
static void
give_up(struct attempt *a)
{
	struct req *req = a->branch->req;
	const enum req_end end = a->leg[LEG_LOOKUP].fail == LEG_FAIL_SHORTAGE
					 ? END_OVERLOADED
					 : a->t.connector->lookup_end;

	if (req->detail == NULL)
		req->detail = unanswered;
	failover(a, LEG_LOOKUP, end == END_OVERLOADED ? CAUSE_SHORTAGE : CAUSE_UNUSABLE, end);
}

/* No answer, or none that is of use: refused, or asked again at the next tick. */
static void
failed(struct attempt *a)
{
	struct leg *leg = &a->leg[LEG_LOOKUP];
	struct req *req = a->branch->req;
	struct outcome o;

	lookup_unlock(a);
	req->detail = leg->fail != LEG_FAIL_NONE ? leg_fail_text(leg->fail)
		      : leg->status == 0         ? unanswered
		      : leg->status != 200       ? "asked, it answers with an error status"
						 : "asked, it answers without it";
	if (a->t.connector->lookup_repeats) {
		if (leg->fail != LEG_FAIL_NONE && leg->fail != LEG_FAIL_SHORTAGE) {
			o = failover_outcome(a, LEG_LOOKUP, CAUSE_BROKEN);
			if (failover_others(a, LEG_LOOKUP, &o))
				return;
		}
		leg_rewind(leg);
		attempt_set_lookup(a, LOOKUP_DUE);
	} else if (leg->status >= 400 && leg->status < 500 && leg->state == LEG_DONE) {
		failover(a, LEG_LOOKUP, CAUSE_STATUS,
			END_ENGINE_STATUS); /* of the client's own body */
	} else {
		give_up(a);
	}
}

/* Other requests wait for the same answer: they need not wait for the next tick.  What one does may end any other, so
 * that the walk begins anew after each. */
static void
wake_others(struct worker *w, const struct req *but)
{
	const uint32_t round = ++w->lookup_round;
	struct req *req;

	for (;;) {
		TAILQ_FOREACH(req, &w->reqs, link)
		if (req->lookup_round != round && req != but && req->state == REQ_SERVE)
			break;
		if (req == NULL)
			return;
		req->lookup_round = round;
		lookup_go_on(req);
	}
}

void
lookup_answered(struct attempt *a)
{
	const struct connector *c = a->t.connector;
	struct req *req = a->branch->req;
	struct worker *w = a->w;

	if (a->leg[LEG_LOOKUP].status != 200 || c->looked_up(&a->t) != HANDOFF_OK) {
		failed(a);
		return;
	}
	lookup_unlock(a);
	attempt_set_lookup(a, LOOKUP_KNOWN);
	a->failure_counted = false;
	if (c->lookup_repeats)
		wake_others(w, req);
	if (a->life == ATTEMPT_SERVING)
		lookup_go_on(req);
}

void
lookup_failed(struct attempt *a)
{
	a->leg[LEG_LOOKUP].status = 0;
	failed(a);
}

void
lookup_late(struct attempt *a)
{
	leg_end(&a->leg[LEG_LOOKUP]);
	lookup_failed(a);
}

void
lookup_tick(struct req *req, uint64_t now_ms)
{
	for (uint32_t i = 0; i < req->nbranches && req->state == REQ_SERVE; i++) {
		struct attempt *a = req->branches[i].attempt;

		if (!is_known(a) && a->lookup_deadline_ms != 0 && now_ms >= a->lookup_deadline_ms) {
			lookup_unlock(a);
			give_up(a);
		}
	}
	if (req->state == REQ_SERVE)
		lookup_go_on(req);
}
