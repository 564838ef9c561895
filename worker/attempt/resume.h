/*
 * A stream that survives its decode engine (`resume: true` of a pool).  Its events are
 * followed (proto/answer/follow.h), and the client's request is kept.  When the engine dies,
 * failover.c continues with other engines: a new attempt with a new hand-shake sends the
 * request for the rest.
 *
 * Cost of a stream while it may be resumed: the client's body and header lines, the text so
 * far (at most limits.max_answer), one event and some 600 bytes.  Each event is read once and written
 * without its usage.  A pool without the key has no cost.
 *
 * Body and text count as bytes that the workers store.  Once these reach half of
 * limits.max_buffered, streams are not resumed, so that new requests find memory.
 *
 * Process: worker.
 * Ownership: owned by its request, job->resume; NULL: the stream is not followed.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct leg;
struct membuf;
struct job;
struct resume;
struct span;

/* Begins to follow the stream of a planned request if the pool has `resume` and the request
 * allows it. */
void resume_plan(struct job *job);
void resume_free(struct job *job); /* NULL is fine */

/* Returns true if this leg's payload is followed. */
bool resume_follows(const struct job *job, const struct leg *leg);
/* An empty buffer for events, with the room that the events before it needed; after them it may be kept for the next ones.
 * In between it is the caller's: the request may end while they are sent. */
void resume_take_buffer(struct job *job, struct membuf *ret);
void resume_keep_buffer(struct job *job, struct membuf *buf);
/*
 * Appends to `out` what the client gets of a whole event.  Returns false if the engine has reported an error or sent
 * bytes that are no event: the client gets neither this event nor a later one.  After some events: resume_followed().
 */
bool resume_event(struct job *job, const char *event, size_t n, struct membuf *out);
/* Counts what is kept of the stream, and gives it up if the workers store too much. */
void resume_followed(struct job *job);
/* Both for the whole events in `out`, which are replaced by the events for the client. */
bool resume_events(struct job *job, struct membuf *out);
/* Copies the error message of the engine's last event, for the client, if no engine continues.
 * `buf` is always terminated.  Returns false if the event has no message. */
bool resume_engine_message(const struct job *job, char *buf, size_t size);

/* The engines have their requests: drops the text's parsed members, and the text if the stream cannot be resumed. */
void resume_keep(struct job *job);

/* For failover.c: streams of which the client has a part. */

/* Returns true if other engines could continue the stream; if not, notes the reason for the
 * log. */
bool resume_may(struct job *job);
/* Ends the stream well if only its end is missing.  Returns true if the request is over. */
bool resume_finish(struct job *job);
/* Makes the request for the rest, from the client's text and the output so far.  Returns false
 * if that is impossible. */
bool resume_prepare(struct job *job);
/* Makes the branch's next attempt send that request. */
void resume_go(struct job *job);
