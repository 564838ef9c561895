/*
 * Sends the answers of an attempt's engines to the client.  An answer passes unchanged, or is
 * rewritten event by event if it is made of several answers, begins with the prefill engine's
 * part, or is followed so that another engine can resume it.  The bytes go to the client by
 * job->ops.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

struct attempt;
struct job;

/* Begins the relay of a decode answer that passes unchanged. */
void deliver_begin(struct attempt *a);
/* Sends the whole events in a->event to the client.  The request may be over afterwards. */
void deliver_events(struct attempt *a);
/* Sends the client's part of a prefill answer.  Returns false if the request or this attempt is
 * over. */
bool deliver_prefill_part(struct attempt *a);
/* The branch's answer is complete: ends a rewritten answer once all branches are complete. */
void deliver_part_ended(struct attempt *a);
/* Ends the job after an answer of one attempt: good, or by what the decode engine has reported. */
void deliver_end(struct attempt *a);
/* A followed stream has ended. */
void deliver_followed_ended(struct attempt *a);
/* The client's socket took all queued bytes: continues the events and ends that waited for the
 * client. */
void deliver_drained(struct job *job);
