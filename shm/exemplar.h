/*
 * Exemplars: for each bucket of some histograms of a pool, the last request with a sampled trace that fell into it.
 * /metrics shows them in OpenMetrics, so that a slow bucket leads to a trace.
 *
 * Process: workers write and read.  A writer that dies, or meets another one, leaves words of different requests:
 * their checksum does not fit then, and the exemplar is left out until the next one.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/seg.h"
#include "shm/metrics_layout.h"

#define EXEMPLAR_TRACE 32 /* hex digits of a trace id */

struct exemplar {
	char trace[EXEMPLAR_TRACE + 1]; /* "": there is none */
	uint64_t us;                    /* the time that was counted */
	uint64_t at_ms;                 /* wall clock */
};

/* The request's time has been counted in this histogram; `trace`: EXEMPLAR_TRACE hex digits.  Histograms without
 * exemplars, and METRIC_NO_POOL, are ignored. */
void exemplar_put(
	struct seg *seg, uint32_t pool, enum metric_histogram h, const struct exemplar *x);
/* The exemplar of a bucket, METRIC_BUCKETS: of +Inf.  False, and an empty one, if there is none. */
bool exemplar_get(const struct seg *seg, uint32_t pool, enum metric_histogram h, unsigned bucket,
	struct exemplar *ret);
