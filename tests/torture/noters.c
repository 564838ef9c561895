/*
 * The rings of notes for other routers: noters write, each into the ring of its own slot, and one collector reads all of
 * them, as the notifier does.  All are killed at random.
 *
 * Oracle: a note proves itself.  Its number of digests and all of them follow from the first one, which has its writer's
 * number and a count.  A collector reads a noter's notes in their order, and those again that a collector before it has
 * not done with.  No ring may be taken for one that was scribbled on.
 */
#include <inttypes.h>
#include <stdio.h>

#include "shm/siblings.h"
#include "tests/torture/torture.h"

#define NOTERS 3u
#define COUNT_BITS 48
#define STEP UINT64_C(0x9e3779b97f4a7c15)

static struct board {
	struct seen {
		_Alignas(SHM_LINE) uint64_t lives, written, read;
	} seen[CHILDREN];
	/* by noter: notes that all its lives have begun; the last one that a collector was done with */
	struct {
		_Alignas(SHM_LINE) uint64_t begun;
		uint64_t done;
	} of[NOTERS];
} * board;

void
noters_init(void)
{
	board = shared(sizeof(*board));
}

static uint32_t
cuts_of(uint64_t count)
{
	return 1 + (uint32_t)(count % PREFIX_CUTS);
}

void
noter(struct life *l)
{
	struct seen *seen = &board->seen[l->child];
	struct prefix_key key;

	seen->lives++;
	while (life_end(l) == END_NOT) {
		const uint64_t count = seen_add(&board->of[l->child].begun, 1);

		key.n = cuts_of(count);
		key.digest[0] = (uint64_t)l->child << COUNT_BITS | count;
		for (uint32_t i = 1; i < key.n; i++)
			key.digest[i] = key.digest[i - 1] * STEP;
		sibling_note_put(seg, l->child, &key, l->child, key.n);
		seen->written++;
	}
}

static bool
is_true(uint32_t from, const struct sibling_note *note, uint32_t n, uint64_t last)
{
	const uint64_t count = note->digest[0] & ((UINT64_C(1) << COUNT_BITS) - 1);

	if (note->digest[0] >> COUNT_BITS != from || note->ep != from || n != cuts_of(count) ||
		note->computes != n || count <= last)
		return false;
	for (uint32_t i = 1; i < n; i++)
		if (note->digest[i] != note->digest[i - 1] * STEP)
			return false;
	return true;
}

void
collector(struct life *l)
{
	struct seen *seen = &board->seen[l->child];
	uint64_t at[NOTERS];

	seen->lives++;
	for (uint32_t w = 0; w < NOTERS; w++)
		at[w] = sibling_notes_begin(seg, w);
	while (life_end(l) == END_NOT) {
		const uint32_t w = (uint32_t)next_random(&l->rnd) % NOTERS;
		uint64_t last = seen_get(&board->of[w].done);
		struct sibling_note note;
		uint32_t n;

		for (int i = 0; i < 16 && (n = sibling_note_next(seg, w, &at[w], &note)) > 0; i++) {
			if (!is_true(w, &note, n, last))
				bad(BAD_TORN);
			last = note.digest[0] & ((UINT64_C(1) << COUNT_BITS) - 1);
			seen->read++;
		}
		/* one that is killed in between has done with less than it has noted here */
		sibling_notes_done(seg, w, at[w]);
		seen_set(&board->of[w].done, last);
	}
}

static struct seen
sum(void)
{
	struct seen s = {0};

	for (uint32_t i = 0; i < CHILDREN; i++) {
		s.lives += board->seen[i].lives;
		s.written += board->seen[i].written;
		s.read += board->seen[i].read;
	}
	return s;
}

void
noters_settle(void)
{
	static uint64_t before;
	const uint64_t read = sum().read;

	if (read == before)
		bad(BAD_IDLE);
	before = read;
}

void
noters_report(void)
{
	const struct seen s = sum();

	printf("notes for siblings: lives=%" PRIu64 " written=%" PRIu64 " read=%" PRIu64 "\n",
		s.lives, s.written, s.read);
}
