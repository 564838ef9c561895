#include "worker/schedule/plan.h"

#include <stddef.h>

#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/budget.h"
#include "shm/core/rcu.h"
#include "shm/core/seg.h"
#include "shm/load.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/handshake/connector.h"
#include "worker/schedule/cached.h"
#include "worker/schedule/choose.h"
#include "worker/schedule/fallback.h"
#include "worker/schedule/priority.h"
#include "worker/schedule/shortage.h"

void
plan_init(struct plan *p, struct worker *w, bool (*woken)(struct waiter *), void *user)
{
	p->user = user;
	p->w = p->waiter.w = w;
	p->waiter.woken = woken;
	p->priority_max = INT32_MIN;
}

struct plan *
plan_of(struct waiter *q)
{
	return (struct plan *)(void *)((char *)q - offsetof(struct plan, waiter));
}

static const struct table *
enter(struct worker *w)
{
	w->planning = true;
	return rcu_enter(w->seg, w->slot); /* published before any worker is forked */
}

static void
leave(struct worker *w)
{
	rcu_leave(w->seg, w->slot);
	w->planning = false;
}

/* --- the engines of all branches ----------------------------------------------------------------- */

static uint32_t
roles_of(const struct connector *c, enum role one)
{
	return connector_two_engines(c) ? SELECT_BOTH_ROLES : 1u << one;
}

/* The engines of one branch. */
static enum req_end
choose_branch(const struct plan *p, struct selection s[ROLE_N], enum role one, struct reserved *to,
	struct shortage *ret)
{
	const uint32_t n = p->way.nbranches;

	if (!connector_two_engines(p->way.connector))
		return choose_one(p->w, &s[one], &to->of[ROLE_DECODE], NULL)
			       ? END_OK
			       : shortage_of_one(ret, &s[one], n);
	s[ROLE_PREFILL].groups = s[ROLE_DECODE].groups = SELECT_ALL_GROUPS;
	switch (choose_both(p->w, s, to, NULL)) {
	case CHOSEN_BOTH:
		return END_OK;
	case CHOSEN_NO_DECODE:
		return shortage_of_one(ret, &s[ROLE_DECODE], n);
	case CHOSEN_NONE:
		break;
	}
	return shortage_of_both(ret, s, n);
}

/*
 * A request that has waited reserves no slots that it would give back.  Giving them back would wake another waiter that
 * lacks them, or the request itself, and that waiter would do the same, without end.  One branch of any groups cannot do
 * that: the slot of its prefill engine alone is of no use to a waiter that lacks a decode engine.
 */
static bool
looks_first(const struct plan *p, const struct selection s[ROLE_N])
{
	return p->waiter.waits && connector_two_engines(p->way.connector) &&
	       (p->way.nbranches > 1 || s[0].pool->pairing == PAIRING_REQUIRE);
}

/* All endpoints of all branches within the selections' reach. */
static enum req_end
choose_within(const struct plan *p, struct selection s[ROLE_N], enum role one, struct shortage *ret)
{
	enum req_end why = END_OK;

	s[ROLE_PREFILL].groups = s[ROLE_DECODE].groups = SELECT_ALL_GROUPS;
	if (looks_first(p, s))
		why = shortage_now(ret, s, p->way.nbranches);
	for (uint32_t i = 0; i < p->way.nbranches && why == END_OK; i++)
		why = choose_branch(p, s, one, &p->w->reserved[i], ret);
	s[ROLE_PREFILL].groups = s[ROLE_DECODE].groups = SELECT_ALL_GROUPS;
	return why;
}

static void
drop_engines(const struct plan *p)
{
	for (uint32_t i = 0; i < p->way.nbranches; i++)
		for (enum role r = 0; r < ROLE_N; r++)
			reservation_drop(p->w, &p->w->reserved[i].of[r]);
}

/* The only engine that has a response is asked for it although its other requests fail. */
static enum ep_away
furthest(const struct plan *p)
{
	return p->of.facts->holder != 0 ? EP_AWAY_EJECTED : EP_AWAY_BUSY;
}

/* All endpoints of all branches, or none.  Busy endpoints only where no other could serve, even if it were not full. */
static enum req_end
choose_engines(struct plan *p, const struct table *t, const struct table_pool *tp, uint32_t model,
	struct shortage *ret)
{
	const enum role one = way_role_alone(p->way.connector, p->of.facts);
	const uint32_t roles = roles_of(p->way.connector, one);
	const uint32_t n = p->way.nbranches;
	struct selection s[ROLE_N];
	enum req_end why;

	choose_prepare(s, p->w, &p->of, t, tp, model);
	cached_look(p->w, &p->of, p->way.connector, one, s);
	why = choose_within(p, s, one, ret);
	if (why != END_OK && select_reach_further(s, roles, furthest(p))) {
		drop_engines(p);
		*ret = (struct shortage){.roles = 0};
		why = choose_within(p, s, one, ret);
	}
	if (why != END_OK) {
		drop_engines(p);
		/* with all slots back that this request had taken */
		return why == END_NO_CAPACITY && n > 1 ? shortage_of_both(ret, s, n) : why;
	}
	if (p->way.alone)
		fallback_goes(p->w, &s[ROLE_DECODE]);
	wait_served(&p->waiter, s, roles);
	return why;
}

/* --- the read section ---------------------------------------------------------------------------- */

static struct req_pool *
copy_of(const struct worker *w, const struct table *t, const struct table_pool *tp)
{
	const struct req_pool pool = {.refs = 1,
		.id = tp->id,
		.version = t->version,
		.name = seg_pool_name(w->seg, tp->id),
		.connector = tp->connector,
		.max_context = tp->max_context,
		.shake = tp->shake,
		.timeouts = tp->timeouts,
		.rescue = tp->rescue,
		.ejection = tp->ejection,
		.queue = tp->queue};

	return mem_dup(&pool, sizeof(pool));
}

/* All requests that are planned by one table share one copy. */
static struct req_pool *
settings_of(const struct worker *w, const struct table *t, const struct table_pool *tp)
{
	struct req_pool **latest = &w->pools[tp->id];

	if (*latest == NULL || (*latest)->version != t->version) {
		req_pool_unref(latest);
		mem_exempt(true); /* once per table: the exception of I6 */
		*latest = copy_of(w, t, tp);
		mem_exempt(false);
	}
	return *latest;
}

static enum req_end
take_pool(struct plan *p, const struct table *t, const struct table_pool *tp)
{
	facts_take_pool(p->of.facts, settings_of(p->w, t, tp));
	if (tp->rescue.allow_timeout_header == 0 || p->client_deadline_ms != CLIENT_DEADLINE_WRONG)
		return END_OK;
	p->detail = "X-Request-Timeout-Ms is no number of milliseconds from 1 to 86400000";
	return END_UNSUPPORTED;
}

/* Of the prompts of all branches. */
static uint32_t
tokens_of_all(const struct plan *p)
{
	const uint64_t n = (uint64_t)p->of.facts->tokens * p->way.nbranches;

	return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* What the request would be in the queue.  END_NO_CAPACITY: it must not choose before a waiter does. */
static enum req_end
look_at_queue(struct plan *p, const struct table_pool *tp)
{
	struct waiter *q = &p->waiter;
	enum req_end why;

	if (!q->waits) {
		why = priority_read(p->of.text, tp, &q->priority, &p->detail);
		if (why != END_OK)
			return why;
		if (q->priority < p->priority_max) /* the lowest goes first */
			q->priority = p->priority_max;
		q->key = way_queue_key(&p->way, p->of.facts);
		q->tokens = tokens_of_all(p);
		q->shares = tp->nmodels > 1;
	}
	/* a reload may have given the pool engines that this worker has no keys for */
	q->key &= ~WAY_PLAIN_ONLY;
	q->key |= choose_plain_only(p->w, tp) ? WAY_PLAIN_ONLY : 0;
	return wait_before(q, tp) ? END_NO_CAPACITY : END_OK;
}

/* Whether a decode engine may serve the request alone now.  END_FALLBACK_BUDGET without a role that is short: a prefill
 * engine is up again. */
static enum req_end
look_at_budget(struct plan *p, const struct table *t, const struct table_pool *tp, uint32_t model,
	struct shortage *ret)
{
	struct selection s[ROLE_N];
	uint64_t wait_ms;

	if (!p->way.alone)
		return END_OK;
	choose_prepare(s, p->w, &p->of, t, tp, model);
	if (select_served(&s[ROLE_PREFILL]))
		return END_FALLBACK_BUDGET;
	wait_ms = fallback_wait_ms(p->w, tp);
	if (wait_ms == 0)
		return END_OK;
	ret->roles = 1u << ROLE_PREFILL;
	ret->again_ms = s[ROLE_DECODE].now_ms + wait_ms;
	return END_FALLBACK_BUDGET;
}

static enum req_end
plan(struct plan *p, const struct table *t, struct shortage *ret)
{
	uint32_t model;
	const struct table_pool *tp = way_pool(p->of.facts, t, &model);
	enum req_end why, budget;

	p->detail = NULL;
	*ret = (struct shortage){.roles = 0};
	if (tp == NULL)
		return route_body(p->of.facts->route) == ROUTE_BODY_NONE ? END_RESPONSE_NOT_FOUND
									 : END_MODEL_NOT_FOUND;
	if (p->of.facts->response[0] != '\0' && !way_holds(p->of.facts, tp))
		return END_RESPONSE_NOT_FOUND;
	why = take_pool(p, t, tp);
	if (why != END_OK)
		return why;
	way_estimate(p->w, &p->of);
	why = way_choose(&p->way, p->w, &p->of, p->waiter.waits, &p->detail);
	if (why == END_OK)
		why = look_at_queue(p, tp);
	budget = look_at_budget(p, t, tp, model, ret);
	if (budget != END_OK && (why == END_OK || why == END_NO_CAPACITY))
		return budget;
	if (why != END_OK)
		return why;
	/* Both engines before the prefill engine is asked: nothing may queue between the legs (vLLM leases the KV for
	 * 30 s). */
	why = choose_engines(p, t, tp, model, ret);
	p->detail = ret->detail;
	if (p->of.facts->holder != 0 && (why == END_NO_DECODE || why == END_NO_PREFILL))
		p->detail = "the engine that has the response is away";
	return why;
}

/*
 * Whether to ask again soon: the router or some engines have just been started or added, and what the request needs
 * may be there in a moment.  Of a model that no engine serves yet that may be any pool's engine.
 */
static bool
may_change(const struct plan *p, const struct table *t, enum req_end why)
{
	if (why == END_NO_CAPACITY)
		return false;
	for (uint32_t i = 0; i < t->nendpoints; i++) {
		const struct table_endpoint *ep = &t->endpoints[i];

		if ((why == END_MODEL_NOT_FOUND ||
			    t->pools[ep->pool].id == p->of.facts->pool->id) &&
			ep_state_get(p->w->seg, ep->slot) == EP_STARTING)
			return true;
	}
	return false;
}

/* A pool learns its models, and no engine of it has listed any: it may serve the model. */
static bool
may_exist(const struct plan *p, const struct table *t)
{
	for (uint32_t i = 0; i < t->npools; i++)
		if (t->pools[i].nmodels == 0)
			return p->of.facts->model[0] != '\0';
	return false;
}

/* One read section.  END_OK, or why not; *ret_most_ms: how long that may change for, 0: it does not. */
static enum req_end
plan_once(struct plan *p, struct shortage *ret, uint64_t *ret_most_ms)
{
	const struct table *t = enter(p->w);
	enum req_end why = plan(p, t, ret);

	*ret_most_ms = why != END_OK && may_change(p, t, why) ? t->plan_wait_ms : 0;
	if (why == END_MODEL_NOT_FOUND && may_exist(p, t)) {
		why = END_NO_DECODE;
		p->detail = "no engine of a pool has listed its models yet";
	}
	leave(p->w);
	return why;
}

/* --- a request ----------------------------------------------------------------------------------- */

/* No prefill engine is up: the decode engine may serve the request alone.  False: it may not, or cannot either. */
static bool
go_alone(struct plan *p)
{
	if (p->way.alone || p->of.facts->pool->rescue.fallback != FALLBACK_DIRECT ||
		!connector_two_engines(p->way.connector))
		return false;
	wait_leave(&p->waiter); /* it was enqueued for other slots */
	p->way.alone = true;
	return true;
}

/* A prefill engine is up again. */
static void
go_together(struct plan *p)
{
	wait_leave(&p->waiter);
	p->way.alone = false;
}

/* Returns true if the request is to be planned once more. */
static bool
once_more(struct plan *p, const struct shortage *shortage, uint64_t most_ms)
{
	if (p->end == END_NO_PREFILL)
		return most_ms == 0 && go_alone(p);
	if (p->end == END_FALLBACK_BUDGET && shortage->roles == 0) {
		go_together(p);
		return true;
	}
	return (p->end == END_FALLBACK_BUDGET || p->end == END_NO_CAPACITY) &&
	       wait_again(&p->waiter, p->of.facts->pool, shortage, &p->end);
}

static void
count(const struct plan *p)
{
	struct worker *w = p->w;

	budget_request(w->seg, w->slot, p->of.facts->pool->id, clock_ms());
	if (p->way.connector == &connector_direct)
		metric_add(w->slab, M_DIRECT, 1);
	if (way_is_short(&p->way))
		metric_add(w->slab, M_DIRECT_SHORT, 1);
}

/* Nothing can be chosen now, but soon perhaps: the request is planned again each tick until most_ms after the first
 * time. */
static void
rest(struct plan *p, uint64_t most_ms)
{
	struct waiter *q = &p->waiter;

	if (q->waits)
		q->deadline_ms = 0; /* of another wait */
	wait_leave(q);
	if (q->deadline_ms == 0)
		q->deadline_ms = clock_ms() + most_ms;
	worker_need_tick(p->w);
}

enum plan_result
plan_make(struct plan *p)
{
	struct waiter *q = &p->waiter;
	struct shortage shortage;
	uint64_t most_ms;

	do
		p->end = plan_once(p, &shortage, &most_ms);
	while (once_more(p, &shortage, most_ms));
	wait_settle_for(q, p->of.facts->pool->id);
	if (p->end == END_OK) {
		count(p);
		return PLAN_DONE;
	}
	if (p->end == END_FALLBACK_BUDGET && q->again_ms == 0)
		metric_add(p->w->slab, M_FALLBACK_SPENT, 1);
	q->again_ms = shortage.again_ms;
	if (p->end == END_FALLBACK_BUDGET && q->waits)
		return PLAN_WAITS;
	if (p->end == END_NO_CAPACITY && q->waits) {
		p->end = END_QUEUE_TIMEOUT;
		return PLAN_WAITS;
	}
	if (most_ms == 0)
		return PLAN_REFUSED;
	rest(p, most_ms);
	return PLAN_WAITS;
}

/* --- another attempt ----------------------------------------------------------------------------- */

static bool
choose_again(
	const struct plan_other *o, struct selection s[ROLE_N], enum role one, struct reserved *ret)
{
	s[ROLE_PREFILL].groups = s[ROLE_DECODE].groups = SELECT_ALL_GROUPS;
	switch (o->what) {
	case FOR_DECODE:
		return choose_decode(o->w, &s[ROLE_DECODE], &ret->of[ROLE_DECODE],
			o->failed->of[ROLE_PREFILL].ep);
	case FOR_BOTH:
		return choose_both(o->w, s, ret, o->failed) == CHOSEN_BOTH;
	case FOR_ONE:
	case FOR_FALLBACK:
		break;
	}
	return choose_one(o->w, &s[one], &ret->of[ROLE_DECODE], &o->failed->of[ROLE_DECODE]);
}

uint64_t
plan_fallback_ms(struct worker *w, const struct facts *facts)
{
	uint32_t model = TABLE_ANY_MODEL;
	const struct table_pool *tp = way_pool(facts, enter(w), &model);
	const uint64_t ms = tp != NULL ? fallback_wait_ms(w, tp) : 0;

	leave(w);
	return ms;
}

bool
plan_again(const struct plan_other *o, struct reserved *ret, bool *ret_last_resort)
{
	struct worker *w = o->w;
	const struct facts *facts = o->of.facts;
	const struct table *t = enter(w);
	const enum role one = o->what == FOR_ONE || o->what == FOR_FALLBACK
				      ? way_role_alone(o->connector, facts)
				      : ROLE_DECODE;
	const uint32_t roles = o->what == FOR_BOTH ? SELECT_BOTH_ROLES : 1u << one;
	uint32_t model = TABLE_ANY_MODEL;
	const struct table_pool *tp = way_pool(facts, t, &model);
	struct selection s[ROLE_N];
	bool found = false;

	*ret = (struct reserved){0};
	if (tp != NULL && tp->id == facts->pool->id) {
		choose_prepare(s, w, &o->of, t, tp, model);
		cached_look(w, &o->of, o->connector, one, s);
		s[ROLE_PREFILL].again = s[ROLE_DECODE].again = true;
		do
			found = choose_again(o, s, one, ret);
		while (!found && select_reach_further(s, roles, o->most));
		if (ret_last_resort != NULL)
			*ret_last_resort =
				found && (s[ROLE_PREFILL].reach == EP_AWAY_EJECTED ||
						 s[ROLE_DECODE].reach == EP_AWAY_EJECTED);
		if (found && o->what == FOR_FALLBACK)
			fallback_goes(w, &s[ROLE_DECODE]);
	}
	leave(w);
	wait_settle(w, facts->pool->id);
	return found;
}
