/*
 * What is counted by name: requests and tokens of each model that is served, and of each key of clients.
 *
 * The master gives a slot to each name, and takes it back when the name is gone.  A worker finds the slot by the name,
 * and all workers add to its words.  A name without a slot (there are too many, it is too long, or it has just gone)
 * counts in the slot of `NAMED_OTHER`, which is always there.
 *
 * Process: the master writes names; workers write counts, and read both.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/core/seg.h"

#define NAMED_OTHER "other"

/* Slots of a kind, one of which is that of NAMED_OTHER. */
uint32_t named_slots(const struct seg *seg, enum named_kind kind);

/* Master: names[n] are those that have slots from now on, as far as there are slots.  Counts of names that stay stay;
 * those of others begin at 0. */
void named_set(struct seg *seg, enum named_kind kind, const char *const *names, size_t n);

/* Where a name is counted. */
struct named_at {
	enum named_kind kind;
	uint32_t slot;
	uint64_t hash; /* of the name; 0: the slot is that of NAMED_OTHER */
};
struct named_at named_find(const struct seg *seg, enum named_kind kind, const char *name);
/* If the name has lost the slot meanwhile, the slot of NAMED_OTHER gets the count: never the slot's next name. */
void named_add(struct seg *seg, const struct named_at *at, enum named_what what, uint64_t n);

struct named_figures {
	char name[NAMED_NAME];
	uint64_t count[NAMED_N];
};
/* False: the slot has no name. */
bool named_read(
	const struct seg *seg, enum named_kind kind, uint32_t slot, struct named_figures *ret);

/* Master: the counts of slot `i` of all kinds' slots begin at 0 again if they cannot be; returns how many. */
uint32_t named_mend(struct seg *seg, uint32_t i);
