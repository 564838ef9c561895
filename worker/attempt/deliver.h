/*
 * From what an attempt's engines say to the client's answer: passed on as it comes, or rewritten event by event where
 * one answer is made of several, begins with the prefill engine's part, or is followed so that another engine can
 * resume it.  The bytes go to the client by job->ops.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

struct attempt;
struct job;

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
void deliver_drained(struct job *job);
