/*
 * The part of the /metrics page that shows the endpoints.
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

struct endpoint_copy;
struct exposition;
struct seg;
struct table_copy;

/* The subject of a figure. */
struct about {
	const struct seg *seg;
	const struct table_copy *t;
	const struct endpoint_copy *ep;
};

/* Number of metrics that an endpoint may have. */
uint32_t stats_engine_metrics(void);
void stats_engine_heading(const struct exposition *x, uint32_t metric);
/* The series of one endpoint; none if the figure is not known. */
void stats_engine(const struct exposition *x, const struct about *a, uint32_t metric);
