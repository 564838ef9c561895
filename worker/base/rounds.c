#include "worker/base/rounds.h"

static struct visit_list *
slot_of(struct rounds *r, uint64_t tick)
{
	return &r->slot[tick % VISIT_SLOTS];
}

void
rounds_init(struct rounds *r, uint64_t now_ms)
{
	r->now = r->at = now_ms / WORKER_TICK_MS + 1; /* 0 is no tick */
	for (size_t i = 0; i < VISIT_SLOTS; i++)
		TAILQ_INIT(&r->slot[i]);
}

void
rounds_tick(struct rounds *r, uint64_t now_ms)
{
	const uint64_t now = now_ms / WORKER_TICK_MS + 1;

	r->at = r->now;
	r->now = now > r->now ? now : r->now + 1;
}

/* No object stands in a list beyond VISIT_MOST ticks from the last tick.  After a stall a list may have objects of a later
 * tick: they stand behind those that are due. */
struct visit *
rounds_next(struct rounds *r)
{
	struct visit *v;

	for (uint64_t n = 0; n <= VISIT_SLOTS; n++) {
		v = TAILQ_FIRST(slot_of(r, r->at));
		if (v != NULL && v->tick <= r->now) {
			visit_drop(r, v);
			return v;
		}
		if (r->at == r->now)
			break;
		r->at = r->now - r->at > VISIT_SLOTS ? r->now - VISIT_SLOTS : r->at + 1;
	}
	return NULL;
}

void
visit_drop(struct rounds *r, struct visit *v)
{
	if (v->tick != 0)
		TAILQ_REMOVE(slot_of(r, v->tick), v, link);
	v->tick = 0;
}

void
visit_within(struct rounds *r, struct visit *v, uint64_t ms)
{
	const uint64_t full = ms / WORKER_TICK_MS, ticks = full < 1            ? 1
							   : full < VISIT_MOST ? full
									       : VISIT_MOST;

	if (v->tick != 0 && v->tick <= r->now + ticks)
		return;
	visit_drop(r, v);
	v->tick = r->now + ticks;
	TAILQ_INSERT_TAIL(slot_of(r, v->tick), v, link);
}
