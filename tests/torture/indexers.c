/*
 * The prefix index: indexers insert and look up, each for an endpoint of its own, and a scribbler stores random words
 * anywhere in the table.
 *
 * Oracle: an endpoint is found only with prompts that were inserted for it in this life of its engine, and not removed
 * since.  An indexer begins
 * with a new life, as the master does after a restart, and begins others at random: what a killed indexer of the same
 * endpoint has stored must not be found.  After each round an insertion is found, whatever stands in the table.
 */
#include <inttypes.h>
#include <stdio.h>

#include "shm/prefix.h"
#include "tests/torture/torture.h"

#define PROMPTS 32u
#define CUTS 3u
#define TOKENS 1000u

static struct board {
	struct seen {
		_Alignas(SHM_LINE) uint64_t lives, inserted, found, lost, scribbled;
	} seen[CHILDREN];
} * board;
static struct prefix_key keys[PROMPTS];
static struct prefix_found *founds[CHILDREN]; /* each child its own */

/* The part of a digest that a word has. */
static uint64_t
tag(uint64_t digest)
{
	return (digest | 1) & 0x3ffff;
}

static bool
tags_differ(void)
{
	for (uint32_t i = 0; i < PROMPTS * CUTS; i++)
		for (uint32_t k = 0; k < i; k++)
			if (tag(keys[i / CUTS].digest[i % CUTS]) ==
				tag(keys[k / CUTS].digest[k % CUTS]))
				return false;
	return true;
}

/* Prompts without two cuts that a word could mistake for each other. */
void
indexers_init(void)
{
	static char text[CUTS * PREFIX_STEP];
	struct prefix_secret secret;
	uint64_t root = 0;

	board = shared(sizeof(*board));
	for (uint32_t i = 0; i < CHILDREN; i++)
		founds[i] = prefix_found_new(seg->hdr->max_endpoints);
	prefix_secret_make(&secret, seg->hdr->prefix_seed);
	do {
		root++;
		for (uint32_t k = 0; k < PROMPTS; k++) {
			text[0] = (char)('a' + k);
			prefix_cut(&secret, root, text, sizeof(text), &keys[k]);
		}
	} while (!tags_differ());
}

/* The cuts that endpoint `ep` is found with. */
static uint32_t
look(struct prefix_found *found, uint32_t prompt, uint32_t ep)
{
	prefix_look(seg, &keys[prompt], 1, TOKENS, found);
	return found->of[ep].round == found->round ? found->of[ep].cuts : 0;
}

void
indexer(struct life *l)
{
	struct seen *seen = &board->seen[l->child];
	uint32_t inserted = 0; /* bit per prompt, in this life of the engine */

	prefix_void(seg, l->child);
	seen->lives++;
	while (life_end(l) == END_NOT) {
		const uint64_t r = next_random(&l->rnd);
		const uint32_t insert = (uint32_t)(r >> 8) % PROMPTS;
		const uint32_t other = (uint32_t)(r >> 16) % PROMPTS;
		uint32_t cuts;

		if (r % 64 == 0) {
			prefix_void(seg, l->child);
			inserted = 0;
		}
		if (r % 64 < 8) {
			for (uint32_t i = 0; i < CUTS; i++)
				prefix_removed(seg, keys[other].digest[i], 1, l->child);
			inserted &= ~(1u << other);
			if (look(founds[l->child], other, l->child) > 0)
				bad(BAD_HINT);
		}
		(void)prefix_insert(seg, &keys[insert], 1, l->child, TOKENS);
		inserted |= 1u << insert;
		seen->inserted++;
		cuts = look(founds[l->child], other, l->child);
		if (cuts > CUTS || (cuts > 0 && (inserted >> other & 1) == 0))
			bad(BAD_HINT);
		seen->found += cuts == CUTS;
		seen->lost += cuts < CUTS && (inserted >> other & 1) != 0;
	}
}

void
scribbler(struct life *l)
{
	struct seen *seen = &board->seen[l->child];
	const uint64_t words = (uint64_t)seg->hdr->prefix_buckets * PREFIX_WAYS;

	while (life_end(l) == END_NOT) {
		const uint64_t at = next_random(&l->rnd) % words;

		__atomic_store_n(&seg->prefix[at / PREFIX_WAYS].word[at % PREFIX_WAYS],
			next_random(&l->rnd), __ATOMIC_RELAXED);
		seen->scribbled++;
		spin(200);
	}
}

static struct seen
sum(void)
{
	struct seen s = {0};

	for (uint32_t i = 0; i < CHILDREN; i++) {
		s.lives += board->seen[i].lives;
		s.inserted += board->seen[i].inserted;
		s.found += board->seen[i].found;
		s.lost += board->seen[i].lost;
		s.scribbled += board->seen[i].scribbled;
	}
	return s;
}

void
indexers_settle(void)
{
	static uint64_t before;
	const uint64_t found = sum().found;

	if (found == before)
		bad(BAD_IDLE);
	before = found;
	for (uint32_t k = 0; k < PROMPTS; k++) {
		(void)prefix_insert(seg, &keys[k], 1, CHILDREN - 1, TOKENS);
		if (look(founds[0], k, CHILDREN - 1) != CUTS)
			bad(BAD_HINT);
	}
}

void
indexers_report(void)
{
	const struct seen s = sum();

	printf("prefix index: lives=%" PRIu64 " inserted=%" PRIu64 " found=%" PRIu64
	       " lost=%" PRIu64 " scribbled=%" PRIu64 "\n",
		s.lives, s.inserted, s.found, s.lost, s.scribbled);
}
