#include "shm/budget.h"

#include "shm/core/atomic.h"
#include "shm/core/seg.h"

/* A second of one worker, all written together: second:18 | releases:14 | tries:14 | requests:18. */
#define REQUESTS_BITS 18
#define USE_BITS 14
#define SECOND_BITS 18 /* repeats after three days */

struct counts {
	uint32_t second, requests, used[BUDGET_USES];
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

static unsigned
shift_of(enum budget_use use)
{
	return REQUESTS_BITS + use * USE_BITS;
}

static struct counts
unpack(uint64_t word)
{
	return (struct counts){
		.second = (uint32_t)(word >> shift_of(BUDGET_USES)),
		.requests = low_bits(word, REQUESTS_BITS),
		.used[BUDGET_RETRY] = low_bits(word >> shift_of(BUDGET_RETRY), USE_BITS),
		.used[BUDGET_RELEASE] = low_bits(word >> shift_of(BUDGET_RELEASE), USE_BITS),
	};
}

/* A count that does not fit stays at its highest value: then the share is what counts. */
static uint64_t
pack(struct counts c)
{
	uint64_t word = (uint64_t)c.second << shift_of(BUDGET_USES) |
			(c.requests - (c.requests >> REQUESTS_BITS));

	for (enum budget_use u = 0; u < BUDGET_USES; u++)
		word |= (uint64_t)(c.used[u] - (c.used[u] >> USE_BITS)) << shift_of(u);
	return word;
}

/* The word of this second; *ret_counts: what it has counted so far. */
static uint64_t *
this_second(struct seg *seg, uint32_t me, uint32_t pool, uint64_t now_ms, struct counts *ret_counts)
{
	const uint32_t second = second_of(now_ms);
	uint64_t *word = &seg_budget(seg, me, pool)->second[now_ms / 1000 % BUDGET_SECONDS];

	*ret_counts = unpack(shm_load(word));
	if (ret_counts->second != second)
		*ret_counts = (struct counts){.second = second};
	return word;
}

void
budget_request(struct seg *seg, uint32_t me, uint32_t pool, uint64_t now_ms)
{
	struct counts c;
	uint64_t *word = this_second(seg, me, pool, now_ms, &c);

	c.requests++;
	shm_store(word, pack(c));
}

void
budget_take(struct seg *seg, uint32_t me, uint32_t pool, enum budget_use use, uint64_t now_ms)
{
	struct counts c;
	uint64_t *word = this_second(seg, me, pool, now_ms, &c);

	c.used[use]++;
	shm_store(word, pack(c));
}

struct sums {
	uint64_t requests, used[BUDGET_USES];
	uint32_t oldest; /* how many seconds ago the first request was; at least 1 */
};

static void
add(struct sums *sums, const struct counts *c, uint32_t ago)
{
	sums->requests += c->requests;
	for (enum budget_use u = 0; u < BUDGET_USES; u++)
		sums->used[u] += c->used[u];
	if (c->requests > 0 && ago > sums->oldest)
		sums->oldest = ago;
}

static struct sums
sum(const struct seg *seg, uint32_t pool, uint64_t now_ms)
{
	/* the clock of another worker may be a moment ahead */
	const uint32_t next = second_of(now_ms + 1000);
	struct sums sums = {.oldest = 1};

	for (uint32_t w = 0; w < SLOT_WORKERS(seg); w++) {
		const struct budget *b = seg_budget(seg, w, pool);

		for (uint32_t i = 0; i < BUDGET_SECONDS; i++) {
			const struct counts c = unpack(shm_load(&b->second[i]));
			const uint32_t ago = low_bits(next - c.second, SECOND_BITS);

			if (ago <= BUDGET_SECONDS)
				add(&sums, &c, ago);
		}
	}
	return sums;
}

bool
budget_left(const struct seg *seg, uint32_t pool, enum budget_use use, uint32_t percent,
	uint64_t now_ms)
{
	static const uint64_t free_uses[BUDGET_USES] = {
		[BUDGET_RETRY] = BUDGET_FREE, [BUDGET_RELEASE] = BUDGET_FREE_RELEASES};
	const struct sums s = sum(seg, pool, now_ms);

	return s.used[use] < free_uses[use] || (s.used[use] + 1) * 100 <= s.requests * percent;
}

struct budget_pace
budget_pace(const struct seg *seg, uint32_t pool, uint64_t now_ms)
{
	const struct sums s = sum(seg, pool, now_ms);
	const uint64_t ms = (s.oldest - 1) * UINT64_C(1000) + now_ms % 1000;

	return (struct budget_pace){.requests = s.requests, .ms = ms < 1000 ? 1000 : ms};
}
