/*
 * Timers that many engines share.  All turns that are due in the same millisecond have one timer of the
 * loop, so probes of one moment wake the master once, and the loop's heap of timers stays small: to take a
 * timer out of a heap with one for each engine touches a cold line for each level of the heap.
 *
 * Process: master.
 * Ownership: a turn is embedded in what it calls, which cancels it before it ends.  fn may set, cancel and
 * free any turn, its own too.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct event_base;
struct turn_group;
struct turns;

typedef void turn_fn(void *arg);

/* Private to turns.c but for its size. */
struct turn {
	struct turns *all;
	turn_fn *fn;
	void *arg;
	struct turn_group *group; /* NULL: it is not set */
	TAILQ_ENTRY(turn) link;
};

struct turns *turns_new(struct event_base *base);
/* No turn is set. */
void turns_free(struct turns **);

void turn_init(struct turn *t, struct turns *all, turn_fn *fn, void *arg);
/* fn is called once, from the loop, in so many milliseconds; never from in here.  Replaces what was set. */
void turn_after(struct turn *t, uint64_t ms);
void turn_cancel(struct turn *t);
bool turn_is_set(const struct turn *t);
