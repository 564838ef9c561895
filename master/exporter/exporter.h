/*
 * The exporter: a child process that reads the finished spans of all workers (shm/spans.h) and sends them to the collector
 * `tracing.otlp`, as the JSON form of OTLP over HTTP.
 *
 * Process: exporter.
 */
#pragma once

struct heritage;

/* Returns an exit code (enum child_exit) when the master says so, or is gone. */
int exporter_main(const struct heritage *h);
