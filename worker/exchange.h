/*
 * What happens to a request's pairs, from the chosen endpoints to the end of the answer: the handlers of
 * the states ASK, EXCHANGE, RELAY and RELEASE in req.c's table.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct leg;
struct pair;
struct req;
struct span;

typedef void req_handler(struct req *, struct leg *);
req_handler planned, ask_answered, ask_failed, ask_late, exchange_start, leg_first, leg_more,
	leg_answered, leg_failed, leg_late, kv_arrived, client_left, release_first,
	release_answered, release_failed;

/* Payload of a decode leg's answer that is not kept. */
void exchange_payload(struct leg *leg, const struct span *pieces, size_t n, bool done);
/* What waits for time to pass: questions to be asked again, notices that do not come. */
void exchange_tick(struct req *req, uint64_t now_ms);
