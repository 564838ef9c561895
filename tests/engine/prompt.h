/*
 * Which token ids a prompt has (text.h has the tokeniser).
 *
 * Words that the model itself has said have ids of their own, so a text that ends with them, given back as (the end of)
 * a prompt, is gone on with as if nobody had interrupted: always for the open message of a chat
 * (continue_final_message), for a completion's prompt if pdsim.words is true.
 */
#pragma once
#include <stdbool.h>

#include "tests/engine/json.h"

struct toks;

#define PROMPT_PARTS 9

/* What chat text is made of, in the order it is hashed. */
extern const char *const prompt_parts[PROMPT_PARTS];

/* A completion's; `words`: those at its end are words. */
void prompt_string(struct jv str, bool words, struct toks *t);
/*
 * A chat's, of the values of those parts.  NULL, or why it is refused: vLLM's rules of the two members that leave a
 * message open; SGLang knows only one of them.
 */
const char *prompt_chat(const struct jv parts[PROMPT_PARTS], bool sglang, struct toks *t);
