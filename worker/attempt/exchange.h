/*
 * What happens to a request's pairs, from the chosen endpoints to the end of the answer: the handlers of
 * the states ASK (ask.c), EXCHANGE and RELAY (exchange.c), and RELEASE (release.c) in req.c's table.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/handshake/connector.h"
#include "worker/net/leg.h"

struct pair;
struct req;

typedef void req_handler(struct req *, struct leg *);
req_handler planned, ask_answered, ask_failed, ask_late, exchange_start, leg_first, leg_more,
	leg_answered, leg_failed, leg_late, request_late, kv_arrived, client_left, release_first,
	release_answered, release_failed;

/* Payload of a decode leg's answer that is not kept. */
void exchange_payload(struct leg *leg, const struct span *pieces, size_t n, bool done);
/* The client's socket took everything that was queued: what waited for that goes on. */
void exchange_drained(struct req *req);
/* Takes what its engines have said by now. */
void exchange_look(struct req *req);
/* What waits for time to pass: questions to be asked again, notices that do not come. */
void exchange_tick(struct req *req, uint64_t now_ms);
/* Asks what is still to be asked; a pair's legs begin once nothing is. */
void ask_rest(struct req *req);
/* What was not told in time, and what is to be asked again. */
void ask_tick(struct req *req, uint64_t now_ms);

/* Shared by the three. */

/* The answer cannot be completed: said honestly, by status where that is still possible; ends the request. */
void exchange_cut(struct req *req, enum req_end end);

/* An engine's own refusal reaches the client as it is, or as an event where a stream has begun; ends the request. */
void exchange_pass_on(struct req *req, struct leg *leg);
/* For the log: how a leg failed; NULL if it has not. */
const char *exchange_fail_text(enum leg_fail fail);
/* Takes out of a prefill answer what decode is given. */
enum taken exchange_take_handover(struct req *req, struct leg *leg);
/* Starts decode, or the wait for the notices that say when. */
void exchange_go_on(struct req *req, struct pair *pair);
/* The client has gone, and so has the prefill engine, unheard: what it has brought is fetched all the same. */
void exchange_fetch_unheard(struct pair *pair);
