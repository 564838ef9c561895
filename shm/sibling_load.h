/*
 * What other routers have at an engine, as they say themselves (shm/siblings.h): a word for each endpoint,
 *
 *	milliseconds / 64:20 | requests:14 | prompt tokens:30
 *
 * of all other routers together.  A word that is older than SIBLING_LOAD_MS says nothing: a router that has died, and a notifier
 * that was killed, leave words that end by themselves.  Scrapes subtract these words (master/probe/scrape.c), so no
 * request of another router counts twice.
 *
 * Process: the notifier writes.
 */
#pragma once
#include <stdint.h>

#include "shm/core/atomic.h"
#include "shm/core/seg.h"

#define SIBLING_LOAD_MS 500
#define SIBLING_LOAD_UNIT_MS 64
#define SIBLING_LOAD_TOKENS_BITS 30
#define SIBLING_LOAD_REQUESTS_BITS 14
#define SIBLING_LOAD_TIME_AT (SIBLING_LOAD_TOKENS_BITS + SIBLING_LOAD_REQUESTS_BITS)
#define SIBLING_LOAD_TOKENS_MAX ((UINT64_C(1) << SIBLING_LOAD_TOKENS_BITS) - 1)
#define SIBLING_LOAD_REQUESTS_MAX ((UINT64_C(1) << SIBLING_LOAD_REQUESTS_BITS) - 1)

struct sibling_load {
	uint32_t requests, tokens;
};

static inline void
sibling_load_set(struct seg *seg, uint32_t ep, uint64_t requests, uint64_t tokens, uint64_t now_ms)
{
	if (requests > SIBLING_LOAD_REQUESTS_MAX)
		requests = SIBLING_LOAD_REQUESTS_MAX;
	if (tokens > SIBLING_LOAD_TOKENS_MAX)
		tokens = SIBLING_LOAD_TOKENS_MAX;
	shm_store(&seg->sibling_loads[ep], (now_ms / SIBLING_LOAD_UNIT_MS) << SIBLING_LOAD_TIME_AT |
						   requests << SIBLING_LOAD_TOKENS_BITS | tokens);
}

static inline struct sibling_load
sibling_load_get(const struct seg *seg, uint32_t ep, uint64_t now_ms)
{
	const uint64_t times = UINT64_MAX >> SIBLING_LOAD_TIME_AT;
	uint64_t word, age;

	if (seg->hdr->sibling_bytes == 0)
		return (struct sibling_load){0, 0};
	word = shm_load(&seg->sibling_loads[ep]);
	age = now_ms / SIBLING_LOAD_UNIT_MS - (word >> SIBLING_LOAD_TIME_AT);
	/* the reader's time may have been taken before the writer's */
	if (((age + 1) & times) > SIBLING_LOAD_MS / SIBLING_LOAD_UNIT_MS + 2)
		return (struct sibling_load){0, 0};
	return (struct sibling_load){
		(uint32_t)(word >> SIBLING_LOAD_TOKENS_BITS & SIBLING_LOAD_REQUESTS_MAX),
		(uint32_t)(word & SIBLING_LOAD_TOKENS_MAX)};
}
