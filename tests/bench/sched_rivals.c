#include "tests/bench/sched_rivals.h"

#include <float.h>

#include "tests/bench/sched_lru.h"
#include "tests/bench/sched_replay.h"

/* The engine of the lowest cost, one of them by chance. */
struct lowest {
	double cost;
	uint32_t at, ties;
};
#define NO_LOWEST ((struct lowest){.cost = DBL_MAX})

static void
lower(struct lowest *l, struct rival *rival, uint32_t i, double cost)
{
	if (cost > l->cost)
		return;
	l->ties = cost < l->cost ? 1 : l->ties + 1;
	l->cost = cost;
	if (dice_next(&rival->dice) % l->ties == 0)
		l->at = i;
}

/* Tokens that engine i would have to compute. */
static uint32_t
uncached(const struct sim_sight *sight, const struct demand *d, uint32_t i)
{
	return d->prompt - REPLAY_BLOCK * lru_match(&sight->cache[i], d->blocks, d->nblocks);
}

uint32_t
rival_oracle(struct rival *rival, const struct sim_sight *sight, const struct demand *d)
{
	struct lowest best = NO_LOWEST;

	for (uint32_t i = 0; i < sight->n; i++)
		lower(&best, rival, i,
			(sight->free_s[i] > sight->now_s ? sight->free_s[i] : sight->now_s) +
				prefill_s(uncached(sight, d, i)));
	return best.at;
}

/* Requests of the engine that has the fewest, and of the one that has the most. */
struct spread {
	uint32_t lightest, least, most;
};

static struct spread
spread_of(const struct sim_sight *sight)
{
	struct spread s = {.least = UINT32_MAX};

	for (uint32_t i = 0; i < sight->n; i++) {
		const uint32_t requests = sight->front[i].requests;

		if (requests < s.least) {
			s.least = requests;
			s.lightest = i;
		}
		s.most = requests > s.most ? requests : s.most;
	}
	return s;
}

static uint32_t
sglang_choose(const struct rival *rival, const struct sim_sight *sight, const struct demand *d)
{
	const struct spread s = spread_of(sight);
	uint32_t match = 0;

	if (s.most - s.least > rival->balance_abs && s.most > s.least * rival->balance_rel)
		return s.lightest;
	while (match < d->nblocks && rival->tenant[d->blocks[match]] != 0)
		match++;
	if (match * (double)REPLAY_BLOCK / d->prompt > rival->threshold)
		return rival->tenant[d->blocks[match - 1]] - 1;
	return s.lightest;
}

uint32_t
rival_sglang(struct rival *rival, const struct sim_sight *sight, const struct demand *d)
{
	const uint32_t ep = sglang_choose(rival, sight, d);

	for (uint32_t k = 0; k < d->nblocks; k++)
		rival->tenant[d->blocks[k]] = ep + 1;
	return ep;
}

uint32_t
rival_dynamo(struct rival *rival, const struct sim_sight *sight, const struct demand *d)
{
	struct lowest best = NO_LOWEST;

	for (uint32_t i = 0; i < sight->n; i++) {
		const struct sim_front *front = &sight->front[i];
		const double prefill = (double)(front->uncached + uncached(sight, d, i));

		lower(&best, rival, i,
			rival->overlap_weight * prefill / REPLAY_BLOCK +
				(rival->prefill_only ? 0 : (double)front->blocks));
	}
	return best.at;
}

uint32_t
rival_llmd(struct rival *rival, const struct sim_sight *sight, const struct demand *d)
{
	const struct spread s = spread_of(sight);
	struct lowest best = NO_LOWEST;

	for (uint32_t i = 0; i < sight->n; i++) {
		const double share = 1 - (double)uncached(sight, d, i) / d->prompt;
		const double queue =
			s.most == s.least
				? 1
				: (double)(s.most - sight->front[i].requests) / (s.most - s.least);

		lower(&best, rival, i,
			-(rival->prefix_weight * share + rival->queue_weight * queue));
	}
	return best.at;
}
