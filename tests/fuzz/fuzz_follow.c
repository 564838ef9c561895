/*
 * proto/follow: the input's first line is a request's body, the rest its engine's stream; a line "data: !" is that engine's
 * death, after which the stream is another's.
 *
 * Held against it: whatever an engine says, the next body is one that is accepted, says what was told before and asks for
 * no more tokens than are left; an event that passes is one event, and JSON if it was; nothing of one that does not pass goes
 * out; and the end is told once.
 */
#include "proto/answer/follow.h"

#include <stdbool.h>

#include "proto/json/json_read.h"
#include "proto/json/splice.h"
#include "proto/answer/sse.h"
#include "shm/base/mem.h"
#include "tests/fuzz/check.h"

#define ROOM 4096

static bool
scan(struct splice *doc, const char *text, size_t n)
{
	const char *why;
	size_t at;

	return splice_scan(doc, text, n, &why, &at) == 0;
}

static void
next_leg(struct follow *f, const struct splice *doc, bool chat)
{
	struct membuf body = {NULL, 0, 0};
	uint64_t told = follow_tokens(f), most = 0, rest = 0;
	const struct splice_member *m;
	struct splice next;

	follow_next(f, doc, &body);
	CHECK(follow_tokens(f) == told);
	CHECK(scan(&next, body.p, body.n));
	CHECK(follow_refuses(&next, chat) == NULL);
	m = splice_find(doc, SK_MAX_TOKENS);
	if (m != NULL && json_read_number(&(struct splice_seg){doc->text + m->val, m->end - m->val},
				 UINT32_MAX, &most)) {
		m = splice_find(&next, SK_MAX_TOKENS);
		CHECK(m != NULL);
		CHECK(json_read_number(&(struct splice_seg){next.text + m->val, m->end - m->val},
			UINT32_MAX, &rest));
		CHECK(rest <= most && (rest + told == most || rest == 1 || told == 0 || most == 0));
	}
	membuf_free(&body);
}

static bool
is_json(const char *event, size_t n)
{
	return n > 6 && memcmp(event, "data: ", 6) == 0 && event[6] == '{' &&
	       splice_value(event + 6, n - 6) > 0;
}

/* False: no leg may follow. */
static bool
one_event(struct follow *f, const struct splice *doc, bool chat, const char *event, size_t n)
{
	struct membuf out = {NULL, 0, 0};
	const uint64_t told = follow_tokens(f);
	char *copy = exact_copy(event, n);
	bool on = true;
	int r;

	if (n > 7 && memcmp(event, "data: !", 7) == 0) {
		on = follow_why_not(f) == NULL && !follow_complete(f);
		if (on)
			next_leg(f, doc, chat);
		free(copy);
		return on;
	}
	r = follow_event(f, copy, n, &out);
	free(copy);
	if (r != FOLLOW_OK) {
		CHECK(out.n == 0 && follow_why_not(f) == NULL && follow_tokens(f) == told);
	} else if (out.n > 0) {
		CHECK(sse_next(out.p, out.n) == out.n || memchr(event, '\r', n) != NULL);
		CHECK(!is_json(event, n) || is_json(out.p, out.n));
	}
	membuf_free(&out);
	return r == FOLLOW_OK;
}

static void
run(const struct splice *doc, bool chat, const char *stream, size_t size)
{
	struct follow *f = follow_new(doc, chat, ROOM);
	struct membuf out = {NULL, 0, 0};
	size_t n, end;

	for (size_t at = 0; (n = sse_next(stream + at, size - at)) > 0; at += n)
		if (!one_event(f, doc, chat, stream + at, n))
			break;
	follow_finish(f, &out);
	end = out.n;
	follow_finish(f, &out);
	CHECK(out.n == end);
	membuf_free(&out);
	membuf_free(&out);
	follow_free(&f);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data, *line = memchr(text, '\n', size);
	const size_t n = line == NULL ? size : (size_t)(line - text);
	char *body = exact_copy(text, n);
	struct membuf options = {NULL, 0, 0};
	struct splice doc;

	if (scan(&doc, body, n) && line != NULL) {
		for (int chat = 0; chat < 2; chat++)
			if (follow_refuses(&doc, chat) == NULL) {
				options.n = 0;
				follow_options(&doc, &options);
				CHECK(splice_value(options.p, options.n) == options.n);
				run(&doc, chat, line + 1, size - n - 1);
			}
	}
	membuf_free(&options);
	free(body);
	return 0;
}
