/*
 * The numbers of a usage, found in the last bytes of an answer.  An answer that passes unchanged is not kept, so its
 * usage cannot be read as JSON from its start; answer_usage.c does that where answers are rewritten.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum usage_number {
	USAGE_CACHED,     /* prompt_tokens_details.cached_tokens */
	USAGE_COMPLETION, /* completion_tokens */
	USAGE_PROMPT,     /* prompt_tokens */
	USAGE_INPUT,      /* input_tokens: prompt_tokens of /v1/messages and /v1/responses */
	USAGE_OUTPUT,     /* output_tokens: their completion_tokens */
	USAGE_NUMBERS
};

/* Only so many bytes before the end are searched: a usage is the last member but short ones. */
#define USAGE_END_BYTES 256

#define USAGE_NONE UINT64_MAX

/* Returns the last such number, or USAGE_NONE.  Numbers above 32 bits are cut after ten digits.  `text` may be NULL if
 * `n` is 0. */
uint64_t usage_at_end(const char *text, size_t n, enum usage_number which);

/* The last bytes of an answer that comes in pieces. */
struct usage_tail {
	uint32_t n;
	char *text; /* USAGE_END_BYTES; NULL: there was none to keep so far, as in a stream that runs */
};

void usage_tail_add(struct usage_tail *t, const char *p, size_t n);
/* Forgets them. */
void usage_tail_free(struct usage_tail *t);

/* Takes the next bytes of the answer.  An event that ends with its choices is left out: it has no usage behind them,
 * and nearly all events of a stream are such. */
static inline void
usage_tail_take(struct usage_tail *t, const char *p, size_t n)
{
	static const char choices_end[] = "]}\n\n";
	const size_t len = sizeof(choices_end) - 1;

	if (n < len || memcmp(p + n - len, choices_end, len) != 0)
		usage_tail_add(t, p, n);
}
