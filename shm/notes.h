/*
 * What `pdctl requests` shows: for each worker slot a table of its requests in flight, and a ring of those that have ended.
 * struct note_words and struct notes_head are in shm/core/layout.h.
 *
 * The worker of the slot is the only writer.  `seq` is odd while a note changes; a reader that sees one even seq before
 * and after its read has a consistent note.  A worker that is killed leaves at most one odd note, which readers pass by,
 * and its successor begins with an empty table and goes on in the ring.  The worker reads no word of it: which
 * notes are free is in its own memory.  A request that finds none free is counted, and is not in the table.
 *
 * A reader trusts no byte: texts get an end, numbers are checked.
 *
 * Process: workers write; the master reads, and workers for the status page.  Times are clock_us().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "shm/core/seg.h"

/* clang-format off */
/* Where a request in flight is. */
#define NOTE_STATES(X)                                                                  \
	X(FREE, "")                                                                     \
	X(BODY, "body")       /* its body is read */                                    \
	X(PLAN, "plan")       /* its engines are chosen */                              \
	X(QUEUE, "queue")     /* it waits for a slot of an engine */                    \
	X(LOOKUP, "lookup")   /* an engine is asked before its legs begin */            \
	X(PREFILL, "prefill") /* the prefill engine has it */                           \
	X(DECODE, "decode")   /* the decode engine has it, and has sent nothing */      \
	X(ANSWER, "answer")   /* the client has the first byte of the answer */         \
	X(ENDED, "ended")
/* clang-format on */
#define NOTE_ENUM(id, word) NOTE_##id,
enum note_state { NOTE_STATES(NOTE_ENUM) NOTE_NSTATES };
#undef NOTE_ENUM
const char *note_state_word(enum note_state state);

#define NOTE_NONE UINT32_MAX /* no engine; tokens that are not known */

/* Which engine of each role: its slot and the slot's tag. */
struct note_engines {
	uint32_t slot[ROLE_N], tag[ROLE_N];
};

/* What changes while a request is in flight. */
struct note_now {
	enum note_state state;
	uint64_t at_us; /* since when */
	struct note_engines engines;
	uint32_t tries; /* after the first */
	uint32_t pool;  /* id */
};

/* Of a request that has ended. */
struct note_end {
	uint32_t status;
	const char *reason;
	char states[NOTE_LETTERS];
	uint32_t queued_ms, first_ms; /* 0: it did not wait; no byte came */
	uint32_t prompt, completion;  /* tokens; NOTE_NONE: not known */
};

/* As a reader gets it. */
struct note {
	struct note_now now;
	uint64_t from_us; /* its first byte came */
	uint32_t status, queued_ms, first_ms, prompt, completion;
	uint16_t lap; /* note_ended() compares it with the one of the number */
	char id[NOTE_ID], model[NOTE_MODEL], reason[NOTE_REASON], states[NOTE_LETTERS];
};

/* --- the worker */

struct notes;
struct notes *notes_new(struct seg *seg, uint32_t worker);
void notes_free(struct notes **);

/* Of a request with an id; its model may be "".  Returns the number of the note; 0: none is free, and then the calls below do nothing. */
uint32_t note_begin(struct notes *n, const char *id, const char *model, const struct note_now *now,
	uint64_t from_us);
void note_model(struct notes *n, uint32_t note, const char *model);
void note_move(struct notes *n, uint32_t note, const struct note_now *now);
/* The request has ended: its note is free, and the ring has one in place of the oldest one.  `end` NULL: not in the ring. */
void note_end(struct notes *n, uint32_t note, const char *id, const char *model, uint64_t from_us,
	const struct note_now *now, const struct note_end *end);

/* --- the reader */

/* Number of notes of the worker's table that may be in use. */
uint32_t notes_in_use(const struct seg *seg, uint32_t worker);
/* The same of a worker that serves; 0: it has died or has not begun, so nothing is in flight there. */
uint32_t notes_in_flight(const struct seg *seg, uint32_t worker);
/* False: the note is free, or changes just now. */
bool note_running(const struct seg *seg, uint32_t worker, uint32_t i, struct note *ret);
/* Requests of the worker that have ended, ever: the last one has this number. */
uint64_t notes_ended(const struct seg *seg, uint32_t worker);
/* How many of them, the last ones, are in the ring. */
uint32_t notes_kept(const struct seg *seg, uint64_t ended);
/* The one of this number.  False: it is no longer there, changes just now, or cannot be. */
bool note_ended(const struct seg *seg, uint32_t worker, uint64_t number, struct note *ret);
