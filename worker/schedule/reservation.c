#include "worker/schedule/reservation.h"

#include <assert.h>

#include "shm/busy.h"
#include "shm/core/rcu.h"
#include "shm/eject.h"
#include "shm/load.h"
#include "shm/restart.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/schedule/wait.h"

bool
reservation_of_this_life(const struct worker *w, const struct reservation *r)
{
	return r->life == restart_life(w->seg, r->ep->slot);
}

void
reservation_sent(struct worker *w, struct reservation *r)
{
	if (r->state != RESERVATION_HELD)
		return;
	load_sent(w->seg, w->slot, r->ep->slot, 1);
	r->state = RESERVATION_SENT;
}

void
reservation_answered(struct worker *w, struct reservation *r)
{
	if (r->state != RESERVATION_SENT)
		return;
	load_sent(w->seg, w->slot, r->ep->slot, -1);
	r->state = RESERVATION_HELD;
}

void
reservation_release(struct worker *w, struct reservation *r)
{
	reservation_answered(w, r);
	if (r->state == RESERVATION_NONE)
		return;
	load_tokens_sub(w->seg, w->slot, r->ep->slot, r->tokens);
	load_release(w->seg, w->slot, r->ep->slot);
	r->tokens = 0;
	r->state = RESERVATION_NONE;
	wait_released(w, r->pool, r->role);
}

void
reservation_drop_trial(struct worker *w, struct reservation *r)
{
	const uint64_t trial = r->trial, mark = r->busy;
	bool due = false;

	r->trial = r->busy = 0;
	if (trial != 0)
		due = eject_trial_none(w->seg, r->ep->slot, trial);
	if (mark != 0)
		due |= busy_none(w->seg, r->ep->slot, mark);
	if (due)
		wait_released(w, r->pool, r->role); /* a waiter may take the trial */
}

void
reservation_drop(struct worker *w, struct reservation *r)
{
	if (r->ep == NULL)
		return;
	reservation_drop_trial(w, r);
	reservation_release(w, r);
	connpool_unref(w->connpool, &r->ep);
}

void
reservation_move(struct worker *w, struct reservation *from, struct reservation *to)
{
	reservation_answered(w, from);
	assert(from->state != RESERVATION_NONE && to->state == RESERVATION_NONE);
	assert(from->ep->slot == to->ep->slot);
	to->state = RESERVATION_HELD;
	to->tokens = from->tokens;
	to->guess = from->guess;
	to->kept = from->kept;
	from->state = RESERVATION_NONE;
	from->tokens = 0;
}

/* The endpoint's limit as the current table has it; false: it is not the same endpoint any more. */
static bool
find_limit(const struct table *t, const struct reservation *r, uint32_t *ret)
{
	for (uint32_t i = 0; i < t->npools; i++) {
		const struct table_pool *tp = &t->pools[i];

		for (uint32_t k = 0; tp->id == r->pool && k < tp->n[r->role]; k++)
			if (tp->picks[r->role][k].slot == r->ep->slot &&
				tp->picks[r->role][k].tag == r->ep->tag) {
				*ret = tp->picks[r->role][k].max_inflight;
				return true;
			}
	}
	return false;
}

bool
reservation_again(struct worker *w, struct reservation *r, uint32_t tokens)
{
	const struct table *t;
	uint32_t limit;
	bool up;

	if (r->state != RESERVATION_NONE)
		return true;
	if (r->ep == NULL)
		return false;
	t = rcu_enter(w->seg, w->slot);
	if (find_limit(t, r, &limit) && load_reserve(w->seg, w->slot, r->ep->slot, limit)) {
		r->state = RESERVATION_HELD;
		r->life = restart_life(w->seg, r->ep->slot);
		r->tokens = load_tokens_add(w->seg, w->slot, r->ep->slot, tokens);
	}
	/* The state after the reservation, as select_reserve() reads it: once an operator was told that
	 * the endpoint is drained, no request goes there.  Pairs with ep_state_drain(). */
	up = ep_state_get(w->seg, r->ep->slot) == EP_UP;
	rcu_leave(w->seg, w->slot);
	if (!up)
		reservation_release(w, r); /* wakes waiters: not inside a read section */
	return r->state != RESERVATION_NONE;
}
