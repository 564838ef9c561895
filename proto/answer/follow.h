/*
 * One client's stream that may outlive its decode engine: what has been said is noted as the events pass, so that
 * another engine can be asked for the rest, whose events then go on with the same stream.
 *
 *   chat         the messages, and the text so far as one more of the assistant's: continue_final_message true,
 *                add_generation_prompt false (vLLM's HF templates cut the message open; SGLang from 0.4.4, PR 4226,
 *                appends it to its generation prompt, and does not know the second member)
 *   completions  the prompt and the text so far
 *
 * How many tokens that text was, engines tell with stream_options.continuous_usage_stats (vLLM from 0.5.1, PR 5742;
 * SGLang from 0.5.5, PR 12241): it is asked for always, and taken out again where the client did not.  Of an engine
 * that does not tell, an event with text is one token.
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
 * Why the stream that a body asks for could not be resumed, whatever comes; NULL: it could.  What an engine would have
 * to know beyond the text (grammars, tool choices, beams, more than one choice), what is told of the prompt, which
 * changes, and what the engine is to refuse.
 */
const char *follow_refuses(const struct splice *doc, bool chat);

/* For a body that is not refused. */
struct follow *follow_new(const struct splice *doc, bool chat, size_t max_bytes);
void follow_free(struct follow **f); /* NULL is fine; sets it NULL */

/* Appends the stream_options that every leg is sent: the client's own, and usages. */
void follow_options(const struct splice *doc, struct membuf *out);

enum {
	FOLLOW_OK = 0,
	FOLLOW_DIED =
		1, /* the event says that the engine does not go on; nothing of it is in out */
	FOLLOW_BAD = -1, /* it is no event of such a stream; nothing of it is in out */
};

/*
 * One whole event (sse_next()); what the client is to get of it is appended to out.  A stream that cannot be resumed
 * is always FOLLOW_OK: what is not understood passes as it stands.
 */
int follow_event(struct follow *f, const char *event, size_t n, struct membuf *out);

/* Why what has come cannot be gone on with by another engine; NULL: it can. */
const char *follow_why_not(const struct follow *f);

/* Gives that up, for a reason of the caller's (static); the text is freed. */
void follow_give_up(struct follow *f, const char *why);
/* Bytes that the text takes. */
size_t follow_kept(const struct follow *f);

/* Nothing more is to be generated: only the end of the stream is missing. */
bool follow_complete(const struct follow *f);
/* Appends that end: what is missing of a finish_reason, the usage and [DONE]. */
void follow_finish(struct follow *f, struct membuf *out);

/* Tokens that the text so far was, by all engines. */
uint64_t follow_tokens(const struct follow *f);

/*
 * A new leg begins: appends to out the body that asks for the rest, made of the client's, which is the same at each
 * call.  To be called only if follow_why_not() and follow_complete() allow.
 */
void follow_next(struct follow *f, const struct splice *doc, struct membuf *out);
