/*
 * When the tick visits an object: a ring of lists, one for each of the next ticks.  A tick visits what is due, and not
 * what rests.  An object rests at most VISIT_MOST ticks: a time limit that no code has announced is noticed then.
 *
 * Process: worker.
 * Ownership: a visit is part of its object; visit_drop() takes it off before the object ends.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

/* resolution of every timeout; ticks only while there is something to time */
#define WORKER_TICK_MS 100
#define VISIT_SLOTS 32 /* a power of two, above VISIT_MOST */
#define VISIT_MOST 20  /* ticks: two seconds */

struct visit {
	uint64_t tick; /* that visits it; 0: none does */
	TAILQ_ENTRY(visit) link;
};

TAILQ_HEAD(visit_list, visit);

struct rounds {
	uint64_t now; /* number of the present tick: clock_ms() / WORKER_TICK_MS */
	uint64_t
		at; /* whose list is visited at the moment; ticks that a stall has passed over come first */
	struct visit_list slot[VISIT_SLOTS];
};

void rounds_init(struct rounds *r, uint64_t now_ms);
/* A tick begins. */
void rounds_tick(struct rounds *r, uint64_t now_ms);
/* Returns the next object that this tick visits, which is on no list then; NULL: there is none. */
struct visit *rounds_next(struct rounds *r);

/* The object must be visited `ms` from now, or before. */
void visit_within(struct rounds *r, struct visit *v, uint64_t ms);
void visit_drop(struct rounds *r, struct visit *v);

/* The object is visited at the next tick. */
static inline void
visit_soon(struct rounds *r, struct visit *v)
{
	if (v->tick != r->now + 1)
		visit_within(r, v, 0);
}

/* Returns the milliseconds from now until then: 0 if that has passed, `most` if there is no limit (0). */
static inline uint64_t
visit_sooner(uint64_t most, uint64_t then_ms, uint64_t now_ms)
{
	const uint64_t ms = then_ms > now_ms ? then_ms - now_ms : 0;

	return then_ms != 0 && ms < most ? ms : most;
}
