/*
 * Latencies: how long the engine of an endpoint takes to accept a connection, and to begin an answer.  Histograms for
 * /metrics; nothing decides by them.  struct latency is in shm/core/layout.h.
 *
 * A slot's histograms begin anew with each life of the slot.  The words of one may be of slightly different moments.
 *
 * Process: workers write; the worker that answers /metrics reads; the master begins and mends.
 */
#pragma once
#include <stdint.h>

#include "shm/core/seg.h"

/* LATENCY_CONNECT: making a connection.  LATENCY_FIRST: from a request's begin to the first byte of its answer. */
enum latency_kind { LATENCY_CONNECT, LATENCY_FIRST, LATENCY_N };

/* Upper bounds in microseconds of a kind's buckets, *ret_n of them; one more bucket is +Inf. */
const uint64_t *latency_bounds(enum latency_kind kind, unsigned *ret_n);

/* Counts one time of the endpoint. */
void latency_add(struct seg *seg, uint32_t ep, enum latency_kind kind, uint64_t us);
/* The counts of a kind's buckets, not cumulative, the one of +Inf last.  Returns the sum of all times. */
uint64_t latency_read(const struct seg *seg, uint32_t ep, enum latency_kind kind,
	uint64_t ret[LATENCY_BUCKETS + 1]);

/* Master: its slot begins a new life. */
void latency_begin(struct seg *seg, uint32_t ep);
/* Master: counts that cannot be begin at 0 again; returns how many. */
uint32_t latency_mend(struct seg *seg, uint32_t ep);
