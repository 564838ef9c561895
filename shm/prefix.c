#include "shm/prefix.h"

#if defined(__SSE2__) &&                                                                           \
	!defined(__SANITIZE_THREAD__) /* which sees a race in what is only a filter */
#include <emmintrin.h>
#define EIGHT_AT_ONCE
#endif
#include <stddef.h>
#include <string.h>

#include "shm/base/mem.h"
#include "shm/core/atomic.h"
#include "shm/core/suspect.h"
#include "shm/load_word.h"
#include "shm/metrics.h"
#include "shm/table.h"

/* prefix.h draws the word. */
#define STAMP_BITS 30
#define SLOT_BITS 16
#define TAG_AT (STAMP_BITS + SLOT_BITS)
#define UNIT 64 /* tokens of a stamp */

/* prefix_engine.events */
#define EVENTS_COME 1u
#define EVENTS_KNOWN 2u
#define EVENTS_HELD_AT 2

/* prefix_engine.blocks */
#define BLOCKS_ALL 1u
#define BLOCKS_IDS_AT 1

/*
 * How far the count jumps, in units: further than any capacity.  It is no divisor of 2^STAMP_BITS, so that words of
 * the first life do not come back to life 64 restarts later, but only after 4,096.
 */
#define JUMP ((UINT64_C(1) << 24) + (UINT64_C(1) << 18))
static_assert(PREFIX_CAPACITY_MAX / UNIT < JUMP, "a jump makes all words stale");
/* The stamp of a word whose block was removed lies so far back. */
#define REMOVED (UINT64_C(1) << 24)
static_assert(PREFIX_CAPACITY_MAX / UNIT < REMOVED, "it is stale");

/* The means of what an engine has kept to follow the last 32 samples.  They begin with so many tokens of each. */
#define KEPT_SHARE 32
#define KEPT_BEGIN 4096u
#define KEPT_ONE (1u << 14)
#define KEPT_SPARE 256u /* so many more of each: a few small samples decide nothing */
#define KEPT_BITS 24
/* From here on it counts as all: the rest is chance, and would decide between engines that have equally much. */
#define KEPT_WELL (KEPT_ONE * 4 / 5)

struct prefix_found *
prefix_found_new(uint32_t nslots)
{
	struct prefix_found *f = mem_zero(sizeof(*f) + nslots * sizeof(struct prefix_hit));

	f->nslots = nslots;
	return f;
}

uint32_t
prefix_row(uint32_t nendpoints)
{
	uint32_t row = 1;

	while (row * PREFIX_WAYS < nendpoints)
		row *= 2;
	return row;
}

uint32_t
prefix_row_of(const struct table_pool *pool)
{
	return prefix_row(pool->n[ROLE_PREFILL] + pool->n[ROLE_DECODE]);
}

/* --- words ------------------------------------------------------------------------------------- */

static inline uint64_t
tag_of(uint64_t digest)
{
	return digest << TAG_AT | UINT64_C(1) << TAG_AT; /* not 0: a word never is */
}

static inline uint32_t
word_slot(uint64_t word)
{
	return (uint32_t)(word >> STAMP_BITS & BITS(SLOT_BITS));
}

static inline uint64_t
stamp_now(const struct seg *seg, uint32_t ep)
{
	return shm_load(&seg->prefix_engines[ep].computed) / UNIT & BITS(STAMP_BITS);
}

uint64_t
prefix_capacity(const struct seg *seg, uint32_t ep)
{
	return shm_load(&seg->ep_records[ep].capacity);
}

bool
prefix_held(const struct seg *seg, uint32_t ep, uint64_t *ret)
{
	const uint64_t events = shm_load(&seg->prefix_engines[ep].events),
		       held = events >> EVENTS_HELD_AT;

	*ret = held < PREFIX_CAPACITY_MAX ? held : PREFIX_CAPACITY_MAX;
	return (events & EVENTS_KNOWN) != 0;
}

/* The engine has said that no prompt finds a former one's KV. */
static bool
keeps_nothing(const struct seg *seg, uint32_t ep)
{
	const uint64_t tokens = prefix_capacity(seg, ep);

	return tokens > 0 && tokens < UNIT;
}

static uint32_t
block_of(uint64_t blocks)
{
	const uint64_t ids = blocks >> BLOCKS_IDS_AT;

	return ids <= PREFIX_BLOCK_MAX ? (uint32_t)ids : 0;
}

uint32_t
prefix_block_of(const struct seg *seg, const struct table_pool *pool)
{
	uint32_t block = 0;

	for (enum role role = 0; role < ROLE_N; role++)
		for (uint32_t i = 0; block == 0 && i < pool->n[role]; i++)
			block = block_of(
				shm_load(&seg->prefix_engines[pool->picks[role][i].slot].blocks));
	return block;
}

/* The words of all that its cache holds are fresh.  With KV events the count is of tokens stored, and what is stored and
 * not yet removed is what the cache holds: so it is the tokens removed that decide. */
static uint64_t
capacity_units(const struct seg *seg, uint32_t ep)
{
	uint64_t tokens;

	if (!prefix_held(seg, ep, &tokens)) {
		tokens = prefix_capacity(seg, ep);
		tokens = tokens != 0 ? tokens : PREFIX_CAPACITY_UNKNOWN;
	}
	return tokens / UNIT;
}

/* What the engine may yet compute before the word is stale, in units; negative: it is stale. */
static inline int64_t
left(const struct seg *seg, uint64_t word)
{
	const uint32_t ep = word_slot(word);

	if (ep >= seg->hdr->max_endpoints)
		return INT64_MIN;
	return (int64_t)capacity_units(seg, ep) -
	       (int64_t)((stamp_now(seg, ep) - word) & BITS(STAMP_BITS));
}

/* The bucket at `place` in the row of a digest.  A row twice as long has the same buckets in its first half. */
static inline struct prefix_bucket *
bucket(const struct seg *seg, uint64_t digest, uint32_t place)
{
	const uint64_t n = seg->hdr->prefix_buckets, at = ((digest >> 32) * n >> 32) + place;

	return &seg->prefix[at < n ? at
				   : at % n]; /* a division takes as long as the bucket's words */
}

static void
fetch_ahead(const struct seg *seg, uint64_t digest, uint32_t place)
{
	__builtin_prefetch(bucket(seg, digest, place));
}

/* --- looking up -------------------------------------------------------------------------------- */

struct look {
	const struct seg *seg;
	const struct prefix_key *key;
	struct prefix_found *found;
	uint64_t ends; /* bit i: cut i is the last one of some endpoint */
};
static_assert(PREFIX_CUTS <= 64, "ends has a bit for each");

/* Whether the words of prompts that are cut between blocks of so many ids say exactly what the engine has. */
static bool
is_exact(const struct seg *seg, uint32_t ep, uint32_t block)
{
	uint64_t blocks;

	if (block == 0)
		return false;
	blocks = shm_load(&seg->prefix_engines[ep].blocks);
	return (blocks & BLOCKS_ALL) != 0 && block_of(blocks) == block;
}

static struct prefix_hit
meet(const struct look *l, uint32_t ep)
{
	return (struct prefix_hit){.round = l->found->round,
		.now = (uint32_t)stamp_now(l->seg, ep),
		.capacity = (uint32_t)(is_exact(l->seg, ep, l->key->block)
					       ? PREFIX_CAPACITY_MAX / UNIT
					       : capacity_units(l->seg, ep))};
}

/*
 * The ways of a bucket whose words seem to have the tag, a bit for each; tag 0: that were never used.  Who takes a word
 * reads it again, as the one word that shm_load() gives.
 */
static inline uint32_t
ways_of(const struct prefix_bucket *b, uint64_t tag)
{
	uint32_t ways = 0;
#ifdef EIGHT_AT_ONCE
	const __m128i want = _mm_set1_epi32((int)(tag >> TAG_AT));
	const __m128 *w = (const __m128 *)(const void *)b->word;

	for (uint32_t k = 0; k < PREFIX_WAYS; k += 4, w += 2) {
		const __m128i upper = _mm_castps_si128(_mm_shuffle_ps(w[0], w[1], 0xdd)),
			      tags = _mm_srli_epi32(upper, TAG_AT - 32);

		ways |= (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(tags, want)))
			<< k;
	}
#else
	for (uint32_t k = 0; k < PREFIX_WAYS; k++)
		ways |= (uint32_t)(shm_load(&b->word[k]) >> TAG_AT == tag >> TAG_AT) << k;
#endif
	return ways;
}

/* Notes the endpoints that have cut `i`, in these ways of its bucket, unless their words are stale.  Returns their number. */
static uint32_t
note_ways(const struct look *l, const struct prefix_bucket *b, uint32_t ways, uint32_t i)
{
	const uint64_t tag = tag_of(l->key->digest[i]);
	const uint32_t round = l->found->round, nslots = l->found->nslots;
	struct prefix_hit *const of = l->found->of;
	uint32_t n = 0;

	for (; ways != 0; ways &= ways - 1) {
		const uint64_t word = shm_load(&b->word[__builtin_ctz(ways)]);
		const uint32_t ep = word_slot(word);

		if ((word ^ tag) >> TAG_AT != 0 || ep >= nslots)
			continue;
		if (of[ep].round != round)
			of[ep] = meet(l, ep);
		if (((of[ep].now - word) & BITS(STAMP_BITS)) > of[ep].capacity)
			continue;
		if (of[ep].cuts <= i)
			of[ep].cuts = i + 1;
		n++;
	}
	return n;
}

/* The same of all ways at a place. */
static uint32_t
look_at(const struct look *l, uint32_t place, uint32_t i)
{
	const uint64_t digest = l->key->digest[i];
	const struct prefix_bucket *b = bucket(l->seg, digest, place);

	return note_ways(l, b, ways_of(b, tag_of(digest)), i);
}

/* Of cuts lo and hi, which so many endpoints have. */
struct range {
	uint32_t lo, nlo, hi, nhi;
};

/*
 * The cut to look at between lo and hi: where the beginning of another endpoint ends, and at the cut behind that.  Most
 * engines that have the beginning of a prompt have it as far as others: to the end of the system prompt.  Else the middle.
 */
static uint32_t
middle(uint64_t ends, uint32_t lo, uint32_t hi)
{
	const uint32_t mid = (lo + hi) / 2;
	const uint64_t in = ends & BITS(hi) & ~BITS(lo), below = in & BITS(mid),
		       above = in & ~BITS(mid);
	uint32_t at = mid;

	if (above != 0)
		at = (uint32_t)__builtin_ctzll(above);
	if (below != 0 && (above == 0 || mid - (63 - (uint32_t)__builtin_clzll(below)) < at - mid))
		at = 63 - (uint32_t)__builtin_clzll(below);
	return at > lo ? at : lo + 1;
}

/*
 * An endpoint that has a cut has all cuts before it.  So between two cuts that equally many have, no endpoint's
 * beginning ends; else a cut in between is looked at, and both parts.  Lost words make this find less.
 */
static void
look_between(struct look *l, uint32_t place, struct range r)
{
	struct range todo[PREFIX_CUTS];
	uint32_t n = 0;

	for (;;) {
		uint32_t mid, nmid;

		if (r.nlo > r.nhi && r.hi - r.lo == 1)
			l->ends |= UINT64_C(1) << r.lo;
		if (r.hi - r.lo < 2 || r.nlo <= r.nhi) {
			if (n == 0)
				return;
			r = todo[--n];
			continue;
		}
		mid = middle(l->ends, r.lo, r.hi);
		nmid = look_at(l, place, mid);
		todo[n++] = (struct range){r.lo, r.nlo, mid, nmid};
		r = (struct range){mid, nmid, r.hi, r.nhi};
	}
}

/*
 * Looks up the endpoints that have their words at this place.  Who has the last cut has the first one, too: those are
 * only counted there.
 */
static void
look_in(struct look *l, uint32_t place)
{
	const uint64_t *const digest = l->key->digest;
	const uint32_t last = l->key->n - 1;
	const struct prefix_bucket *first = bucket(l->seg, digest[0], place);
	const uint32_t ways = ways_of(first, tag_of(digest[0]));
	struct range all = {.lo = 0, .hi = last};

	if (ways == 0)
		return;
	all.nhi = last > 0 ? look_at(l, place, last) : 0;
	if (all.nhi == (uint32_t)__builtin_popcount(ways))
		return;
	all.nlo = note_ways(l, first, ways, 0);
	look_between(l, place, all);
}

void
prefix_look(const struct seg *seg, const struct prefix_key *key, uint32_t row, uint32_t tokens,
	struct prefix_found *ret)
{
	struct look l = {.seg = seg, .key = key, .found = ret};

	if (++ret->round == 0) { /* a round of 2^32 prompts ago */
		memset(ret->of, 0, ret->nslots * sizeof(ret->of[0]));
		ret->round = 1;
	}
	ret->key = key;
	ret->row = row;
	ret->tokens = tokens;
	if (key->n == 0 || seg->hdr->prefix_buckets == 0)
		return;
	ret->part = ((uint64_t)tokens << PREFIX_PART_BITS) / key->size;
	for (uint32_t place = 0; place < row; place++)
		look_in(&l, place);
}

/* --- inserting --------------------------------------------------------------------------------- */

/* The word that is stale longest, or will be first. */
static uint32_t
stalest(const struct seg *seg, const struct prefix_bucket *b)
{
	uint32_t best = 0;
	int64_t least = INT64_MAX;

	for (uint32_t k = 0; k < PREFIX_WAYS; k++) {
		const int64_t rest = left(seg, shm_load(&b->word[k]));

		if (rest < least) {
			least = rest;
			best = k;
		}
	}
	return best;
}

/* The endpoint's own word; PREFIX_WAYS: it has none. */
static uint32_t
own_way(const struct prefix_bucket *b, uint64_t mine)
{
	for (uint32_t ways = ways_of(b, mine); ways != 0; ways &= ways - 1) {
		const uint32_t k = (uint32_t)__builtin_ctz(ways);

		if ((shm_load(&b->word[k]) ^ mine) >> STAMP_BITS == 0)
			return k;
	}
	return PREFIX_WAYS;
}

/* Stores the word in place of the endpoint's own, else of one that was never used, else of the stalest. */
static void
put(struct seg *seg, uint64_t digest, uint32_t place, uint64_t mine, struct prefix_taken *taken)
{
	struct prefix_bucket *b = bucket(seg, digest, place);
	uint32_t k = own_way(b, mine), empty;

	if (k == PREFIX_WAYS) {
		empty = ways_of(b, 0);
		k = empty != 0 ? (uint32_t)__builtin_ctz(empty) : stalest(seg, b);
		taken->empty += empty != 0;
		taken->fresh += empty == 0 && left(seg, shm_load(&b->word[k])) >= 0;
	}
	shm_store(&b->word[k], mine);
}

void
prefix_stored(struct seg *seg, uint64_t digest, uint32_t row, uint32_t ep)
{
	struct prefix_taken taken = {0, 0};

	if (seg->hdr->prefix_buckets != 0)
		put(seg, digest, ep & (row - 1),
			tag_of(digest) | (uint64_t)ep << STAMP_BITS | stamp_now(seg, ep), &taken);
}

static void
remove_at(struct seg *seg, uint64_t digest, uint32_t place, uint32_t ep)
{
	const uint64_t mine = tag_of(digest) | (uint64_t)ep << STAMP_BITS;
	const uint64_t stale = mine | ((stamp_now(seg, ep) - REMOVED) & BITS(STAMP_BITS));
	struct prefix_bucket *b = bucket(seg, digest, place);

	/* all of them: two that stored at the same time have taken a way each */
	for (uint32_t ways = ways_of(b, mine); ways != 0; ways &= ways - 1) {
		uint64_t *const word = &b->word[__builtin_ctz(ways)];
		const uint64_t seen = shm_load(word);

		/* a word that changes meanwhile is another's, or newer */
		if ((seen ^ mine) >> STAMP_BITS == 0)
			(void)shm_cas(word, seen, stale);
	}
}

void
prefix_removed(struct seg *seg, uint64_t digest, uint32_t row, uint32_t ep)
{
	if (seg->hdr->prefix_buckets == 0)
		return;
	/* and where it was stored when the row was shorter: those buckets are looked up, too */
	for (uint32_t last = UINT32_MAX; row > 0; row /= 2)
		if ((ep & (row - 1)) != last) {
			last = ep & (row - 1);
			remove_at(seg, digest, last, ep);
		}
}

struct prefix_taken
prefix_insert(
	struct seg *seg, const struct prefix_key *key, uint32_t row, uint32_t ep, uint32_t computes)
{
	const uint32_t place = ep & (row - 1);
	struct prefix_taken taken = {0, 0};
	uint64_t mine;

	if (seg->hdr->prefix_buckets == 0)
		return taken;
	if (keeps_nothing(seg, ep))
		return taken;
	for (uint32_t i = 0; i < key->n; i++)
		fetch_ahead(seg, key->digest[i], place);
	if ((shm_load(&seg->prefix_engines[ep].events) & EVENTS_COME) == 0)
		shm_add(&seg->prefix_engines[ep].computed, computes);
	mine = (uint64_t)ep << STAMP_BITS | stamp_now(seg, ep);
	for (uint32_t i = 0; i < key->n; i++)
		put(seg, key->digest[i], place, tag_of(key->digest[i]) | mine, &taken);
	return taken;
}

void
prefix_void(struct seg *seg, uint32_t ep)
{
	shm_add(&seg->prefix_engines[ep].computed, JUMP * UNIT);
}

void
prefix_follow(struct seg *seg, uint32_t ep, uint64_t stored, uint64_t held)
{
	struct prefix_engine *e = &seg->prefix_engines[ep];
	uint64_t events = EVENTS_COME;

	if (held != PREFIX_HELD_UNKNOWN)
		events |= EVENTS_KNOWN | (held < PREFIX_CAPACITY_MAX ? held : PREFIX_CAPACITY_MAX)
						 << EVENTS_HELD_AT;
	if (stored > 0)
		shm_add(&e->computed, stored < PREFIX_CAPACITY_MAX ? stored : PREFIX_CAPACITY_MAX);
	shm_store(&e->events, events);
}

void
prefix_follow_blocks(struct seg *seg, uint32_t ep, uint32_t block, bool all)
{
	shm_store(&seg->prefix_engines[ep].blocks, (uint64_t)block << BLOCKS_IDS_AT | all);
}

void
prefix_unfollow(struct seg *seg, uint32_t ep)
{
	shm_store(&seg->prefix_engines[ep].events, 0);
	shm_store(&seg->prefix_engines[ep].blocks, 0);
}

/* --- what engines say -------------------------------------------------------------------------- */

/* The part of the hits that an engine had in its cache lately, in units of 1 / KEPT_ONE. */
static uint32_t
kept_part(uint64_t word)
{
	const uint64_t part = word >> 2 * KEPT_BITS;

	return word == 0 ? KEPT_ONE : part < KEPT_ONE ? (uint32_t)part : KEPT_ONE;
}

struct prefix_guess
prefix_expect(const struct seg *seg, const struct prefix_found *found, uint32_t ep)
{
	struct prefix_guess guess = {.prompt = found->tokens};
	uint64_t expected;
	uint32_t kept;

	if (!prefix_has(found, ep))
		return guess;
	guess.hit = (uint32_t)(found->part * found->key->end[found->of[ep].cuts - 1] >>
			       PREFIX_PART_BITS);
	kept = kept_part(shm_load(&seg->prefix_engines[ep].kept));
	expected = kept < KEPT_WELL ? (uint64_t)guess.hit * kept / KEPT_ONE : guess.hit;
	guess.expected = expected < guess.prompt ? (uint32_t)expected : guess.prompt;
	return guess;
}

static uint64_t
kept_word(uint64_t reported, uint64_t looked_up)
{
	const uint64_t part = (reported + KEPT_SPARE) * KEPT_ONE / (looked_up + KEPT_SPARE);

	return (part < KEPT_ONE ? part : KEPT_ONE) << 2 * KEPT_BITS | reported << KEPT_BITS |
	       looked_up;
}

/* In steps that are rounded away from 0, or small means would never rise. */
static uint64_t
towards(uint64_t mean, uint64_t to)
{
	return to < mean ? mean - (mean - to + KEPT_SHARE - 1) / KEPT_SHARE
			 : mean + (to - mean + KEPT_SHARE - 1) / KEPT_SHARE;
}

static uint64_t
learn(uint64_t word, uint64_t reported, uint64_t looked_up)
{
	const uint64_t most = BITS(KEPT_BITS);
	const uint64_t r = word != 0 ? word >> KEPT_BITS & most : KEPT_BEGIN;
	const uint64_t l = word != 0 ? word & most : KEPT_BEGIN;

	return kept_word(towards(r, reported < most ? reported : most),
		towards(l, looked_up < most ? looked_up : most));
}

void
prefix_record(struct seg *seg, uint32_t ep, const struct prefix_guess *guess, uint64_t cached,
	uint64_t prompt)
{
	struct prefix_engine *e = &seg->prefix_engines[ep];
	const uint64_t seen = shm_load(&e->kept);
	uint64_t tokens = guess->prompt; /* in the router's own measure */

	if (guess->prompt == 0 || prompt == 0 ||
		(cached == PREFIX_UNSAID && shm_load(&e->answers) == 0))
		return;
	if (cached == PREFIX_UNSAID)
		tokens = 0;
	else if (cached < prompt)
		tokens = (uint64_t)((double)tokens * (double)cached / (double)prompt);
	shm_add(&e->answers, 1);
	shm_add(&e->prompt, guess->prompt);
	shm_add(&e->expected, guess->expected);
	shm_add(&e->cached, tokens);
	/* What is cached beyond the hit says nothing of the hit.  Of two workers at the same time one sample counts. */
	if (guess->hit > 0)
		(void)shm_cas(&e->kept, seen,
			learn(seen, tokens < guess->hit ? tokens : guess->hit, guess->hit));
}

struct prefix_sums
prefix_sums(const struct seg *seg, uint32_t ep)
{
	const struct prefix_engine *e = &seg->prefix_engines[ep];

	return (struct prefix_sums){.answers = shm_load(&e->answers),
		.prompt = shm_load(&e->prompt),
		.expected = shm_load(&e->expected),
		.cached = shm_load(&e->cached),
		.kept = (double)kept_part(shm_load(&e->kept)) / KEPT_ONE};
}

/* --- master ------------------------------------------------------------------------------------ */

void
prefix_capacity_set(struct seg *seg, uint32_t ep, uint64_t tokens)
{
	shm_store(&seg->ep_records[ep].capacity,
		tokens < PREFIX_CAPACITY_MAX ? tokens : PREFIX_CAPACITY_MAX);
}

void
prefix_begin(struct seg *seg, uint32_t ep)
{
	struct prefix_engine *e = &seg->prefix_engines[ep];

	prefix_capacity_set(seg, ep, 0);
	(void)shm_xchg(&e->kept, 0);
	(void)shm_xchg(&e->answers, 0);
	(void)shm_xchg(&e->prompt, 0);
	(void)shm_xchg(&e->expected, 0);
	(void)shm_xchg(&e->cached, 0);
	prefix_unfollow(seg, ep);
}

uint32_t
prefix_mend(struct seg *seg, uint32_t ep)
{
	struct prefix_engine *e = &seg->prefix_engines[ep];
	uint64_t *const sums[] = {&e->answers, &e->prompt, &e->expected, &e->cached};
	uint32_t bad = 0;

	for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
		if (shm_load(sums[i]) >= METRIC_TOO_MANY) {
			(void)shm_xchg(sums[i], 0);
			bad++;
		}
	return bad;
}
