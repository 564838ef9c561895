/*
 * Retry-After: after how many seconds another request is worth the try.  Each 429 and 503 of the router has it; an
 * engine's own 429 or 503 passes unchanged.
 *
 * Process: worker.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct req;
struct worker;

#define RETRY_AFTER_MOST_S 60 /* but for END_CLIENT_RATE, whose time is known exactly */

/* The header line of a refused request, by job.end; "" where that end has another status. */
void retry_after_line(const struct req *req, char *buf, size_t size);
/* The line of a 503 of /health and /ready. */
void retry_after_probes_line(const struct worker *w, char *buf, size_t size);

/* For tests: an estimate as whole seconds, between 1 and RETRY_AFTER_MOST_S.  `rnd`: any number; clients that are refused
 * together get different seconds, none less than the estimate unless that is above the most. */
uint32_t retry_after_seconds(uint64_t ms, uint32_t rnd);
