/*
 * Logprobs of completions are lists side by side, those of chat a list of objects (vLLM's and
 * OpenAI's protocols):
 *
 *	{"text_offset":[0],"token_logprobs":[-0.5],"tokens":["He"],"top_logprobs":[{"He":-0.5}]}
 *	{"content":[{"token":"He","logprob":-0.5,"bytes":[72,101],"top_logprobs":[{"token":..}]}]}
 */
#include <string.h>

#include "proto/answer/answer_in.h"
#include "proto/json/json_string.h"

/* The contents of an array; no bytes if it is empty. */
static struct splice_seg
inside(const struct splice_seg *array)
{
	struct json_read r;

	json_read_init(&r, array->p, array->n);
	if (!json_read_enter(&r, '[') || !json_read_element(&r))
		return (struct splice_seg){array->p, 0};
	return (struct splice_seg){r.p, (size_t)(array->p + array->n - 1 - r.p)};
}

void
put_arrays(const struct splice_seg *a, const struct splice_seg *b, struct membuf *out)
{
	struct splice_seg x = inside(a), y = inside(b);

	PUT(out, "[");
	put_seg(out, &x);
	if (x.n > 0 && y.n > 0)
		PUT(out, ",");
	put_seg(out, &y);
	PUT(out, "]");
}

/* D's offsets count from its own first token. */
static struct splice_seg
shifted(struct answer *a, const struct splice_seg *offsets, uint64_t by)
{
	struct splice_seg value;
	struct copy c;
	uint64_t n;

	a->scratch.n = 0;
	copy_start(&c, offsets, &a->scratch);
	(void)json_read_enter(&c.r, '[');
	while (json_read_element(&c.r)) {
		value = json_read_value(&c.r);
		if (!seg_number(&value, &n))
			continue;
		copy_past(&c, &value);
		put_number(&a->scratch, n + by);
	}
	copy_up_to(&c, offsets->p + offsets->n);
	return (struct splice_seg){a->scratch.p, a->scratch.n};
}

enum list { TOKENS, TOKEN_LOGPROBS, TOP_LOGPROBS, CHAT_LISTS, TEXT_OFFSET = CHAT_LISTS, LISTS };

static const char *const list_keys[LISTS] = {
	[TOKENS] = "tokens",
	[TOKEN_LOGPROBS] = "token_logprobs",
	[TOP_LOGPROBS] = "top_logprobs",
	[TEXT_OFFSET] = "text_offset",
};

int
logprobs_join(struct answer *a, const struct splice_seg of[2], uint64_t before, struct membuf *out)
{
	struct splice_seg key, value, first, then;
	unsigned seen = 0;
	struct copy c;
	size_t i;

	if (seg_is_null(&of[1])) {
		if (seg_is_null(&of[0]))
			PUT(out, "null");
		else
			put_seg(out, &of[0]);
		return ANSWER_OK;
	}
	copy_start(&c, &of[1], out);
	(void)json_read_enter(&c.r, '{');
	while (json_read_member(&c.r, &key)) {
		then = value = json_read_value(&c.r);
		if (!find_once(&key, list_keys, LISTS, &seen, &i))
			return ANSWER_BAD;
		if (i == LISTS || value.n == 0 || value.p[0] != '[')
			continue;
		if (before > 0 && i == TEXT_OFFSET)
			then = shifted(a, &value, before);
		if (splice_member_raw(of[0].p, of[0].n, list_keys[i], &first) != 1 ||
			first.p[0] != '[') {
			if (then.p == value.p)
				continue;
			first = (struct splice_seg){"", 0};
		}
		copy_past(&c, &value);
		put_arrays(&first, &then, out);
	}
	copy_up_to(&c, of[1].p + of[1].n);
	return json_read_done(&c.r) ? ANSWER_OK : ANSWER_BAD;
}

/* --- as chat has them -------------------------------------------------------------------- */

/* Writes ,"bytes":[..] of a token in quotes. */
static void
put_bytes(struct answer *a, const struct splice_seg *token, struct membuf *out)
{
	long n;

	a->scratch.n = 0;
	membuf_add(&a->scratch, token->p, token->n); /* room: a token unescaped is not longer */
	n = json_unescape(token->p + 1, token->n - 2, a->scratch.p, a->scratch.cap);
	PUT(out, ",\"bytes\":[");
	for (long i = 0; i < n; i++) {
		if (i > 0)
			PUT(out, ",");
		put_number(out, (uint8_t)a->scratch.p[i]);
	}
	PUT(out, "]");
}

/* {"token":..,"logprob":..,"bytes":[..] without its end. */
static void
put_token(struct answer *a, const struct splice_seg *token, const struct splice_seg *logprob,
	struct membuf *out)
{
	PUT(out, "{\"token\":");
	put_seg(out, token);
	PUT(out, ",\"logprob\":");
	if (seg_is_null(logprob))
		PUT(out, "-9999.0"); /* vLLM's chat sends this for a token without one */
	else
		put_seg(out, logprob);
	put_bytes(a, token, out);
}

/* One token's {"token":logprob,..}; null, and so absent, where none were requested. */
static void
put_top(struct answer *a, const struct splice_seg *top, struct membuf *out)
{
	struct splice_seg key, logprob;
	struct json_read r;

	PUT(out, ",\"top_logprobs\":[");
	if (!seg_is_null(top)) {
		json_read_init(&r, top->p, top->n);
		(void)json_read_enter(&r, '{');
		for (uint32_t i = 0; i < a->how.top_logprobs && json_read_member(&r, &key); i++) {
			struct splice_seg token = {key.p - 1, key.n + 2};

			logprob = json_read_value(&r);
			if (i > 0)
				PUT(out, ",");
			put_token(a, &token, &logprob, out);
			PUT(out, "}");
		}
	}
	PUT(out, "]");
}

/* The list's next element; null behind its end. */
static struct splice_seg
next_of(struct json_read *r)
{
	if (r->bad || !json_read_element(r)) {
		r->bad = true;
		return (struct splice_seg){"null", 4};
	}
	return json_read_value(r);
}

/* Appends a list's tokens as objects with commas between; *any: something was appended before. */
static int
put_content(struct answer *a, const struct splice_seg *logprobs, bool *any, struct membuf *out)
{
	struct json_read lists[CHAT_LISTS];

	for (unsigned i = 0; i < CHAT_LISTS; i++) {
		struct splice_seg list = {"", 0};

		if (splice_member_raw(logprobs->p, logprobs->n, list_keys[i], &list) < 0)
			return ANSWER_BAD;
		json_read_init(&lists[i], list.p, list.n);
		if (list.n > 0 && list.p[0] == '[')
			(void)json_read_enter(&lists[i], '[');
		else
			lists[i].bad = true;
	}
	if (lists[TOKENS].bad)
		return ANSWER_BAD;
	while (json_read_element(&lists[TOKENS])) {
		struct splice_seg token = json_read_value(&lists[TOKENS]),
				  logprob = next_of(&lists[TOKEN_LOGPROBS]),
				  top = next_of(&lists[TOP_LOGPROBS]);

		if (token.p[0] != '"' || (!seg_is_null(&top) && top.p[0] != '{'))
			return ANSWER_BAD;
		if (*any)
			PUT(out, ",");
		*any = true;
		put_token(a, &token, &logprob, out);
		put_top(a, &top, out);
		PUT(out, "}");
	}
	return ANSWER_OK;
}

int
logprobs_chat(struct answer *a, const struct splice_seg of[2], struct membuf *out)
{
	bool any = false;

	if (seg_is_null(&of[0]) && seg_is_null(&of[1])) {
		PUT(out, "null");
		return ANSWER_OK;
	}
	PUT(out, "{\"content\":[");
	for (unsigned i = 0; i < 2; i++)
		if (!seg_is_null(&of[i]) && put_content(a, &of[i], &any, out) != ANSWER_OK)
			return ANSWER_BAD;
	PUT(out, "]}");
	return ANSWER_OK;
}
