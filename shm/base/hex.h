/*
 * Numbers in lower-case hex digits, the form that rnd_hex16() writes.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads so many digits, at most 16.  Returns false if there is anything else among them. */
bool hex_read(const char *text, size_t digits, uint64_t *ret);
