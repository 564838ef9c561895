#include "shm/refusal.h"

#include <math.h>

#include "shm/core/atomic.h"
#include "shm/eject.h"
#include "shm/table.h"

/* refusal.h draws the word. */
#define CONTRADICTED (UINT64_C(1) << 63)
#define KEY (UINT64_C(1) << 62)
#define ACCEPTED (UINT64_C(1) << 61)
#define LEVEL_AT 48
#define LEVEL_MAX 31u
#define MS_MASK ((UINT64_C(1) << EP_MS_BITS) - 1)
#define BELIEVED ((uint64_t)LEVEL_MAX << LEVEL_AT | MS_MASK) /* level and ms */

/* Fewer answers than this say nothing, whatever their share. */
#define ANSWERS_LEAST 10u
#define STANDARD_ERRORS 6.0

static uint64_t *
word_of(const struct seg *seg, uint32_t ep)
{
	return &seg->refusals[ep].word;
}

static uint32_t
level_of(uint64_t word)
{
	return (uint32_t)(word >> LEVEL_AT & LEVEL_MAX);
}

/* Since its refusals are believed.  The caller's clock is of its loop turn: the word may be ahead of it. */
static uint64_t
age_of(uint64_t word, uint64_t now_ms)
{
	const uint64_t ms = word & MS_MASK;

	return now_ms > ms ? now_ms - ms : 0;
}

/* For how long a word of that level believes. */
static uint64_t
time_of(uint32_t level)
{
	const uint64_t ms = level == 0 ? 0 : (uint64_t)REFUSAL_FIRST_MS << (level - 1);

	return ms < REFUSAL_LONGEST_MS ? ms : REFUSAL_LONGEST_MS;
}

/* --- what is seen --------------------------------------------------------------------------- */

/* Clears and sets flags; returns the word before. */
static uint64_t
change(struct seg *seg, uint32_t ep, uint64_t clear, uint64_t set)
{
	uint64_t *word = word_of(seg, ep), seen = shm_load(word), old;

	do {
		old = seen;
		if (((old & ~clear) | set) == old)
			return old;
		seen = shm_cas(word, old, (old & ~clear) | set);
	} while (seen != old);
	return old;
}

bool
refusal_accepted(struct seg *seg, uint32_t ep, uint64_t now_ms)
{
	window_add(seg->refusals[ep].answers, now_ms, false);
	return (change(seg, ep, CONTRADICTED | KEY, ACCEPTED) & CONTRADICTED) != 0;
}

void
refusal_seen(struct seg *seg, uint32_t ep, uint64_t now_ms)
{
	window_add(seg->refusals[ep].answers, now_ms, true);
}

/* --- peers ---------------------------------------------------------------------------------- */

static bool
same_models(const struct table_pool *tp, const uint64_t *a, const uint64_t *b)
{
	if (a == b)
		return true;
	if (a == NULL || b == NULL)
		return false;
	for (uint32_t i = 0; i < (tp->nmodels + 63) / 64; i++)
		if (a[i] != b[i])
			return false;
	return true;
}

static const struct table_pick *
pick_of(const struct table_pool *tp, enum role role, uint32_t ep)
{
	for (uint32_t i = 0; i < tp->n[role]; i++)
		if (tp->picks[role][i].slot == ep)
			return &tp->picks[role][i];
	return NULL;
}

static bool
is_peer(const struct seg *seg, const struct table_pool *tp, const struct table_pick *of,
	const struct table_pick *pick)
{
	return pick->slot != of->slot &&
	       ep_word_state(shm_load(&seg->ep_records[pick->slot].state)) == EP_UP &&
	       !eject_is_out(seg, pick->slot) && same_models(tp, of->models, pick->models);
}

bool
refusal_peers_accept(
	const struct seg *seg, const struct table_pool *tp, enum role role, uint32_t ep)
{
	const struct table_pick *of = pick_of(tp, role, ep);

	for (uint32_t i = 0; of != NULL && i < tp->n[role]; i++) {
		const struct table_pick *pick = &tp->picks[role][i];

		if ((shm_load(word_of(seg, pick->slot)) & (ACCEPTED | CONTRADICTED)) == ACCEPTED &&
			is_peer(seg, tp, of, pick))
			return true;
	}
	return false;
}

/* n ln(n / expected) */
static double
term(double n, double expected)
{
	return n > 0 ? n * log(n / expected) : 0;
}

bool
refusal_far_above(const struct window_sum *one, const struct window_sum *others)
{
	const double n = one->bad + one->good, m = others->bad + others->good;
	double share, g;

	if (n < ANSWERS_LEAST || m < ANSWERS_LEAST || one->bad * m <= others->bad * n)
		return false;
	share = (one->bad + others->bad) / (n + m);
	g = term(one->bad, n * share) + term(one->good, n * (1 - share)) +
	    term(others->bad, m * share) + term(others->good, m * (1 - share));
	return 2 * g >= STANDARD_ERRORS * STANDARD_ERRORS;
}

bool
refusal_is_sure(const struct seg *seg, const struct table_pool *tp, enum role role, uint32_t ep,
	uint64_t now_ms)
{
	const struct table_pick *of = pick_of(tp, role, ep);
	const struct window_sum one = window_read(seg->refusals[ep].answers, now_ms);
	struct window_sum others = {0, 0};

	if (of == NULL || tp->policy[role] == POLICY_SESSION || tp->policy[role] == POLICY_PREFIX ||
		tp->policy[role] == POLICY_CACHE_AWARE)
		return false;
	for (uint32_t i = 0; i < tp->n[role]; i++) {
		const struct table_pick *pick = &tp->picks[role][i];
		struct window_sum sum;

		if (!is_peer(seg, tp, of, pick))
			continue;
		sum = window_read(seg->refusals[pick->slot].answers, now_ms);
		others.bad += sum.bad;
		others.good += sum.good;
	}
	return refusal_far_above(&one, &others);
}

/* --- whose mistake -------------------------------------------------------------------------- */

bool
refusal_believed(const struct seg *seg, uint32_t ep, bool sure, uint64_t now_ms)
{
	const uint64_t word = shm_load(word_of(seg, ep)), ms = time_of(level_of(word));

	return age_of(word, now_ms) < (sure && ms > REFUSAL_FIRST_MS ? REFUSAL_FIRST_MS : ms);
}

uint64_t
refusal_mark(const struct seg *seg, uint32_t ep)
{
	return shm_load(word_of(seg, ep));
}

void
refusal_shared(struct seg *seg, uint32_t ep, uint64_t mark, uint64_t now_ms)
{
	uint64_t believed = mark & (ACCEPTED | CONTRADICTED | KEY);
	uint32_t level = level_of(mark);

	if (age_of(mark, now_ms) >= time_of(level) + REFUSAL_LONGEST_MS)
		level = 0; /* long ago */
	else if (level == LEVEL_MAX)
		level--;
	/* what was contradicted is not believed again before another engine is asked */
	if ((mark & CONTRADICTED) == 0)
		believed |= (uint64_t)(level + 1) << LEVEL_AT | (now_ms & MS_MASK);
	(void)shm_cas(word_of(seg, ep), mark, believed);
}

static const char *
text_of(uint64_t word)
{
	if ((word & CONTRADICTED) == 0)
		return "";
	return (word & KEY) != 0 ? "engine refuses our key" : "engine refuses what others accept";
}

const char *
refusal_contradicted(struct seg *seg, uint32_t ep, int status)
{
	const uint64_t flags = CONTRADICTED | (status == 401 || status == 403 ? KEY : 0);
	const uint64_t old = change(seg, ep, BELIEVED, flags);

	return (flags & ~old) != 0 ? text_of(old | flags) : NULL;
}

bool
refusal_is_contradicted(const struct seg *seg, uint32_t ep)
{
	return (shm_load(word_of(seg, ep)) & CONTRADICTED) != 0;
}

const char *
refusal_text(const struct seg *seg, uint32_t ep)
{
	return text_of(shm_load(word_of(seg, ep)));
}

/* --- requests that fail everywhere ---------------------------------------------------------- */

void
refusal_failed_alike(struct seg *seg, uint32_t ep, uint64_t now_ms)
{
	(void)shm_xchg(&seg->refusals[ep].failed_alike_ms, now_ms);
}

bool
refusal_fails_alike(const struct seg *seg, uint32_t ep, uint64_t now_ms)
{
	const uint64_t ms = shm_load(&seg->refusals[ep].failed_alike_ms);

	return ms != 0 && now_ms < ms + FAILED_ALIKE_MS;
}

void
refusal_begin(struct seg *seg, uint32_t ep)
{
	(void)shm_xchg(word_of(seg, ep), 0);
	(void)shm_xchg(&seg->refusals[ep].failed_alike_ms, 0);
	window_forget(seg->refusals[ep].answers);
}
