/*
 * A stream that survives its decode engine (`resume: true` of a pool): its events are followed (proto/answer/follow.h), the
 * client's request is kept, and when the engine dies failover.c goes on with other engines, a whole new hand-shake of theirs,
 * and the request for the rest.
 *
 * Costs a stream, while it may be resumed: the client's body and header lines, the text so far (at most limits.max_answer)
 * and some 600 bytes; each event is read once and written with its usage taken out.  Nothing without the key.
 * Body and text count as what a worker keeps; once that is half of limits.max_buffered, streams are not resumed, so that
 * new requests find room.
 *
 * Process: worker.
 * Ownership: hangs from its request, job->resume; NULL: the stream is not followed.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct leg;
struct membuf;
struct job;
struct resume;
struct span;

/* The request is planned: its stream is followed from now on if the pool wants that and the request allows it. */
void resume_plan(struct job *job);
void resume_free(struct job *job); /* NULL is fine */

/* Returns true if this leg's payload is followed. */
bool resume_follows(const struct job *job, const struct leg *leg);
/*
 * Replaces the whole events in `out` by what the client gets of them.  False: the engine has reported an error, or sent
 * what is no event; `out` then ends before that event, and the rest is dropped.
 */
bool resume_events(struct job *job, struct membuf *out);
/* The error message of the engine's last event, for the client, when no engine goes on.  `buf` is always terminated.
 * False: the event has no message. */
bool resume_engine_message(const struct job *job, char *buf, size_t size);

/* The engines have their requests: drops the text's parsed members, and the text if the stream cannot be resumed. */
void resume_keep(struct job *job);

/* For failover.c, of a stream that the client has a part of. */

/* Returns true if other engines could go on with the stream; if not, the reason is noted for the log. */
bool resume_may(struct job *job);
/* Ends the stream well if only its end is missing.  Returns true if the request is over. */
bool resume_finish(struct job *job);
/* Makes the request for the rest, from the client's text and the output so far.  False: that is impossible. */
bool resume_prepare(struct job *job);
/* The branch's next attempt sends that request. */
void resume_go(struct job *job);
