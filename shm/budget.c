#include "shm/budget.h"

#include "shm/core/atomic.h"
#include "shm/core/seg.h"

/* A second of one worker, all written together: second:24 | tries:16 | requests:24. */
#define REQUESTS_BITS 24
#define TRIES_BITS 16
#define SECOND_BITS 24 /* repeats after half a year */

struct counts {
	uint32_t second, tries, requests;
};

static uint32_t
low_bits(uint64_t v, unsigned n)
{
	return (uint32_t)(v & ((UINT64_C(1) << n) - 1));
}

static uint32_t
second_of(uint64_t now_ms)
{
	return low_bits(now_ms / 1000, SECOND_BITS);
}

static struct counts
unpack(uint64_t word)
{
	return (struct counts){
		.second = (uint32_t)(word >> (TRIES_BITS + REQUESTS_BITS)),
		.tries = low_bits(word >> REQUESTS_BITS, TRIES_BITS),
		.requests = low_bits(word, REQUESTS_BITS),
	};
}

/* A count that does not fit stays at its highest value: then the share is what counts. */
static uint64_t
pack(struct counts c)
{
	c.tries -= c.tries >> TRIES_BITS;
	c.requests -= c.requests >> REQUESTS_BITS;
	return (uint64_t)c.second << (TRIES_BITS + REQUESTS_BITS) |
	       (uint64_t)c.tries << REQUESTS_BITS | c.requests;
}

static void
count(struct budget *b, uint64_t now_ms, uint32_t requests, uint32_t tries)
{
	const uint32_t second = second_of(now_ms);
	uint64_t *word = &b->second[now_ms / 1000 % BUDGET_SECONDS];
	struct counts c = unpack(shm_load(word));

	if (c.second != second)
		c = (struct counts){.second = second};
	c.requests += requests;
	c.tries += tries;
	shm_store(word, pack(c));
}

void
budget_request(struct seg *seg, uint32_t me, uint32_t pool, uint64_t now_ms)
{
	count(seg_budget(seg, me, pool), now_ms, 1, 0);
}

void
budget_take(struct seg *seg, uint32_t me, uint32_t pool, uint64_t now_ms)
{
	count(seg_budget(seg, me, pool), now_ms, 0, 1);
}

bool
budget_left(const struct seg *seg, uint32_t pool, uint32_t percent, uint64_t now_ms)
{
	/* the clock of another worker may be a moment ahead */
	const uint32_t next = second_of(now_ms + 1000);
	uint64_t requests = 0, tries = 0;

	for (uint32_t w = 0; w < SLOT_WORKERS(seg); w++) {
		const struct budget *b = seg_budget(seg, w, pool);

		for (uint32_t i = 0; i < BUDGET_SECONDS; i++) {
			const struct counts c = unpack(shm_load(&b->second[i]));

			if (low_bits(next - c.second, SECOND_BITS) > BUDGET_SECONDS)
				continue;
			requests += c.requests;
			tries += c.tries;
		}
	}
	return tries < BUDGET_FREE || (tries + 1) * 100 <= requests * percent;
}
