/*
 * Numbers in decimal digits, as programs write them to each other.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Reads digits up to `end`; *at is behind the last one then.  Returns false if there is none, or the number is above max. */
bool decimal_read(const char **at, const char *end, uint64_t max, uint64_t *ret);
