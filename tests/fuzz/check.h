/* What every fuzz target needs: its prototype, and a check that ends the run and says where. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			(void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);           \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* A copy of exactly n bytes, so that ASan sees a look beyond its end; the caller frees it. */
static inline char *
exact_copy(const void *p, size_t n)
{
	char *copy = calloc(n > 0 ? n : 1, 1); /* cleared: gcc cannot see that n bytes are filled */

	CHECK(copy != NULL);
	if (n > 0)
		memcpy(copy, p, n);
	return copy;
}
