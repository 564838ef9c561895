/*
 * How long other requests wait.  In a queue that is W long on average and serves prompts of x, one prompt more makes the
 * others wait longer by W x^2 / E[x^2] for its length and by 2 W^2 x / E[x^2] for the load it adds (Pollaczek and
 * Khinchine's mean wait, derived by the rate of such prompts).  All of it is measured here: x is the time of a request
 * without a queue, W its time beyond that.  A queue at the decode engines holds up both ways, a queue at the prefill
 * engines the long way alone; so the two can be distinguished.  The price is taken PRICE times: decode engines queue for
 * slots in the batch too, and each prompt makes the requests there hold their slots longer.
 *
 * The numbers here were chosen by tests/bench/sched_routes.c: see there what they cost and gain.
 */
#include "worker/schedule/threshold.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* clang-format off */
#define PARTS 8           /* of a bucket: where the threshold can be */
#define TOP (THRESHOLD_BUCKETS * PARTS)
#define REVIEW 50         /* requests between two looks at the threshold */

/* What is remembered. */
#define FADE 0.99137f     /* of knowledge is left at each look: half after 4,000 requests */
#define RECENT 0.99654f   /* of sums over the latest requests, at each request: half after 200 */
#define SQUARES 1000      /* requests that means of squares look back on */
#define QUEUES 40         /* looks that means of queues look back on: 2,000 requests */
#define QUIET 0.1f        /* share of requests that find no queue */
#define QUIET_STEP 0.05f  /* by which the guess of what those take moves */
#define SPREAD 1.3f       /* lengths within a bucket, and estimates, differ so much without a queue */

/* Which requests try the other way. */
#define EXPLORE 0.01f     /* of all requests, each way, */
#define CREDIT_MAX 4.f    /* saved up to so many, */
#define CREDIT_START 16.f /* more at first, */
#define CHANCE 4          /* one in so many of those that may, */
#define LOST 0.005f       /* while that loses less than so much of all time until first tokens, */
#define LOST_MAX 16.f     /* saved up to so many requests' time */

/* When the threshold moves. */
#define PRICE 1.5         /* of what others wait */
#define ENOUGH 4.f        /* requests have gone each way; fewer do where it pays much, */
#define ENOUGH_LEAST 2.f  /* but not below */
#define PAYS 0.05         /* a gain it rises for, as a share of the time until the first token */
#define PAYS_MUCH 0.5
#define STEP_SHARE 0.04   /* of requests lie in a step */
#define SPAN_SHARE 0.1    /* in what is compared above and below it, */
#define SEARCH_SHARE 0.2  /* in both during the first search, */
#define SEARCH 200        /* with so many requests between two steps */
#define FULL 0.4          /* a queue at the decode engines of so many quiet times makes it fall, */
#define REST 200          /* again after so many requests; */
#define SLOW 1000         /* it rises beyond its ceiling after so many, a fifth if it pays much, */
#define FALLS_MAX 3       /* twice as many after each fall, so often */
/* clang-format on */

enum way { LONG, DIRECT };

/* What a request adds to the waits of others: per_square * quiet^2 + per_us * quiet. */
struct price {
	double per_square, per_us;
};

struct queues {
	double quiet_us, prefill_us, decode_us;
	struct price price[2];
};

/* What is known of the requests between two positions. */
struct stretch {
	double loss_us, long_us; /* a request's, by going direct; its time the long way */
	double known;            /* requests of the less known way */
};

static uint32_t
bucket_of(uint32_t estimate)
{
	uint32_t octave, b;

	if (estimate < 16)
		return 0;
	octave = 31 - (uint32_t)__builtin_clz(estimate);
	/* the square root of 2 is 181 / 128 */
	b = 1 + 2 * (octave - 4) + ((uint64_t)estimate * 128 >= (uint64_t)181 << octave);
	return b < THRESHOLD_BUCKETS ? b : THRESHOLD_BUCKETS - 1;
}

static uint32_t
bucket_start(uint32_t b)
{
	const uint32_t octave = 4 + (b - 1) / 2;

	if (b == 0)
		return 0;
	return b % 2 == 1 ? 1u << octave : ((181u << octave) + 127) / 128;
}

void
threshold_init(struct threshold *t)
{
	static_assert(sizeof(*t) <= 1024, "one for each pool in each worker");
	memset(t, 0, sizeof(*t));
	t->ceiling = t->to = TOP;
	t->way[LONG].credit = t->way[DIRECT].credit = CREDIT_START;
}

uint32_t
threshold_now(const struct threshold *t)
{
	const uint32_t b = t->at / PARTS, start = bucket_start(b);

	if (t->at == TOP)
		return UINT32_MAX;
	return start + (bucket_start(b + 1) - start) * (t->at % PARTS) / PARTS;
}

/* --- looking ------------------------------------------------------------------------------------- */

/* Requests in one part of a bucket. */
static double
requests_at(const struct threshold *t, uint32_t at)
{
	const uint32_t b = at / PARTS;

	return (t->cell[LONG][b].weight + t->cell[DIRECT][b].weight) / PARTS;
}

static double
requests(const struct threshold *t)
{
	double n = 0;

	for (uint32_t b = 0; b < THRESHOLD_BUCKETS; b++)
		n += PARTS * requests_at(t, b * PARTS);
	return n;
}

/* The position so far above, or below, that this share of all requests lies between; at least the next one. */
static uint32_t
above(const struct threshold *t, uint32_t from, double share)
{
	double want = share * requests(t);

	while (from < TOP && want >= 0)
		want -= requests_at(t, from++);
	return from;
}

static uint32_t
below(const struct threshold *t, uint32_t to, double share)
{
	double want = share * requests(t);

	while (to > 0 && want >= 0)
		want -= requests_at(t, --to);
	return to;
}

static struct price
price_of(double wait_us, double square)
{
	if (square <= 0)
		return (struct price){0, 0};
	return (struct price){PRICE * wait_us / square, PRICE * 2 * wait_us * wait_us / square};
}

/* What is in the engines' queues now, and what that costs in the long run: in calm moments as in others. */
static void
look_at_queues(struct threshold *t, struct queues *q)
{
	const double all = t->way[LONG].square + t->way[DIRECT].square;
	double wait_us[2];

	/* + 1: few tell little */
	for (int way = 0; way < 2; way++)
		wait_us[way] = t->way[way].wait_us / (t->way[way].n + 1);
	q->quiet_us = t->quiet_us / (t->n + 1);
	q->decode_us = wait_us[DIRECT];
	if (t->way[LONG].n > t->way[DIRECT].n && wait_us[LONG] < q->decode_us)
		q->decode_us = wait_us[LONG]; /* it holds that one too, and is better known */
	q->prefill_us = fmax(wait_us[LONG] - q->decode_us, 0);
	t->way[LONG].queue_us += (float)(q->prefill_us - t->way[LONG].queue_us) / QUEUES;
	t->way[DIRECT].queue_us += (float)(q->decode_us - t->way[DIRECT].queue_us) / QUEUES;
	/* the queue of a way that few requests take is its engines' other work */
	q->price[LONG] = price_of(t->way[LONG].queue_us, fmax(t->way[LONG].square, all / 4));
	q->price[DIRECT] = price_of(
		fmax(t->way[DIRECT].queue_us, q->decode_us), fmax(t->way[DIRECT].square, all / 4));
}

static double
price(const struct price *p, double quiet_us)
{
	return (p->per_square * quiet_us + p->per_us) * quiet_us;
}

static struct stretch
compare(const struct threshold *t, const struct queues *q, uint32_t from, uint32_t to)
{
	double known[2] = {0, 0}, n = 0;
	struct stretch v = {0, 0, 0};

	for (uint32_t b = from / PARTS; b * PARTS < to; b++) {
		const struct threshold_cell *l = &t->cell[LONG][b], *d = &t->cell[DIRECT][b];
		const double here = l->weight + d->weight;

		known[LONG] += l->weight;
		known[DIRECT] += d->weight;
		if (l->weight < 0.5f || d->weight < 0.5f)
			continue;
		n += here;
		v.long_us += here * l->mean_us;
		v.loss_us += here * (d->mean_us + price(&q->price[DIRECT], d->quiet_us) -
					    l->mean_us - price(&q->price[LONG], l->quiet_us));
	}
	if (n > 0) {
		v.long_us /= n;
		v.loss_us /= n;
		v.known = fmin(known[LONG], known[DIRECT]);
	}
	return v;
}

/* Where much is at stake, few are enough. */
static bool
is_known(const struct stretch *v)
{
	const double stake = v->long_us > 0 ? fabs(v->loss_us) / v->long_us : 0;

	return v->known >= ENOUGH_LEAST && v->known * stake >= fmin(stake, PAYS_MUCH) * ENOUGH;
}

/* --- moving -------------------------------------------------------------------------------------- */

/* The longer the queue, the further. */
static void
fall(struct threshold *t, const struct queues *q)
{
	const double times = q->decode_us / q->quiet_us;
	uint32_t parts = 2 * PARTS;

	t->settled = true;
	if (t->at == 0 || t->asked - t->fell < REST)
		return;
	if (times > 4)
		parts = t->at;
	else if (times > 2)
		parts = t->at / 2u + 1;
	else if (times > 1)
		parts = 4 * PARTS;
	t->ceiling = (uint16_t)below(t, t->at, 0); /* a part less */
	t->at = t->at > parts ? (uint16_t)(t->at - parts) : 0;
	t->fell = t->moved = t->asked;
	if (t->falls < FALLS_MAX)
		t->falls++;
}

static bool
fall_if_it_pays(struct threshold *t, const struct queues *q)
{
	const struct stretch v = compare(t, q, below(t, t->at, SPAN_SHARE), t->at);

	if (t->at == 0 || v.loss_us <= 0 || !is_known(&v))
		return false;
	t->at = (uint16_t)below(t, t->at, STEP_SHARE);
	t->settled = true;
	return true;
}

static void
rise_if_it_pays(struct threshold *t, const struct queues *q)
{
	const uint32_t span = above(t, t->at, t->settled ? SPAN_SHARE : SEARCH_SHARE);
	const struct stretch v = compare(t, q, t->at, span);
	const bool much = v.loss_us < -PAYS_MUCH * v.long_us;
	uint32_t to = above(t, t->at, STEP_SHARE), pace = t->settled ? 0 : SEARCH;

	if (t->at >= t->ceiling)
		pace = (uint32_t)(much ? SLOW / 5 : SLOW) << t->falls;
	if (t->asked - t->moved < pace)
		return;
	if (!is_known(&v) || v.loss_us > -PAYS * v.long_us) {
		t->settled |= v.known >= ENOUGH;
		return;
	}
	if (!t->settled)
		to = span;
	else if (much && to < t->ceiling)
		to = above(t, to, STEP_SHARE);
	t->at = (uint16_t)to;
	t->moved = t->asked;
	if (t->at > t->ceiling) {
		t->ceiling = t->at;
		if (t->falls > 0)
			t->falls--;
	}
}

static void
review(struct threshold *t)
{
	struct queues q;

	for (int way = 0; way < 2; way++)
		for (uint32_t b = 0; b < THRESHOLD_BUCKETS; b++)
			t->cell[way][b].weight *= FADE;
	look_at_queues(t, &q);
	if (q.decode_us > FULL * q.quiet_us && q.decode_us > q.prefill_us)
		fall(t, &q);
	else if (!fall_if_it_pays(t, &q))
		rise_if_it_pays(t, &q);
	t->from = (uint16_t)below(t, t->at / PARTS * PARTS, SPAN_SHARE);
	t->to = (uint16_t)above(
		t, (t->at + PARTS - 1u) / PARTS * PARTS, t->settled ? SPAN_SHARE : SEARCH_SHARE);
}

/* --- a request ----------------------------------------------------------------------------------- */

static uint64_t
draw(uint64_t *rnd)
{
	*rnd ^= *rnd << 13; /* Marsaglia's xorshift64 */
	*rnd ^= *rnd >> 7;
	*rnd ^= *rnd << 17;
	return *rnd >> 32;
}

/* Of the bucket that the threshold is in, the share below the threshold: chosen by chance, so that both ways get
 * similar requests. */
static bool
is_below(const struct threshold *t, uint32_t b, uint64_t *rnd)
{
	return b * PARTS + draw(rnd) % PARTS < t->at;
}

static bool
tries(struct threshold *t, uint32_t b, enum way way, uint64_t *rnd)
{
	if (b * PARTS < t->from || b * PARTS >= t->to || t->way[way].credit < 1 ||
		t->way[way].spare_us < 0 || draw(rnd) % CHANCE != 0)
		return false;
	t->way[way].credit -= 1;
	return true;
}

/* The way of all of a bucket; of the one where the threshold is, of none. */
static bool
is_usual(const struct threshold *t, uint32_t b, enum way way)
{
	return way == DIRECT ? (b + 1) * PARTS <= t->at : b * PARTS >= t->at;
}

bool
threshold_direct(struct threshold *t, uint32_t estimate, uint64_t *rnd)
{
	const uint32_t b = bucket_of(estimate);

	if (++t->asked % REVIEW == 0)
		review(t);
	for (int way = 0; way < 2; way++)
		if (t->way[way].credit < CREDIT_MAX)
			t->way[way].credit += EXPLORE;
	if (is_usual(t, b, DIRECT))
		return !tries(t, b, LONG, rnd);
	if (is_usual(t, b, LONG))
		return tries(t, b, DIRECT, rnd);
	return is_below(t, b, rnd);
}

/* A quantile without a list: up a little at each that took longer, down nine times as much at others. */
static void
learn_quiet(struct threshold_cell *c, float ttft_us)
{
	const float step = fmaxf(fminf(1 / c->weight, 0.5f), QUIET_STEP);

	if (c->quiet_us == 0)
		c->quiet_us = ttft_us;
	c->quiet_us *= ttft_us < c->quiet_us ? 1 - step * (1 - QUIET) : 1 + step * QUIET;
}

void
threshold_learn(struct threshold *t, uint32_t estimate, bool direct, uint64_t ttft_us)
{
	const float us = fmaxf((float)ttft_us, 1);
	const uint32_t b = bucket_of(estimate);
	struct threshold_cell *c = &t->cell[direct][b];

	for (int way = 0; way < 2; way++)
		t->way[way].spare_us = fminf(t->way[way].spare_us + LOST * us, LOST_MAX * us);
	if (is_usual(t, b, direct ? LONG : DIRECT) && t->cell[!direct][b].weight > 0)
		t->way[direct].spare_us -= us - t->cell[!direct][b].mean_us;
	c->weight += 1;
	c->mean_us += (us - c->mean_us) / c->weight;
	learn_quiet(c, us);
	for (int way = 0; way < 2; way++) {
		const float square = way == direct ? c->quiet_us * c->quiet_us : 0;

		t->way[way].n *= RECENT;
		t->way[way].wait_us *= RECENT;
		t->way[way].square +=
			(square - t->way[way].square) / fminf((float)t->asked + 1, SQUARES);
	}
	t->way[direct].n += 1;
	t->way[direct].wait_us += fmaxf(us - SPREAD * c->quiet_us, 0);
	t->n = t->n * RECENT + 1;
	t->quiet_us = t->quiet_us * RECENT + c->quiet_us;
}
