/*
 * One client's answer made of the answers of several engines.  A *part* is the output of one
 * attempt (a prefill leg, a decode leg); an answer has 1 to 128 parts.  Used where bytes cannot
 * simply pass: a request that was fanned out, a first token that comes from the prefill engine,
 * engines that answer a chat client with text_completion, a usage or an id to be corrected,
 * SGLang's logprobs.  In these files P is the prefill engine's answer and D the decode engine's.
 *
 * Values are copied as they are (numbers, escapes, unknown members), and each event is read once.
 * The wire facts are those of vLLM's and SGLang's OpenAI protocols; comments at the code say which
 * of the two.
 *
 * Order of calls, for each part: answer_prefill() if P's answer matters, then answer_event()s or
 * one answer_whole(), then answer_part_end(); after all parts answer_end(), once.  Parts may
 * interleave.
 *
 * Ownership: an answer copies what it keeps; texts may be freed after each call.  An answer never
 * keeps more than max_bytes.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/answer/answer_how.h"

struct answer;
struct membuf;

/*
 * Asserts on errors that only the router's own code can make (parts, a first token of chat
 * engines).  max_bytes: limit of all kept texts together: whole bodies, P's logprobs, usages.
 */
struct answer *answer_new(const struct answer_how *how, size_t max_bytes);
void answer_free(struct answer **a); /* NULL is fine; sets it NULL */

/*
 * P's whole answer: a JSON body; for ANSWER_GENERATE also the events of a streaming P (the first
 * event per text is enough).  With first_token and stream, appends to out the events with the first
 * token.  Optional unless first_token: without P's answer its cached tokens and logprobs are
 * unknown.
 */
int answer_prefill(struct answer *a, uint32_t part, const char *json, size_t n, struct membuf *out);

/* All of P's choices have finished (with anything but "length"): there is nothing to decode. */
bool answer_prefill_ended(const char *json, size_t n);

/*
 * One whole event (sse_next()) of D; appends to out what the client gets of it, which may be
 * nothing: [DONE] is left out, and so is a usage that will be summed.  Comments and other fields
 * pass.
 */
int answer_event(struct answer *a, uint32_t part, const char *event, size_t n, struct membuf *out);

/* D's whole body, when the client did not request events. */
int answer_whole(struct answer *a, uint32_t part, const char *json, size_t n);

/*
 * The part's stream has ended, or the part needs no decode leg; then, with first_token and stream,
 * appends to out the event with P's finish_reason.
 */
int answer_part_end(struct answer *a, uint32_t part, struct membuf *out);

/*
 * Drops what is known of this part: other engines answer it anew.  Only while the client has been
 * sent nothing of the part but an error.
 */
void answer_part_again(struct answer *a, uint32_t part);

/*
 * All parts are complete.  Appends to out: of a stream, the usage event if it is due and [DONE];
 * else the whole body.  ANSWER_BAD if a part is missing.
 */
int answer_end(struct answer *a, struct membuf *out);
