/*
 * Times of a request for /metrics: each counts in a histogram of its pool, with the request's trace as the exemplar if
 * the trace is sampled.
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

#include "shm/metrics_layout.h"

struct req;

/* Counts a request that has ended, and its tokens, by its model and by its client's key; `tokens`: as its engines say,
 * USAGE_NONE: not known. */
void observe_names(const struct req *req, const uint64_t tokens[T_N]);
/* A request that has no pool counts nowhere. */
void observe_time(const struct req *req, enum metric_histogram h, uint64_t us);
