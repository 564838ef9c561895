#include "worker/plan.h"

#include <stdio.h>

#include "shm/base/clock.h"
#include "shm/load.h"
#include "shm/rcu.h"
#include "worker/affinity.h"
#include "worker/connector.h"
#include "worker/core.h"
#include "worker/pool.h"
#include "worker/req.h"
#include "worker/select.h"
#include "shm/heritage.h"

#define FOREIGN_SCRAPES 3 /* a figure older than so many scrape intervals does not count */

/* Nobody could be chosen: is anybody up, and full? */
static enum req_end
why_none(const struct worker *w, const struct table_pool *tp, enum role role)
{
	for (uint32_t i = 0; i < tp->n[role]; i++) {
		const struct table_pick *p = &tp->picks[role][i];

		if (p->max_inflight != 0 && ep_state_get(w->seg, p->slot) == EP_UP)
			return END_NO_CAPACITY;
	}
	return role == ROLE_PREFILL ? END_NO_PREFILL : END_NO_DECODE;
}

/* Chooses and reserves the endpoint of one leg among those of `groups`.  Its pick, or NULL. */
static const struct table_pick *
choose(struct req *req, const struct table *t, const struct table_pool *tp, enum role role,
	uint64_t groups)
{
	struct worker *w = req->w;
	struct leg *leg = &req->pair.leg[role];
	struct selection s = {.seg = w->seg,
		.slot = w->slot,
		.table = t,
		.pool = tp,
		.role = role,
		.model = req->model,
		.groups = groups,
		.tokens = req->tokens,
		.mean_tokens = w->mean_tokens[tp->id],
		.now_ms = clock_ms(),
		.foreign_max_age_ms = FOREIGN_SCRAPES * w->conf->stats_interval_ms,
		.cursor = &w->cursor[tp->id * ROLE_N + role],
		.rnd = &w->rnd};
	const struct table_pick *pick;

	if (tp->policy[role] == POLICY_SESSION)
		s.keyed = affinity_session(req, tp, &s.key);
	if (tp->policy[role] == POLICY_PREFIX)
		s.keyed = affinity_prefix(req, tp, &s.key);
	pick = select_reserve(&s, &leg->tokens);
	if (pick != NULL) {
		leg->up = pool_endpoint(w->pool, &t->endpoints[pick->endpoint]);
		leg->reserved = true;
	}
	return pick;
}

/*
 * Both legs' engines, of one group if there are groups: the prefill engine by its policy, then a decode
 * engine beside it.  Where the pool requires that, a group without a free decode engine is no choice.
 */
static enum req_end
choose_pair(struct req *req, const struct table *t, const struct table_pool *tp)
{
	uint64_t groups = SELECT_ALL_GROUPS;
	bool any = false;

	for (;;) {
		const struct table_pick *p = choose(req, t, tp, ROLE_PREFILL, groups);

		if (p == NULL)
			return why_none(req->w, tp, any ? ROLE_DECODE : ROLE_PREFILL);
		if (choose(req, t, tp, ROLE_DECODE, UINT64_C(1) << p->group) != NULL)
			return END_OK;
		if (tp->pairing == PAIRING_PREFER &&
			choose(req, t, tp, ROLE_DECODE, SELECT_ALL_GROUPS) != NULL)
			return END_OK;
		leg_give_back(&req->pair.leg[ROLE_PREFILL]);
		if (tp->pairing == PAIRING_PREFER)
			return why_none(req->w, tp, ROLE_DECODE);
		any = true;
		groups &= ~(UINT64_C(1) << p->group);
	}
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

/* The mean is what a request of another router is taken for, whose prompt nobody tells us. */
static void
note_tokens(struct req *req, const struct table_pool *tp)
{
	uint32_t *mean = &req->w->mean_tokens[tp->id];

	if (req->tokens != 0) /* planned before: it has waited */
		return;
	req->tokens = affinity_tokens(req);
	*mean = select_mean(*mean, req->tokens);
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
	note_tokens(req, tp);
	/* Both before the prefill engine is asked: nothing may queue between the legs (vLLM leases the KV
	 * for 30 s). */
	if (req->connector->starts[ROLE_PREFILL] != STARTS_NEVER)
		why = choose_pair(req, t, tp);
	else if (choose(req, t, tp, ROLE_DECODE, SELECT_ALL_GROUPS) == NULL)
		why = why_none(req->w, tp, ROLE_DECODE);
	if (why != END_OK)
		return why;
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
