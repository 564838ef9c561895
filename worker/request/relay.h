/*
 * The answer to the client: payload of the decode leg, in new framing, otherwise unchanged.
 *
 *   - A stream of events goes out event by event.  The bytes that end an event are written in the
 *     callback that read them.  A half event is held until it is complete, so that a stream whose engine
 *     breaks off can still end with a readable error event.
 *   - Any other answer is held while it is short (RELAY_HOLD), so that an engine that breaks off in the
 *     middle still leads to an error status.
 *   - While the client's socket takes no bytes, the engine's socket is not read.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "proto/http/http.h"

struct leg;
struct req;
struct sse;

/* The decode leg's head and first byte are here. */
void relay_begin(struct req *req, const struct leg *leg);
/* Relays payload of the decode leg; `sse` is the parser that follows the leg's stream. */
void relay_payload(struct req *req, struct leg *leg, struct sse *sse, const struct span *pieces,
	size_t n, bool done);
/* Whole events that were made for the client (proto/answer/answer.h); the head goes out with the first. */
void relay_events(struct req *req, const char *p, size_t n);
/* After the last relay_events(). */
void relay_end_events(struct req *req);
/* Returns true if the held bytes, with these pieces behind them, contain `word`. */
bool relay_contains(const struct req *req, const struct span *pieces, size_t n, const char *word);
/* Resets what was chosen for the answer; none of its bytes were sent. */
void relay_reset(struct req *req);
/* Frees the held bytes; for the request's end. */
void relay_drop_held(struct req *req);
/* Returns false for a status whose answers have neither a body nor a Content-Length (RFC 9110,
 * 15.3.5 and 15.4.5). */
bool relay_has_body(int status);
/* An engine has broken off.  Returns true if its stream had sent [DONE] before, so that the
 * answer is complete; the answer is then ended properly. */
bool relay_complete(struct req *req, const struct sse *sse);
/* Ends a started answer that cannot be completed: in a stream with an error event, then with
 * the close. */
void relay_cut(struct req *req, const char *code, const char *message);
/* The same for an answer whose next engine has refused: the event has the engine's error, `body`. */
void relay_cut_refused(struct req *req, const char *code, struct span body);
/* A whole answer, of the router or of an engine.  `head`: header lines to add, or NULL. */
void relay_reply(struct req *req, int status, const char *head, size_t head_len, const char *type,
	const void *body, size_t n);
/* Of a long page of the router: its Content-Type, and header lines to add. */
struct page_kind {
	const char *type, *head;
};
/* A piece of such a page with status 200; the head goes out with the first one. */
void relay_piece(struct req *req, const struct page_kind *kind, struct span piece, bool last);
/* An error of the router in the shape of the API. */
void relay_error(
	struct req *req, int status, const char *type, const char *code, const char *message);
