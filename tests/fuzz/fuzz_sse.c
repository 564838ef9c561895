/*
 * proto/sse: the input is a stream; its hash chooses where it is cut into reads.
 *
 * Held against it: the cuts do not matter, and a plain reader that looks at one byte at a time
 * (here) counts the same events, ends them at the same offset and sees the same [DONE]; events
 * taken one by one end there too.
 */
#include "proto/answer/sse.h"

#include <stdbool.h>

#include "tests/fuzz/check.h"

struct plain {
	uint64_t events;
	size_t ended;
	bool done, boundary;
};

/* Length of the line at p without its end, and of its end: 0 if the text stops before one. */
static size_t
line_at(const char *p, size_t n, size_t *ret_end)
{
	size_t i = 0;

	while (i < n && p[i] != '\n' && p[i] != '\r')
		i++;
	*ret_end = i == n ? 0 : p[i] == '\r' && i + 1 < n && p[i + 1] == '\n' ? 2 : 1;
	return i;
}

static bool
is_data(const char *line, size_t len)
{
	return (len == 4 || (len > 4 && line[4] == ':')) && memcmp(line, "data", 4) == 0;
}

static struct plain
read_plainly(const char *text, size_t n)
{
	struct plain r = {.boundary = true};
	size_t ndata = 0, end;
	bool done = false;

	for (size_t at = 0; at < n;) {
		size_t len = line_at(text + at, n - at, &end);
		const char *line = text + at;

		if (end == 0) {
			r.boundary = false;
			break;
		}
		at += len + end;
		r.boundary = len == 0;
		if (len == 0) {
			r.events += ndata > 0;
			r.done |= done && ndata == 1;
			r.ended = at;
			ndata = 0;
			done = false;
		} else if (is_data(line, len)) {
			ndata++;
			done = (len == 12 && memcmp(line, "data: [DONE]", 12) == 0) ||
			       (len == 11 && memcmp(line, "data:[DONE]", 11) == 0);
		}
	}
	return r;
}

/* Feeds pieces of at most `step` bytes, a random number of them each time if `mixed`. */
static size_t
feed(struct sse *s, const char *text, size_t n, size_t step, bool mixed, uint32_t hash)
{
	size_t ended = 0;

	sse_init(s);
	for (size_t at = 0, take; at < n; at += take) {
		char *piece;
		size_t got;

		take = mixed ? 1 + (hash >> 8) % step : step;
		take = take < n - at ? take : n - at;
		hash = hash * 1664525 + 1013904223;
		piece = exact_copy(text + at, take);
		got = sse_feed(s, piece, take);
		CHECK(got <= take);
		if (got > 0)
			ended = at + got;
		free(piece);
	}
	return ended;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	struct plain plain = read_plainly(text, size);
	uint32_t hash = 2166136261;
	size_t whole = 0, len;
	bool error = false;

	while ((len = sse_next(text + whole, size - whole)) > 0)
		whole += len;
	CHECK(whole == plain.ended);
	for (size_t i = 0; i < size; i++)
		hash = (hash ^ data[i]) * 16777619;
	for (unsigned way = 0; way < 4; way++) {
		static const size_t steps[] = {SIZE_MAX, 1, 3, 40};
		struct sse s;
		size_t ended = feed(&s, text, size, steps[way], way >= 2, hash + way);

		CHECK(s.events == plain.events);
		CHECK(s.done == plain.done);
		CHECK(ended == plain.ended);
		CHECK(sse_at_boundary(&s) == plain.boundary);
		if (way == 0)
			error = s.error;
		CHECK(s.error == error);
	}
	return 0;
}
