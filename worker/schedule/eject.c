#include "worker/schedule/eject.h"

#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/eject.h"
#include "shm/load.h"
#include "shm/core/rcu.h"
#include "worker/base/core.h"
#include "worker/net/leg.h"
#include "worker/attempt/pair.h"
#include "worker/net/connpool.h"
#include "worker/request/request.h"
#include "worker/schedule/wait.h"

/* Where an endpoint stands in the current table. */
struct place {
	const struct table_pool *pool; /* NULL: no longer */
	enum role role;
};

/* The leg whose engine a verdict is on: a question is asked for the sake of another; NULL: nobody's. */
static struct leg *
judged_for(struct leg *leg)
{
	if (leg->pair == NULL)
		return NULL;
	leg = pair_asked_for(leg);
	return leg->ep != NULL && !leg->judged ? leg : NULL;
}

static bool
counts(struct leg *leg)
{
	return leg->kind != LEG_ASK && judged_for(leg) != NULL;
}

static bool
lists(const struct table_pool *tp, enum role role, const struct endpoint *ep)
{
	for (uint32_t i = 0; i < tp->n[role]; i++)
		if (tp->picks[role][i].slot == ep->slot && tp->picks[role][i].tag == ep->tag)
			return true;
	return false;
}

/* Of the pool's number, whatever it is called by now; inside the read section. */
static struct place
find(const struct table *t, uint32_t pool_id, const struct endpoint *ep)
{
	for (uint32_t i = 0; i < t->npools; i++)
		for (enum role role = 0; role < ROLE_N && t->pools[i].id == pool_id; role++)
			if (lists(&t->pools[i], role, ep))
				return (struct place){&t->pools[i], role};
	return (struct place){NULL, ROLE_PREFILL};
}

static void
back(struct leg *leg)
{
	const struct endpoint *ep = leg->ep;
	const uint64_t trial = leg->trial;

	leg->trial = 0;
	if (!eject_trial_good(leg->w->seg, ep->slot, trial, clock_ms()))
		return;
	log_info("endpoint back, its trial went well", LOG_S("url", ep->url),
		LOG_S("role", role_name(pair_role(leg))),
		LOG_S("pool", leg->pair->req->facts.pool.name));
	wait_released(leg); /* there is room for more */
}

void
eject_begun(struct leg *leg)
{
	if (counts(leg) && leg->trial != 0)
		back(leg);
}

void
eject_good(struct leg *leg)
{
	struct seg *seg = leg->w->seg;

	if (!counts(leg))
		return;
	leg->judged = true;
	if (leg->trial != 0)
		back(leg);
	else if (ep_tag(seg, leg->ep->slot) == leg->ep->tag)
		eject_good_answer(
			seg, leg->ep->slot, clock_ms(), &leg->pair->req->facts.pool.ejection);
}

/* For how long the endpoint is ejected now; 0: it was not by this. */
static uint64_t
charge(struct leg *leg, const struct place *at, bool reached)
{
	struct seg *seg = leg->w->seg;
	const uint32_t ep = leg->ep->slot;
	const uint64_t now_ms = clock_ms(), trial = leg->trial;
	uint64_t ms = 0;

	leg->trial = 0;
	if (trial != 0)
		ms = eject_trial_bad(seg, ep, trial, reached, now_ms, &at->pool->ejection);
	return ms != 0 ? ms : eject_bad_answer(seg, at->pool, at->role, ep, reached, now_ms);
}

void
eject_bad(struct leg *failed)
{
	const bool reached = failed->fail != LEG_FAIL_CONNECT && !leg_connecting(failed);
	struct leg *leg = judged_for(failed);
	struct worker *w = failed->w;
	struct place at;
	uint64_t ms = 0;

	if (leg == NULL)
		return;
	leg->judged = true;
	at = find(rcu_enter(w->seg, w->slot), leg->pair->req->facts.pool.id, leg->ep);
	if (at.pool != NULL)
		ms = charge(leg, &at, reached);
	rcu_leave(w->seg, w->slot);
	eject_none(leg);
	if (ms > 0)
		log_warn("endpoint ejected, its requests fail", LOG_S("url", leg->ep->url),
			LOG_S("role", role_name(at.role)),
			LOG_S("pool", leg->pair->req->facts.pool.name),
			LOG_S("last", reached ? "failed" : "refused"), LOG_U("for_ms", ms),
			LOG_S("req", leg->pair->req->facts.id));
}

void
eject_none(struct leg *leg)
{
	const uint64_t trial = leg->trial;

	leg->trial = 0;
	if (trial != 0 && eject_trial_none(leg->w->seg, leg->ep->slot, trial))
		wait_released(leg); /* for whoever tries it next */
}
