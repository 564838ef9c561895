#include "master/fleet/outlier.h"

#include <assert.h>
#include <event2/event.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/ejected.h"
#include "master/fleet/endpoint.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/load.h"
#include "shm/pace.h"

#define EVERY_MS 1000         /* or stats_interval, if that is less: foreign load is as fresh */
#define BACK 0.75             /* of `factor`: below it an engine is slow no longer */
#define FEW (2 * PACE_SAMPLE) /* samples: a slow engine with less is starved */
#define LEAST_PART 3          /* of SHARE_WHOLE: about 1% */
#define AGE 6                 /* samples lose 1/64 of their weight a second */
#define AGE_SLOW 3            /* a slow engine's lose 1/8 ... */
#define AGE_FEW 5             /* ... and 1/32 when they are few: all are gone after two minutes */
#define MOST_SLOW (4 * PACE_SAMPLE) /* so many of them count, for the engine may be fast again */
#define HOLDS_MS                                                                                   \
	1950 /* so long comparisons must agree, three at EVERY_MS: a pause is not slowness */
#define SMOOTH (1.0 / 8) /* what a load counts in the mean of the last seconds */

/* The engines of one pool and role that serve the same models. */
struct peers {
	struct endpoint **eps;
	size_t n;
	uint64_t now_ms;
	/* of the nknown that others are compared with: both times, sorted, and sums */
	double *time, *token;
	size_t nknown;
	double load, foreign, weight;
};

struct outlier {
	struct fleet *fleet;
	struct event *turn;
	struct endpoint **eps; /* those with an estimate, peers side by side */
	double *time, *token;
	size_t room;     /* of each of the three */
	uint64_t aged_s; /* the second in which samples were aged */
};

/* --- one engine against its peers ------------------------------------------------------------- */

double
outlier_times(const struct outlier_own *own, const struct outlier_peers *peers)
{
	const double foreign = own->foreign > peers->foreign ? own->foreign - peers->foreign : 0;
	const double lighter = peers->weight > own->weight ? peers->weight / own->weight : 1;
	const double allowed = (1 + foreign / (1 + peers->load)) * lighter;
	const double log = fmin(own->time - peers->time, own->token - peers->token);

	return exp2(log / PACE_DOUBLE) / allowed;
}

static struct pace
pace_of(const struct endpoint *ep)
{
	return pace_unpack(pace_word(ep->fleet->seg, ep->engine.slot));
}

static bool
is_slow(const struct endpoint *ep)
{
	return share_slow(share_word(ep->fleet->seg, ep->engine.slot));
}

static bool
is_known(const struct endpoint *ep)
{
	return ep->pace.samples >= ep->engine.pool->outlier.min_samples * PACE_SAMPLE;
}

/* Others are compared with it.  A slow engine is compared with what is still known of its peers. */
static bool
is_peer(const struct endpoint *ep, bool of_slow)
{
	return !is_slow(ep) && (of_slow ? ep->pace.samples >= FEW : is_known(ep));
}

static int
compare_doubles(const void *pa, const void *pb)
{
	const double a = *(const double *)pa, b = *(const double *)pb;

	return (a > b) - (a < b);
}

double
outlier_median(const double *sorted, size_t n, const double *without)
{
	const double *at = without == NULL
				   ? NULL
				   : bsearch(without, sorted, n, sizeof(*sorted), compare_doubles);
	const size_t skipped = at == NULL ? n : (size_t)(at - sorted), m = at == NULL ? n : n - 1;
	const size_t low = (m - 1) / 2, high = m / 2;

	return (sorted[low + (low >= skipped)] + sorted[high + (high >= skipped)]) / 2;
}

/* How many times the time of its peers the endpoint's engine takes; 0: not known. */
static double
times_of(const struct peers *p, const struct endpoint *ep)
{
	const bool among = is_peer(ep, false);
	const size_t others = p->nknown - among;
	const struct outlier_own own = {.time = ep->pace.time,
		.token = ep->pace.token,
		.foreign = ep->foreign,
		.weight = ep->engine.conf->weight};
	struct outlier_peers peers;

	if (others == 0 || ep->pace.samples == 0)
		return 0;
	peers = (struct outlier_peers){
		.time = outlier_median(p->time, p->nknown, among ? &own.time : NULL),
		.token = outlier_median(p->token, p->nknown, among ? &own.token : NULL),
		.load = (p->load - among * ep->load) / (double)others,
		.foreign = (p->foreign - among * ep->foreign) / (double)others,
		.weight = (p->weight - among * own.weight) / (double)others};
	return outlier_times(&own, &peers);
}

/* --- what follows ----------------------------------------------------------------------------- */

/* `times`: 0 if it is not known. */
static void
log_change(const struct endpoint *ep, bool slow, double times)
{
	const struct engine *e = &ep->engine;
	char text[32];

	(void)snprintf(text, sizeof(text), "%.1f", times);
	log_write(slow ? LOG_L_WARN : LOG_L_INFO,
		slow        ? "endpoint slow, its share is lowered"
		: times > 0 ? "endpoint no longer slow"
			    : "endpoint no longer slow, its times are not known any more",
		(const struct log_field[]){LOG_S("url", e->url), LOG_S("role", role_name(e->role)),
			LOG_S("pool", e->pool_name), LOG_S("times", text)},
		times > 0 ? 4 : 3);
}

static uint32_t
part_of(double times)
{
	const double part = SHARE_WHOLE / times;

	return part < LEAST_PART ? LEAST_PART : part > SHARE_WHOLE ? SHARE_WHOLE : (uint32_t)part;
}

static void
lower(struct endpoint *ep, double times)
{
	share_lower(ep->fleet->seg, ep->engine.slot, part_of(times), ep->pace.samples < FEW,
		times < UINT32_MAX / SHARE_TIMES_ONE ? (uint32_t)(times * SHARE_TIMES_ONE)
						     : UINT32_MAX);
}

static void
restore(struct endpoint *ep, double times)
{
	share_restore(ep->fleet->seg, ep->engine.slot);
	log_change(ep, false, times);
}

/* `times`: as times_of() returns it.  An engine whose times are not known is not slow. */
static void
settle(struct endpoint *ep, double times, uint64_t now_ms)
{
	const uint32_t factor = ep->engine.pool->outlier.factor;
	const bool was = is_slow(ep);
	const bool slow = was ? times >= factor * BACK : times >= factor && is_known(ep);

	if (slow != was && ep->changes_ms == 0)
		ep->changes_ms = now_ms;
	if (slow != was && now_ms - ep->changes_ms < HOLDS_MS)
		return;
	ep->changes_ms = 0;
	if (slow)
		lower(ep, times);
	if (slow && !was)
		log_change(ep, true, times);
	if (was && !slow)
		restore(ep, times);
	if (slow && ep->engine.pool->ejection.slow != 0 && ep->pace_fresh)
		ejected_slow(ep);
}

static void
compare_those(struct peers *p, bool slow)
{
	*p = (struct peers){
		.eps = p->eps, .n = p->n, .now_ms = p->now_ms, .time = p->time, .token = p->token};
	for (size_t i = 0; i < p->n; i++) {
		const struct endpoint *ep = p->eps[i];

		if (!is_peer(ep, slow))
			continue;
		p->time[p->nknown] = ep->pace.time;
		p->token[p->nknown++] = ep->pace.token;
		p->load += ep->load;
		p->foreign += ep->foreign;
		p->weight += ep->engine.conf->weight;
	}
	qsort(p->time, p->nknown, sizeof(*p->time), compare_doubles);
	qsort(p->token, p->nknown, sizeof(*p->token), compare_doubles);
	for (size_t i = 0; i < p->n; i++)
		if (is_slow(p->eps[i]) == slow)
			settle(p->eps[i], times_of(p, p->eps[i]), p->now_ms);
}

/* --- once a second ---------------------------------------------------------------------------- */

static void
grow_older(const struct endpoint *ep, uint32_t samples)
{
	const bool slow = is_slow(ep);

	pace_age(ep->fleet->seg, ep->engine.slot,
		!slow           ? AGE
		: samples < FEW ? AGE_FEW
				: AGE_SLOW,
		slow ? MOST_SLOW : PACE_WHOLE);
}

/* Takes the estimate over, and ages it once a second.  Returns true if the endpoint can be compared. */
static bool
look(struct endpoint *ep, uint64_t now_ms, bool age)
{
	struct fleet *f = ep->fleet;
	const uint32_t slot = ep->engine.slot;
	const uint64_t max_age_ms = FOREIGN_SCRAPES * f->conf->stats_interval_ms;
	struct pace seen;

	if (slot == ENGINE_NO_SLOT || ep->engine.pool == NULL)
		return false;
	if (ep_state_get(f->seg, slot) != EP_UP) {
		if (is_slow(ep))
			restore(ep, 0); /* it is measured anew when it is up */
		return false;
	}
	if (ep->engine.pool->outlier.factor == 0) {
		share_restore(f->seg, slot);
		return false;
	}
	seen = pace_of(ep);
	ep->pace_fresh = seen.samples > ep->pace.samples;
	ep->foreign = fmax(load_foreign(f->seg, slot, now_ms, max_age_ms),
		ep->foreign *
			(1 - SMOOTH)); /* an engine is late with it, and its answers are, too */
	ep->load += ((double)load_score(f->seg, slot, now_ms, max_age_ms) - ep->load) * SMOOTH;
	if (seen.samples > 0 && age)
		grow_older(ep, seen.samples);
	ep->pace = pace_of(ep);
	return ep->pace.samples > 0 || is_slow(ep);
}

/* Peers are equal.  Sets of models are equal if their number, the first and the last name are. */
static int
compare_peers(const void *pa, const void *pb)
{
	const struct engine *a = &(*(struct endpoint *const *)pa)->engine;
	const struct engine *b = &(*(struct endpoint *const *)pb)->engine;
	const size_t na = a->models.n, nb = b->models.n;
	int r;

	if (a->pool != b->pool)
		return a->pool < b->pool ? -1 : 1;
	if (a->role != b->role)
		return a->role < b->role ? -1 : 1;
	if (a->pool->nmodels > 0 || (na == 0 && nb == 0))
		return 0;
	if (na != nb)
		return na < nb ? -1 : 1;
	r = strcmp(a->models.names[0], b->models.names[0]);
	return r != 0 ? r : strcmp(a->models.names[na - 1], b->models.names[na - 1]);
}

static size_t
collect(struct outlier *o, uint64_t now_ms)
{
	const struct fleet *f = o->fleet;
	const bool age = now_ms / 1000 != o->aged_s;
	size_t n = 0;

	o->aged_s = now_ms / 1000;
	if (o->room < f->norder) {
		o->room = f->norder;
		o->eps = mem_resize(o->eps, o->room, sizeof(struct endpoint *));
		o->time = mem_resize(o->time, o->room, sizeof(*o->time));
		o->token = mem_resize(o->token, o->room, sizeof(*o->token));
	}
	for (size_t i = 0; i < f->norder; i++)
		if (look(f->order[i], now_ms, age))
			o->eps[n++] = f->order[i];
	return n;
}

static void
turn_again(struct outlier *o)
{
	const struct conf *conf = o->fleet->conf;
	const bool often = conf != NULL && conf->stats_interval_ms < EVERY_MS;
	const struct timeval tv = clock_tv(often ? conf->stats_interval_ms : EVERY_MS);

	(void)event_add(o->turn, &tv);
}

void
outlier_turn(struct outlier *o, uint64_t now_ms)
{
	const size_t n = o->fleet->conf != NULL ? collect(o, now_ms) : 0;
	size_t end;

	if (n > 1)
		qsort(o->eps, n, sizeof(struct endpoint *), compare_peers);
	for (size_t at = 0; at < n; at = end) {
		struct peers p = {
			.eps = &o->eps[at], .now_ms = now_ms, .time = o->time, .token = o->token};

		for (end = at; end < n && compare_peers(&o->eps[at], &o->eps[end]) == 0; end++)
			;
		p.n = end - at;
		compare_those(&p, true);
		compare_those(&p, false);
	}
}

static void
on_turn(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	turn_again(arg);
	outlier_turn(arg, clock_ms());
}

/* --- life ------------------------------------------------------------------------------------- */

struct outlier *
outlier_new(struct fleet *f)
{
	struct outlier *o = MEM_NEW(struct outlier);

	o->fleet = f;
	o->turn = event_new(f->base, -1, 0, on_turn, o);
	assert(o->turn != NULL);
	turn_again(o);
	return o;
}

void
outlier_free(struct outlier **po)
{
	struct outlier *o = *po;

	if (o == NULL)
		return;
	event_free(o->turn);
	free(o->eps);
	free(o->time);
	free(o->token);
	free(o);
	*po = NULL;
}

void
outlier_up(struct endpoint *ep)
{
	pace_begin(ep->fleet->seg, ep->engine.slot);
	ep->pace = (struct pace){0};
	ep->changes_ms = 0;
}
