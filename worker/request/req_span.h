/*
 * The span of a request whose trace is exported, and those of the times that no leg has: the queue, the KV transfer.
 * The spans of the legs are the attempts' (worker/attempt/leg_span.h).
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

struct req;
struct tokens;

/* The request has ended.  `rescued`: what served it after its engines had failed, or NULL. */
void req_span_end(
	const struct req *req, const struct tokens *tokens, const char *rescued, uint64_t now_us);
