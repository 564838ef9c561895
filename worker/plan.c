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

/* What this request asks of each role, among all groups; its keys are hashed once. */
static void
prepare(struct selection s[ROLE_N], struct req *req, const struct table *t,
	const struct table_pool *tp, uint32_t model)
{
	struct worker *w = req->w;
	uint64_t now_ms = clock_ms();

	for (enum role role = 0; role < ROLE_N; role++) {
		s[role] = (struct selection){.seg = w->seg,
			.slot = w->slot,
			.table = t,
			.pool = tp,
			.role = role,
			.model = model,
			.groups = SELECT_ALL_GROUPS,
			.tokens = req->tokens,
			.mean_tokens = w->mean_tokens[tp->id],
			.now_ms = now_ms,
			.foreign_max_age_ms = t->foreign_max_age_ms,
			.rnd = &w->rnd};
		if (role > 0 && tp->policy[role] == tp->policy[0]) {
			s[role].keyed = s[0].keyed;
			s[role].key = s[0].key;
		} else if (tp->policy[role] == POLICY_SESSION) {
			s[role].keyed = affinity_session(req, tp, &s[role].key);
		} else if (tp->policy[role] == POLICY_PREFIX) {
			s[role].keyed = affinity_prefix(req, tp, &s[role].key);
		}
	}
}

/*
 * Requests that may not choose among the same endpoints go round on cursors of their own: on one cursor
 * those of one group or model would move it past endpoints that only the others may choose.
 */
static size_t
lane(const struct selection *s, uint32_t group)
{
	return (group + (s->model != TABLE_ANY_MODEL ? s->model : 0)) % TABLE_GROUPS;
}

/* Chooses and reserves the endpoint of one leg; `group` is the one it must be of, or 0.  Its pick, or
 * NULL. */
static const struct table_pick *
choose(struct req *req, struct selection *s, uint32_t group)
{
	struct worker *w = req->w;
	struct leg *leg = &req->pair.leg[s->role];
	const struct table_pick *pick;

	s->cursor = &w->cursor[(s->pool->id * ROLE_N + s->role) * TABLE_GROUPS + lane(s, group)];
	pick = select_reserve(s, &leg->tokens);
	if (pick != NULL) {
		leg->up = pool_endpoint(w->pool, &s->table->endpoints[pick->endpoint]);
		leg->reserved = true;
	}
	return pick;
}

/* Nobody could be chosen: because all who could serve are full, or because there is none? */
static enum req_end
why_none(struct req *req, const struct selection *s)
{
	if (select_served(s)) {
		req->detail = role_name(s->role);
		return END_NO_CAPACITY;
	}
	return s->role == ROLE_PREFILL ? END_NO_PREFILL : END_NO_DECODE;
}

static uint64_t
gcd(uint64_t a, uint64_t b)
{
	return b == 0 ? a : gcd(b, a % b);
}

/*
 * Two rounds that turn in step would always pair the same engines where their lengths have a common
 * divisor: each time both are back where they began, the decode round passes a turn.
 */
static void
turn_rounds(struct req *req, const struct selection *s, uint32_t group)
{
	const struct table_pool *tp = s->pool;
	const uint64_t np = tp->turns[ROLE_PREFILL][group], nd = tp->turns[ROLE_DECODE][group];
	const uint64_t common = gcd(np, nd);
	uint32_t *round = &req->w->round[tp->id * TABLE_GROUPS + lane(s, group)];

	if (common == 1 || ++*round < np / common * nd)
		return;
	*round = 0;
	select_pass(s);
}

/*
 * Both legs' engines, of one group if there are groups: the prefill engine by its policy, then a decode
 * engine beside it.  Where the pool requires that, a group without a free decode engine is no choice.
 */
static enum req_end
choose_pair(struct req *req, struct selection s[ROLE_N])
{
	struct selection *p = &s[ROLE_PREFILL], *d = &s[ROLE_DECODE];
	const struct table_pick *pick;

	while ((pick = choose(req, p, 0)) != NULL) {
		d->groups = UINT64_C(1) << pick->group;
		if (choose(req, d, pick->group) != NULL) {
			turn_rounds(req, d, pick->group);
			return END_OK;
		}
		if (p->pool->pairing == PAIRING_PREFER) {
			d->groups = SELECT_ALL_GROUPS;
			if (choose(req, d, pick->group) != NULL)
				return END_OK;
		}
		leg_give_back(&req->pair.leg[ROLE_PREFILL]);
		if (p->pool->pairing == PAIRING_PREFER)
			return why_none(req, d);
		p->groups &= ~(UINT64_C(1) << pick->group);
	}
	if (p->groups == SELECT_ALL_GROUPS)
		return why_none(req, p);
	/* the groups that were tried lack a decode engine, the others a prefill engine */
	d->groups = ~p->groups;
	if (select_served(p))
		return why_none(req, p);
	req->detail = "pairing requires one in the group of a prefill engine";
	return why_none(req, d);
}

/* Of a request without `model` (engines allow it) the only pool there is, else by the model's name. */
static const struct table_pool *
find_pool(const struct req *req, const struct table *t, uint32_t *ret_model)
{
	*ret_model = TABLE_ANY_MODEL;
	if (req->model[0] == '\0')
		return t->npools == 1 ? &t->pools[0] : NULL;
	return table_pool_by_model(t, req->model, ret_model);
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
	uint32_t model;
	const struct table_pool *tp = find_pool(req, t, &model);
	struct selection s[ROLE_N];
	enum req_end why = END_OK;

	req->detail = NULL;
	if (tp == NULL)
		return END_MODEL_NOT_FOUND;
	req->pool = (struct req_pool){.id = tp->id,
		.name = seg_pool_name(req->w->seg, tp->id),
		.handoff = tp->shake.handoff,
		.remote_host = tp->shake.remote_host,
		.timeouts = tp->timeouts};
	req->connector = connector_find(tp->connector);
	if (connector_asks_several(req->doc) && req->connector->serves_one(&req->pair))
		req->connector = &connector_direct;
	note_tokens(req, tp);
	prepare(s, req, t, tp, model);
	/* Both before the prefill engine is asked: nothing may queue between the legs (vLLM leases the KV
	 * for 30 s). */
	if (req->connector->starts[ROLE_PREFILL] != STARTS_NEVER)
		why = choose_pair(req, s);
	else if (choose(req, &s[ROLE_DECODE], 0) == NULL)
		why = why_none(req, &s[ROLE_DECODE]);
	if (why != END_OK)
		return why;
	if (req->connector == &connector_direct)
		metric_add(req->w->slab, M_DIRECT, 1);
	return END_OK;
}

/*
 * Whether to ask again soon: the router or some engines have just been started or added, and what the
 * request needs may be there in a moment.  Of a model that nobody serves yet that may be any pool's engine.
 */
static bool
may_change(const struct req *req, const struct table *t, enum req_end why)
{
	if (why == END_NO_CAPACITY)
		return false;
	for (uint32_t i = 0; i < t->nendpoints; i++) {
		const struct table_endpoint *ep = &t->endpoints[i];

		if ((why == END_MODEL_NOT_FOUND || t->pools[ep->pool].id == req->pool.id) &&
			ep_state_get(req->w->seg, ep->slot) == EP_STARTING)
			return true;
	}
	return false;
}

void
plan_request(struct req *req)
{
	struct worker *w = req->w;
	const struct table *t =
		rcu_enter(w->seg, w->slot); /* published before any worker is forked */
	enum req_end why = plan(req, t);
	bool wait = why != END_OK && may_change(req, t, why);
	uint64_t most_ms = t->plan_wait_ms;

	rcu_leave(w->seg, w->slot);
	if (why == END_OK)
		req_event(req, RQ_PLANNED, NULL);
	else if (wait)
		req_wait(req, why, most_ms);
	else
		req_refuse(req, why, req->detail);
}
