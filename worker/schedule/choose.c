#include "worker/schedule/choose.h"

#include "shm/base/clock.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/base/facts.h"
#include "worker/net/connpool.h"
#include "worker/schedule/affinity.h"
#include "worker/schedule/cached.h"

bool
choose_plain_only(const struct worker *w, const struct table_pool *tp)
{
	return tp->tls && connpool_tls(w, tp->name) == NULL;
}

void
choose_prepare(struct selection s[ROLE_N], struct worker *w, const struct demand *d,
	const struct table *t, const struct table_pool *tp, uint32_t model)
{
	const bool plain_only = choose_plain_only(w, tp);
	uint64_t now_ms = clock_ms();

	for (enum role role = 0; role < ROLE_N; role++) {
		s[role] = (struct selection){.seg = w->seg,
			.slot = w->slot,
			.table = t,
			.pool = tp,
			.role = role,
			.model = model,
			.plain_only = plain_only,
			.holder = d->facts->holder,
			.groups = SELECT_ALL_GROUPS,
			.avoid = d->facts->tried != NULL ? d->facts->tried->slot : NULL,
			.navoid = tried_count(d->facts),
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

/* --- one engine ---------------------------------------------------------------------------------- */

/*
 * Requests that may not choose among the same endpoints go round on cursors of their own.  On one cursor the requests
 * of one group or model would move it past endpoints that only the other requests may choose.
 */
static size_t
partition(const struct selection *s, uint32_t group)
{
	return (group + (s->model != TABLE_ANY_MODEL ? s->model : 0)) % TABLE_GROUPS;
}

/*
 * Where a retry begins its round: at the endpoint whose turn is next, the following retry one further, so that the
 * load of an endpoint that fails is spread over the others.  Not at the endpoint that the failed attempt had.
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

/* `group`: the group that the endpoint must be of, or 0.  *ret_moved: the slot of `old` was taken.  Returns the pick,
 * or NULL. */
static const struct table_pick *
choose(struct worker *w, struct selection *s, uint32_t group, struct reservation *to,
	struct reservation *old, bool *ret_moved)
{
	const size_t at = (s->pool->id * ROLE_N + s->role) * TABLE_GROUPS + partition(s, group);
	const struct table_pick *pick;
	struct selected held;

	*ret_moved = false;
	s->cursor = &w->cursor[at];
	if (s->again) {
		s->retry_at = retry_from(s, w->cursor[at], &w->retry_turn[at], old);
		s->cursor = &s->retry_at;
	}
	pick = select_reserve(s, &held);
	if (pick == NULL && old != NULL && old->state != RESERVATION_NONE) {
		pick = select_again(s, old->ep->slot, &held);
		*ret_moved = pick != NULL;
	}
	if (pick == NULL)
		return NULL;
	if (*ret_moved)
		held.guess = (struct prefix_guess){.prompt = 0};
	*to = (struct reservation){.ep = connpool_endpoint(w->connpool, s->table,
					   &s->table->endpoints[pick->endpoint]),
		.pool = s->pool->id,
		.role = s->role,
		.state = *ret_moved ? RESERVATION_NONE : RESERVATION_HELD,
		.tokens = *ret_moved ? 0 : held.tokens,
		.guess = held.guess,
		.trial = held.trial,
		.busy = held.busy};
	to->life = to->ep->life;
	if (*ret_moved)
		reservation_move(w, old, to);
	return pick;
}

bool
choose_one(struct worker *w, struct selection *s, struct reservation *to, struct reservation *old)
{
	bool moved;

	if (choose(w, s, 0, to, old, &moved) == NULL)
		return false;
	cached_keep(w, s, to);
	return true;
}

/* --- both engines -------------------------------------------------------------------------------- */

static uint64_t
gcd(uint64_t a, uint64_t b)
{
	return b == 0 ? a : gcd(b, a % b);
}

/*
 * Two rounds that turn in step would always combine the same engines where their lengths have a common divisor.  Each
 * time both are back where they began, the decode round passes a turn.
 */
static void
turn_rounds(struct worker *w, const struct selection *s, uint32_t group)
{
	const struct table_pool *tp = s->pool;
	const uint64_t np = tp->turns[ROLE_PREFILL][group], nd = tp->turns[ROLE_DECODE][group];
	const uint64_t common = gcd(np, nd);
	uint32_t *round = &w->round[tp->id * TABLE_GROUPS + partition(s, group)];

	if (s->again || common == 1 || ++*round < np / common * nd)
		return;
	*round = 0;
	select_pass(s);
}

/* The choice comes to nothing: a slot that has moved goes back, any other is released. */
static void
give_back(struct worker *w, struct reservation *r, struct reservation *moved_from)
{
	if (moved_from != NULL)
		reservation_move(w, r, moved_from);
	reservation_drop(w, r);
}

/* A decode engine beside that prefill engine; *ret_grouped: it is of the same group. */
static bool
choose_beside(struct worker *w, struct selection *d, uint32_t group, struct reservation *to,
	struct reservation *old, bool *ret_grouped)
{
	bool moved;

	d->groups = UINT64_C(1) << group;
	*ret_grouped = choose(w, d, group, to, old, &moved) != NULL;
	if (*ret_grouped || d->pool->pairing == PAIRING_REQUIRE)
		return *ret_grouped;
	d->groups = SELECT_ALL_GROUPS;
	return choose(w, d, group, to, old, &moved) != NULL;
}

/* The prefill engine by its policy, then a decode engine beside it.  Where the pool requires one group, a group without
 * a free decode engine is no choice. */
enum chosen
choose_both(struct worker *w, struct selection s[ROLE_N], struct reserved *to, struct reserved *old)
{
	struct selection *p = &s[ROLE_PREFILL], *d = &s[ROLE_DECODE];
	struct reservation *old_p = old == NULL ? NULL : &old->of[ROLE_PREFILL];
	struct reservation *old_d = old == NULL ? NULL : &old->of[ROLE_DECODE];
	enum chosen chosen = CHOSEN_NONE;
	const struct table_pick *pick;
	bool moved, grouped;

	while ((pick = choose(w, p, 0, &to->of[ROLE_PREFILL], old_p, &moved)) != NULL) {
		if (choose_beside(w, d, pick->group, &to->of[ROLE_DECODE], old_d, &grouped)) {
			if (grouped)
				turn_rounds(w, d, pick->group);
			cached_keep(w, p, &to->of[ROLE_PREFILL]);
			cached_keep(w, d, &to->of[ROLE_DECODE]);
			return CHOSEN_BOTH;
		}
		give_back(w, &to->of[ROLE_PREFILL], moved ? old_p : NULL);
		if (p->pool->pairing == PAIRING_PREFER) {
			chosen = CHOSEN_NO_DECODE;
			break;
		}
		p->groups &= ~(UINT64_C(1) << pick->group);
	}
	p->groups = d->groups = SELECT_ALL_GROUPS;
	return chosen;
}

/* --- another decode engine ----------------------------------------------------------------------- */

/* The group of a prefill endpoint; false: the pool does not have the endpoint any more. */
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

bool
choose_decode(struct worker *w, struct selection *d, struct reservation *to,
	const struct endpoint *prefill)
{
	uint32_t group = 0;
	bool moved, grouped, found;

	if (group_of(d->pool, prefill, &group)) {
		found = choose_beside(w, d, group, to, NULL, &grouped);
	} else {
		if (d->pool->pairing == PAIRING_REQUIRE)
			return false;
		d->groups = SELECT_ALL_GROUPS;
		found = choose(w, d, 0, to, NULL, &moved) != NULL;
	}
	if (found)
		cached_keep(w, d, to);
	return found;
}
