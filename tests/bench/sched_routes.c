#include "tests/bench/sched_routes.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "shm/base/mem.h"
#include "tests/bench/sched_trace.h"
#include "worker/schedule/threshold.h"

#define NET_S 0.0005 /* one way between router and engine */
#define CHUNK 2048   /* tokens of prompts and outputs that one step of a decode engine takes */
#define OUTPUT_SIGMA 0.95
#define GUESS_SIGMA 0.15
#define WARM_UP 10 /* the first 1 / so many of the requests are not counted */
#define NONE UINT32_MAX

enum event_kind {
	ON_PREFILL_DONE, /* the router knows that the prefill engine is through with the request */
	ON_DECODE_IN,    /* the request, and its cache if there is one, are at the decode engine */
	ON_STEP          /* the decode engine has done one */
};

struct event {
	double at_s;
	uint32_t order;
	enum event_kind kind;
	uint32_t what; /* request or engine */
};

struct req {
	double at_s, first_s;
	uint32_t prompt, guess, output; /* output: what is left */
	uint32_t worker, prefill, decode;
	uint32_t prefill_left; /* tokens that the decode engine has to prefill */
	uint32_t next;         /* in its engine's queue */
	bool direct;
};

/* Serves one prompt after the other. */
struct prefill {
	double free_s;
	uint32_t inside;
};

/* All that run advance by a token a step; prompts are prefilled in what is left of the step's tokens. */
struct decode {
	uint32_t running[DECODE_BATCH];
	uint32_t nrunning, nwaiting, coming;
	uint32_t first, last; /* who waits */
	bool stepping;
};

struct sim {
	const struct routes_plan *plan;
	uint32_t threshold;
	double now_s;
	struct req *reqs;
	struct prefill *prefill;
	struct decode *decode;
	uint32_t prefill_cursor, decode_cursor;
	struct threshold *learners;
	uint64_t *rnds;
	uint32_t ndone;
	struct event *heap;
	size_t nheap, heap_size;
	uint32_t order;
};

/* --- events -------------------------------------------------------------------------------------- */

static bool
earlier(const struct event *a, const struct event *b)
{
	return a->at_s < b->at_s || (a->at_s == b->at_s && a->order < b->order);
}

static void
event_add(struct sim *s, double at_s, enum event_kind kind, uint32_t what)
{
	const struct event e = {at_s, s->order++, kind, what};
	size_t i = s->nheap++;

	if (s->nheap > s->heap_size) {
		s->heap_size = 2 * s->nheap;
		s->heap = mem_resize(s->heap, s->heap_size, sizeof(*s->heap));
	}
	for (; i > 0 && earlier(&e, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = e;
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

/* --- engines ------------------------------------------------------------------------------------- */

/* Prompts get what the tokens of the others leave of a step, the first come first.  Returns how much that is. */
static uint32_t
prefill_chunks(struct sim *s, const struct decode *e, uint32_t budget)
{
	uint32_t taken = 0;

	for (uint32_t i = 0; i < e->nrunning; i++) {
		struct req *r = &s->reqs[e->running[i]];
		const uint32_t left = budget - taken;
		const uint32_t chunk = r->prefill_left < left ? r->prefill_left : left;

		taken += chunk;
		r->prefill_left -= chunk;
	}
	return taken;
}

static void
step(struct sim *s, uint32_t ep)
{
	struct decode *e = &s->decode[ep];
	uint32_t decoding = 0, chunks;

	while (e->nrunning < DECODE_BATCH && e->nwaiting > 0) {
		e->running[e->nrunning++] = e->first;
		e->first = s->reqs[e->first].next;
		e->nwaiting--;
	}
	e->stepping = e->nrunning > 0;
	if (!e->stepping)
		return;
	for (uint32_t i = 0; i < e->nrunning; i++)
		decoding += s->reqs[e->running[i]].prefill_left == 0;
	chunks = prefill_chunks(s, e, CHUNK - decoding);
	event_add(s, s->now_s + decode_step_s(decoding) + PREFILL_TOKEN_S * chunks, ON_STEP, ep);
}

static void
first_token(struct sim *s, struct req *r)
{
	r->first_s = s->now_s + NET_S;
	if (s->threshold == ROUTES_AUTO)
		threshold_learn(&s->learners[r->worker], r->guess, r->direct,
			(uint64_t)(1e6 * (r->first_s - r->at_s)));
}

static void
on_step(struct sim *s, uint32_t ep)
{
	struct decode *e = &s->decode[ep];
	uint32_t kept = 0;

	for (uint32_t i = 0; i < e->nrunning; i++) {
		struct req *r = &s->reqs[e->running[i]];

		if (r->prefill_left == 0 && r->first_s == 0)
			first_token(s, r);
		if (r->prefill_left == 0 && --r->output == 0)
			s->ndone++;
		else
			e->running[kept++] = e->running[i];
	}
	e->nrunning = kept;
	step(s, ep);
}

static void
on_decode_in(struct sim *s, uint32_t req)
{
	const uint32_t ep = s->reqs[req].decode;
	struct decode *e = &s->decode[ep];

	e->coming--;
	*(e->nwaiting++ == 0 ? &e->first : &s->reqs[e->last].next) = req;
	e->last = req;
	if (!e->stepping)
		step(s, ep);
}

static double
kv_s(const struct sim *s, uint32_t req)
{
	const struct routes_plan *plan = s->plan;
	const bool turned = plan->turn_kv_token_s > 0 && req > plan->requests / 2;

	return plan->kv_s +
	       (turned ? plan->turn_kv_token_s : plan->kv_token_s) * s->reqs[req].prompt;
}

static uint32_t
least_decode(struct sim *s)
{
	const uint32_t n = s->plan->decodes;
	uint32_t best = s->decode_cursor++ % n, best_load = UINT32_MAX;

	for (uint32_t k = 0, from = best; k < n; k++) {
		const struct decode *e = &s->decode[(from + k) % n];

		if (e->nrunning + e->nwaiting + e->coming < best_load) {
			best_load = e->nrunning + e->nwaiting + e->coming;
			best = (from + k) % n;
		}
	}
	return best;
}

static uint32_t
least_prefill(struct sim *s)
{
	const uint32_t n = s->plan->prefills;
	uint32_t from = s->prefill_cursor++ % n, best = from;

	for (uint32_t k = 1; k < n; k++)
		if (s->prefill[(from + k) % n].inside < s->prefill[best].inside)
			best = (from + k) % n;
	return best;
}

static bool
goes_direct(struct sim *s, const struct req *r)
{
	if (s->threshold != ROUTES_AUTO)
		return s->threshold == ROUTES_ALL_DIRECT || r->guess < s->threshold;
	return threshold_direct(&s->learners[r->worker], r->guess, &s->rnds[r->worker]);
}

static void
on_arrival(struct sim *s, uint32_t req)
{
	struct req *r = &s->reqs[req];
	struct prefill *p;
	uint32_t ep;

	r->decode = least_decode(s);
	s->decode[r->decode].coming++;
	r->direct = goes_direct(s, r);
	if (r->direct) {
		r->prefill_left = r->prompt;
		event_add(s, s->now_s + NET_S, ON_DECODE_IN, req);
		return;
	}
	ep = least_prefill(s);
	p = &s->prefill[ep];
	p->inside++;
	r->prefill = ep;
	if (p->free_s < s->now_s + NET_S)
		p->free_s = s->now_s + NET_S;
	p->free_s += prefill_s(r->prompt);
	event_add(s, p->free_s, ON_PREFILL_DONE, req);
}

static void
on_prefill_done(struct sim *s, uint32_t req)
{
	s->prefill[s->reqs[req].prefill].inside--;
	event_add(s, s->now_s + 2 * NET_S + kv_s(s, req), ON_DECODE_IN, req);
}

static void (*const handlers[])(struct sim *, uint32_t) = {
	[ON_PREFILL_DONE] = on_prefill_done,
	[ON_DECODE_IN] = on_decode_in,
	[ON_STEP] = on_step,
};

/* --- a run --------------------------------------------------------------------------------------- */

static void
draw(struct sim *s)
{
	const struct routes_plan *plan = s->plan;
	double prefill = 0, decode = 0, now_s = 0, rate_p, rate_d;
	uint64_t dice = plan->seed;

	for (uint32_t i = 0; i < plan->requests; i++) {
		struct req *r = &s->reqs[i];

		r->prompt = dice_tokens(&dice, plan->prompt, plan->prompt_spread, PROMPT_MAX);
		r->guess = dice_tokens(&dice, r->prompt, GUESS_SIGMA, 2 * PROMPT_MAX);
		r->output = dice_tokens(&dice, plan->output, OUTPUT_SIGMA, OUTPUT_MAX);
		r->worker = (uint32_t)(dice_next(&dice) % plan->workers);
		prefill += prefill_s(r->prompt);
		decode += r->output * decode_step_s(DECODE_BATCH) / DECODE_BATCH;
	}
	rate_p = plan->load * plan->prefills / (prefill / plan->requests);
	rate_d = plan->load * plan->decodes / (decode / plan->requests);
	for (uint32_t i = 0; i < plan->requests; i++) {
		now_s += -log(dice_unit(&dice)) / (rate_p < rate_d ? rate_p : rate_d);
		s->reqs[i].at_s = now_s;
	}
}

static void
sum_up(const struct sim *s, struct routes_result *ret)
{
	const uint32_t from = s->plan->requests / WARM_UP;

	*ret = (struct routes_result){0};
	for (const struct req *r = s->reqs + from; r < s->reqs + s->plan->requests; r++) {
		ret->mean_s += r->first_s - r->at_s;
		ret->direct += r->direct;
	}
	ret->mean_s /= s->plan->requests - from;
	ret->direct /= s->plan->requests - from;
}

void
routes_run(const struct routes_plan *plan, uint32_t threshold, struct routes_result *ret)
{
	struct sim s = {.plan = plan, .threshold = threshold};
	uint32_t next = 0;

	assert(plan->workers > 0 && plan->prefills > 0 && plan->decodes > 0);
	s.reqs = mem_array(plan->requests, sizeof(*s.reqs));
	s.prefill = mem_array(plan->prefills, sizeof(*s.prefill));
	s.decode = mem_array(plan->decodes, sizeof(*s.decode));
	s.learners = mem_array(plan->workers, sizeof(*s.learners));
	s.rnds = mem_array(plan->workers, sizeof(*s.rnds));
	for (uint32_t w = 0; w < plan->workers; w++) {
		threshold_init(&s.learners[w]);
		s.rnds[w] = dice_mix(w + 1) | 1;
	}
	draw(&s);
	while (s.ndone < plan->requests) {
		struct event ev;

		if (next < plan->requests &&
			(s.nheap == 0 || s.reqs[next].at_s <= s.heap[0].at_s)) {
			s.now_s = s.reqs[next].at_s;
			on_arrival(&s, next++);
			continue;
		}
		ev = event_take(&s);
		s.now_s = ev.at_s;
		handlers[ev.kind](&s, ev.what);
	}
	sum_up(&s, ret);
	free(s.heap);
	free(s.rnds);
	free(s.learners);
	free(s.decode);
	free(s.prefill);
	free(s.reqs);
}
