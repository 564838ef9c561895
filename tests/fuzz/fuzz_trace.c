/*
 * proto/http/trace: the input is the value of a traceparent.
 *
 * Held against it: what is read can be written, and read again, alike; nothing beyond the input is read.
 */
#include "proto/http/trace.h"

#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/check.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *all = exact_copy((const char *)data, size), text[TRACE_PARENT];
	struct trace t, back;
	const bool ok = trace_read(all, size, &t);

	CHECK((strlen(t.id) == TRACE_ID) == ok && (ok || t.flags == 0));
	trace_write(&t, size, text);
	CHECK(trace_read(text, sizeof(text), &back) == ok);
	CHECK(strcmp(t.id, back.id) == 0 && t.flags == back.flags);
	CHECK(back.parent == (!ok ? 0 : size > 0 ? size : 1));
	CHECK(!ok || size == TRACE_PARENT || all[TRACE_PARENT] == '-');
	free(all);
	return 0;
}
