#include "tests/bench/sched_sim.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/probe/scrape.h"
#include "shm/base/mem.h"
#include "shm/load.h"
#include "shm/prefix.h"
#include "shm/view.h"
#include "shm/core/rcu.h"
#include "shm/table.h"
#include "tests/bench/sched_fleet.h"
#include "tests/bench/sched_lru.h"
#include "tests/bench/sched_replay.h"
#include "worker/schedule/select.h"

#define NET_S 0.0005 /* one way between router and engine */
#define SCRAPE_MS 1000
#define TOLD_AGAIN_S 0.1
#define FOREIGN_MAX_AGE_MS 3000
#define CLOCK_FROM_MS 1000000 /* clock_ms at the start: a machine has been up for a while */
#define WARM_UP 10            /* the first 1 / so many of the requests are not counted */
#define CACHED_SHARE 0.5      /* of a prompt is its session's prefix */
#define CACHE_MAX 64
#define PREFIX_BUCKETS (1u << 20) /* 64 MiB, the default */
#define NONE UINT32_MAX

enum event_kind {
	ON_PREFILL_IN,   /* the request has reached its engine */
	ON_PREFILL_DONE, /* the engine is through with it */
	ON_PREFILL_BACK, /* the router knows */
	ON_DECODE_IN,
	ON_DECODE_DONE, /* somebody at this engine has his last token, unless `version` is old */
	ON_DECODE_BACK,
	ON_SCRAPE,      /* the master asks, */
	ON_SCRAPE_PAGE, /* the engine writes down its figures, */
	ON_SCRAPE_BACK, /* the master reads them */
	ON_TOLD_BEGIN,  /* another router knows that the request was placed, */
	ON_TOLD_END,    /* that the engine is through with it; */
	ON_TOLD,        /* and says again what it has */
	ON_SAMPLE,
	NKINDS
};

struct event {
	double at_s;
	uint32_t order;        /* of two at the same time the earlier made comes first */
	uint16_t kind, router; /* whose scrape */
	uint32_t what;         /* request or engine */
	uint32_t version;
};

/* Served one after the other. */
struct prefill {
	double free_s; /* when it is through with all it has */
	uint32_t inside;
	uint64_t cache[CACHE_MAX]; /* keys, the latest first */
};

struct sequence {
	double end; /* in tokens of `progress` */
	uint32_t req;
};

/* All of a batch advance together, by a token a step; a step is the slower the larger the batch. */
struct decode {
	double progress; /* tokens each sequence of a batch without end would have */
	double at_s;     /* when that was true */
	struct sequence batch[DECODE_BATCH];
	uint32_t running, waiting;
	uint32_t first, last; /* who waits: a list through req.next */
	uint32_t version;     /* of its ON_DECODE_DONE */
};

struct req {
	uint32_t ep[ROLE_N], tokens[ROLE_N]; /* where, and what is reserved there */
	double in_s;                         /* since when it is at the engine where it is */
	uint32_t next;
	double wait_s[ROLE_N];
	uint32_t uncached;         /* tokens that the prefill engine computes */
	struct prefix_guess guess; /* what the router expects there */
	uint32_t told;             /* tokens that other routers are told of */
};

struct scrape {
	uint32_t figure;       /* running and waiting */
	uint32_t sent, former; /* these and the others as in master/probe/scrape.c */
	uint64_t turnover;
	uint32_t counted, often;
};

struct chooser {
	uint32_t cursor[ROLE_N];
	uint32_t mean_tokens;
	struct select_means means;
	uint64_t rnd;
};

struct router {
	struct fleet fleet;
	struct chooser *workers;
	/* cache_aware: as worker/schedule/cached.c has them, valid for one choice */
	struct prefix_secret secret;
	struct prefix_key key;
	struct prefix_found *found;
	struct membuf text;
	struct scrape *scrapes;        /* [2n], as the table's endpoints */
	uint32_t often;                /* of them */
	double *known[ROLE_N];         /* [n] the scraped figures, for BY_SCRAPE */
	struct sibling_load *siblings; /* [n] what other routers have at prefill engines */
};

struct sim {
	const struct sim_plan *plan;
	double now_s;
	struct router *routers;
	struct prefill *prefill;
	struct decode *decode;
	struct req *reqs;
	uint32_t counted_from; /* requests from this one on are counted */
	uint32_t ndone;

	struct event *heap;
	size_t nheap, heap_size;
	uint32_t order;

	/* what the omniscient know */
	double *load[ROLE_N], *free_s;
	uint32_t cursor[ROLE_N];

	struct lru *cache;       /* [n] of replays; else NULL */
	struct sim_front *front; /* [n] */
	double *busy_s;          /* [n] */
	uint64_t prompt_tokens, cached_tokens;

	uint32_t hits, sampled;
	struct sim_result *result;
};

/* --- events -------------------------------------------------------------------------------------- */

static bool
earlier(const struct event *a, const struct event *b)
{
	return a->at_s < b->at_s || (a->at_s == b->at_s && a->order < b->order);
}

static struct event *
event_add(struct sim *s, double in_s, enum event_kind kind, uint32_t router, uint32_t what)
{
	const struct event e = {.at_s = s->now_s + in_s,
		.order = s->order++,
		.kind = (uint16_t)kind,
		.router = (uint16_t)router,
		.what = what};
	size_t i = s->nheap++;

	if (s->nheap > s->heap_size) {
		s->heap_size = 2 * s->nheap;
		s->heap = mem_resize(s->heap, s->heap_size, sizeof(*s->heap));
	}
	for (; i > 0 && earlier(&e, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = e;
	return &s->heap[i];
}

static struct event
event_take(struct sim *s)
{
	const struct event first = s->heap[0], last = s->heap[--s->nheap];
	size_t i = 0, child;

	for (; (child = 2 * i + 1) < s->nheap; i = child) {
		if (child + 1 < s->nheap && earlier(&s->heap[child + 1], &s->heap[child]))
			child++;
		if (!earlier(&s->heap[child], &last))
			break;
		s->heap[i] = s->heap[child];
	}
	s->heap[i] = last;
	return first;
}

/* --- placing ------------------------------------------------------------------------------------- */

static uint32_t
slot_of(const struct router *r, enum role role, uint32_t ep)
{
	return rcu_current(r->fleet.writer)->pools[0].picks[role][ep].slot;
}

/* What worker/schedule/cached.c does around a choice. */
static void
cached_look(struct sim *s, struct router *r, const struct demand *d, struct selection *sel)
{
	if (s->plan->policy != POLICY_CACHE_AWARE)
		return;
	replay_text(d, &r->text);
	prefix_cut(&r->secret, 0, r->text.p, r->text.n, &r->key);
	prefix_look(r->fleet.seg, &r->key, prefix_row(2 * s->plan->n), sel->tokens, r->found);
	sel->found = r->found;
	sel->computes = true;
	select_means_use(&r->workers[d->worker].means, sel);
}

static void
cached_keep(
	struct router *r, uint32_t slot, const struct selection *sel, const struct selected *held)
{
	const struct prefix_guess *guess = &held->guess;

	if (guess->prompt == 0)
		return;
	(void)prefix_insert(
		r->fleet.seg, r->found->key, r->found->row, slot, guess->prompt - guess->expected);
	select_means_add(&r->workers[sel->slot].means, sel, held->tokens);
}

static uint64_t
clock_of(const struct sim *s)
{
	return CLOCK_FROM_MS + (uint64_t)(s->now_s * 1000);
}

/* Tells the other routers, each after talk_s. */
static void
tell(struct sim *s, uint32_t req, enum event_kind kind)
{
	if (s->plan->talk_s == 0 || s->cache == NULL)
		return;
	for (uint32_t i = 0; i < s->plan->routers; i++)
		if (i != s->plan->trace->demands[req].router)
			event_add(s, s->plan->talk_s, kind, i, req);
}

static void
hear_load(struct sim *s, const struct event *ev, bool begins)
{
	struct router *r = &s->routers[ev->router];
	const uint32_t ep = s->reqs[ev->what].ep[ROLE_PREFILL];
	struct sibling_load *h = &r->siblings[ep];

	h->requests += begins ? 1 : -1u;
	h->tokens += begins ? s->reqs[ev->what].told : -s->reqs[ev->what].told;
	sibling_load_set(
		r->fleet.seg, slot_of(r, ROLE_PREFILL, ep), h->requests, h->tokens, clock_of(s));
}

static void
on_told_begin(struct sim *s, const struct event *ev)
{
	const struct demand *d = &s->plan->trace->demands[ev->what];
	struct router *r = &s->routers[ev->router];
	const struct req *req = &s->reqs[ev->what];

	hear_load(s, ev, true);
	if (req->guess.prompt == 0)
		return;
	replay_text(d, &r->text);
	prefix_cut(&r->secret, 0, r->text.p, r->text.n, &r->key);
	(void)prefix_insert(r->fleet.seg, &r->key, prefix_row(2 * s->plan->n),
		slot_of(r, ROLE_PREFILL, req->ep[ROLE_PREFILL]),
		req->guess.prompt - req->guess.expected);
}

static void
on_told_end(struct sim *s, const struct event *ev)
{
	hear_load(s, ev, false);
}

/* An old word would count as nothing. */
static void
on_told(struct sim *s, const struct event *ev)
{
	struct router *r = &s->routers[ev->router];

	for (uint32_t ep = 0; ep < s->plan->n; ep++)
		if (r->siblings[ep].requests > 0)
			sibling_load_set(r->fleet.seg, slot_of(r, ROLE_PREFILL, ep),
				r->siblings[ep].requests, r->siblings[ep].tokens, clock_of(s));
	event_add(s, TOLD_AGAIN_S, ON_TOLD, ev->router, 0);
}

static uint32_t
place_by_router(struct sim *s, uint32_t req, enum role role)
{
	const struct demand *d = &s->plan->trace->demands[req];
	struct router *r = &s->routers[d->router];
	struct chooser *w = &r->workers[d->worker];
	const struct table *t = rcu_enter(r->fleet.seg, d->worker);
	struct selection sel = {.seg = r->fleet.seg,
		.slot = d->worker,
		.table = t,
		.pool = &t->pools[0],
		.role = role,
		.model = TABLE_ANY_MODEL,
		.groups = SELECT_ALL_GROUPS,
		.tokens = d->guess,
		.keyed = true,
		.key = s->plan->policy == POLICY_SESSION ? d->session : d->prefix,
		.mean_tokens = w->mean_tokens,
		.now_ms = CLOCK_FROM_MS + (uint64_t)(s->now_s * 1000),
		.foreign_max_age_ms = FOREIGN_MAX_AGE_MS,
		.cursor = &w->cursor[role],
		.rnd = &w->rnd};
	const struct table_pick *pick;
	struct selected held;

	cached_look(s, r, d, &sel);
	pick = select_reserve(&sel, &held);
	assert(pick != NULL); /* all are up, without limit */
	cached_keep(r, pick->slot, &sel, &held);
	s->reqs[req].tokens[role] = held.tokens;
	s->reqs[req].guess = held.guess;
	s->reqs[req].told = held.tokens;
	rcu_leave(r->fleet.seg, d->worker);
	return (uint32_t)(pick - t->pools[0].picks[role]);
}

/* Where load and what is to come are least per weight; ties by round robin. */
static uint32_t
least(const struct sim_plan *plan, const double *load, double own, uint32_t *cursor)
{
	double best_load = DBL_MAX;
	uint32_t best = 0;

	assert(plan->n > 0);
	for (uint32_t k = 0, i = *cursor % plan->n; k < plan->n;
		k++, i = i + 1 < plan->n ? i + 1 : 0) {
		const double l = (load[i] + own) / plan->weights[i];

		if (l < best_load) {
			best_load = l;
			best = i;
		}
	}
	*cursor = best + 1;
	return best;
}

/* Where this prompt would be through first. */
static uint32_t
place_by_work(struct sim *s, const struct demand *d)
{
	double best_s = DBL_MAX;
	uint32_t best = 0;

	for (uint32_t i = 0; i < s->plan->n; i++) {
		const double from_s = s->free_s[i] > s->now_s ? s->free_s[i] : s->now_s;
		const double end_s = from_s + prefill_s(d->prompt) / s->plan->weights[i];

		if (end_s < best_s) {
			best_s = end_s;
			best = i;
		}
	}
	s->free_s[best] = best_s;
	return best;
}

static double
own_load(const struct sim *s, uint32_t req)
{
	return s->plan->load == LOAD_TOKENS ? s->plan->trace->demands[req].prompt : 1;
}

static uint32_t
place_by_rival(struct sim *s, const struct demand *d)
{
	const struct sim_sight sight = {.now_s = s->now_s,
		.n = s->plan->n,
		.free_s = s->free_s,
		.cache = s->cache,
		.front = s->front};

	return s->plan->place(s->plan->rival, &sight, d);
}

static uint32_t
place(struct sim *s, uint32_t req, enum role role)
{
	const struct demand *d = &s->plan->trace->demands[req];
	struct router *r = &s->routers[d->router];
	uint32_t ep;

	if (s->plan->placer == BY_ROUTER)
		return place_by_router(s, req, role);
	if (s->plan->placer == BY_SCRAPE)
		return least(s->plan, r->known[role], 0, &r->workers[d->worker].cursor[role]);
	if (s->plan->placer == BY_RIVAL && role == ROLE_PREFILL)
		return place_by_rival(s, d);
	if (s->plan->placer == BY_WORKLEFT && role == ROLE_PREFILL)
		return place_by_work(s, d);
	ep = least(s->plan, s->load[role], own_load(s, req), &s->cursor[role]);
	s->load[role][ep] += own_load(s, req);
	return ep;
}

/* Strangers use a quarter of the engines, any of them. */
static uint32_t
place_stranger(struct sim *s, uint32_t req, enum role role)
{
	const struct demand *d = &s->plan->trace->demands[req];
	uint32_t ep;

	assert(s->plan->n >= 4);
	ep = (uint32_t)(dice_mix(d->session + req) % (s->plan->n / 4));
	s->load[role][ep] += own_load(s, req);
	if (role == ROLE_PREFILL)
		s->free_s[ep] = (s->free_s[ep] > s->now_s ? s->free_s[ep] : s->now_s) +
				prefill_s(d->prompt) / s->plan->weights[ep];
	return ep;
}

static void
note_sent(struct sim *s, uint32_t req, enum role role, int delta)
{
	const struct demand *d = &s->plan->trace->demands[req];
	struct router *r = &s->routers[d->router];

	load_sent(r->fleet.seg, d->worker, slot_of(r, role, s->reqs[req].ep[role]), delta);
}

/* The router sends the request, */
static void
send_leg(struct sim *s, uint32_t req, enum role role)
{
	if (s->plan->trace->demands[req].router != STRANGER)
		note_sent(s, req, role, 1);
	event_add(s, NET_S, role == ROLE_PREFILL ? ON_PREFILL_IN : ON_DECODE_IN, 0, req);
}

/* has its answer. */
static void
give_back(struct sim *s, uint32_t req, enum role role)
{
	const struct demand *d = &s->plan->trace->demands[req];
	struct router *r;
	uint32_t slot;

	if (d->router == STRANGER)
		return;
	note_sent(s, req, role, -1);
	if (s->plan->placer != BY_ROUTER)
		return;
	r = &s->routers[d->router];
	slot = slot_of(r, role, s->reqs[req].ep[role]);
	load_tokens_sub(r->fleet.seg, d->worker, slot, s->reqs[req].tokens[role]);
	load_release(r->fleet.seg, d->worker, slot);
	tell(s, req, ON_TOLD_END);
}

/*
 * What the prompt finds in its engine's cache.  An engine serves prompts in the order in which they were sent, since all
 * are as long on their way: so that is known already.
 */
static void
look_up(struct sim *s, uint32_t req)
{
	const struct demand *d = &s->plan->trace->demands[req];
	const uint32_t ep = s->reqs[req].ep[ROLE_PREFILL];
	const uint32_t cached = REPLAY_BLOCK * lru_take(&s->cache[ep], d->blocks, d->nblocks);
	const double work_s = prefill_s(d->prompt - cached) / s->plan->weights[ep];

	s->reqs[req].uncached = d->prompt - cached;
	s->free_s[ep] = (s->free_s[ep] > s->now_s ? s->free_s[ep] : s->now_s) + work_s;
	s->front[ep].requests++;
	s->front[ep].blocks += d->nblocks;
	s->front[ep].uncached += d->prompt - cached;
	if (req < s->counted_from)
		return;
	s->busy_s[ep] += work_s;
	s->prompt_tokens += d->prompt;
	s->cached_tokens += cached;
}

static void
replay_arrive(struct sim *s, uint32_t req)
{
	const struct demand *d = &s->plan->trace->demands[req];
	struct chooser *w = &s->routers[d->router].workers[d->worker];

	w->mean_tokens = select_mean(w->mean_tokens, d->guess);
	s->reqs[req].ep[ROLE_PREFILL] = place(s, req, ROLE_PREFILL);
	tell(s, req, ON_TOLD_BEGIN);
	look_up(s, req);
	send_leg(s, req, ROLE_PREFILL);
}

static void
arrive(struct sim *s, uint32_t req)
{
	const struct demand *d = &s->plan->trace->demands[req];

	if (s->cache != NULL) {
		replay_arrive(s, req);
		return;
	}

	if (d->router == STRANGER) {
		s->reqs[req].ep[ROLE_PREFILL] = place_stranger(s, req, ROLE_PREFILL);
		s->reqs[req].ep[ROLE_DECODE] = place_stranger(s, req, ROLE_DECODE);
	} else {
		struct chooser *w = &s->routers[d->router].workers[d->worker];

		w->mean_tokens = select_mean(w->mean_tokens, d->guess);
		s->reqs[req].ep[ROLE_PREFILL] = place(s, req, ROLE_PREFILL);
		s->reqs[req].ep[ROLE_DECODE] = place(s, req, ROLE_DECODE);
	}
	if (req >= s->counted_from)
		for (uint32_t k = 0; k < 3; k++)
			s->result->share[k] +=
				s->plan->weights[s->reqs[req].ep[ROLE_PREFILL]] == 1u << k;
	send_leg(s, req, ROLE_PREFILL);
}

/* --- engines ------------------------------------------------------------------------------------- */

static void
note_length(struct sim *s, enum role role, uint32_t ep, uint32_t length)
{
	const uint32_t per_speed = length / s->plan->weights[ep];

	if (s->ndone >= s->counted_from && per_speed > s->result->longest[role])
		s->result->longest[role] = per_speed;
}

/* Whether the prefix is in the engine's cache; it is there afterwards, as the latest. */
static bool
cache_look(struct prefill *e, uint64_t key, uint32_t size)
{
	uint32_t k = 0;
	bool hit;

	while (k < size && e->cache[k] != key)
		k++;
	hit = k < size;
	if (!hit)
		k = size - 1;
	memmove(&e->cache[1], &e->cache[0], k * sizeof(e->cache[0]));
	e->cache[0] = key;
	return hit;
}

static void
on_prefill_in(struct sim *s, const struct event *ev)
{
	const struct demand *d = &s->plan->trace->demands[ev->what];
	struct req *req = &s->reqs[ev->what];
	const uint32_t ep = req->ep[ROLE_PREFILL];
	struct prefill *e = &s->prefill[ep];
	double tokens = d->prompt;

	if (s->cache != NULL)
		tokens = req->uncached;
	else if (s->plan->cached > 0 && cache_look(e, d->prefix, s->plan->cached)) {
		tokens *= 1 - CACHED_SHARE;
		s->hits++;
	}
	if (e->free_s < s->now_s)
		e->free_s = s->now_s;
	req->wait_s[ROLE_PREFILL] = e->free_s - s->now_s;
	e->free_s += prefill_s((uint32_t)tokens) / s->plan->weights[ep];
	note_length(s, ROLE_PREFILL, ep, ++e->inside);
	event_add(s, e->free_s - s->now_s, ON_PREFILL_DONE, 0, ev->what);
}

static void
on_prefill_done(struct sim *s, const struct event *ev)
{
	const uint32_t ep = s->reqs[ev->what].ep[ROLE_PREFILL];

	s->prefill[ep].inside--;
	s->load[ROLE_PREFILL][ep] -= own_load(s, ev->what);
	event_add(s, NET_S, ON_PREFILL_BACK, 0, ev->what);
}

static void
replay_done(struct sim *s, uint32_t req)
{
	const struct demand *d = &s->plan->trace->demands[req];
	const struct router *router = &s->routers[d->router];
	const struct req *r = &s->reqs[req];
	struct sim_front *front = &s->front[r->ep[ROLE_PREFILL]];

	front->requests--;
	front->blocks -= d->nblocks;
	front->uncached -= r->uncached;
	prefix_record(router->fleet.seg, slot_of(router, ROLE_PREFILL, r->ep[ROLE_PREFILL]),
		&r->guess, d->prompt - r->uncached, d->prompt);
	s->ndone++;
}

static void
on_prefill_back(struct sim *s, const struct event *ev)
{
	give_back(s, ev->what, ROLE_PREFILL);
	if (s->cache != NULL) {
		replay_done(s, ev->what);
		return;
	}
	send_leg(s, ev->what, ROLE_DECODE);
}

static double
step_s(const struct sim *s, uint32_t ep)
{
	return decode_step_s(s->decode[ep].running) / s->plan->weights[ep];
}

static void
advance(struct sim *s, uint32_t ep)
{
	struct decode *e = &s->decode[ep];

	if (e->running > 0)
		e->progress += (s->now_s - e->at_s) / step_s(s, ep);
	e->at_s = s->now_s;
}

static uint32_t
shortest(const struct decode *e)
{
	uint32_t k = 0;

	for (uint32_t i = 1; i < e->running; i++)
		if (e->batch[i].end < e->batch[k].end)
			k = i;
	return k;
}

/* When the next of the batch has his last token, if nobody joins or leaves before. */
static void
expect(struct sim *s, uint32_t ep)
{
	struct decode *e = &s->decode[ep];
	double left;

	e->version++;
	if (e->running == 0)
		return;
	left = e->batch[shortest(e)].end - e->progress;
	event_add(s, (left > 0 ? left : 0) * step_s(s, ep), ON_DECODE_DONE, 0, ep)->version =
		e->version;
}

static void
join(struct sim *s, uint32_t ep, uint32_t req)
{
	struct decode *e = &s->decode[ep];

	e->batch[e->running++] = (struct sequence){
		.end = e->progress + s->plan->trace->demands[req].output, .req = req};
}

static void
on_decode_in(struct sim *s, const struct event *ev)
{
	struct req *req = &s->reqs[ev->what];
	const uint32_t ep = req->ep[ROLE_DECODE];
	struct decode *e = &s->decode[ep];

	req->in_s = s->now_s;
	if (e->running < DECODE_BATCH) {
		advance(s, ep);
		join(s, ep, ev->what);
		expect(s, ep);
	} else {
		req->next = NONE;
		*(e->waiting++ == 0 ? &e->first : &s->reqs[e->last].next) = ev->what;
		e->last = ev->what;
	}
	note_length(s, ROLE_DECODE, ep, e->running + e->waiting);
}

static void
on_decode_done(struct sim *s, const struct event *ev)
{
	const uint32_t ep = ev->what;
	struct decode *e = &s->decode[ep];
	uint32_t k, id;
	struct req *req;

	if (ev->version != e->version)
		return;
	advance(s, ep);
	k = shortest(e);
	id = e->batch[k].req;
	req = &s->reqs[id];
	e->batch[k] = e->batch[--e->running];
	req->wait_s[ROLE_DECODE] =
		s->now_s - req->in_s -
		s->plan->trace->demands[id].output * decode_step_s(1) / s->plan->weights[ep];
	s->load[ROLE_DECODE][ep] -= own_load(s, id);
	if (e->waiting > 0) {
		join(s, ep, e->first);
		e->first = s->reqs[e->first].next;
		e->waiting--;
	}
	expect(s, ep);
	event_add(s, NET_S, ON_DECODE_BACK, 0, id);
}

static void
on_decode_back(struct sim *s, const struct event *ev)
{
	give_back(s, ev->what, ROLE_DECODE);
	s->ndone++;
}

/* --- scrapes: each router's own, as master/probe/scrape.c takes them ------------------------------------ */

static enum role
role_of(const struct sim *s, uint32_t what)
{
	return what < s->plan->n ? ROLE_PREFILL : ROLE_DECODE;
}

static uint32_t
slot_of_scrape(const struct sim *s, const struct event *ev)
{
	return slot_of(&s->routers[ev->router], role_of(s, ev->what), ev->what % s->plan->n);
}

static void
on_scrape(struct sim *s, const struct event *ev)
{
	struct router *r = &s->routers[ev->router];
	struct scrape *c = &r->scrapes[ev->what];
	const uint32_t slot = slot_of_scrape(s, ev);

	c->turnover = ep_turnover(r->fleet.seg, slot);
	c->sent = load_sent_sum(r->fleet.seg, slot) +
		  sibling_load_get(r->fleet.seg, slot, clock_of(s)).requests;
	event_add(s, NET_S, ON_SCRAPE_PAGE, ev->router, ev->what);
}

static void
on_scrape_page(struct sim *s, const struct event *ev)
{
	struct scrape *c = &s->routers[ev->router].scrapes[ev->what];
	const uint32_t ep = ev->what % s->plan->n;

	c->figure = role_of(s, ev->what) == ROLE_PREFILL
			    ? s->prefill[ep].inside
			    : s->decode[ep].running + s->decode[ep].waiting;
	event_add(s, NET_S, ON_SCRAPE_BACK, ev->router, ev->what);
}

static uint64_t
scrape_again_ms(struct router *r, struct scrape *c, uint32_t foreign)
{
	uint32_t often = c->often > 0 ? c->often - 1 : 0;

	if (foreign != c->counted)
		often = SCRAPE_OFTEN_FOR;
	c->counted = foreign;
	r->often += (often > 0) - (c->often > 0);
	c->often = often;
	return often > 0 ? scrape_often_ms(SCRAPE_MS, r->often) : SCRAPE_MS;
}

static void
on_scrape_back(struct sim *s, const struct event *ev)
{
	struct router *r = &s->routers[ev->router];
	struct scrape *c = &r->scrapes[ev->what];
	const uint32_t slot = slot_of_scrape(s, ev);
	const uint32_t sent = load_sent_sum(r->fleet.seg, slot) +
			      sibling_load_get(r->fleet.seg, slot, clock_of(s)).requests;
	uint32_t foreign, former = c->former;

	r->known[role_of(s, ev->what)][ev->what % s->plan->n] = c->figure;
	if (sent > c->sent)
		c->sent = sent;
	foreign = c->figure > c->sent ? c->figure - c->sent : 0;
	c->former = foreign;
	if (c->turnover != ep_turnover(r->fleet.seg, slot) && former < foreign)
		foreign = former;
	load_foreign_set(r->fleet.seg, slot, foreign, CLOCK_FROM_MS + (uint64_t)(s->now_s * 1000));
	event_add(
		s, (double)scrape_again_ms(r, c, foreign) / 1000, ON_SCRAPE, ev->router, ev->what);
}

static void
on_sample(struct sim *s, const struct event *ev)
{
	uint32_t longest = 0;

	for (uint32_t i = 0; i < s->plan->n; i++)
		if (s->decode[i].running + s->decode[i].waiting > longest)
			longest = s->decode[i].running + s->decode[i].waiting;
	s->result->series[s->sampled++] = (uint16_t)(longest < UINT16_MAX ? longest : UINT16_MAX);
	if (s->sampled < SIM_SERIES)
		event_add(s, SIM_SERIES_S, ON_SAMPLE, 0, ev->what);
}

static void (*const handlers[NKINDS])(struct sim *, const struct event *) = {
	[ON_PREFILL_IN] = on_prefill_in,
	[ON_PREFILL_DONE] = on_prefill_done,
	[ON_PREFILL_BACK] = on_prefill_back,
	[ON_DECODE_IN] = on_decode_in,
	[ON_DECODE_DONE] = on_decode_done,
	[ON_DECODE_BACK] = on_decode_back,
	[ON_SCRAPE] = on_scrape,
	[ON_SCRAPE_PAGE] = on_scrape_page,
	[ON_SCRAPE_BACK] = on_scrape_back,
	[ON_TOLD_BEGIN] = on_told_begin,
	[ON_TOLD_END] = on_told_end,
	[ON_TOLD] = on_told,
	[ON_SAMPLE] = on_sample,
};

/* --- a run --------------------------------------------------------------------------------------- */

static void
router_init(struct sim *s, uint32_t id)
{
	const struct sim_plan *plan = s->plan;
	struct router *r = &s->routers[id];
	uint64_t dice = id + 1;

	fleet_init(&r->fleet,
		&(struct fleet_plan){.workers = plan->workers,
			.n = plan->n,
			.weights = plan->weights,
			.policy = plan->policy,
			.talks = plan->talk_s > 0,
			.loads = {plan->load, plan->load},
			.prefix_buckets = plan->policy == POLICY_CACHE_AWARE ? PREFIX_BUCKETS : 0,
			.capacity = (uint64_t)plan->blocks * REPLAY_BLOCK});
	prefix_secret_make(&r->secret, (const uint64_t[2]){1, 2}); /* the same in every run */
	r->found = prefix_found_new(2 * plan->n);
	r->workers = mem_array(plan->workers, sizeof(*r->workers));
	for (uint32_t w = 0; w < plan->workers; w++)
		r->workers[w] = (struct chooser){/* as worker.c begins */
			.cursor = {select_cursor(w), select_cursor(w)},
			.rnd = dice_next(&dice) | 1};
	r->scrapes = mem_array(2 * plan->n, sizeof(*r->scrapes));
	r->siblings = mem_array(plan->n, sizeof(*r->siblings));
	if (plan->talk_s > 0)
		event_add(s, TOLD_AGAIN_S, ON_TOLD, id, 0);
	for (int role = 0; role < ROLE_N; role++)
		r->known[role] = mem_array(plan->n, sizeof(double));
	for (uint32_t i = 0; i < 2 * plan->n; i++)
		event_add(s, SCRAPE_MS / 1000. * dice_unit(&dice), ON_SCRAPE, id, i);
}

static void
router_fini(struct router *r)
{
	free(r->workers);
	free(r->scrapes);
	free(r->siblings);
	free(r->found);
	membuf_free(&r->text);
	for (int role = 0; role < ROLE_N; role++)
		free(r->known[role]);
	fleet_fini(&r->fleet);
}

static int
by_size(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Times to the first token are left in `times`. */
static void
sum_up_replay(const struct sim *s, struct sim_result *ret, double *times)
{
	const struct trace *t = s->plan->trace;
	double sum = 0, most = 0;
	uint32_t n = 0;

	for (uint32_t i = s->counted_from; i < t->n; i++) {
		const struct req *r = &s->reqs[i];

		sum += times[n++] = 2 * NET_S + r->wait_s[ROLE_PREFILL] +
				    prefill_s(r->uncached) / s->plan->weights[r->ep[ROLE_PREFILL]];
	}
	qsort(times, n, sizeof(*times), by_size);
	ret->ttft_s = sum / n;
	ret->ttft_p99_s = times[(size_t)(0.99 * n)];
	ret->hit_rate = (double)s->cached_tokens / (double)s->prompt_tokens;
	sum = 0;
	for (uint32_t i = 0; i < s->plan->n; i++) {
		sum += s->busy_s[i];
		most = s->busy_s[i] > most ? s->busy_s[i] : most;
	}
	ret->imbalance = most / (sum / s->plan->n);
}

static void
sum_up(const struct sim *s, struct sim_result *ret)
{
	const struct trace *t = s->plan->trace;
	double *waits = mem_array(t->n, sizeof(*waits));
	uint32_t n = 0;

	for (int role = 0; role < ROLE_N; role++) {
		double sum = 0;

		n = 0;
		for (uint32_t i = s->counted_from; i < t->n; i++)
			if (t->demands[i].router != STRANGER)
				sum += waits[n++] = s->reqs[i].wait_s[role];
		qsort(waits, n, sizeof(*waits), by_size);
		ret->mean_s[role] = sum / n;
		ret->p99_s[role] = waits[(size_t)(0.99 * n)];
	}
	for (int k = 0; k < 3; k++)
		ret->share[k] /= n;
	ret->cache_hits = (double)s->hits / t->n;
	if (s->cache != NULL)
		sum_up_replay(s, ret, waits);
	free(waits);
}

static void
caches_init(struct sim *s)
{
	if (s->plan->blocks == 0)
		return;
	s->cache = mem_array(s->plan->n, sizeof(*s->cache));
	s->front = mem_array(s->plan->n, sizeof(*s->front));
	s->busy_s = mem_array(s->plan->n, sizeof(*s->busy_s));
	for (uint32_t i = 0; i < s->plan->n; i++)
		lru_init(&s->cache[i], s->plan->blocks);
}

static void
caches_fini(struct sim *s)
{
	for (uint32_t i = 0; s->cache != NULL && i < s->plan->n; i++)
		lru_fini(&s->cache[i]);
	free(s->cache);
	free(s->front);
	free(s->busy_s);
}

void
sim_run(const struct sim_plan *plan, struct sim_result *ret)
{
	const struct trace *t = plan->trace;
	struct sim s = {.plan = plan, .counted_from = t->n / WARM_UP, .result = ret};
	uint32_t next = 0;

	assert(plan->cached <= CACHE_MAX);
	*ret = (struct sim_result){0};
	s.routers = mem_array(plan->routers, sizeof(*s.routers));
	s.prefill = mem_array(plan->n, sizeof(*s.prefill));
	s.decode = mem_array(plan->n, sizeof(*s.decode));
	s.reqs = mem_array(t->n, sizeof(*s.reqs));
	s.free_s = mem_array(plan->n, sizeof(*s.free_s));
	for (int role = 0; role < ROLE_N; role++)
		s.load[role] = mem_array(plan->n, sizeof(double));
	caches_init(&s);
	for (uint32_t i = 0; i < plan->routers; i++)
		router_init(&s, i);
	event_add(&s, SIM_SERIES_AT, ON_SAMPLE, 0, 0);

	while (s.ndone < t->n) {
		if (next < t->n && t->demands[next].at_s <= s.heap[0].at_s) {
			s.now_s = t->demands[next].at_s;
			arrive(&s, next++);
		} else {
			const struct event ev = event_take(&s);

			s.now_s = ev.at_s;
			handlers[ev.kind](&s, &ev);
		}
	}
	sum_up(&s, ret);

	for (uint32_t i = 0; i < plan->routers; i++)
		router_fini(&s.routers[i]);
	caches_fini(&s);
	for (int role = 0; role < ROLE_N; role++)
		free(s.load[role]);
	free(s.free_s);
	free(s.reqs);
	free(s.decode);
	free(s.prefill);
	free(s.routers);
	free(s.heap);
}
