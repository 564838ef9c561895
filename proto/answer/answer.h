/*
 * One client's answer made of the answers of several engines.  A *part* is what one pair (a prefill
 * leg, a decode leg) says; an answer has 1 to 128 of them.  Used where bytes cannot simply pass:
 * a request that was fanned out, a first token that comes from the prefill engine, engines that
 * speak text_completion to a chat client, a usage or an id to be corrected, SGLang's logprobs.
 *
 * Values are copied as they stand (numbers, escapes, members nobody here knows), each event is
 * read once.  The wire facts are those of vLLM's and SGLang's OpenAI protocols; which of them is
 * meant stands at the code.
 *
 * Order of calls, for each part: answer_prefill() if P's answer matters, then answer_event()s or one
 * answer_whole(), then answer_part_end(); after all parts answer_end(), once.  Parts may interleave.
 *
 * Ownership: an answer copies what it keeps; texts may go away after each call.  What it keeps is
 * never more than max_bytes.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/answer/answer_how.h"

struct answer;
struct membuf;

/*
 * Asserts on what only our own code can get wrong (parts, a first token of chat engines).
 * max_bytes: of all texts kept, together: whole bodies, P's logprobs, usages.
 */
struct answer *answer_new(const struct answer_how *how, size_t max_bytes);
void answer_free(struct answer **a); /* NULL is fine; sets it NULL */

/*
 * P's whole answer: a JSON body; for ANSWER_GENERATE also the events
 * of a streaming P (its first per text is enough).  With first_token and stream, the events that
 * tell the client of the first token are appended to out.
 * Optional unless first_token: without it nothing is known of P's cached tokens or logprobs.
 */
int answer_prefill(struct answer *a, uint32_t part, const char *json, size_t n, struct membuf *out);

/* P's choices have all finished for good (anything but "length"): there is nothing to decode. */
bool answer_prefill_ended(const char *json, size_t n);

/*
 * One whole event (sse_next()) of D; what the client is to get of it is appended to out, which may be nothing:
 * [DONE] is left out, and so is a usage that is to be summed.  Comments and other fields pass.
 */
int answer_event(struct answer *a, uint32_t part, const char *event, size_t n, struct membuf *out);

/* D's whole body, when the client did not ask for events. */
int answer_whole(struct answer *a, uint32_t part, const char *json, size_t n);

/*
 * The part's stream has ended, or it needs no decode leg; then, with first_token and stream, the event that
 * says why P finished is appended to out.
 */
int answer_part_end(struct answer *a, uint32_t part, struct membuf *out);

/*
 * What was said of this part is void: other engines say it anew.  Only while nothing of it has been put out but
 * an error.
 */
void answer_part_again(struct answer *a, uint32_t part);

/*
 * All parts are there.  Appends to out: of a stream, the usage event if it is due and [DONE]; else
 * the whole body.  ANSWER_BAD if a part is missing.
 */
int answer_end(struct answer *a, struct membuf *out);
