/*
 * Between the workers of a router and its notifier: what other routers before the same engines (siblings) get, and what
 * comes from them.
 *
 * A worker that inserts a prompt into the prefix index puts a note into the ring of its slot (shm/ring.h): the engine, and
 * the digests of the prompt's cuts.  The notifier sends the notes to the siblings, and inserts theirs into the index
 * (master/notifier/siblings.h).  Every note is a hint: a note without room is dropped and counted.  A note that cannot be is
 * passed over with all that its ring has, and counted (SUSPECT_SIBLINGS).
 *
 * Routers know an engine by a hash of its URL, its role and its pool's name (sibling_id()).  The master writes the hash for
 * each endpoint of the current table, and 0 for all others.
 *
 * Process: sibling_note_put in workers; the other functions of notes and sibling_put in the notifier; sibling_engine_put in
 * the master; the rest anywhere.  A segment without rings (shm_header.sibling_bytes is 0) has none of this.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "shm/base/prefix_key.h"
#include "shm/core/seg.h"

struct sibling_note {
	uint32_t bytes; /* of the note: the words before `digest`, and its digests */
	uint32_t ep, tag;
	uint32_t computes; /* tokens */
	uint64_t digest[PREFIX_CUTS];
};

/* --- worker */

/* The prompt's engine is at `ep`, which computes so many tokens of it. */
void sibling_note_put(struct seg *seg, uint32_t worker, const struct prefix_key *key, uint32_t ep,
	uint32_t computes);

/* --- notifier */

/* Where a new notifier begins in a worker's ring. */
uint64_t sibling_notes_begin(const struct seg *seg, uint32_t worker);
/* Takes the note at *at, and moves *at behind it: its room is the worker's again after sibling_notes_done().  Returns the number
 * of its digests; 0: there is no note. */
uint32_t sibling_note_next(
	struct seg *seg, uint32_t worker, uint64_t *at, struct sibling_note *ret);
void sibling_notes_done(struct seg *seg, uint32_t worker, uint64_t at);

/* What comes from another router. */
struct sibling {
	uint64_t address; /* sibling_hash() of its address; 0: none */
	uint64_t at_ms;   /* clock_ms of its last message; 0: never */
	uint64_t silent;  /* 1: nothing has come for some seconds */
	uint64_t own;     /* 1: it is this router itself */
	uint64_t lag_us;  /* age of its last message, by both clocks */
	uint64_t messages, notes, loads;
	uint64_t unknown; /* notes and loads of engines that this router does not have */
	uint64_t missed;  /* messages that did not come */
	uint64_t refused; /* messages */
};
void sibling_put(struct seg *seg, uint32_t i, const struct sibling *o);

/* --- master */

/* 0: no endpoint of the current table. */
void sibling_engine_put(struct seg *seg, uint32_t ep, uint64_t id, uint32_t row);

/* --- any process */

uint64_t sibling_id(const char *url, enum role role, const char *pool);
uint64_t sibling_hash(const char *text);
uint64_t sibling_engine_id(const struct seg *seg, uint32_t ep);
uint32_t sibling_engine_row(const struct seg *seg, uint32_t ep);
/* The words may be of two moments. */
void sibling_get(const struct seg *seg, uint32_t i, struct sibling *ret);
