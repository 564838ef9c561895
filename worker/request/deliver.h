/*
 * From what an attempt's engines say to the client's answer: passed on as it comes, or rewritten event by event where
 * one answer is made of several, begins with the prefill engine's part, or is followed so that another engine can
 * resume it.  Below this stands relay.h, which writes to the client.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

#include "worker/base/end_list.h"

struct attempt;
struct leg;
struct req;

/* The answer cannot be completed: said honestly, by status where that is still possible; ends the request. */
void deliver_cut(struct req *req, enum req_end end);
/* An engine's own refusal reaches the client as it is, or as an event where a stream has begun; ends the request.
 * `who`: for the log. */
void deliver_pass_on(struct req *req, struct leg *leg, const char *who);
/* The decode answer is the client's, as it comes. */
void deliver_begin(struct attempt *a);
/* Sends what whole events are in a->event.  The request may be over afterwards. */
void deliver_events(struct attempt *a);
/* The client's part of a prefill answer; false if the request, or this attempt, is over with it. */
bool deliver_prefill_part(struct attempt *a);
/* The branch has said all: the end of a rewritten answer, once all branches have. */
void deliver_part_ended(struct attempt *a);
/* A followed stream has ended. */
void deliver_followed_ended(struct attempt *a);
/* The client's socket took everything that was queued: what waited for that goes on. */
void deliver_drained(struct req *req);
/* Drops the client's bytes once no leg can be sent (again): every prefill engine has answered, every decode answer has
 * begun, and what decode was sent was right. */
void deliver_drop_bytes(struct req *req);
