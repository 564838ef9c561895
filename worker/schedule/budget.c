#include "worker/schedule/budget.h"

#include <string.h>

/* Forgets what has left the window. */
static void
turn(struct budget *b, uint64_t now_ms)
{
	const uint64_t second = now_ms / 1000;

	if (second >= b->second + BUDGET_BUCKETS)
		memset(b->bucket, 0, sizeof(b->bucket));
	else
		for (uint64_t s = b->second + 1; s <= second; s++)
			memset(&b->bucket[s % BUDGET_BUCKETS], 0, sizeof(b->bucket[0]));
	if (second > b->second)
		b->second = second;
}

void
budget_request(struct budget *b, uint64_t now_ms)
{
	turn(b, now_ms);
	b->bucket[b->second % BUDGET_BUCKETS].requests++;
}

bool
budget_left(struct budget *b, uint32_t percent, uint64_t now_ms)
{
	uint64_t requests = 0, tries = 0;

	turn(b, now_ms);
	for (int i = 0; i < BUDGET_BUCKETS; i++) {
		requests += b->bucket[i].requests;
		tries += b->bucket[i].tries;
	}
	return tries < BUDGET_FREE || (tries + 1) * 100 <= requests * percent;
}

void
budget_take(struct budget *b, uint64_t now_ms)
{
	turn(b, now_ms);
	b->bucket[b->second % BUDGET_BUCKETS].tries++;
}
