#include "shm/pace.h"

#include <assert.h>
#include <math.h>

#define SAMPLES_AT 48
#define TIME_AT 24
#define LOG_MASK ((1u << TIME_AT) - 1)

static_assert(PACE_WHOLE < 1u << 16, "samples has 16 bits");
static_assert(SHARE_WHOLE < SHARE_SLOW, "withheld has 9 bits");

static uint64_t
pack(const struct pace *p)
{
	return (uint64_t)p->samples << SAMPLES_AT | (uint64_t)p->time << TIME_AT | p->token;
}

struct pace
pace_unpack(uint64_t word)
{
	return (struct pace){.samples = (uint32_t)(word >> SAMPLES_AT),
		.time = (uint32_t)(word >> TIME_AT) & LOG_MASK,
		.token = (uint32_t)word & LOG_MASK};
}

/* log2(x) in PACE_DOUBLE, x > 0. */
static uint32_t
log2_of(uint64_t x)
{
	return (uint32_t)lrint(log2((double)x) * PACE_DOUBLE);
}

/* The mean after one more value; `samples` with it. */
static uint32_t
mean_of(uint32_t mean, uint32_t value, uint32_t samples)
{
	const int64_t off = (int64_t)value - mean;

	return (uint32_t)(mean + off * PACE_SAMPLE / samples);
}

uint64_t
pace_with(uint64_t word, uint64_t us, uint64_t tokens)
{
	const uint64_t most = UINT64_C(1) << 40; /* 12 days */
	struct pace p = pace_unpack(word);
	const uint32_t time = log2_of(us == 0 ? 1 : us < most ? us : most);
	const uint32_t of = log2_of(tokens == 0 ? 1 : tokens <= UINT32_MAX ? tokens : UINT32_MAX);
	const uint32_t base = time + PACE_TOKEN_SHIFT * PACE_DOUBLE;

	p.samples += PACE_SAMPLE;
	if (p.samples > PACE_WHOLE)
		p.samples = PACE_WHOLE;
	p.time = mean_of(p.time, time, p.samples);
	p.token = mean_of(p.token, base > of ? base - of : 0, p.samples);
	return pack(&p);
}

uint64_t
pace_older(uint64_t word, uint32_t shift, uint32_t most)
{
	struct pace p = pace_unpack(word);

	p.samples = p.samples < most ? p.samples : most;
	p.samples -=
		(p.samples + (1u << shift) - 1) >> shift; /* at least 1, so that it reaches 0 */
	return pack(&p);
}

void
pace_record(struct seg *seg, uint32_t ep, uint64_t us, uint64_t tokens)
{
	uint64_t *word = &seg->tallies[ep].pace, seen = shm_load(word), old;

	do {
		old = seen;
		seen = shm_cas(word, old, pace_with(old, us, tokens));
	} while (seen != old);
}

void
pace_age(struct seg *seg, uint32_t ep, uint32_t shift, uint32_t most)
{
	uint64_t *word = &seg->tallies[ep].pace, seen = shm_load(word), old;

	do {
		old = seen;
		seen = shm_cas(word, old, pace_older(old, shift, most));
	} while (seen != old);
}

void
share_lower(struct seg *seg, uint32_t ep, uint32_t part, bool starved, uint32_t times)
{
	const uint64_t word = (uint64_t)times << 32 | (starved ? SHARE_STARVED : 0) | SHARE_SLOW |
			      (SHARE_WHOLE - part);

	shm_store(&seg->ep_records[ep].share, word);
}

void
share_restore(struct seg *seg, uint32_t ep)
{
	shm_store(&seg->ep_records[ep].share, UINT64_C(0));
}

void
pace_begin(struct seg *seg, uint32_t ep)
{
	(void)shm_xchg(&seg->tallies[ep].pace, 0);
	share_restore(seg, ep);
}
