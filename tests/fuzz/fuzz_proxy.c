/*
 * proto/proxy: the input is the beginning of a connection.
 *
 * Held against it: a header is read alike whatever follows it; a shorter beginning of it needs more bytes; nothing
 * beyond the input is read.
 */
#include "proto/wire/proxy.h"

#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/check.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct proxy_from whole, part;
	char *all = exact_copy((const char *)data, size);
	const ssize_t n = proxy_read(all, size, &whole);

	CHECK(n >= -1 && n <= (ssize_t)size && n <= PROXY_MAX);
	CHECK(n != 0 || size < PROXY_MAX);
	CHECK(whole.version == 0 || whole.version == 4 || whole.version == 6);
	for (size_t k = 0; n > 0 && k <= (size_t)n; k++) {
		char *cut = exact_copy((const char *)data, k);

		CHECK(proxy_read(cut, k, &part) == (k == (size_t)n ? n : 0));
		free(cut);
	}
	if (n > 0)
		CHECK(memcmp(&whole, &part, sizeof(whole)) == 0);
	free(all);
	return 0;
}
