#include "master/fleet/slots.h"

#include <stdint.h>
#include <stdlib.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/state.h"
#include "master/probe/health.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/core/rcu.h"
#include "shm/core/seg.h"
#include "shm/load.h"

#define LOGGED_MAX 64 /* endpoints that drained at once and have a line of the log each */

struct slots {
	uint32_t lowest; /* no slot below it is free; one reload may search hundreds of slots */
	uint32_t n;
	bool used[]; /* [n] */
};

struct slots *
slots_new(const struct fleet *f)
{
	const uint32_t n = f->seg->hdr->max_endpoints;
	struct slots *s = mem_zero(sizeof(*s) + n * sizeof(s->used[0]));

	s->n = n;
	return s;
}

void
slots_free(struct slots **ps)
{
	free(*ps);
	*ps = NULL;
}

/* --- slots are freed ----------------------------------------------------------------------- */

static void
log_drained(const struct endpoint *ep, size_t n)
{
	const struct engine *e = &ep->engine;

	log_write(n > LOGGED_MAX ? LOG_L_DEBUG : LOG_L_INFO, "endpoint drained",
		(const struct log_field[]){LOG_S("url", e->url), LOG_S("role", role_name(e->role)),
			LOG_S("pool", e->pool_name)},
		3);
}

static bool
has_drained(const struct endpoint *ep)
{
	const struct fleet *f = ep->fleet;

	return ep->dropped && rcu_passed(f->writer, ep->cookie) &&
	       load_count(f->seg, ep->engine.slot) == 0 &&
	       load_kv_sum(f->seg, ep->engine.slot) == 0;
}

static size_t
reap(struct fleet *f)
{
	struct slots *s = f->slots;
	size_t n = 0;

	for (struct endpoint *ep = TAILQ_FIRST(&f->draining), *next; ep != NULL; ep = next) {
		const uint32_t slot = ep->engine.slot;

		next = TAILQ_NEXT(ep, link);
		if (!has_drained(ep))
			continue;
		log_drained(ep, ++n);
		ep_state_set(f->seg, slot, EP_EMPTY);
		s->used[slot] = false;
		s->lowest = slot < s->lowest ? slot : s->lowest;
		endpoint_draining_remove(ep);
		endpoint_free(&ep);
	}
	if (n > LOGGED_MAX)
		log_info(
			"more endpoints drained than are logged one by one", LOG_U("endpoints", n));
	return n;
}

void
slots_reap(struct fleet *f)
{
	(void)reap(f);
}

/* --- slots are given ----------------------------------------------------------------------- */

static uint32_t
find_free(struct slots *s)
{
	while (s->lowest < s->n && s->used[s->lowest])
		s->lowest++;
	return s->lowest < s->n ? s->lowest : ENGINE_NO_SLOT;
}

static bool
take(struct endpoint *ep)
{
	struct fleet *f = ep->fleet;
	uint32_t slot = find_free(f->slots);

	if (slot == ENGINE_NO_SLOT && reap(f) > 0)
		slot = find_free(f->slots);
	if (slot == ENGINE_NO_SLOT)
		return false;
	f->slots->used[slot] = true;
	ep->engine.slot = slot;
	ep_slot_begin(f->seg, slot);
	state_set(ep, EP_STARTING, false);
	return true;
}

bool
slots_fill(struct fleet *f)
{
	bool any = false;

	for (size_t i = 0; i < f->norder; i++) {
		struct endpoint *ep = f->order[i];

		/* An endpoint whose predecessor of the same key still drains waits for that one. */
		if (ep->engine.slot != ENGINE_NO_SLOT || endpoint_draining_find(f, ep) != NULL)
			continue;
		if (!take(ep)) /* nor is there a slot for the endpoints behind this one */
			break;
		health_start(&ep->engine);
		any = true;
	}
	return any;
}

/* --- their endpoints come and go ----------------------------------------------------------- */

void
slots_drop(struct endpoint *ep)
{
	ep->up_wanted = false;
	ep->dropped = false;
	ep->drained = false;
	ep->weight = 0;
	state_set(ep, EP_DRAINING, false);
}

void
slots_revive(struct endpoint *ep)
{
	ep->dropped = false;
	state_set(ep, EP_STARTING, false);
}

/* --- the way back ------------------------------------------------------------------------- */

static void
map_list(const struct endpoint_list *list, const struct endpoint **map)
{
	const struct endpoint *ep;

	TAILQ_FOREACH(ep, list, link)
	if (ep->engine.slot != ENGINE_NO_SLOT)
		map[ep->engine.slot] = ep;
}

const struct endpoint **
slots_map(const struct fleet *f)
{
	const struct endpoint **map = mem_array(f->seg->hdr->max_endpoints, sizeof(*map));

	map_list(&f->live, map);
	map_list(&f->draining, map);
	return map;
}
