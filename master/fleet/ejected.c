#include "master/fleet/ejected.h"

#include "master/fleet/endpoint.h"
#include "master/fleet/waiters.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/busy.h"
#include "shm/core/rcu.h"
#include "shm/eject.h"
#include "shm/tally.h"

#define PROBED "endpoint back, it answers probes"

static bool
clear(const struct endpoint *ep, bool refused, const char *msg)
{
	if (!eject_clear(ep->fleet->seg, ep->engine.slot, refused, clock_ms()))
		return false;
	log_info(msg, LOG_S("url", ep->engine.url), LOG_S("role", role_name(ep->engine.role)),
		LOG_S("pool", ep->engine.pool_name),
		LOG_S("last", tally_last_name(ep->fleet->seg, ep->engine.slot)));
	return true;
}

void
ejected_up(const struct endpoint *ep)
{
	(void)busy_over(ep->fleet->seg, ep->engine.slot);
	(void)clear(ep, false, PROBED); /* waiters are woken when it is up */
}

void
ejected_probed(const struct endpoint *ep)
{
	if (clear(ep, true, PROBED))
		waiters_wake(ep->fleet->waiters);
}

bool
ejected_undrained(const struct endpoint *ep)
{
	return clear(ep, false, "endpoint back, undrained by pdctl");
}

/* Where the current table lists the endpoint, or NULL. */
static const struct table_pool *
pool_of(const struct endpoint *ep)
{
	const struct table *t = rcu_current(ep->fleet->writer);

	for (uint32_t i = 0; t != NULL && i < t->npools; i++) {
		const struct table_pool *tp = &t->pools[i];

		for (uint32_t k = 0; k < tp->n[ep->engine.role]; k++)
			if (tp->picks[ep->engine.role][k].slot == ep->engine.slot)
				return tp;
	}
	return NULL;
}

void
ejected_slow(const struct endpoint *ep)
{
	const struct engine *e = &ep->engine;
	const struct table_pool *tp = pool_of(ep);
	uint64_t ms = 0;

	if (tp != NULL)
		ms = eject_at_once(ep->fleet->seg, tp, e->role, e->slot, clock_ms());
	if (ms > 0)
		log_warn("endpoint ejected, it is slow", LOG_S("url", e->url),
			LOG_S("role", role_name(e->role)), LOG_S("pool", e->pool_name),
			LOG_U("for_ms", ms));
}

void
ejected_trim(struct fleet *f)
{
	const struct table *t = rcu_current(f->writer);

	for (uint32_t i = 0; t != NULL && i < t->npools; i++)
		for (enum role role = 0; role < ROLE_N; role++) {
			const struct table_pool *tp = &t->pools[i];
			int pick;

			while ((pick = eject_bring_back(f->seg, tp, role, clock_ms())) >= 0) {
				const uint32_t at = tp->picks[role][pick].endpoint;

				log_info("endpoint back, too few of its role would be left",
					LOG_S("url", t->endpoints[at].url),
					LOG_S("role", role_name(role)), LOG_S("pool", tp->name),
					LOG_S("last", tally_last_name(
							      f->seg, tp->picks[role][pick].slot)));
				waiters_wake(f->waiters);
			}
		}
}
