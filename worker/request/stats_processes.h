/*
 * The part of the /metrics page that shows the router's processes.
 *
 * Process: worker.
 */
#pragma once

struct exposition;
struct worker;

/* How many workers serve and drain, the sandbox, the build. */
void stats_processes(struct worker *w, const struct exposition *x);
/* What each process uses, under the names of Prometheus' client libraries. */
void stats_usage(const struct worker *w, const struct exposition *x);
