/*
 * proto/multipart: the input's first line is a Content-Type, the rest a body.
 *
 * Held against it: a value lies inside the body, and a delimiter follows it.
 */
#include "proto/http/multipart.h"

#include "tests/fuzz/check.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *lf = memchr(data, '\n', size);
	size_t n = lf == NULL ? size : (size_t)(lf - data), rest = lf == NULL ? 0 : size - n - 1;
	char *type = exact_copy(data, n), *body = exact_copy(data + size - rest, rest);
	struct span v;

	if (multipart_field((struct span){type, n}, (struct span){body, rest}, "model", &v) ==
		MULTIPART_FOUND) {
		CHECK(v.p >= body && v.n <= rest && (size_t)(v.p - body) <= rest - v.n);
		CHECK((size_t)(v.p - body) + v.n + 4 <= rest); /* a delimiter follows */
	}
	free(type);
	free(body);
	return 0;
}
