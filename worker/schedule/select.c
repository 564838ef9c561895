#include "worker/schedule/select.h"

#include <limits.h>
#include <string.h>

#include "shm/busy.h"
#include "shm/eject.h"
#include "shm/load.h"
#include "shm/table.h"
#include "worker/schedule/policy.h"

#define TRIES 64 /* lost races for the last slot of an endpoint before the selection says "full" */
#define OTHERS_SHARE 64 /* the means of requests at an endpoint follow the last 64 or so looks */
#define TRIAL_SPARE_MS 2000 /* until a timeout is acted on, and between the legs */

static void
set_view(struct policy_view *v, const struct selection *s)
{
	const struct table_pool *tp = s->pool;
	const enum load_kind load = tp->load[s->role];

	*v = (struct policy_view){.seg = s->seg,
		.picks = tp->picks[s->role],
		.n = tp->n[s->role],
		.max_weight = tp->max_weight[s->role],
		.holder = s->holder,
		.groups = s->groups,
		.avoid = s->avoid,
		.navoid = s->navoid,
		.model = s->model,
		.plain_only = s->plain_only,
		.reach = s->reach,
		.load = load,
		.own = load == LOAD_TOKENS ? s->tokens : 1,
		.foreign_unit = load == LOAD_TOKENS ? s->mean_tokens : 1,
		.tokens = s->tokens,
		.unit_tokens = load == LOAD_TOKENS || s->mean_tokens == 0 ? 1 : s->mean_tokens,
		.found = s->found,
		.others = s->others,
		.now_ms = s->now_ms,
		.slow_start_ms = tp->slow_start_ms,
		.foreign_max_age_ms = s->foreign_max_age_ms,
		.keyed = s->keyed,
		.key = s->key,
		.rnd = s->rnd};
}

void
select_means_use(struct select_means *m, struct selection *s)
{
	const struct table_pool *tp = s->pool;
	const uint32_t n = tp->n[s->role];
	struct ep_view e;

	if (s->computes && m->work != 0)
		s->mean_tokens = m->work;
	if (n == 0)
		return;
	e = ep_view(s->seg, tp->picks[s->role][policy_below(s->rnd, n)].slot, s->now_ms,
		s->foreign_max_age_ms);
	m->own += (e.count - m->own) / OTHERS_SHARE;
	m->others += (e.foreign - m->others) / OTHERS_SHARE;
	s->others = policy_others(m->own, m->others);
}

void
select_means_add(struct select_means *m, const struct selection *s, uint32_t tokens)
{
	if (s->computes)
		m->work = select_mean(m->work, tokens);
}

void
select_pass(const struct selection *s)
{
	struct policy_view v;

	set_view(&v, s);
	v.cursor = *s->cursor;
	if (policy_find(s->pool->policy[s->role])(&v) >= 0)
		*s->cursor = v.cursor;
}

static uint64_t
add(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t
least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void
room_add(struct select_room *room, const struct select_room *more)
{
	room->slots = add(room->slots, more->slots);
	room->free = add(room->free, more->free);
}

/* Of one endpoint.  One whose half-open trial is due takes one request. */
static struct select_room
room_at(const struct selection *s, const struct table_pick *pick, const struct ep_view *e)
{
	const uint64_t most = pick->max_inflight != 0 ? pick->max_inflight : UINT64_MAX;
	struct select_room room = {.slots = most};

	if (e->count < most && e->away <= s->reach)
		room.free = e->away == EP_AWAY_NOT && ep_is_out(s->seg, pick->slot)
				    ? 1
				    : most - e->count;
	return room;
}

static void
room_by_group(const struct selection *s, struct select_room ret[TABLE_GROUPS])
{
	struct policy_view v;

	memset(ret, 0, TABLE_GROUPS * sizeof(*ret));
	set_view(&v, s);
	for (uint32_t i = 0; i < v.n; i++) {
		const struct table_pick *pick = &v.picks[i];
		const struct ep_view e =
			ep_view(s->seg, pick->slot, s->now_ms, s->foreign_max_age_ms);
		struct select_room room;

		if (!policy_serves(&v, pick, &e))
			continue;
		room = room_at(s, pick, &e);
		room_add(&ret[pick->group], &room);
	}
}

static struct select_room
room_of_all(const struct select_room groups[TABLE_GROUPS])
{
	struct select_room all = {0};

	for (uint32_t g = 0; g < TABLE_GROUPS; g++)
		room_add(&all, &groups[g]);
	return all;
}

struct select_room
select_room(const struct selection *s)
{
	struct select_room groups[TABLE_GROUPS];

	room_by_group(s, groups);
	return room_of_all(groups);
}

static struct select_room
common_room(const struct select_room *p, const struct select_room *d)
{
	return (struct select_room){least(p->slots, d->slots), least(p->free, d->free)};
}

struct select_room
select_room_of_both(const struct selection s[ROLE_N])
{
	const struct selection *p = &s[ROLE_PREFILL], *d = &s[ROLE_DECODE];
	struct select_room of_p[TABLE_GROUPS], of_d[TABLE_GROUPS];

	if (p->pool->pairing != PAIRING_REQUIRE) {
		const struct select_room all_p = select_room(p), all_d = select_room(d);

		return common_room(&all_p, &all_d);
	}
	room_by_group(p, of_p);
	room_by_group(d, of_d);
	for (uint32_t g = 0; g < TABLE_GROUPS; g++)
		of_p[g] = common_room(&of_p[g], &of_d[g]);
	return room_of_all(of_p);
}

bool
select_served(const struct selection *s)
{
	return select_room(s).slots > 0;
}

uint32_t
select_engines(const struct selection *s)
{
	struct policy_view v;
	uint32_t n = 0;

	set_view(&v, s);
	v.navoid = 0;
	for (uint32_t i = 0; i < v.n; i++) {
		const struct ep_view e =
			ep_view(s->seg, v.picks[i].slot, s->now_ms, s->foreign_max_age_ms);

		n += policy_serves(&v, &v.picks[i], &e);
	}
	return n;
}

/* A bit for each group where an endpoint within that reach could serve, full or not. */
static uint64_t
groups_within(const struct selection *s, enum ep_away reach)
{
	struct policy_view v;
	uint64_t groups = 0;

	set_view(&v, s);
	v.reach = reach;
	for (uint32_t i = 0; i < v.n; i++) {
		const struct ep_view e =
			ep_view(s->seg, v.picks[i].slot, s->now_ms, s->foreign_max_age_ms);

		if (e.away <= reach && policy_serves(&v, &v.picks[i], &e))
			groups |= UINT64_C(1) << v.picks[i].group;
	}
	return groups;
}

/* The least reach where an endpoint could serve; the present reach if there is none. */
static enum ep_away
least_reach(const struct selection *s, enum ep_away most)
{
	for (enum ep_away r = s->reach; r <= most; r++)
		if (groups_within(s, r) != 0)
			return r;
	return s->reach;
}

/* The same of two roles that need a group in common: the least sum of both. */
static void
least_reach_of_both(const struct selection s[ROLE_N], enum ep_away most, enum ep_away ret[ROLE_N])
{
	uint64_t of_d[EP_AWAY_EJECTED + 1];
	unsigned best = UINT_MAX;

	for (enum ep_away d = s[ROLE_DECODE].reach; d <= most; d++)
		of_d[d] = groups_within(&s[ROLE_DECODE], d);
	for (enum ep_away p = s[ROLE_PREFILL].reach; p <= most; p++) {
		const uint64_t of_p = groups_within(&s[ROLE_PREFILL], p);

		for (enum ep_away d = s[ROLE_DECODE].reach; d <= most; d++)
			if ((of_p & of_d[d]) != 0 && p + d < best) {
				best = p + d;
				ret[ROLE_PREFILL] = p;
				ret[ROLE_DECODE] = d;
			}
	}
}

bool
select_reach_further(struct selection s[ROLE_N], uint32_t roles, enum ep_away most)
{
	enum ep_away reach[ROLE_N] = {s[0].reach, s[1].reach};
	bool further = false;

	if (roles == SELECT_BOTH_ROLES && s->pool->pairing == PAIRING_REQUIRE)
		least_reach_of_both(s, most, reach);
	else
		for (enum role r = 0; r < ROLE_N; r++)
			if ((roles >> r & 1) != 0)
				reach[r] = least_reach(&s[r], most);
	for (enum role r = 0; r < ROLE_N; r++) {
		further |= reach[r] != s[r].reach;
		s[r].reach = reach[r];
	}
	return further;
}

/* The most that may pass between a selection and the first byte of its answer. */
static uint64_t
trial_ms(const struct conf_timeouts *t)
{
	const uint64_t decode_ms =
		t->whole_answer_ms > t->first_byte_ms ? t->whole_answer_ms : t->first_byte_ms;

	return 2 * t->connect_ms + t->prefill_ms + t->kv_ready_ms + decode_ms + TRIAL_SPARE_MS;
}

/* Takes the half-open trials of an endpoint that is out.  Where the selection reaches so far it may go without. */
static bool
may_try(const struct selection *s, uint32_t slot, struct selected *ret)
{
	if (!eject_try(
		    s->seg, s->slot, slot, s->now_ms, trial_ms(&s->pool->timeouts), &ret->trial) &&
		s->reach < EP_AWAY_EJECTED)
		return false;
	if (busy_try(s->seg, s->slot, slot, s->now_ms, s->reach >= EP_AWAY_BUSY, &ret->busy))
		return true;
	if (ret->trial != 0)
		(void)eject_trial_none(s->seg, slot, ret->trial);
	ret->trial = 0;
	return false;
}

/* Returns true if the endpoint is up, and neither ejected nor busy unless this request may try it. */
static bool
may_go(const struct selection *s, uint32_t slot, struct selected *ret)
{
	ret->trial = ret->busy = 0;
	return ep_state_get(s->seg, slot) == EP_UP &&
	       (!ep_is_out(s->seg, slot) || may_try(s, slot, ret));
}

/* The tokens that the request adds to the endpoint's load. */
static uint32_t
work(const struct selection *s, uint32_t slot, struct prefix_guess *ret)
{
	*ret = (struct prefix_guess){.prompt = 0};
	if (s->found == NULL)
		return s->tokens;
	*ret = prefix_expect(s->seg, s->found, slot);
	if (!s->computes)
		return s->tokens;
	return ret->expected < s->tokens ? s->tokens - ret->expected : 1;
}

/* Takes a slot there.  False: another worker took the last one in between, ejected the endpoint, or got its trial; or the
 * endpoint is no longer up. */
static bool
reserve(const struct selection *s, const struct table_pick *pick, struct selected *ret)
{
	if (!load_reserve(s->seg, s->slot, pick->slot, pick->max_inflight))
		return false;
	/*
	 * The reservation, a full barrier, before a second look: no request goes to a drained endpoint without
	 * being in its count.  Pairs with ep_state_drain().
	 */
	if (!may_go(s, pick->slot, ret)) {
		load_release(s->seg, s->slot, pick->slot);
		return false;
	}
	ret->tokens =
		load_tokens_add(s->seg, s->slot, pick->slot, work(s, pick->slot, &ret->guess));
	return true;
}

const struct table_pick *
select_again(const struct selection *s, uint32_t slot, struct selected *ret)
{
	struct policy_view v;

	set_view(&v, s);
	for (uint32_t i = 0; i < v.n; i++) {
		const struct table_pick *pick = &s->pool->picks[s->role][i];
		struct ep_view e;

		if (pick->slot != slot)
			continue;
		e = ep_view(s->seg, slot, s->now_ms, s->foreign_max_age_ms);
		return e.away <= s->reach && policy_serves(&v, pick, &e) && may_go(s, slot, ret)
			       ? pick
			       : NULL;
	}
	return NULL;
}

const struct table_pick *
select_reserve(const struct selection *s, struct selected *ret)
{
	/* where one endpoint alone will do there is no choice: any policy that looks at all of them finds it */
	policy_fn *policy =
		policy_find(s->holder != 0 ? POLICY_LEAST_LOADED : s->pool->policy[s->role]);
	struct policy_view v;

	set_view(&v, s);
	for (int tries = 0; tries < TRIES; tries++) {
		const struct table_pick *pick;
		int i;

		v.cursor = *s->cursor;
		i = policy(&v);
		if (i < 0)
			break;
		pick = &s->pool->picks[s->role][i];
		if (!reserve(s, pick, ret))
			continue;
		*s->cursor = v.cursor;
		return pick;
	}
	return NULL;
}
