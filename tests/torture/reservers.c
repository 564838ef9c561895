/*
 * Reservations and prompt tokens: as many takers as can be for few places.
 *
 * Calm: reservers are stopped but never killed, so books can be kept beside the words: what has
 * begun and what is done, for what is taken and what is given.  At any time the word lies between
 * done - begun and begun - done, and what is surely held is never above the limit.  When all have
 * left, nothing is held.
 *
 * Storm: they are killed at any instruction and reaped.  When all are, nothing is held.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>

#include "shm/load.h"
#include "tests/torture/torture.h"

#define LIMIT 5u
#define HOLD 6u                 /* a reserver's own most: together far above the limits */
#define HUGE_PROMPT 0x60000000u /* the third of these must be refused */

/* Sums since the program began; they only grow, so that two of them need not be read at once. */
struct book {
	_Alignas(SHM_LINE) uint64_t take_begun, take_done, give_begun, give_done;
};

static struct reservers {
	_Alignas(SHM_LINE) uint64_t calm;            /* W: master, between rounds */
	_Alignas(SHM_LINE) uint64_t held[ENDPOINTS]; /* surely held */
	struct book requests[ENDPOINTS], tokens[ENDPOINTS];
	struct seen {
		_Alignas(SHM_LINE) uint64_t grants, refusals, prompts, overflows;
	} seen[CHILDREN];
} * all;

static uint64_t killed_inside, given_back;

struct place {
	uint32_t ep, tokens;
	bool sent;
};

void
reservers_init(void)
{
	all = shared(sizeof(*all));
}

void
reservers_calm(void)
{
	all->calm = 1;
}

void
reservers_storm(void)
{
	all->calm = 0;
}

static void
audit(const struct book *b, uint32_t (*held)(const struct seg *, uint32_t), uint32_t ep)
{
	const uint64_t taken = seen_get(&b->take_done), given = seen_get(&b->give_done);
	uint64_t word;

	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* the word between the two looks at the book */
	word = held(seg, ep);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if ((int64_t)(taken - seen_get(&b->give_begun)) > (int64_t)word ||
		seen_get(&b->take_begun) - given < word)
		bad(BAD_SUM);
}

static uint32_t
take_tokens(uint32_t me, uint32_t ep, uint32_t want)
{
	struct book *b = &all->tokens[ep];
	const bool calm = seen_get(&all->calm) != 0;
	uint32_t got;

	if (calm)
		seen_add(&b->take_begun, want);
	got = load_tokens_add(seg, me, ep, want);
	if (got != want) {
		all->seen[me].overflows++;
		if (got != 0)
			bad(BAD_SUM);
	}
	if (calm) {
		seen_add(&b->take_done, got);
		if (got != want)
			seen_add(&b->take_begun, -(uint64_t)want);
	}
	all->seen[me].prompts++;
	return got;
}

static void
give_tokens(uint32_t me, uint32_t ep, uint32_t n)
{
	struct book *b = &all->tokens[ep];

	if (seen_get(&all->calm) == 0) {
		load_tokens_sub(seg, me, ep, n);
		return;
	}
	seen_add(&b->give_begun, n);
	load_tokens_sub(seg, me, ep, n);
	seen_add(&b->give_done, n);
}

static bool
take_request(uint32_t me, uint32_t ep)
{
	struct book *b = &all->requests[ep];
	const bool calm = seen_get(&all->calm) != 0;
	bool got;

	if (calm)
		seen_add(&b->take_begun, 1);
	got = load_reserve(seg, me, ep, LIMIT);
	if (load_count(seg, ep) > LIMIT)
		bad(BAD_LIMIT);
	if (!calm)
		return got;
	if (!got) {
		seen_add(&b->take_begun, -(uint64_t)1);
		return false;
	}
	seen_add(&b->take_done, 1);
	if (seen_add(&all->held[ep], 1) > LIMIT)
		bad(BAD_LIMIT);
	return true;
}

static void
give_request(uint32_t me, uint32_t ep)
{
	struct book *b = &all->requests[ep];

	if (seen_get(&all->calm) == 0) {
		load_release(seg, me, ep);
		return;
	}
	seen_add(&all->held[ep], -(uint64_t)1);
	seen_add(&b->give_begun, 1);
	load_release(seg, me, ep);
	seen_add(&b->give_done, 1);
}

/* A worker's order: the request first, its prompt after it. */
static bool
take(uint32_t me, struct place *p, uint64_t r)
{
	const uint32_t prompt = r % 64 == 0 ? HUGE_PROMPT : (uint32_t)(r >> 16 & 0x1ffff);

	p->ep = (uint32_t)(r >> 40) % ENDPOINTS;
	if (!take_request(me, p->ep)) {
		all->seen[me].refusals++;
		return false;
	}
	all->seen[me].grants++;
	p->tokens = take_tokens(me, p->ep, prompt);
	p->sent = (r >> 8 & 1) != 0;
	if (p->sent)
		load_sent(seg, me, p->ep, 1);
	return true;
}

static void
give(uint32_t me, const struct place *p)
{
	if (p->sent)
		load_sent(seg, me, p->ep, -1);
	give_tokens(me, p->ep, p->tokens);
	give_request(me, p->ep);
}

void
reserver(struct life *l)
{
	const bool greedy = l->rnd % 8 < 3; /* never yields: preempted, and killed, anywhere */
	struct place mine[HOLD];
	uint32_t n = 0;

	while (life_end(l) == END_NOT) {
		const uint64_t r = next_random(&l->rnd);

		if (n < HOLD && r % 2 == 0)
			n += take(l->child, &mine[n], next_random(&l->rnd));
		else if (n > 0)
			give(l->child, &mine[--n]);
		if ((r >> 8 & 63) == 0 && seen_get(&all->calm) != 0) {
			const uint32_t ep = (uint32_t)(r >> 32) % ENDPOINTS;

			audit(&all->requests[ep], load_count, ep);
			audit(&all->tokens[ep], load_tokens, ep);
		}
		if (greedy || (r >> 16 & 255) != 0)
			continue;
		spin(r >> 24 & 255);
		(void)sched_yield();
	}
	while (n > 0 && life_end(l) == END_LEAVE)
		give(l->child, &mine[--n]);
}

void
reserver_bury(uint32_t child)
{
	killed_inside += seg->procs[child].journal != 0;
	given_back += load_reap(seg, child);
}

static struct seen
sum(void)
{
	struct seen s = {0};

	for (uint32_t i = 0; i < CHILDREN; i++) {
		s.grants += all->seen[i].grants;
		s.refusals += all->seen[i].refusals;
		s.prompts += all->seen[i].prompts;
		s.overflows += all->seen[i].overflows;
	}
	return s;
}

void
reservers_settle(void)
{
	static uint64_t before;
	const uint64_t grants = sum().grants;

	for (uint32_t ep = 0; ep < ENDPOINTS; ep++) {
		if (load_count(seg, ep) != 0 || load_tokens(seg, ep) != 0 ||
			load_sent_sum(seg, ep) != 0)
			bad(BAD_LEAK);
	}
	if (grants == before)
		bad(BAD_IDLE);
	before = grants;
}

void
reservers_report(void)
{
	const struct seen s = sum();

	printf("reservations: grants=%" PRIu64 " refusals=%" PRIu64 " prompts=%" PRIu64
	       " overflows_refused=%" PRIu64 " killed_in_operation=%" PRIu64 " given_back=%" PRIu64
	       "\n",
		s.grants, s.refusals, s.prompts, s.overflows, killed_inside, given_back);
}
