/*
 * proto/registration: the input is a message.
 *
 * Held against it: what is accepted is text that may stand in a URL and in a header.
 */
#include "proto/wire/registration.h"

#include "tests/fuzz/check.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *copy = exact_copy(data, size);
	struct registration r;
	int rc = registration_read(copy, size, &r);

	free(copy);
	if (rc != 0)
		return 0;
	CHECK(r.role == ROLE_PREFILL || r.role == ROLE_DECODE);
	CHECK(strlen(r.http) > 3 && strlen(r.kv) > 2);
	CHECK(r.http[strspn(r.http, "0123456789abcdef.:[]")] == '\0');
	for (const char *p = r.kv; *p != '\0'; p++)
		CHECK(*p > ' ' && *p < 0x7f);
	return 0;
}
