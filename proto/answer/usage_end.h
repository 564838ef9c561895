/*
 * The numbers of a usage, found in the last bytes of an answer.  An answer that passes unchanged is not kept, so its
 * usage cannot be read as JSON from its start; answer_usage.c does that where answers are rewritten.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum usage_number {
	USAGE_CACHED,     /* prompt_tokens_details.cached_tokens */
	USAGE_COMPLETION, /* completion_tokens */
	USAGE_NUMBERS
};

/* Only so many bytes before the end are searched: a usage is the last member but short ones. */
#define USAGE_END_BYTES 256

/* Returns the last such number, or 0 if there is none.  Numbers above 32 bits are cut after ten digits. */
uint64_t usage_at_end(const char *text, size_t n, enum usage_number which);
