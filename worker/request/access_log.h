/*
 * How a request ended: one line in the log, one count in the metrics.
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

struct req;

/* Writes the line, and counts the tokens.  Call it while the request's attempts still exist, since the line names
 * their engines. */
void access_log_line(struct req *req, uint64_t now_us);
/* Counts the end.  Call it after the line: when no request is in flight, all lines are in the
 * log. */
void access_log_count(const struct req *req, uint64_t now_us);
