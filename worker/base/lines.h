/*
 * The router's own lines of a head, written without printf, which costs 1,000 instructions each time.
 *
 * Process: worker.
 * Ownership: the bytes are the caller's.  Limits of paths, ids and configured texts bound the length.
 */
#pragma once
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct lines {
	char *p;
	size_t size, n; /* n: bytes written */
};

static inline void
lines_add(struct lines *l, const char *p, size_t n)
{
	assert(n <= l->size - l->n);
	memcpy(l->p + l->n, p, n);
	l->n += n;
}

static inline void
lines_put(struct lines *l, const char *text)
{
	lines_add(l, text, strlen(text));
}

static inline void
lines_number(struct lines *l, uint64_t number)
{
	char text[20];
	size_t at = sizeof(text);

	do
		text[--at] = (char)('0' + number % 10);
	while ((number /= 10) != 0);
	lines_add(l, text + at, sizeof(text) - at);
}
