#include "worker/schedule/outcome.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/busy.h"
#include "shm/eject.h"
#include "shm/load.h"
#include "shm/core/rcu.h"
#include "worker/base/core.h"
#include "worker/net/leg.h"
#include "worker/net/connpool.h"
#include "worker/schedule/wait.h"

/* Where an endpoint stands in the current table. */
struct place {
	const struct table_pool *pool; /* NULL: no longer */
	enum role role;
};

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

/* --- busy --------------------------------------------------------------------------------------- */

#define URL_MAX_LOGGED 256
#define RETRY_AFTER "Retry-After:"
#define RETRY_AFTER_MOST 100000u /* seconds that are read; shm/busy.h bounds them */

/* Whether the answer has Retry-After.  *ret_ms: what it says in seconds; 0: a date, or nothing that can be read. */
static bool
retry_after(const struct leg *leg, uint64_t *ret_ms)
{
	const char *p = leg->head, *end = leg->head + leg->head_len, *line_end;
	uint64_t s = 0;

	*ret_ms = 0;
	for (; p < end; p = line_end + 1) {
		line_end = memchr(p, '\n', (size_t)(end - p));
		if (line_end == NULL)
			return false;
		if ((size_t)(line_end - p) > strlen(RETRY_AFTER) &&
			strncasecmp(p, RETRY_AFTER, strlen(RETRY_AFTER)) == 0)
			break;
	}
	if (p >= end)
		return false;
	for (p += strlen(RETRY_AFTER); p < line_end && (*p == ' ' || *p == '\t'); p++)
		;
	for (; p < line_end && *p >= '0' && *p <= '9' && s < RETRY_AFTER_MOST; p++)
		s = s * 10 + (uint64_t)(*p - '0');
	if (p == line_end || *p == '\r' || *p == ' ' || s >= RETRY_AFTER_MOST)
		*ret_ms = s * 1000;
	return true;
}

static inline bool
may_say_busy(int status)
{
	return status == 429 || status == 503;
}

static bool
busy_answer(const struct leg *leg, uint64_t *ret_ms)
{
	bool told;

	*ret_ms = 0;
	if (!may_say_busy(leg->status))
		return false;
	told = leg->head != NULL && retry_after(leg, ret_ms);
	return leg->status == 429 || told;
}

bool
outcome_says_busy(const struct leg *leg)
{
	uint64_t ms;

	return busy_answer(leg, &ms);
}

/* True: the engine said that it has no room, which is neither good nor bad. */
static bool
note_busy(const struct outcome_of *of)
{
	struct leg *leg = of->leg;
	const struct endpoint *ep = leg->ep;
	struct seg *seg = leg->w->seg;
	const uint64_t mark = leg->busy;
	uint64_t ms;

	if (!busy_answer(of->answered, &ms))
		return false;
	leg->busy = 0;
	if (ep_tag(seg, ep->slot) == ep->tag)
		ms = busy_said(seg, ep->slot, mark, clock_ms(), ms);
	log_debug("endpoint busy", LOG_S("url", ep->url), LOG_S("role", role_name(of->role)),
		LOG_S("pool", of->pool_name), LOG_U("for_ms", ms), LOG_S("req", of->request));
	return true;
}

/* A request that found the endpoint busy was taken. */
static inline void
has_room(struct leg *leg)
{
	if (leg->busy == 0)
		return;
	leg->busy = 0;
	if (busy_over(leg->w->seg, leg->ep->slot))
		wait_released(leg); /* there is room for more */
}

/* --- outcomes ------------------------------------------------------------------------------------ */

static void
back(const struct outcome_of *of)
{
	struct leg *leg = of->leg;
	const uint64_t trial = leg->trial;

	leg->trial = 0;
	if (!eject_trial_good(leg->w->seg, leg->ep->slot, trial, clock_ms()))
		return;
	log_info("endpoint back, its trial went well", LOG_S("url", leg->ep->url),
		LOG_S("role", role_name(of->role)), LOG_S("pool", of->pool_name));
	wait_released(leg); /* there is room for more */
}

void
outcome_begun(const struct outcome_of *of)
{
	has_room(of->leg);
	if (of->leg->trial != 0)
		back(of);
}

void
outcome_good(const struct outcome_of *of)
{
	struct leg *leg = of->leg;
	struct seg *seg = leg->w->seg;

	leg->recorded = true;
	if (!may_say_busy(of->answered->status) || !note_busy(of))
		has_room(leg);
	if (leg->trial != 0)
		back(of);
	else if (ep_tag(seg, leg->ep->slot) == leg->ep->tag)
		eject_good_answer(seg, leg->ep->slot, clock_ms(), of->ejection);
}

void
outcome_busy(const struct outcome_of *of)
{
	(void)note_busy(of);
}

/* For how long the endpoint is ejected by this failure, in ms; 0: it is not. */
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

/* An endpoint that cannot be reached was ejected: others may have to be back for it.  False: none has. */
static bool
bring_one_back(const struct outcome_of *of)
{
	struct worker *w = of->leg->w;
	const struct table *t = rcu_enter(w->seg, w->slot);
	const struct place at = find(t, of->pool, of->leg->ep);
	char url[URL_MAX_LOGGED] = "";
	int i = -1;

	if (at.pool != NULL)
		i = eject_bring_back(w->seg, at.pool, at.role, clock_ms());
	if (i >= 0)
		(void)snprintf(url, sizeof(url), "%s",
			t->endpoints[at.pool->picks[at.role][i].endpoint].url);
	rcu_leave(w->seg, w->slot);
	if (i < 0)
		return false;
	log_info("endpoint back, too few of its role would be left", LOG_S("url", url),
		LOG_S("role", role_name(at.role)), LOG_S("pool", of->pool_name));
	wait_released(of->leg);
	return true;
}

void
outcome_bad(const struct outcome_of *of)
{
	const bool reached =
		of->answered->fail != LEG_FAIL_CONNECT && !leg_connecting(of->answered);
	struct leg *leg = of->leg;
	struct worker *w = leg->w;
	struct place at;
	uint64_t ms = 0;

	leg->recorded = true;
	if (note_busy(of)) {
		outcome_none(leg);
		return;
	}
	at = find(rcu_enter(w->seg, w->slot), of->pool, leg->ep);
	if (at.pool != NULL)
		ms = charge(leg, &at, reached);
	rcu_leave(w->seg, w->slot);
	outcome_none(leg);
	if (ms > 0)
		log_warn("endpoint ejected, its requests fail", LOG_S("url", leg->ep->url),
			LOG_S("role", role_name(at.role)), LOG_S("pool", of->pool_name),
			LOG_S("last", reached ? "failed" : "refused"), LOG_U("for_ms", ms),
			LOG_S("req", of->request));
	while (ms > 0 && !reached && bring_one_back(of))
		;
}

void
outcome_none(struct leg *leg)
{
	const uint64_t trial = leg->trial, mark = leg->busy;
	bool due = false;

	leg->trial = leg->busy = 0;
	if (trial != 0)
		due = eject_trial_none(leg->w->seg, leg->ep->slot, trial);
	if (mark != 0)
		due |= busy_none(leg->w->seg, leg->ep->slot, mark);
	if (due)
		wait_released(leg); /* for the request that tries the endpoint next */
}
