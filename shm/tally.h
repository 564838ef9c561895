/*
 * Tallies: what the requests of all workers have shown of an endpoint, by cause.  Status pages and alerts read them;
 * ejection decides by words of its own (eject.h).  `alive_ms` alone decides: whether a late engine is charged
 * (worker/attempt/failover.c).  struct tally is in shm/core/layout.h.
 *
 * A slot's tally begins anew with each life of the slot.  The words of one tally may be of slightly different moments.
 *
 * Process: workers write; all read.  Times are clock_ms().
 */
#pragma once
#include <stdint.h>

#include "shm/core/seg.h"

/* `alive_ms` is exact to this: bytes that follow each other write one line less. */
#define TALLY_CAUSE_BITS 8 /* of struct tally.last */
#define TALLY_ALIVE_STEP_MS 100u

/* Counts one outcome of the endpoint. */
void tally_add(struct seg *seg, uint32_t ep, enum tally_cause cause, uint64_t now_ms);
/* The endpoint has sent bytes of a good answer. */
void tally_alive(struct seg *seg, uint32_t ep, uint64_t now_ms);
/* The endpoint has answered 429 or 503: background requests stay away for a while (worker/attempt/background.c). */
void tally_shed(struct seg *seg, uint32_t ep, uint64_t now_ms);
/* Master: its slot begins a new life. */
void tally_begin(struct seg *seg, uint32_t ep);

/* Outcomes with that cause, in this life of the slot; TALLY_GOOD: those that were no failures. */
uint64_t tally_count(const struct seg *seg, uint32_t ep, enum tally_cause cause);
/* Outcomes in all. */
uint64_t tally_requests(const struct seg *seg, uint32_t ep);
/* The cause of the last failure, and when; TALLY_GOOD: none has failed. */
enum tally_cause tally_last(const struct seg *seg, uint32_t ep, uint64_t *ret_ms);
/* When the last bytes of a good answer came, to TALLY_ALIVE_STEP_MS; 0: there were none. */
uint64_t tally_alive_ms(const struct seg *seg, uint32_t ep);
/* When it last answered 429 or 503; 0: never. */
uint64_t tally_shed_ms(const struct seg *seg, uint32_t ep);

/* The label: "5xx". */
const char *tally_cause_name(enum tally_cause cause);
/* Its meaning in a few words, for people. */
const char *tally_cause_meaning(enum tally_cause cause);
/* The name of the cause of its last failure, for the log; NULL: none has failed. */
const char *tally_last_name(const struct seg *seg, uint32_t ep);
