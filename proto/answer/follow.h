/*
 * One client's stream that may outlive its decode engine.  A follow records the events as they pass.  Another
 * engine can then get a request for the rest, and its events continue the same stream.
 *
 *   chat         the messages, and the text so far as one more message of the assistant, with
 *                continue_final_message true and add_generation_prompt false (vLLM's HF templates leave the message
 *                open; SGLang from 0.4.4, PR 4226, appends it to its generation prompt, and ignores the second member)
 *   completions  the prompt and the text so far
 *
 * Engines report the number of tokens of that text with stream_options.continuous_usage_stats (vLLM from 0.5.1,
 * PR 5742; SGLang from 0.5.5, PR 12241).  Every leg requests it; the usage is removed again if the client did not
 * request it.  If an engine reports nothing, an event with text counts as one token.
 *
 * Order of calls: follow_event() for each event of a leg; when it has died, follow_complete() and then either
 * follow_finish() or follow_next(), and the next leg's events.
 *
 * Ownership: a follow copies what it keeps, at most max_bytes of text; its words `why` are static.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct follow;
struct membuf;
struct splice;

/*
 * Why the stream that a body requests could not be resumed, whatever the answer is; NULL: it could.
 * Reasons are: the next engine would need more than the text (grammars, tool choices, beams,
 * several choices), the answer describes the prompt, which changes, or the engine will refuse the
 * request.
 */
const char *follow_refuses(const struct splice *doc, bool chat);

/* For a body that is not refused. */
struct follow *follow_new(const struct splice *doc, bool chat, size_t max_bytes);
void follow_free(struct follow **f); /* NULL is fine; sets it NULL */

/* Appends the stream_options that every leg is sent: the client's own, and usages. */
void follow_options(const struct splice *doc, struct membuf *out);

enum {
	FOLLOW_OK = 0,
	FOLLOW_DIED = 1, /* the event says that the engine stops; nothing of it is in out */
	FOLLOW_BAD = -1, /* the event is not of such a stream; nothing of it is in out */
};

/*
 * One whole event (sse_next()); appends to out what the client gets of it.  For a stream that
 * cannot be resumed the result is always FOLLOW_OK: events that are not understood pass unchanged.
 */
int follow_event(struct follow *f, const char *event, size_t n, struct membuf *out);

/* Why another engine cannot continue the stream so far; NULL: it can. */
const char *follow_why_not(const struct follow *f);

/* Makes the stream one that cannot be resumed, for a reason of the caller's (static); the text
 * is freed. */
void follow_give_up(struct follow *f, const char *why);
/* Bytes of the text. */
size_t follow_kept(const struct follow *f);

/* All text has been generated: only the end of the stream is missing. */
bool follow_complete(const struct follow *f);
/* Appends that end: the missing parts of finish_reason, usage and [DONE]. */
void follow_finish(struct follow *f, struct membuf *out);

/* Tokens of the text so far, of all engines. */
uint64_t follow_tokens(const struct follow *f);

/*
 * A new leg begins: appends to out the body of the request for the rest.  The body is made from the
 * client's body, which is the same at each call.  To be called only if follow_why_not() and
 * follow_complete() allow.
 */
void follow_next(struct follow *f, const struct splice *doc, struct membuf *out);
