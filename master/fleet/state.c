#include "master/fleet/state.h"

#include "master/fleet/ejected.h"
#include "master/fleet/endpoint.h"
#include "master/fleet/waiters.h"
#include "master/probe/health.h"
#include "shm/base/clock.h"
#include "shm/busy.h"

void
state_set(struct endpoint *ep, enum ep_state state, bool ramps)
{
	const struct engine *e = &ep->engine;
	struct fleet *f = ep->fleet;

	ep->state = state;
	if (ep->drained)
		ep_state_drain(f->seg, e->slot);
	else if (ramps && e->pool->slow_start_ms > 0)
		ep_state_recovered(f->seg, e->slot, clock_ms());
	else
		ep_state_set(f->seg, e->slot, state);
	/* Waiters take the new slots, or hear that none is left. */
	waiters_wake(f->waiters);
}

void
state_drain(struct endpoint *ep)
{
	if (ep->drained)
		return;
	ep->drained = true;
	if (ep->engine.slot == ENGINE_NO_SLOT)
		return;
	state_set(ep, ep->state, false);
	ejected_trim(ep->fleet);
}

unsigned
state_undrain(struct endpoint *ep)
{
	unsigned ended = ep->drained ? ENDED_DRAIN : 0;

	ep->drained = false;
	if (ep->engine.slot == ENGINE_NO_SLOT)
		return ended;
	if (ejected_undrained(ep))
		ended |= ENDED_EJECTION;
	if (busy_over(ep->fleet->seg, ep->engine.slot))
		ended |= ENDED_BUSY;
	/* Another engine may stand there by now: what is known of the former one is void. */
	if ((ended & (ENDED_DRAIN | ENDED_EJECTION)) != 0 && !health_learn_anew(&ep->engine))
		state_set(ep, ep->state, ep->state == EP_UP);
	else if (ended == ENDED_BUSY)
		waiters_wake(ep->fleet->waiters);
	return ended;
}
