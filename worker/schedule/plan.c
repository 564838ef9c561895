#include "worker/schedule/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/clock.h"
#include "shm/load.h"
#include "shm/core/rcu.h"
#include "worker/schedule/affinity.h"
#include "worker/schedule/budget.h"
#include "worker/handshake/connector.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/request/request.h"
#include "worker/schedule/reservation.h"
#include "worker/attempt/branches.h"
#include "worker/attempt/resume.h"
#include "worker/attempt/rewrite.h"
#include "worker/schedule/select.h"
#include "worker/schedule/threshold.h"
#include "worker/schedule/wait.h"
#include "shm/core/heritage.h"

/* What this request asks of each role; its keys are hashed once. */
static void
prepare(struct selection s[ROLE_N], struct worker *w, const struct demand *d, const struct table *t,
	const struct table_pool *tp, uint32_t model)
{
	uint64_t now_ms = clock_ms();

	for (enum role role = 0; role < ROLE_N; role++) {
		s[role] = (struct selection){.seg = w->seg,
			.slot = w->slot,
			.table = t,
			.pool = tp,
			.role = role,
			.model = model,
			.avoid = d->facts->tried.slot,
			.navoid = d->facts->tried.n,
			.tokens = d->facts->tokens,
			.mean_tokens = w->mean_tokens[tp->id],
			.now_ms = now_ms,
			.foreign_max_age_ms = t->foreign_max_age_ms,
			.rnd = &w->rnd};
		if (role > 0 && tp->policy[role] == tp->policy[0]) {
			s[role].keyed = s[0].keyed;
			s[role].key = s[0].key;
		} else if (tp->policy[role] == POLICY_SESSION) {
			s[role].keyed = affinity_session(d->text, tp, &s[role].key);
		} else if (tp->policy[role] == POLICY_PREFIX) {
			s[role].keyed = affinity_prefix(
				d->text, d->facts->route, d->facts->model, tp, &s[role].key);
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

/*
 * Where a retry begins its round: at the endpoint whose turn is next, the following retry one further, so that the load
 * of one that fails is spread over the others.  Not at the endpoint that the failed attempt had.
 */
static uint32_t
retry_from(const struct selection *s, uint32_t cursor, uint32_t *turn,
	const struct reservation *failed)
{
	const uint32_t n = s->pool->n[s->role];
	uint32_t from;

	if (n < 2)
		return cursor;
	from = cursor + (*turn)++ % (n - 1);
	if (failed != NULL && failed->ep != NULL &&
		s->pool->picks[s->role][from % n].slot == failed->ep->slot)
		from++;
	return from;
}

/*
 * Chooses and reserves one endpoint; `group` is the one it must be of, or 0.  Where no place is free, the place of the
 * attempt that is replaced will do (`of`, or NULL): it moves as it is, so that nobody can take it in between.  Not
 * first: that its engine is well is not known.  The pick, or NULL.
 */
static const struct table_pick *
choose(struct attempt *a, enum role to, struct selection *s, uint32_t group, struct attempt *of)
{
	struct worker *w = a->w;
	struct reservation *place = &a->place[to], *old = of == NULL ? NULL : &of->place[to];
	const struct table_pick *pick;
	const size_t at = (s->pool->id * ROLE_N + s->role) * TABLE_GROUPS + lane(s, group);
	struct selected held;
	bool moves = false;

	s->cursor = &w->cursor[at];
	if (s->again) {
		s->retry_at = retry_from(s, w->cursor[at], &w->retry_turn[at], old);
		s->cursor = &s->retry_at;
	}
	pick = select_reserve(s, &held);
	if (pick == NULL && old != NULL && old->state != RESERVATION_NONE) {
		pick = select_again(s, old->ep->slot, &held);
		moves = pick != NULL;
	}
	if (pick == NULL)
		return NULL;
	*place = (struct reservation){.ep = connpool_endpoint(w->connpool, s->table,
					      &s->table->endpoints[pick->endpoint]),
		.pool = s->pool->id,
		.role = s->role,
		.state = moves ? RESERVATION_NONE : RESERVATION_HELD,
		.tokens = moves ? 0 : held.tokens,
		.trial = held.trial,
		.busy = held.busy};
	if (moves)
		reservation_move(w, old, place);
	attempt_set_engine(a, to);
	return pick;
}

/* A choice that comes to nothing: a place that has moved goes back to where it was. */
static void
give_back(struct attempt *a, enum role role, struct attempt *of)
{
	struct reservation *place = &a->place[role];

	if (of != NULL && place->state != RESERVATION_NONE && of->place[role].ep != NULL &&
		of->place[role].state == RESERVATION_NONE &&
		of->place[role].ep->slot == place->ep->slot)
		reservation_move(a->w, place, &of->place[role]);
	attempt_drop_engine(a, role);
}

/* Nobody could be chosen: because all who could serve are full, or because there is none? */
static enum req_end
why_none(struct req *req, const struct selection *s)
{
	if (select_served(s)) {
		req->job.detail = role_name(s->role);
		req->lacks |= 1u << s->role;
		req->hopeless = select_room(s).places < req->job.nbranches;
		return END_NO_CAPACITY;
	}
	return s->role == ROLE_PREFILL ? END_NO_PREFILL : END_NO_DECODE;
}

/* Either role will do to wait for where both are short.  Decode engines keep their places longer. */
static enum req_end
no_capacity(struct req *req, const struct selection s[ROLE_N], uint32_t nbranches, uint64_t places)
{
	const bool p_short = select_room(&s[ROLE_PREFILL]).free < nbranches;
	const bool d_short = select_room(&s[ROLE_DECODE]).free < nbranches;

	req->job.detail = role_name(p_short ? ROLE_PREFILL : ROLE_DECODE);
	req->lacks = d_short   ? 1u << ROLE_DECODE
		     : p_short ? 1u << ROLE_PREFILL
			       : QUEUE_ALL_ROLES; /* not in one group */
	req->hopeless = places < nbranches;
	return END_NO_CAPACITY;
}

static enum req_end
why_no_pairs(struct req *req, const struct selection s[ROLE_N], uint32_t nbranches)
{
	const uint64_t places = select_pairs(s).places;

	if (places > 0)
		return no_capacity(req, s, nbranches, places);
	if (!select_served(&s[ROLE_PREFILL]))
		return END_NO_PREFILL;
	if (select_served(&s[ROLE_DECODE]))
		req->job.detail = "pairing requires one in the group of a prefill engine";
	return END_NO_DECODE;
}

/*
 * Whoever has waited takes no places that it would give back: that would call the others who lack them, or
 * itself, who would do the same, and so on.  One pair of any groups cannot: its prefill engine's place alone
 * is of no use to those who lack a decode engine.
 */
static enum req_end
look_first(struct req *req, const struct selection s[ROLE_N])
{
	struct select_room room;

	if (!req->waits || !connector_two_engines(req->job.connector) ||
		(req->job.nbranches == 1 && s[0].pool->pairing != PAIRING_REQUIRE))
		return END_OK;
	room = select_pairs(s);
	if (room.places == 0 || room.free >= req->job.nbranches)
		return END_OK;
	return no_capacity(req, s, req->job.nbranches, room.places);
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
turn_rounds(struct worker *w, const struct selection *s, uint32_t group)
{
	const struct table_pool *tp = s->pool;
	const uint64_t np = tp->turns[ROLE_PREFILL][group], nd = tp->turns[ROLE_DECODE][group];
	const uint64_t common = gcd(np, nd);
	uint32_t *round = &w->round[tp->id * TABLE_GROUPS + lane(s, group)];

	if (s->again || common == 1 || ++*round < np / common * nd)
		return;
	*round = 0;
	select_pass(s);
}

/*
 * Both engines, of one group if there are groups: the prefill engine by its policy, then a decode
 * engine beside it.  Where the pool requires that, a group without a free decode engine is no choice.
 */
static enum req_end
choose_pair(struct req *req, struct attempt *a, struct selection s[ROLE_N], struct attempt *of)
{
	struct selection *p = &s[ROLE_PREFILL], *d = &s[ROLE_DECODE];
	const struct table_pick *pick;

	while ((pick = choose(a, ROLE_PREFILL, p, 0, of)) != NULL) {
		d->groups = UINT64_C(1) << pick->group;
		if (choose(a, ROLE_DECODE, d, pick->group, of) != NULL) {
			turn_rounds(a->w, d, pick->group);
			return END_OK;
		}
		if (p->pool->pairing == PAIRING_PREFER) {
			d->groups = SELECT_ALL_GROUPS;
			if (choose(a, ROLE_DECODE, d, pick->group, of) != NULL)
				return END_OK;
		}
		give_back(a, ROLE_PREFILL, of);
		if (p->pool->pairing == PAIRING_PREFER)
			return req == NULL ? END_NO_DECODE : why_none(req, d);
		p->groups &= ~(UINT64_C(1) << pick->group);
	}
	p->groups = d->groups = SELECT_ALL_GROUPS;
	return req == NULL ? END_NO_PREFILL : why_no_pairs(req, s, req->job.nbranches);
}

/* Of a request without `model` (engines allow it) the only pool there is, else by the model's name. */
static const struct table_pool *
find_pool(const struct facts *facts, const struct table *t, uint32_t *ret_model)
{
	*ret_model = TABLE_ANY_MODEL;
	if (facts->model[0] == '\0')
		return t->npools == 1 ? &t->pools[0] : NULL;
	return table_pool_by_model(t, facts->model, ret_model);
}

/* The mean is what a request of another router is taken for, whose prompt nobody tells us. */
static void
note_tokens(struct req *req, const struct table_pool *tp)
{
	uint32_t *mean = &req->w->mean_tokens[tp->id];

	if (req->job.facts.tokens != 0) /* planned before: it has waited */
		return;
	if (req->job.text->doc == NULL) { /* no prompt */
		req->job.facts.tokens = 1;
		return;
	}
	req->job.facts.tokens = affinity_tokens(req->job.text->doc);
	req->job.facts.estimate = affinity_estimate(req->job.text->doc, req->job.facts.route);
	*mean = select_mean(*mean, req->job.facts.tokens);
}

/* --- how ----------------------------------------------------------------------------------------- */

static const char short_prompt[] = "threshold";

/* Why the decode engine does it alone, or NULL. */
static const char *
why_direct(struct req *req)
{
	const struct conf_handshake *shake = &req->job.facts.pool.shake;
	const struct connector *c = req->job.connector;
	const struct demand d = {&req->job.facts, req->job.text};
	struct threshold *learned = &req->w->thresholds[req->job.facts.pool.id];
	const char *why;
	bool below;

	if (req->job.rescue == RESCUE_ALONE)
		return "no_prefill";
	if (shake->allow_route_header != 0 && req->override == OVERRIDE_DIRECT)
		return "client";
	if (req->job.facts.samples > 1 && c->samples != NULL &&
		c->samples(&req->job.facts.pool) == SEVERAL_DIRECT)
		return "samples";
	why = c->unfit != NULL ? c->unfit(&d) : NULL;
	if (why != NULL)
		return why;
	if (shake->allow_route_header != 0 && req->override == OVERRIDE_DISAGGREGATED)
		return NULL;
	if (shake->routing_threshold != THRESHOLD_AUTO)
		below = req->job.facts.estimate < shake->routing_threshold;
	else if (req->job.facts.stream)
		below = threshold_direct(learned, req->job.facts.estimate, &req->w->rnd);
	else /* its first token is not seen: nothing would be learned by trying */
		below = req->job.facts.estimate < threshold_now(learned);
	return below ? short_prompt : NULL;
}

/* The engines' way for this request: connector, and how many pairs. */
static enum req_end
choose_way(struct req *req, const struct table_pool *tp, uint32_t *ret_pairs)
{
	const struct connector *c = connector_find(tp->connector);
	const struct demand d = {&req->job.facts, req->job.text};
	const char *const was_direct = req->job.direct;
	size_t pairs = 1, prompts;
	bool split;

	*ret_pairs = 1;
	req->job.direct = NULL;
	req->job.connector = c;
	if (route_by(req->job.facts.route) == ROUTE_BY_ONE) {
		req->job.connector = &connector_single;
		return END_OK;
	}
	if (req->job.facts.route == ROUTE_GENERATE && !c->info->generate_path)
		return END_NOT_FOUND;
	req->job.detail = c->refuses != NULL ? c->refuses(&d) : NULL;
	if (req->job.detail != NULL)
		return END_UNSUPPORTED;
	if (tp->shake.allow_route_header != 0 && req->override == OVERRIDE_UNKNOWN) {
		req->job.detail = "X-PD-Route is neither direct nor disaggregated";
		return END_UNSUPPORTED;
	}
	/* who waits stays what it is */
	req->job.direct = req->waits ? was_direct : why_direct(req);
	if (req->job.direct != NULL) {
		req->job.connector = &connector_direct;
		return END_OK;
	}
	prompts = connector_prompts(&d);
	split = req->job.facts.samples > 1 && c->samples != NULL &&
		c->samples(&req->job.facts.pool) == SEVERAL_BRANCHES;
	/* an answer lists the samples of a prompt side by side: where these are split, so are the prompts */
	if (prompts > 1 && (split || (c->prompts != NULL &&
					     c->prompts(&req->job.facts.pool) == SEVERAL_BRANCHES)))
		pairs = prompts;
	if (split)
		pairs *= req->job.facts.samples;
	if (pairs > req->w->conf->max_fanout)
		return END_TOO_MANY_BRANCHES;
	*ret_pairs = (uint32_t)pairs;
	return END_OK;
}

/* The role whose engine an attempt without a hand-shake is for. */
static enum role
role_alone(const struct connector *c, const struct facts *facts)
{
	return c->engines == ENGINES_SINGLE
		       ? route_single_role(facts->route, facts->pool.shake.single_engine_role)
		       : ROLE_DECODE;
}

/* All endpoints of all branches within the selections' reach, or none. */
static enum req_end
choose_within(struct req *req, struct selection s[ROLE_N], enum role one)
{
	enum req_end why;

	s[ROLE_PREFILL].groups = s[ROLE_DECODE].groups = SELECT_ALL_GROUPS;
	why = look_first(req, s);
	for (uint32_t i = 0; i < req->job.nbranches && why == END_OK; i++) {
		struct attempt *a = req->job.branches[i].attempt;

		s[ROLE_PREFILL].groups = s[ROLE_DECODE].groups = SELECT_ALL_GROUPS;
		if (connector_two_engines(req->job.connector))
			why = choose_pair(req, a, s, NULL);
		else if (choose(a, ROLE_DECODE, &s[one], 0, NULL) == NULL)
			why = why_none(req, &s[one]);
	}
	s[ROLE_PREFILL].groups = s[ROLE_DECODE].groups = SELECT_ALL_GROUPS;
	return why;
}

static void
make_attempts(struct req *req, uint32_t n)
{
	branches_end(&req->job);
	job_make_branches(&req->job, n);
	for (uint32_t i = 0; i < n; i++)
		req->job.branches[i].attempt =
			attempt_new(&req->job.branches[i], req->job.connector, ATTEMPT_FIRST);
}

/* All endpoints of all branches, or none.  Busy ones only where nobody else could serve, even if it were not full. */
static enum req_end
choose_endpoints(
	struct req *req, const struct table *t, const struct table_pool *tp, uint32_t model)
{
	const enum role one = role_alone(req->job.connector, &req->job.facts);
	const uint32_t roles =
		connector_two_engines(req->job.connector) ? SELECT_BOTH_ROLES : 1u << one;
	const uint32_t n = req->job.nbranches;
	struct selection s[ROLE_N];
	enum req_end why;

	prepare(s, req->w, &(struct demand){&req->job.facts, req->job.text}, t, tp, model);
	why = choose_within(req, s, one);
	if (why != END_OK && select_reach_further(s, roles, EP_AWAY_BUSY)) {
		make_attempts(req, n); /* gives back what was reserved */
		req->job.detail = NULL;
		req->lacks = 0;
		why = choose_within(req, s, one);
	}
	if (why != END_OK) {
		branches_end(&req->job);
		job_make_branches(&req->job, 0);
		return why == END_NO_CAPACITY && n > 1 ? why_no_pairs(req, s, n) : why;
	}
	wait_served(
		req, s, connector_two_engines(req->job.connector) ? QUEUE_ALL_ROLES : 1u << one);
	return why;
}

/* The group of the prefill engine that a decode engine is wanted for; false: it is not there any more. */
static bool
group_of(const struct table_pool *tp, const struct endpoint *prefill, uint32_t *ret)
{
	for (uint32_t i = 0; prefill != NULL && i < tp->n[ROLE_PREFILL]; i++)
		if (tp->picks[ROLE_PREFILL][i].slot == prefill->slot) {
			*ret = tp->picks[ROLE_PREFILL][i].group;
			return true;
		}
	return false;
}

/* A decode engine beside the prefill engine of `of`. */
static bool
choose_decode(struct attempt *a, const struct attempt *of, struct selection *d)
{
	uint32_t group = 0;

	if (group_of(d->pool, of->place[ROLE_PREFILL].ep, &group)) {
		d->groups = UINT64_C(1) << group;
		if (choose(a, ROLE_DECODE, d, group, NULL) != NULL)
			return true;
	}
	if (d->pool->pairing == PAIRING_REQUIRE)
		return false;
	d->groups = SELECT_ALL_GROUPS;
	return choose(a, ROLE_DECODE, d, group, NULL) != NULL;
}

static bool
choose_again(struct attempt *next, enum plan_for what, struct attempt *of,
	struct selection s[ROLE_N], enum role one)
{
	s[ROLE_PREFILL].groups = s[ROLE_DECODE].groups = SELECT_ALL_GROUPS;
	if (what == FOR_DECODE)
		return choose_decode(next, of, &s[ROLE_DECODE]);
	if (what == FOR_BOTH)
		return choose_pair(NULL, next, s, of) == END_OK;
	return choose(next, ROLE_DECODE, &s[one], 0, of) != NULL;
}

bool
plan_again(struct attempt *next, enum plan_for what, struct attempt *of, enum ep_away most,
	bool *ret_last_resort)
{
	struct facts *facts = next->t.of.facts;
	struct worker *w = next->w;
	const struct table *t = rcu_enter(w->seg, w->slot);
	const enum role one = what == FOR_ONE ? role_alone(next->t.connector, facts) : ROLE_DECODE;
	const uint32_t roles = what == FOR_BOTH ? SELECT_BOTH_ROLES : 1u << one;
	uint32_t model = TABLE_ANY_MODEL;
	const struct table_pool *tp = find_pool(facts, t, &model);
	bool found = false;
	struct selection s[ROLE_N];

	w->planning = true;
	if (tp != NULL && tp->id == facts->pool.id) {
		prepare(s, w, &next->t.of, t, tp, model);
		s[ROLE_PREFILL].again = s[ROLE_DECODE].again = true;
		do
			found = choose_again(next, what, of, s, one);
		while (!found && select_reach_further(s, roles, most));
		if (ret_last_resort != NULL)
			*ret_last_resort =
				found && (s[ROLE_PREFILL].reach == EP_AWAY_EJECTED ||
						 s[ROLE_DECODE].reach == EP_AWAY_EJECTED);
	}
	w->planning = false;
	rcu_leave(w->seg, w->slot);
	wait_settle(w, facts->pool.id);
	return found;
}

/* What was planned after the attempts were made. */
static void
tell_attempts(struct req *req)
{
	for (uint32_t i = 0; i < req->job.nbranches; i++)
		attempt_take_share(req->job.branches[i].attempt);
}

static enum req_end
plan(struct req *req, const struct table *t)
{
	uint32_t model, nbranches;
	const struct table_pool *tp = find_pool(&req->job.facts, t, &model);
	enum req_end why;

	req->job.detail = NULL;
	if (tp == NULL)
		return END_MODEL_NOT_FOUND;
	req->job.facts.pool = (struct req_pool){.id = tp->id,
		.name = seg_pool_name(req->w->seg, tp->id),
		.connector = tp->connector,
		.shake = tp->shake,
		.timeouts = tp->timeouts,
		.rescue = tp->rescue,
		.ejection = tp->ejection,
		.queue = tp->queue};
	if (tp->rescue.allow_timeout_header != 0 &&
		req->client_deadline_ms == CLIENT_DEADLINE_WRONG) {
		req->job.detail =
			"X-Request-Timeout-Ms is no number of milliseconds from 1 to 86400000";
		return END_UNSUPPORTED;
	}
	note_tokens(req, tp);
	why = choose_way(req, tp, &nbranches);
	if (why != END_OK)
		return why;
	/* Both engines before the prefill engine is asked: nothing may queue between the legs (vLLM leases
	 * the KV for 30 s). */
	why = wait_before(req, tp);
	if (why != END_OK)
		return why;
	make_attempts(req, nbranches);
	req->lacks = 0;
	why = choose_endpoints(req, t, tp, model);
	if (why != END_OK)
		return why;
	if (req->job.text->doc != NULL) {
		job_share_out(&req->job);
		resume_plan(&req->job);
		rewrite_plan(&req->job);
		tell_attempts(req);
	}
	budget_request(&req->w->budgets[tp->id], clock_ms());
	if (req->job.connector == &connector_direct)
		metric_add(req->w->slab, M_DIRECT, 1);
	if (req->job.direct == short_prompt)
		metric_add(req->w->slab, M_DIRECT_SHORT, 1);
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

		if ((why == END_MODEL_NOT_FOUND ||
			    t->pools[ep->pool].id == req->job.facts.pool.id) &&
			ep_state_get(req->w->seg, ep->slot) == EP_STARTING)
			return true;
	}
	return false;
}

/* One read section.  END_OK, or why not; *ret_most_ms: how long that may change for, 0: it does not. */
static enum req_end
plan_once(struct req *req, uint64_t *ret_most_ms)
{
	struct worker *w = req->w;
	const struct table *t =
		rcu_enter(w->seg, w->slot); /* published before any worker is forked */
	enum req_end why;

	w->planning = true;
	why = plan(req, t);
	w->planning = false;
	*ret_most_ms = why != END_OK && may_change(req, t, why) ? t->plan_wait_ms : 0;
	rcu_leave(w->seg, w->slot);
	return why;
}

/* No prefill engine is up: decode engines may do it alone.  False: they may not, or cannot either. */
static bool
go_alone(struct req *req)
{
	if (req->job.rescue == RESCUE_ALONE ||
		req->job.facts.pool.rescue.fallback != FALLBACK_DIRECT ||
		!connector_two_engines(req->job.connector))
		return false;
	wait_leave(req); /* it stood there for other places */
	req->job.rescue = RESCUE_ALONE;
	return true;
}

void
plan_request(struct req *req)
{
	uint64_t most_ms;
	enum req_end why;

	do
		why = plan_once(req, &most_ms);
	while ((why == END_NO_CAPACITY && wait_again(req, &why)) ||
		(why == END_NO_PREFILL && most_ms == 0 && go_alone(req)));
	wait_settle_for(req);
	if (why == END_OK) {
		req_event(req, RQ_PLANNED);
	} else if (why == END_NO_CAPACITY && req->waits) {
		return; /* until it is called */
	} else if (most_ms != 0) {
		if (req->waits)
			req->deadline_ms = 0; /* of another wait */
		wait_leave(req);
		req_wait(req, why, most_ms);
	} else {
		req_refuse(req, why, req->job.detail);
	}
}
