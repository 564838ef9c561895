/*
 * Which request ids came before.  Remembers at least the last SEEN_HALF of them and at most twice
 * as many, by a 64-bit hash (two ids in a million years of tests will be mistaken for each other).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct seen;

#define SEEN_HALF (1u << 20)

struct seen *seen_new(void);
bool seen_before(struct seen *s, const char *p, size_t n); /* and remembers it */
void seen_clear(struct seen *s);
void seen_free(struct seen **s);
