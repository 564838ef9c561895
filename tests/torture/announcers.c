/*
 * Announcements: one writer, killed at random and begun anew, and readers.
 *
 * Oracle: an entry proves itself.  The engine's number follows from its http text; role and kv text
 * follow from number and seen_ms, and seen_ms holds the writer's life and a count.  An entry of an
 * earlier life than one that has begun must not be seen.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/announce.h"
#include "tests/torture/torture.h"

#define ENGINES 400u /* more than there are entries */
#define FORGET 2000u /* in seen_ms, which counts announcements here */
#define COUNT_BITS 32

static struct board {
	_Alignas(SHM_LINE) uint64_t lives; /* W: announcer, when it begins */
	uint64_t begun; /* the life that has made its table empty. W: announcer */
	struct seen {
		_Alignas(SHM_LINE) uint64_t announced, full, copies, empty;
	} seen[CHILDREN];
} * board;

void
announce_init(void)
{
	board = shared(sizeof(*board));
}

/* What engine `number` says about itself the `seen_ms`th time. */
static void
compose(struct announcement *a, uint64_t number, uint64_t seen_ms)
{
	static const char tail[] = ".rack.hall.example.com";

	a->role = number % 2 == 0 ? ROLE_PREFILL : ROLE_DECODE;
	a->seen_ms = seen_ms;
	(void)snprintf(a->http, sizeof(a->http), "%" PRIu64 "%.*s:8000", number,
		(int)(number % sizeof(tail)), tail);
	(void)snprintf(a->kv, sizeof(a->kv), "%" PRIx64 ".%" PRIx64 ".%.*s", seen_ms * number,
		seen_ms, (int)(seen_ms % sizeof(tail)), tail);
}

void
announcer(struct life *l)
{
	struct seen *seen = &board->seen[l->child];
	const uint64_t life = seen_add(&board->lives, 1);
	uint64_t count = 0;

	announce_begin(seg);
	seen_set(&board->begun, life);
	while (life_end(l) == END_NOT) {
		const uint64_t number = 1 + next_random(&l->rnd) % ENGINES;
		struct announcement a;
		bool full;

		compose(&a, number, life << COUNT_BITS | ++count);
		(void)announce_put(seg, &a, FORGET, &full);
		seen->announced++;
		seen->full += full;
	}
}

static bool
true_to_itself(const struct announcement *a)
{
	struct announcement want;

	compose(&want, strtoull(a->http, NULL, 10), a->seen_ms);
	return a->role == want.role && strcmp(a->http, want.http) == 0 &&
	       strcmp(a->kv, want.kv) == 0;
}

void
listener(struct life *l)
{
	struct seen *seen = &board->seen[l->child];

	while (life_end(l) == END_NOT) {
		const uint64_t begun = seen_get(&board->begun);
		struct announcement a;

		if (!announce_get(seg, (uint32_t)next_random(&l->rnd) % ANNOUNCED_MAX, &a)) {
			seen->empty++;
			continue;
		}
		seen->copies++;
		if (!true_to_itself(&a))
			bad(BAD_TORN);
		else if (a.seen_ms >> COUNT_BITS < begun)
			bad(BAD_OLD);
	}
}

static struct seen
sum(void)
{
	struct seen s = {0};

	for (uint32_t i = 0; i < CHILDREN; i++) {
		s.announced += board->seen[i].announced;
		s.full += board->seen[i].full;
		s.copies += board->seen[i].copies;
		s.empty += board->seen[i].empty;
	}
	return s;
}

void
announce_settle(void)
{
	static uint64_t before;
	const uint64_t copies = sum().copies;

	if (copies == before)
		bad(BAD_IDLE);
	before = copies;
}

void
announce_report(void)
{
	const struct seen s = sum();

	printf("announcements: writer_lives=%" PRIu64 " announced=%" PRIu64 " full=%" PRIu64
	       " copies=%" PRIu64 " empty_or_changing=%" PRIu64 "\n",
		board->lives, s.announced, s.full, s.copies, s.empty);
}
