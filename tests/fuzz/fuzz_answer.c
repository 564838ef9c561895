/*
 * proto/answer, proto/json_read: the first line of the input says what the answer is to be, each
 * other line is one step of an engine: "P0 json", "D0 json" (an event's data, or a body), "R0 event" (bytes 1 and 2 stand
 * for LF and CR), "E0".
 *
 * Held against it: what the client gets is whole events whose data are JSON for json-c too, with one
 * [DONE] behind them, or one JSON body; the id is the caller's; with less room the answer is the same or none;
 * json_read accepts the objects that splice accepts.
 */
#include "proto/answer/answer.h"

#include <json-c/json.h>
#include <stdbool.h>

#include "proto/json/json_read.h"
#include "proto/json/splice.h"
#include "proto/answer/sse.h"
#include "proto/answer/usage_end.h"
#include "shm/base/mem.h"
#include "tests/fuzz/check.h"

#define ROOM 65536
#define ID "\"the-id\""

static void
check_json(const char *text, size_t len)
{
	struct json_tokener *tok = json_tokener_new_ex(SPLICE_MAX_DEPTH + 8);
	struct json_object *doc;

	json_tokener_set_flags(tok, JSON_TOKENER_STRICT | JSON_TOKENER_ALLOW_TRAILING_CHARS);
	doc = json_tokener_parse_ex(tok, text, (int)len);
	CHECK(doc != NULL);
	CHECK(json_object_is_type(doc, json_type_object) ||
		json_object_is_type(doc, json_type_array));
	(void)json_object_put(doc);
	json_tokener_free(tok);
}

/* Every member called "id" of an object that has one. */
static void
check_id(const char *text, size_t len)
{
	struct splice_seg key, value;
	struct json_read r;

	json_read_init(&r, text, len);
	(void)json_read_enter(&r, '{');
	while (json_read_member(&r, &key)) {
		value = json_read_value(&r);
		CHECK(!json_read_is(&key, "id") || json_read_is(&value, ID));
	}
	CHECK(json_read_done(&r));
}

/* The data of one event, its lines joined; false if it has none. */
static bool
data_of(const char *event, size_t n, struct membuf *ret)
{
	bool any = false;

	ret->n = 0;
	for (size_t at = 0, end, len; at < n; at += len + end) {
		size_t skip = 5;

		len = sse_line(event + at, n - at, &end);
		if (len < 4 || memcmp(event + at, "data", 4) != 0 ||
			(len > 4 && event[at + 4] != ':'))
			continue;
		if (len > 5 && event[at + 5] == ' ')
			skip = 6;
		if (any)
			membuf_add(ret, "\n", 1);
		if (len > skip)
			membuf_add(ret, event + at + skip, len - skip);
		any = true;
	}
	return any;
}

static void
check_stream(const struct answer_how *how, const char *out, size_t n, bool ended)
{
	struct membuf data = {0};
	size_t done = 0, at = 0, len;

	for (; at < n && (len = sse_next(out + at, n - at)) > 0; at += len) {
		if (!data_of(out + at, len, &data))
			continue;
		CHECK(done == 0);
		if (data.n == 6 && memcmp(data.p, "[DONE]", 6) == 0) {
			done++;
			continue;
		}
		check_json(data.p, data.n);
		if (how->id != NULL && how->shape == ANSWER_OPENAI)
			check_id(data.p, data.n);
	}
	CHECK(at == n);
	CHECK(done == ended);
	membuf_free(&data);
}

/* Whether splice and a walk with json_read say the same of an object; the depth they allow is not quite the same. */
static void
check_read(const char *text, size_t n)
{
	struct splice_seg unused, key;
	struct json_read r;
	size_t brackets = 0;

	for (size_t i = 0; i < n; i++)
		brackets += text[i] == '[' || text[i] == '{';
	if (brackets > SPLICE_MAX_DEPTH - 2)
		return;
	json_read_init(&r, text, n);
	(void)json_read_enter(&r, '{');
	while (json_read_member(&r, &key))
		(void)json_read_value(&r);
	CHECK(json_read_done(&r) == (splice_member_raw(text, n, "", &unused) >= 0));
}

static struct answer_how
read_how(const char *p, const char *end)
{
	struct answer_how how = {.parts = 1};

	for (; p < end; p++) {
		how.shape = *p == 'g' ? ANSWER_GENERATE : how.shape;
		how.chat |= *p == 'c';
		how.from_completions |= *p == 'f';
		how.first_token |= *p == 't';
		how.stream |= *p == 's';
		how.usage |= *p == 'u';
		how.continuous_usage |= *p == 'k';
		how.cached_from_prefill |= *p == 'x';
		how.choices = *p == 'd' ? 2 : how.choices;
		how.samples = *p == 'n' ? 2 : how.samples;
		how.top_logprobs = *p == 'l' ? 2 : how.top_logprobs;
		how.id = *p == 'i' ? ID : how.id;
		how.parts = *p >= '1' && *p <= '4' ? (uint32_t)(*p - '0') : how.parts;
	}
	how.first_token &= how.shape == ANSWER_OPENAI;
	how.from_completions &= how.shape == ANSWER_OPENAI;
	how.from_completions |= how.first_token && how.chat;
	return how;
}

struct run {
	struct answer_how how;
	struct answer *a;
	struct membuf out, text;
	bool prefilled[4], said[4], ended[4];
};

/* A step's text in an allocation of its size; an event is made whole, or refused. */
static char *
step_text(struct run *r, const char *p, size_t n, char kind, size_t *ret_n)
{
	r->text.n = 0;
	if (kind == 'D' && r->how.stream)
		membuf_add(&r->text, "data: ", 6);
	membuf_add(&r->text, p, n);
	for (size_t i = 0; i < r->text.n && (kind == 'R' || r->how.shape == ANSWER_GENERATE); i++)
		if (r->text.p[i] == 1 || r->text.p[i] == 2)
			r->text.p[i] = r->text.p[i] == 1 ? '\n' : '\r';
	if (r->how.stream && kind != 'P')
		membuf_add(&r->text, "\n\n", 2);
	*ret_n = r->text.n;
	if (r->how.stream && kind != 'P')
		*ret_n = sse_next(r->text.p, r->text.n);
	return exact_copy(r->text.p, *ret_n);
}

/* Only what the order of calls allows. */
static int
do_step(struct run *r, const char *p, size_t n)
{
	uint32_t part = n >= 2 ? (uint32_t)(p[1] - '0') : r->how.parts;
	char kind = n > 0 ? p[0] : '\0', *text;
	size_t len;
	int ret = ANSWER_OK;

	if (part >= r->how.parts || r->ended[part])
		return ANSWER_OK;
	if (kind == 'E') {
		r->ended[part] = true;
		return answer_part_end(r->a, part, &r->out);
	}
	if (n < 3)
		return ANSWER_OK;
	text = step_text(r, p + 3, n - 3, kind, &len);
	if (kind == 'P' && !r->prefilled[part] && !r->said[part]) {
		r->prefilled[part] = true;
		(void)answer_prefill_ended(text, len);
		check_read(text, len);
		ret = answer_prefill(r->a, part, text, len, &r->out);
	} else if ((kind == 'D' || kind == 'R') && r->how.stream) {
		r->said[part] = true;
		ret = answer_event(r->a, part, text, len, &r->out);
	} else if (kind == 'D' && !r->said[part]) {
		r->said[part] = true;
		check_read(text, len);
		ret = answer_whole(r->a, part, text, len);
	}
	free(text);
	return ret;
}

static int
run(const char *input, size_t n, size_t room, struct membuf *ret)
{
	const char *end = input + n, *eol = memchr(input, '\n', n), *p;
	struct run r = {0};
	int result = ANSWER_OK;

	p = eol != NULL ? eol : end;
	r.how = read_how(input, p);
	r.a = answer_new(&r.how, room);
	for (p += p < end; p < end && result == ANSWER_OK; p = eol + 1) {
		eol = memchr(p, '\n', (size_t)(end - p));
		if (eol == NULL)
			eol = end;
		result = do_step(&r, p, (size_t)(eol - p));
	}
	if (r.how.stream && result != ANSWER_ERROR) /* that is the engine's own text */
		check_stream(&r.how, r.out.p, r.out.n, false);
	if (result == ANSWER_OK)
		result = answer_end(r.a, &r.out);
	if (result == ANSWER_OK && r.how.stream)
		check_stream(&r.how, r.out.p, r.out.n, true);
	else if (result == ANSWER_OK)
		check_json(r.out.p, r.out.n);
	answer_free(&r.a);
	membuf_free(&r.text);
	*ret = r.out;
	return result;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *input = exact_copy(data, size);
	const uint64_t cached = usage_at_end(input, size, USAGE_CACHED);
	struct membuf whole, less;
	uint32_t hash = 2166136261;
	int r = run(input, size, ROOM, &whole), small;

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ data[i]) * 16777619;
	small = run(input, size, hash % (size + 2), &less);
	CHECK(cached <= 10 * (uint64_t)UINT32_MAX + 9 || cached == USAGE_NONE);
	CHECK(r >= ANSWER_LARGE && r <= ANSWER_ERROR);
	CHECK(small == r || small == ANSWER_LARGE || r == ANSWER_LARGE);
	if (small == ANSWER_OK && r == ANSWER_OK)
		CHECK(less.n == whole.n && memcmp(less.p, whole.p, whole.n) == 0);
	membuf_free(&whole);
	membuf_free(&less);
	free(input);
	return 0;
}
