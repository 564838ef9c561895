/*
 * How many tokens a request has taken, as its engines say.  What they do not say is not known: the router counts no
 * tokens, and asks engines for no usage.
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

struct attempt;
struct job;

/* USAGE_NONE: not known. */
struct tokens {
	uint64_t prompt, cached, completion;
};

/* The prefill engine's whole answer is here: keeps its numbers. */
void tokens_prefilled(struct attempt *a);
/* An answer has ended well: an engine that has computed the prompt, too, has said how much of it was in its cache. */
void tokens_answered(const struct attempt *a);
/* Returns the tokens that the attempt's decode engine has generated, or USAGE_NONE; call it after the last byte of its
 * answer. */
uint64_t tokens_generated(const struct attempt *a);
/* Returns the tokens of the whole request, which has ended; nothing is known of a resumed one, since each of its
 * engines has another prompt. */
struct tokens tokens_of(const struct job *job);
