/*
 * The texts of /metrics: Prometheus' own format, 0.0.4, and OpenMetrics 1.0, which names a counter's family without
 * `_total`, has units and exemplars, and ends with `# EOF`.
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

struct evbuffer;
struct exemplar;

enum exposition_form { EXPOSITION_PROMETHEUS, EXPOSITION_OPENMETRICS };

/* A page, or a piece of it. */
struct exposition {
	struct evbuffer *out;
	enum exposition_form form;
};

/* The heading of a metric.  A label that `name` ends with is left out. */
void exposition_heading(
	const struct exposition *x, const char *name, const char *type, const char *help);
/* The last line. */
void exposition_end(const struct exposition *x);

/* A histogram of times, in microseconds. */
struct exposition_histogram {
	const char *name;
	const char *labels; /* of all its series: pool="a",role="decode"; values are escaped */
	const uint64_t *bounds;
	unsigned n;             /* of the bounds */
	const uint64_t *counts; /* [n + 1], not cumulative: the last one is +Inf */
	uint64_t sum;
	const struct exemplar *exemplars; /* [n + 1], NULL: none */
};
void exposition_histogram(const struct exposition *x, const struct exposition_histogram *h);
