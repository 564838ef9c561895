#include "worker/threshold.h"
#include <math.h>
#include <string.h>
#define HALF 8000.
static uint32_t
lower(uint32_t b)
{
	return b == 0 ? 0 : (uint32_t)(16 * pow(2, (b - 1) / 2.));
}
static uint32_t
bucket(uint32_t e)
{
	uint32_t b = 0;
	while (b + 1 < THRESHOLD_BUCKETS && e >= lower(b + 1))
		b++;
	return b;
}
void
threshold_init(struct threshold *t)
{
	memset(t, 0, sizeof(*t));
}
static void
choose(struct threshold *t)
{
	double s = 0, best = 0;
	uint32_t at = 0;
	double here = 0;
	for (uint32_t b = 0; b < THRESHOLD_BUCKETS; b++) {
		struct threshold_cell *d = &t->cell[1][b], *g = &t->cell[0][b];
		double n = d->weight < g->weight ? d->weight : g->weight;
		if (b == t->at)
			here = s;
		if (n > 0)
			s += (d->weight + g->weight) * (d->mean - g->mean) * n / (n + 2);
		if (s < best)
			best = s, at = b + 1;
	}
	(void)here;
	t->at = at;
}
bool
threshold_direct(struct threshold *t, uint32_t e, uint64_t *rnd)
{
	uint32_t b = bucket(e);
	bool direct = b < t->at;
	*rnd ^= *rnd << 13;
	*rnd ^= *rnd >> 7;
	*rnd ^= *rnd << 17;
	t->clock++;
	double p = 0.01;
	struct threshold_cell *o = &t->cell[!direct][b], *u = &t->cell[direct][b];
	if (o->weight > 1 && o->mean > 2 * u->mean)
		p = 0.01 * u->mean / (o->mean - u->mean);
	if ((*rnd >> 11) * 0x1p-53 < p)
		return !direct;
	return direct;
}
void
threshold_learn(struct threshold *t, uint32_t e, bool direct, uint64_t us)
{
	struct threshold_cell *c = &t->cell[direct][bucket(e)];
	double f = exp2(-1 / HALF);
	for (int r = 0; r < 2; r++)
		for (int b = 0; b < THRESHOLD_BUCKETS; b++)
			t->cell[r][b].weight *= f;
	c->weight += 1;
	c->mean += (us - c->mean) / c->weight;
	if (t->clock % 64 == 0)
		choose(t);
}
uint32_t
threshold_now(const struct threshold *t)
{
	return t->at >= THRESHOLD_BUCKETS ? UINT32_MAX : lower(t->at);
}
