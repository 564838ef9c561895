#include "master/fleet/facts.h"

#include <math.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/probe/health.h"
#include "shm/base/clock.h"
#include "shm/busy.h"
#include "shm/core/seg.h"
#include "shm/pace.h"
#include "shm/refusal.h"
#include "shm/view.h"
#include "shm/queue.h"

/* As worker/schedule/policy.h weighs it. */
static int
ramp_of(const struct fleet *f, const struct endpoint *ep, uint64_t now)
{
	uint64_t from = ep_view(f->seg, ep->engine.slot, now, 0).ramp_from_ms;
	uint64_t whole = ep->engine.pool != NULL ? ep->engine.pool->slow_start_ms : 0;

	if (ep_state_get(f->seg, ep->engine.slot) != EP_UP || from == 0 || now >= from + whole)
		return -1;
	return now > from ? (int)((now - from) * 100 / whole) : 0;
}

static uint64_t
age_of(uint64_t at_ms, uint64_t now)
{
	return now > at_ms ? now - at_ms : 0;
}

static void
pace_facts(const struct fleet *f, uint32_t slot, struct facts *x)
{
	const uint64_t share = share_word(f->seg, slot);
	const struct pace pace = pace_unpack(pace_word(f->seg, slot));

	x->slow = share_slow(share);
	x->slow_times = share_times(share) / SHARE_TIMES_ONE;
	x->share = (double)share_part(share) / SHARE_WHOLE;
	if (pace.samples > 0)
		x->token_us = exp2((double)pace.token / PACE_DOUBLE - PACE_TOKEN_SHIFT);
}

struct facts
facts_of(const struct endpoint *ep, uint64_t now)
{
	const struct fleet *f = ep->fleet;
	struct facts x = {.ep = ep, .state = "waiting", .ramp = -1};
	uint64_t last_ms;

	x.models = (const char *const *)ep->engine.models.names;
	x.nmodels = ep->engine.models.n;
	if (ep->engine.pool != NULL && ep->engine.pool->nmodels > 0) {
		x.models = (const char *const *)ep->engine.pool->models;
		x.nmodels = ep->engine.pool->nmodels;
	}
	x.has_slot = ep->engine.slot != ENGINE_NO_SLOT;
	if (!x.has_slot)
		return x;
	x.state = ep_state_name(ep_state_get(f->seg, ep->engine.slot));
	x.ramp = ramp_of(f, ep, now);
	x.eject = eject_read(f->seg, ep->engine.slot, now, &x.eject_left_ms);
	x.busy = busy_is(f->seg, ep->engine.slot);
	x.busy_left_ms = busy_left(f->seg, ep->engine.slot, now);
	x.last = tally_last(f->seg, ep->engine.slot, &last_ms);
	x.last_age_ms = age_of(last_ms, now);
	pace_facts(f, ep->engine.slot, &x);
	x.tag = ep_tag(f->seg, ep->engine.slot);
	x.in_flight = load_count(f->seg, ep->engine.slot);
	x.kv_outstanding = load_kv_sum(f->seg, ep->engine.slot); /* after the count */
	x.tokens = load_tokens(f->seg, ep->engine.slot);
	/* as in workers: figures that missed three scrapes do not count */
	x.score = load_score(
		f->seg, ep->engine.slot, now, FOREIGN_SCRAPES * f->conf->stats_interval_ms);
	x.scrape = ep_scrape_get(f->seg, ep->engine.slot);
	x.scraped = x.scrape.at_ms != 0;
	x.age_ms = age_of(x.scrape.at_ms, now);
	return x;
}

const char *
facts_state(const struct facts *x)
{
	if (strcmp(x->state, ep_state_name(EP_UP)) != 0)
		return x->state;
	return x->eject != EJECT_IN ? "ejected" : x->busy ? "busy" : x->slow ? "slow" : x->state;
}

const char *
facts_reason(const struct facts *x)
{
	const struct engine *e = &x->ep->engine;
	const char *why = health_reason(e);

	if (x->ep->source == NULL)
		return "no longer listed, its last requests end";
	if (why[0] == '\0' && x->has_slot)
		why = refusal_text(x->ep->fleet->seg, e->slot);
	return why[0] != '\0' ? why : health_refused(e);
}

void
facts_each(struct fleet *f, void (*fn)(const struct facts *, void *), void *arg)
{
	uint64_t now = clock_ms();
	struct facts x;

	for (size_t i = 0; i < f->norder; i++) {
		x = facts_of(f->order[i], now);
		fn(&x, arg);
	}
	for (struct endpoint *ep = TAILQ_FIRST(&f->draining); ep != NULL;
		ep = TAILQ_NEXT(ep, link)) {
		x = facts_of(ep, now);
		fn(&x, arg);
	}
}

uint32_t
facts_waiting(const struct fleet *f, const struct conf_pool *pool, uint64_t *ret_ms)
{
	uint64_t since_ms, now = clock_ms();
	uint32_t n = 0;

	*ret_ms = 0;
	for (uint32_t id = 0; id < f->seg->hdr->max_pools; id++)
		if (strcmp(seg_pool_name(f->seg, id), pool->name) == 0) {
			n = queue_waiting(f->seg, id, &since_ms);
			*ret_ms = n > 0 && now > since_ms ? now - since_ms : 0;
			break;
		}
	return n;
}
