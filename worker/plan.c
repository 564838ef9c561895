#include "worker/plan.h"

#include <stdio.h>

#include "shm/base/clock.h"
#include "shm/load.h"
#include "shm/rcu.h"
#include "worker/connector.h"
#include "worker/core.h"
#include "worker/policy.h"
#include "worker/pool.h"
#include "worker/req.h"
#include "shm/heritage.h"

#define PLAN_TRIES 8      /* lost races for the last place of an endpoint before we say "full" */
#define FOREIGN_SCRAPES 3 /* a figure older than so many scrape intervals does not count */

/* Nobody could be chosen: is anybody up, and full? */
static enum req_end
why_none(const struct policy_view *v, enum role role)
{
	for (uint32_t i = 0; i < v->n; i++) {
		const struct table_endpoint *ep = &v->table->endpoints[v->eps[i]];

		if (ep->max_inflight != 0 && ep_state_get(v->seg, ep->slot) == EP_UP)
			return END_NO_CAPACITY;
	}
	return role == ROLE_PREFILL ? END_NO_PREFILL : END_NO_DECODE;
}

/* Chooses and reserves the endpoint of one leg. */
static bool
choose(struct req *req, const struct table *t, const struct table_pool *tp, enum role role,
	enum req_end *ret_why)
{
	struct worker *w = req->w;
	struct leg *leg = &req->pair.leg[role];
	uint32_t *cursor = &w->cursor[tp->id * ROLE_N + role];
	struct policy_view v = {.seg = w->seg,
		.table = t,
		.eps = tp->eps[role],
		.n = tp->n[role],
		.cursor = *cursor,
		.now_ms = clock_ms(),
		.foreign_max_age_ms = FOREIGN_SCRAPES * w->conf->stats_interval_ms};

	for (int tries = 0; tries < PLAN_TRIES; tries++) {
		int i = policy_find(tp->policy)(&v);
		const struct table_endpoint *te;

		if (i < 0)
			break;
		te = &t->endpoints[v.eps[i]];
		if (!load_reserve(w->seg, w->slot, te->slot, te->max_inflight))
			continue; /* another worker took the last place in between */
		*cursor = (uint32_t)i + 1;
		leg->up = pool_endpoint(w->pool, te);
		leg->reserved = true;
		return true;
	}
	*ret_why = why_none(&v, role);
	return false;
}

static uint32_t
gcd(uint32_t a, uint32_t b)
{
	return b == 0 ? a : gcd(b, a % b);
}

/*
 * Two rounds that turn in step would always pair the same engines where their sizes have a common
 * divisor: each time both are back where they began, the decode round takes a step of its own.
 */
static void
turn_rounds(struct worker *w, const struct table_pool *tp)
{
	uint32_t np = tp->n[ROLE_PREFILL], nd = tp->n[ROLE_DECODE], *round = &w->round[tp->id];

	if (++*round < np / gcd(np, nd) * nd)
		return;
	*round = 0;
	w->cursor[tp->id * ROLE_N + ROLE_DECODE]++;
}

/* Of a request without `model` (engines allow it) the only pool there is, else by the model's name. */
static const struct table_pool *
find_pool(const struct req *req, const struct table *t)
{
	if (req->model[0] == '\0')
		return t->npools == 1 ? &t->pools[0] : NULL;
	return table_pool_by_model(t, req->model);
}

static enum req_end
plan(struct req *req, const struct table *t)
{
	const struct table_pool *tp = find_pool(req, t);
	enum req_end why = END_OK;

	if (tp == NULL)
		return END_MODEL_NOT_FOUND;
	req->pool = (struct req_pool){.id = tp->id,
		.name = req->w->seg->pool_names + (size_t)tp->id * 64,
		.handoff = tp->handoff,
		.remote_host = tp->remote_host,
		.timeouts = tp->timeouts};
	req->connector = connector_find(tp->connector);
	if (connector_asks_several(req->doc) && req->connector->serves_one(&req->pair))
		req->connector = &connector_direct;
	/* Both before the prefill engine is asked: nothing may queue between the legs (vLLM leases the KV
	 * for 30 s). */
	if (req->connector->starts[ROLE_PREFILL] != STARTS_NEVER &&
		!choose(req, t, tp, ROLE_PREFILL, &why))
		return why;
	if (!choose(req, t, tp, ROLE_DECODE, &why)) {
		leg_give_back(&req->pair.leg[ROLE_PREFILL]);
		return why;
	}
	turn_rounds(req->w, tp);
	if (req->connector == &connector_direct)
		metric_add(req->w->slab, M_DIRECT, 1);
	return END_OK;
}

/*
 * Whether to ask again soon: the router or some engines have just been started or added, and what the
 * request needs may be there in a moment.
 */
static bool
may_change(const struct worker *w, const struct table *t, enum req_end why)
{
	if (why == END_NO_CAPACITY)
		return false;
	for (uint32_t i = 0; i < t->nendpoints; i++)
		if (ep_state_get(w->seg, t->endpoints[i].slot) == EP_STARTING)
			return true;
	return false;
}

void
plan_request(struct req *req)
{
	struct worker *w = req->w;
	const struct table *t =
		rcu_enter(w->seg, w->slot); /* published before any worker is forked */
	enum req_end why = plan(req, t);
	bool wait = why != END_OK && may_change(w, t, why);

	rcu_leave(w->seg, w->slot);
	if (why == END_OK)
		req_event(req, RQ_PLANNED, NULL);
	else if (wait)
		req_wait(req, why);
	else
		req_refuse(req, why, NULL);
}
