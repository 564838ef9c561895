/*
 * The answer to the client: from the decode leg's payload to the client's socket, re-framed, never
 * re-formatted.
 *
 *   - A stream of events is passed on event by event: what ends with an event goes out in the same
 *     callback; a half event is held until its end has come, so that a stream cut by its engine can
 *     still be ended with a readable error event.
 *   - Any other answer is held while it is short (RELAY_HOLD), so that an engine that breaks off half
 *     way still gets an honest status.
 *   - While the client's socket does not take bytes, the engine's is not read.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct leg;
struct req;
struct span;

/* The decode leg's head and first byte are here. */
void relay_begin(struct req *req, struct leg *leg);
void relay_payload(
	struct req *req, struct leg *leg, const struct span *pieces, size_t n, bool done);
/* Whole events that were made for the client (proto/answer/answer.h); the head goes out with the first. */
void relay_events(struct req *req, const char *p, size_t n);
/* They are all. */
void relay_end_events(struct req *req);
/* Frees what is held; for the request's end. */
void relay_drop_held(struct req *req);
/* True if bytes of the answer have gone to the client: its status can no longer be chosen. */
bool relay_started(const struct req *req);
/* An engine has broken off: true if its stream had said [DONE] before, so that nothing is missing; the
 * answer is ended properly then. */
bool relay_complete(struct req *req);
/* Ends a started answer that cannot be completed: an error event where it is a stream, then the close. */
void relay_cut(struct req *req, const char *code, const char *message);
/* One of our own answers, or an engine's kept one. `head`: header lines to add, may be NULL. */
void relay_reply(struct req *req, int status, const char *head, size_t head_len, const char *type,
	const void *body, size_t n);
void relay_error(
	struct req *req, int status, const char *type, const char *code, const char *message);
