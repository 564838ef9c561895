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

/* A request that has no pool counts nowhere. */
void observe_time(const struct req *req, enum metric_histogram h, uint64_t us);
