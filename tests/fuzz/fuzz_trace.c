/*
 * proto/http/trace: the input is the value of a traceparent, and of a tracestate.
 *
 * Held against it: what is read can be written, and read again, alike; nothing beyond the input is read.  A tracestate that
 * is kept is one, and is kept whole when it comes again.
 */
#include "proto/http/trace.h"

#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/check.h"

static void
state(const char *all, size_t size)
{
	struct trace_state t = {.text = ""}, back = {.text = ""};
	const bool ok = trace_add_state(&t, (struct span){all, size});

	CHECK(strlen(t.text) <= TRACE_STATE && (ok || t.text[0] == '\0'));
	CHECK(trace_add_state(&back, (struct span){t.text, strlen(t.text)}));
	CHECK(strcmp(t.text, back.text) == 0);
}

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
	state(all, size);
	free(all);
	return 0;
}
