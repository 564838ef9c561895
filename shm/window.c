#include "shm/window.h"

#include "shm/core/atomic.h"

#define BAD_AT 16
#define HALF_AT 32

static uint32_t
half_of(uint64_t now_ms)
{
	return (uint32_t)(now_ms / WINDOW_HALF_MS);
}

static bool
is_recent(uint64_t word, uint32_t half)
{
	return half - (uint32_t)(word >> HALF_AT) <= 1;
}

static uint64_t
make(uint32_t half, uint32_t bad, uint32_t good)
{
	return (uint64_t)half << HALF_AT | (uint64_t)bad << BAD_AT | good;
}

static uint64_t
one_more(uint64_t word, uint32_t half, bool failed)
{
	uint32_t bad = (uint16_t)(word >> BAD_AT), good = (uint16_t)word;

	if (word >> HALF_AT != half)
		bad = good = 0;
	bad += failed;
	good += !failed;
	if (bad > UINT16_MAX || good > UINT16_MAX) { /* only the share matters */
		bad /= 2;
		good /= 2;
	}
	return make(half, bad, good);
}

void
window_add(uint64_t word[2], uint64_t now_ms, bool bad)
{
	const uint32_t half = half_of(now_ms);
	uint64_t *at = &word[half % 2], seen = shm_load(at), old;

	do {
		old = seen;
		seen = shm_cas(at, old, one_more(old, half, bad));
	} while (seen != old);
}

/* Returns false if this half has no bad answer. */
static bool
one_less(uint64_t *at, uint32_t half)
{
	uint64_t seen = shm_load(at), old;

	do {
		if (!is_recent(seen, half) || (uint16_t)(seen >> BAD_AT) == 0)
			return false;
		old = seen;
		seen = shm_cas(at, old, old - (UINT64_C(1) << BAD_AT));
	} while (seen != old);
	return true;
}

void
window_take_back(uint64_t word[2], uint64_t now_ms)
{
	const uint32_t half = half_of(now_ms);

	if (!one_less(&word[half % 2], half))
		(void)one_less(&word[(half + 1) % 2], half);
}

struct window_sum
window_read(const uint64_t word[2], uint64_t now_ms)
{
	const uint32_t half = half_of(now_ms);
	struct window_sum sum = {0, 0};

	for (int i = 0; i < 2; i++) {
		const uint64_t seen = shm_load(&word[i]);

		if (!is_recent(seen, half))
			continue;
		sum.bad += (uint16_t)(seen >> BAD_AT);
		sum.good += (uint16_t)seen;
	}
	return sum;
}

void
window_forget(uint64_t word[2])
{
	for (int i = 0; i < 2; i++)
		(void)shm_xchg(&word[i], 0);
}
