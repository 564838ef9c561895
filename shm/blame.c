#include "shm/blame.h"

#include <stdbool.h>

#include "shm/core/atomic.h"
#include "shm/core/seg.h"

/* blame.h draws the word. */
#define MS_BITS 40
#define PARTNERS_AT MS_BITS
#define PARTNERS 16u
#define FAILURES_AT (PARTNERS_AT + PARTNERS)
#define FAILURES_MAX 255u

static uint64_t *
word_of(const struct seg *seg, uint32_t ep)
{
	return &seg->tallies[ep].blame;
}

static uint64_t
ms_of(uint64_t word)
{
	return word & ((UINT64_C(1) << MS_BITS) - 1);
}

static uint32_t
failures_of(uint64_t word)
{
	return (uint32_t)(word >> FAILURES_AT & FAILURES_MAX);
}

static uint32_t
partners_of(uint64_t word)
{
	return (uint32_t)__builtin_popcountll(word >> PARTNERS_AT & ((1u << PARTNERS) - 1));
}

/* The last success is not older than `most_ms`.  It may be ahead of the caller's time, as another worker has noted it. */
static bool
is_younger(uint64_t word, uint64_t now_ms, uint64_t most_ms)
{
	return now_ms < ms_of(word) + most_ms;
}

/* `old`: before the present failure; `new`: with it. */
static enum standing
standing_of(uint64_t old, uint64_t new, uint64_t now_ms)
{
	const bool lately = ms_of(old) != 0 && is_younger(old, now_ms, BLAME_GOOD_MS);

	if (failures_of(old) == 0)
		return lately ? STANDING_GOOD : STANDING_UNKNOWN;
	return lately && partners_of(new) == 1 && failures_of(old) < BLAME_ROW ? STANDING_SUSPECT
									       : STANDING_FAILING;
}

void
blame_good(struct seg *seg, uint32_t ep, uint64_t now_ms)
{
	uint64_t *word = word_of(seg, ep), seen = shm_load(word), old;

	if (failures_of(seen) == 0 && is_younger(seen, now_ms, BLAME_STEP_MS))
		return;
	do {
		old = seen;
		seen = shm_cas(word, old, ms_of(now_ms));
	} while (seen != old);
}

struct evidence
blame_failed(struct seg *seg, uint32_t ep, uint32_t partner, uint64_t now_ms)
{
	uint64_t *word = word_of(seg, ep), seen = shm_load(word), old, new;

	do {
		old = seen;
		new = old | UINT64_C(1) << (PARTNERS_AT + partner % PARTNERS);
		if (failures_of(old) < FAILURES_MAX)
			new += UINT64_C(1) << FAILURES_AT;
		seen = shm_cas(word, old, new);
	} while (seen != old);
	return (struct evidence){standing_of(old, new, now_ms), partners_of(new)};
}

enum blame
blame_decide(const struct evidence *prefill, const struct evidence *decode)
{
	enum { P = BLAME_PREFILL, D = BLAME_DECODE, N = BLAME_NEITHER, COUNT = BLAME_N };
	static const int table[STANDING_N][STANDING_N] = {
		/* decode:             UNKNOWN GOOD SUSPECT FAILING */
		[STANDING_UNKNOWN] = {P, P, N, D},
		[STANDING_GOOD] = {D, N, N, D},
		[STANDING_SUSPECT] = {N, N, N, D},
		[STANDING_FAILING] = {P, P, P, COUNT},
	};
	const int cell = table[prefill->standing][decode->standing];

	if (cell == COUNT)
		return decode->partners > prefill->partners ? BLAME_DECODE : BLAME_PREFILL;
	return (enum blame)cell;
}

const char *
blame_name(enum blame blame)
{
	static const char *const names[BLAME_N] = {[BLAME_NONE] = "",
		[BLAME_PREFILL] = "prefill",
		[BLAME_DECODE] = "decode",
		[BLAME_NEITHER] = "neither"};

	return names[blame];
}

void
blame_begin(struct seg *seg, uint32_t ep)
{
	(void)shm_xchg(word_of(seg, ep), 0);
}
