/*
 * Finished spans on their way from the workers to the exporter: a ring (shm/ring.h) for each worker slot.  The words of
 * the spans are in shm/span_list.h.
 *
 * The writer is the worker of the slot, the reader the exporter, which stores `read` when the spans have been answered for:
 * one that is killed leaves a batch that its successor sends again.  A span without room is dropped and counted.  A ring
 * that cannot be is read from its present end on, and counted (SUSPECT_SPANS).
 *
 * Process: workers write; the exporter reads.  Times are clock_us().
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/core/seg.h"
#include "shm/span_list.h"

#define SPAN_TRACE 32     /* hex digits of a trace id */
#define SPAN_MAX 2048     /* bytes of a record; an attribute that does not fit is left out */
#define SPAN_TEXT_MAX 256 /* bytes of one text; the rest is cut off */
#define SPAN_NO_EVENT 0   /* of event_us */

enum span_outcome { SPAN_UNSET, SPAN_FAILED, SPAN_NOUTCOMES };

struct span_head {
	uint32_t bytes; /* of the record: this head, and the attributes */
	uint8_t name;   /* enum span_name */
	uint8_t outcome;
	uint8_t flags; /* of the trace */
	uint8_t zero;
	uint64_t id, parent; /* parent 0: none */
	uint64_t from_us, until_us;
	uint64_t event_us; /* the first token came; 0: no such event */
	char trace[SPAN_TRACE];
};

struct span_record {
	struct span_head head;
	unsigned char attrs[SPAN_MAX - sizeof(struct span_head)];
};

/* --- the writer */

/* Begins a record; the caller fills the rest of the head.  `trace`: SPAN_TRACE digits. */
void span_init(struct span_record *s, enum span_name name, const char *trace);
/* Adds an attribute, each key once: the reader drops a record that has a key twice.  A NULL or empty text is left out. */
void span_text(struct span_record *s, enum span_attr key, const char *text);
void span_number(struct span_record *s, enum span_attr key, uint64_t n);
/* Publishes the record in the ring of that worker slot, or counts it as dropped in that slot's slab. */
void span_put(struct seg *seg, uint32_t worker, const struct span_record *s);

/* --- the reader */

/* Returns the position from which a new exporter reads. */
uint64_t spans_begin(const struct seg *seg, uint32_t worker);
/* Copies the record at *at and moves *at behind it.  Returns false if there is none. */
bool spans_next(struct seg *seg, uint32_t worker, uint64_t *at, struct span_record *ret);
/* The records before `at` are done with: their room is the worker's again. */
void spans_done(struct seg *seg, uint32_t worker, uint64_t at);

/* No record is out: `read` must be `at`.  A ring where it is not is repaired, or its worker would find no room. */
void spans_mend(struct seg *seg, uint32_t worker, uint64_t at);

struct span_value {
	enum span_attr key;
	const char *text; /* NULL: it is a number */
	size_t n;
	uint64_t number;
};
/* Walks the attributes of a record that spans_next() has returned; *at is 0 at first.  Returns false at the end. */
bool span_next_value(const struct span_record *s, size_t *at, struct span_value *ret);
