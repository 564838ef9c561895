#include "worker/schedule/outcome.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/sip.h"
#include "shm/busy.h"
#include "shm/eject.h"
#include "shm/load.h"
#include "shm/refusal.h"
#include "shm/tally.h"
#include "shm/core/heritage.h"
#include "shm/core/rcu.h"
#include "shm/restart.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/base/facts.h"
#include "worker/schedule/reservation.h"
#include "worker/schedule/wait.h"

/* Where the current table lists an endpoint. */
struct listed {
	const struct table_pool *pool; /* NULL: no longer */
	enum role role;
};

/* Whether an outcome of the exchange is still to be recorded. */
static bool
counts(const struct exchange *x)
{
	return x->engine->ep != NULL && !x->engine->recorded;
}

static bool
of_this_life(const struct exchange *x)
{
	return reservation_of_this_life(x->w, x->engine);
}

/* The endpoint has room again. */
static void
wake(const struct exchange *x)
{
	wait_released(x->w, x->engine->pool, x->engine->role);
}

static bool
lists(const struct table_pool *tp, enum role role, const struct endpoint *ep)
{
	for (uint32_t i = 0; i < tp->n[role]; i++)
		if (tp->picks[role][i].slot == ep->slot && tp->picks[role][i].tag == ep->tag)
			return true;
	return false;
}

/* In the pool with that id, whatever the pool's name is by now.  Inside the read section. */
static struct listed
find(const struct table *t, uint32_t pool_id, const struct endpoint *ep)
{
	for (uint32_t i = 0; i < t->npools; i++)
		for (enum role role = 0; role < ROLE_N && t->pools[i].id == pool_id; role++)
			if (lists(&t->pools[i], role, ep))
				return (struct listed){&t->pools[i], role};
	return (struct listed){NULL, ROLE_PREFILL};
}

/* --- busy --------------------------------------------------------------------------------------- */

#define URL_MAX_LOGGED 256
#define RETRY_AFTER "Retry-After:"
#define RETRY_AFTER_MOST 100000u /* seconds that are read; shm/busy.h bounds them */

/* Returns true if the answer has Retry-After.  *ret_ms: its seconds; 0: a date, or nothing that can be read. */
static bool
retry_after(struct span head, uint64_t *ret_ms)
{
	const char *p = head.p, *end = head.p + head.n, *line_end = end;
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

static bool
busy_answer(const struct exchange *x, uint64_t *ret_ms)
{
	bool has;

	*ret_ms = 0;
	if (x->status != 429 && x->status != 503)
		return false;
	has = x->head.p != NULL && retry_after(x->head, ret_ms);
	return x->status == 429 || has;
}

bool
outcome_says_busy(const struct exchange *x)
{
	uint64_t ms;

	return busy_answer(x, &ms);
}

/* In the tally of the endpoint, which goes on when its engine restarts: only its slot must be the same. */
static void
tally(const struct exchange *x, enum tally_cause cause)
{
	const struct endpoint *ep = x->engine->ep;

	if (ep_tag(x->w->seg, ep->slot) != ep->tag)
		return;
	tally_add(x->w->seg, ep->slot, cause, clock_ms());
	if (x->status == 429 || x->status == 503)
		tally_shed(x->w->seg, ep->slot, clock_ms());
}

/* The engine answers: excuses it for others that wait there (worker/attempt/failover.c). */
static void
alive(const struct exchange *x)
{
	if (x->status < 300 && of_this_life(x))
		tally_alive(x->w->seg, x->engine->ep->slot, clock_ms());
}

/* Returns true if the engine said that it has no room, which is neither good nor bad. */
static bool
note_busy(const struct exchange *x)
{
	const struct endpoint *ep = x->engine->ep;
	struct seg *seg = x->w->seg;
	const uint64_t mark = x->engine->busy;
	uint64_t ms;

	if (!busy_answer(x, &ms))
		return false;
	x->engine->busy = 0;
	tally(x, TALLY_BUSY);
	if (of_this_life(x))
		ms = busy_said(seg, ep->slot, mark, clock_ms(), ms);
	log_debug("endpoint busy", LOG_S("url", ep->url), LOG_S("role", role_name(x->engine->role)),
		LOG_S("pool", x->facts->pool->name), LOG_U("for_ms", ms),
		LOG_S("req", x->facts->id));
	return true;
}

/* The engine has taken a request that found it busy. */
static void
has_room(const struct exchange *x)
{
	const uint64_t mark = x->engine->busy;

	x->engine->busy = 0;
	if (mark != 0 && busy_over(x->w->seg, x->engine->ep->slot))
		wake(x);
}

/* --- outcomes ------------------------------------------------------------------------------------ */

static void
back(const struct exchange *x)
{
	const struct endpoint *ep = x->engine->ep;
	const uint64_t trial = x->engine->trial;

	x->engine->trial = 0;
	if (!eject_trial_good(x->w->seg, ep->slot, trial, clock_ms()))
		return;
	log_info("endpoint back, its trial request succeeded", LOG_S("url", ep->url),
		LOG_S("role", role_name(x->engine->role)), LOG_S("pool", x->facts->pool->name),
		LOG_S("last", tally_last_name(x->w->seg, ep->slot)));
	wake(x);
}

/* The engine has accepted a request. */
static void
accepted(const struct exchange *x)
{
	const struct endpoint *ep = x->engine->ep;

	if (of_this_life(x) && refusal_accepted(x->w->seg, ep->slot, clock_ms()))
		log_info("engine accepts requests again", LOG_S("url", ep->url),
			LOG_S("role", role_name(x->engine->role)),
			LOG_S("pool", x->facts->pool->name));
}

void
outcome_accepted(const struct exchange *x)
{
	if (!counts(x))
		return;
	alive(x);
	has_room(x);
	accepted(x);
}

void
outcome_begun(const struct exchange *x)
{
	outcome_accepted(x);
	if (counts(x) && x->engine->trial != 0)
		back(x);
}

void
outcome_good(const struct exchange *x)
{
	struct seg *seg = x->w->seg;
	const struct endpoint *ep = x->engine->ep;

	if (!counts(x))
		return;
	x->engine->recorded = true;
	if (!note_busy(x)) {
		tally(x, x->cause);
		has_room(x);
	}
	if (x->engine->trial != 0)
		back(x);
	else if (of_this_life(x))
		eject_good_answer(seg, ep->slot, clock_ms(), &x->facts->pool->ejection);
}

void
outcome_doubt(const struct exchange *x)
{
	struct worker *w = x->w;
	const struct reservation *r = x->engine;
	const uint64_t one = 1;

	if (r->ep != NULL && restart_doubt(w->seg, r->ep->slot, r->life))
		(void)!write(w->h->wake_fds[SLOT_MASTER(w->seg)], &one, sizeof(one));
}

void
outcome_named(const struct exchange *x, const char *id, size_t n)
{
	struct seg *seg = x->w->seg;
	struct sip s;

	if (n == 0 || x->engine->ep == NULL || !of_this_life(x))
		return;
	sip_begin(&s, seg->hdr->seed);
	sip_add(&s, id, n);
	if (restart_named(seg, x->engine->ep->slot, x->engine->life, sip_end(&s)))
		outcome_doubt(x);
}

void
outcome_busy(const struct exchange *x)
{
	if (counts(x))
		(void)note_busy(x);
}

/* Returns for how long the endpoint is ejected now; 0: this outcome has not ejected it. */
static uint64_t
charge(const struct exchange *x, const struct listed *at)
{
	struct seg *seg = x->w->seg;
	const uint32_t ep = x->engine->ep->slot;
	const uint64_t now_ms = clock_ms(), trial = x->engine->trial;
	uint64_t ms = 0;

	x->engine->trial = 0;
	if (trial != 0)
		ms = eject_trial_bad(seg, ep, trial, x->reached, now_ms, &at->pool->ejection);
	if (ms == 0)
		ms = eject_bad_answer(seg, at->pool, at->role, ep, x->reached, now_ms);
	if (ms == 0 && x->cause == TALLY_4XX &&
		refusal_is_sure(seg, at->pool, at->role, ep, now_ms))
		ms = eject_at_once(seg, at->pool, at->role, ep, now_ms);
	return ms;
}

/* An endpoint that cannot be reached was ejected: another one may have to be back for it.  False: none has. */
static bool
bring_one_back(const struct exchange *x)
{
	struct worker *w = x->w;
	const struct table *t = rcu_enter(w->seg, w->slot);
	const struct listed at = find(t, x->facts->pool->id, x->engine->ep);
	const char *last = NULL;
	char url[URL_MAX_LOGGED] = "";
	int i = -1;

	if (at.pool != NULL)
		i = eject_bring_back(w->seg, at.pool, at.role, clock_ms());
	if (i >= 0) {
		(void)snprintf(url, sizeof(url), "%s",
			t->endpoints[at.pool->picks[at.role][i].endpoint].url);
		last = tally_last_name(w->seg, at.pool->picks[at.role][i].slot);
	}
	rcu_leave(w->seg, w->slot);
	if (i < 0)
		return false;
	log_info("endpoint back, too few of its role would be left", LOG_S("url", url),
		LOG_S("role", role_name(at.role)), LOG_S("pool", x->facts->pool->name),
		LOG_S("last", last));
	wake(x);
	return true;
}

static void
log_ejected(const struct exchange *x, enum role role, uint64_t ms)
{
	const struct log_field fields[] = {LOG_S("url", x->engine->ep->url),
		LOG_S("role", role_name(role)), LOG_S("pool", x->facts->pool->name),
		LOG_S("last", tally_cause_name(x->cause)),
		LOG_S("why", tally_cause_meaning(x->cause)), LOG_U("for_ms", ms),
		LOG_S("req", x->facts->id), LOG_U("status", x->status)};
	const bool by_status = x->cause == TALLY_4XX || x->cause == TALLY_5XX;
	const size_t n = sizeof(fields) / sizeof(fields[0]);

	log_write(LOG_L_WARN, "endpoint ejected, its requests fail", fields, by_status ? n : n - 1);
}

void
outcome_bad(const struct exchange *x)
{
	struct worker *w = x->w;
	struct listed at;
	uint64_t ms = 0;

	if (!counts(x))
		return;
	x->engine->recorded = true;
	if (note_busy(x)) {
		reservation_drop_trial(w, x->engine);
		return;
	}
	tally(x, x->cause);
	at = find(rcu_enter(w->seg, w->slot), x->facts->pool->id, x->engine->ep);
	if (at.pool != NULL && of_this_life(x))
		ms = charge(x, &at);
	rcu_leave(w->seg, w->slot);
	reservation_drop_trial(w, x->engine);
	if (ms > 0)
		log_ejected(x, at.role, ms);
	while (ms > 0 && !x->reached && bring_one_back(x))
		;
}

/* --- refusals ------------------------------------------------------------------------------------ */

enum belief {
	BELIEVED,  /* other engines have said the same, or no other engine accepts anything */
	IN_DOUBT,  /* another engine should be asked */
	FAR_ABOVE, /* the same, and the share of refusals cannot be chance */
};

/* Inside the read section. */
static enum belief
belief_of(const struct exchange *x, const struct listed *at)
{
	const struct seg *seg = x->w->seg;
	const uint32_t ep = x->engine->ep->slot;
	const uint64_t now_ms = clock_ms();
	bool sure;

	if (at->pool == NULL || !refusal_peers_accept(seg, at->pool, at->role, ep))
		return BELIEVED;
	sure = refusal_is_sure(seg, at->pool, at->role, ep, now_ms);
	if (x->engine->trial == 0 && refusal_believed(seg, ep, sure, now_ms))
		return BELIEVED;
	return sure ? FAR_ABOVE : IN_DOUBT;
}

static enum belief
belief(const struct exchange *x)
{
	const struct table *t = rcu_enter(x->w->seg, x->w->slot);
	const struct listed at = find(t, x->facts->pool->id, x->engine->ep);
	const enum belief b = belief_of(x, &at);

	rcu_leave(x->w->seg, x->w->slot);
	return b;
}

bool
outcome_doubtful(const struct exchange *x)
{
	return counts(x) && belief(x) != BELIEVED;
}

bool
outcome_believed(const struct exchange *x)
{
	return refusal_believed(x->w->seg, x->engine->ep->slot, false, clock_ms());
}

void
outcome_refusal_seen(const struct exchange *x)
{
	const struct endpoint *ep = x->engine->ep;

	if (counts(x) && of_this_life(x))
		refusal_seen(x->w->seg, ep->slot, clock_ms());
}

uint64_t
outcome_refusal_mark(const struct worker *w, const struct reservation *engine)
{
	return refusal_mark(w->seg, engine->ep->slot);
}

/* Neither good nor bad. */
static void
leave_alone(const struct exchange *x)
{
	x->engine->recorded = true;
	tally(x, x->cause);
	reservation_drop_trial(x->w, x->engine);
}

void
outcome_refused(const struct exchange *x)
{
	if (!counts(x))
		return;
	if (refusal_is_contradicted(x->w->seg, x->engine->ep->slot) || belief(x) == FAR_ABOVE)
		outcome_contradicted(x);
	else
		leave_alone(x);
}

void
outcome_shared(const struct exchange *x, uint64_t mark)
{
	const struct endpoint *ep = x->engine->ep;

	if (!counts(x))
		return;
	if (of_this_life(x))
		refusal_shared(x->w->seg, ep->slot, mark, clock_ms());
	leave_alone(x);
}

void
outcome_contradicted(const struct exchange *x)
{
	const struct endpoint *ep = x->engine->ep;
	const char *news = NULL;

	if (!counts(x))
		return;
	if (of_this_life(x))
		news = refusal_contradicted(x->w->seg, ep->slot, x->status);
	if (news != NULL)
		log_warn(news, LOG_S("url", ep->url), LOG_S("role", role_name(x->engine->role)),
			LOG_S("pool", x->facts->pool->name), LOG_U("status", (uint64_t)x->status),
			LOG_S("req", x->facts->id));
	outcome_bad(x);
}

/* --- requests that fail on every engine ---------------------------------------------------------- */

bool
outcome_fails_alike(const struct exchange *x)
{
	return refusal_fails_alike(x->w->seg, x->engine->ep->slot, clock_ms());
}

void
outcome_failed_alike(const struct exchange *x)
{
	if (of_this_life(x))
		refusal_failed_alike(x->w->seg, x->engine->ep->slot, clock_ms());
}

void
outcome_excused(const struct exchange *x)
{
	if (counts(x))
		leave_alone(x);
}

void
outcome_take_back(const struct exchange *x, uint64_t charged_ms)
{
	const struct endpoint *ep = x->engine->ep;

	if (!of_this_life(x) || tally_alive_ms(x->w->seg, ep->slot) > charged_ms ||
		!eject_take_back(x->w->seg, ep->slot, clock_ms(), &x->facts->pool->ejection))
		return;
	log_info("endpoint back, the request had caused its last failure", LOG_S("url", ep->url),
		LOG_S("role", role_name(x->engine->role)), LOG_S("pool", x->facts->pool->name),
		LOG_S("req", x->facts->id));
	wake(x);
}

/* --- KV that could not be used ------------------------------------------------------------------- */

void
outcome_works(const struct exchange *x)
{
	if (x->engine->ep != NULL && of_this_life(x))
		blame_good(x->w->seg, x->engine->ep->slot, clock_ms());
}

static struct evidence
evidence(const struct exchange *x, const struct exchange *partner)
{
	if (!of_this_life(x))
		return (struct evidence){STANDING_UNKNOWN, 1};
	return blame_failed(x->w->seg, x->engine->ep->slot, partner->engine->ep->slot, clock_ms());
}

enum blame
outcome_kv_blame(
	const struct exchange *prefill, const struct exchange *decode, const struct exchange *by)
{
	static const enum metric_counter counters[BLAME_N] = {[BLAME_PREFILL] = M_KV_FAILED_PREFILL,
		[BLAME_DECODE] = M_KV_FAILED_DECODE,
		[BLAME_NEITHER] = M_KV_FAILED_NEITHER};
	const struct evidence p = evidence(prefill, decode), d = evidence(decode, prefill);
	const enum blame blame = blame_decide(&p, &d);

	metric_add(decode->w->slab, counters[blame], 1);
	log_info("decode failed with the KV of a prefill engine",
		LOG_S("at_fault", blame_name(blame)), LOG_S("prefill", prefill->engine->ep->url),
		LOG_S("decode", decode->engine->ep->url),
		LOG_S("seen", tally_cause_name(by->cause)),
		LOG_S("said_by", role_name(by == prefill ? ROLE_PREFILL : ROLE_DECODE)),
		LOG_S("pool", decode->facts->pool->name), LOG_S("req", decode->facts->id));
	return blame;
}
