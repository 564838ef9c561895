#include "shm/tally.h"

#include <stddef.h>

#include "shm/core/atomic.h"
#include "shm/core/suspect.h"

#define CAUSE_BITS TALLY_CAUSE_BITS

static struct tally *
tally_of(const struct seg *seg, uint32_t ep)
{
	return &seg->tallies[ep];
}

void
tally_add(struct seg *seg, uint32_t ep, enum tally_cause cause, uint64_t now_ms)
{
	struct tally *t = tally_of(seg, ep);

	shm_add(&t->outcomes[cause], 1);
	if (cause != TALLY_GOOD)
		(void)shm_xchg(&t->last, now_ms << CAUSE_BITS | cause);
}

void
tally_alive(struct seg *seg, uint32_t ep, uint64_t now_ms)
{
	uint64_t *word = &tally_of(seg, ep)->alive_ms;

	/* clocks of workers differ by a loop turn */
	if (now_ms >= shm_load(word) + TALLY_ALIVE_STEP_MS)
		(void)shm_xchg(word, now_ms);
}

void
tally_shed(struct seg *seg, uint32_t ep, uint64_t now_ms)
{
	(void)shm_xchg(&tally_of(seg, ep)->shed_ms, now_ms);
}

void
tally_begin(struct seg *seg, uint32_t ep)
{
	struct tally *t = tally_of(seg, ep);

	for (enum tally_cause cause = 0; cause < TALLY_N; cause++)
		(void)shm_xchg(&t->outcomes[cause], 0);
	(void)shm_xchg(&t->last, 0);
	(void)shm_xchg(&t->alive_ms, 0);
	(void)shm_xchg(&t->shed_ms, 0);
}

uint64_t
tally_count(const struct seg *seg, uint32_t ep, enum tally_cause cause)
{
	return shm_load(&tally_of(seg, ep)->outcomes[cause]);
}

uint64_t
tally_requests(const struct seg *seg, uint32_t ep)
{
	uint64_t n = 0;

	for (enum tally_cause cause = 0; cause < TALLY_N; cause++)
		n += tally_count(seg, ep, cause);
	return n;
}

uint64_t
tally_alive_ms(const struct seg *seg, uint32_t ep)
{
	return shm_load(&tally_of(seg, ep)->alive_ms);
}

uint64_t
tally_shed_ms(const struct seg *seg, uint32_t ep)
{
	return shm_load(&tally_of(seg, ep)->shed_ms);
}

enum tally_cause
tally_last(const struct seg *seg, uint32_t ep, uint64_t *ret_ms)
{
	const uint64_t last = shm_load(&tally_of(seg, ep)->last);

	const uint64_t cause = last & ((1u << CAUSE_BITS) - 1);

	*ret_ms = last >> CAUSE_BITS;
	return suspect(SUSPECT_TALLIES, ep, cause >= TALLY_N) ? TALLY_GOOD
							      : (enum tally_cause)cause;
}

const char *
tally_cause_name(enum tally_cause cause)
{
#define NAME(id, name, meaning) [TALLY_##id] = (name),
	static const char *const names[TALLY_N] = {TALLY_CAUSES(NAME)};
#undef NAME

	return names[cause];
}

const char *
tally_cause_meaning(enum tally_cause cause)
{
#define MEANING(id, name, meaning) [TALLY_##id] = (meaning),
	static const char *const meanings[TALLY_N] = {TALLY_CAUSES(MEANING)};
#undef MEANING

	return meanings[cause];
}

const char *
tally_last_name(const struct seg *seg, uint32_t ep)
{
	uint64_t ms;
	const enum tally_cause cause = tally_last(seg, ep, &ms);

	return cause == TALLY_GOOD ? NULL : tally_cause_name(cause);
}
