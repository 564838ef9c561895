/*
 * KV through a store that both engines know by content (protocols.md 6): LMCache on a shared disk or
 * server, production-stack's disaggregated_prefill.  Nothing names the transfer, so the bodies are the client's.
 *
 * cache_hit_threshold: the decode engine is asked first; one that has less than that share of the prompt's KV
 * says so by finish_reason "cache_threshold", and only then is prefill asked (llm-d's shared-storage mode).
 */
#include <string.h>

#include "proto/answer/sse.h"
#include "worker/request/request.h"

/* Of several prompts each is looked up by itself, and a stream would begin with those that are there. */
static bool
decode_first_mode(const struct req *req)
{
	return req->facts.pool.shake.cache_hit_threshold[0] != '\0' && connector_prompts(req) == 1;
}

static bool
trying(const struct pair *pair)
{
	return pair->starts[ROLE_PREFILL] == STARTS_NEVER;
}

static enum req_end
begin(struct pair *pair)
{
	if (decode_first_mode(pair->req)) {
		pair->starts[ROLE_PREFILL] = STARTS_NEVER;
		pair->starts[ROLE_DECODE] = STARTS_AT_ONCE;
	}
	return END_OK;
}

/* Whoever computes does so whatever is there: the client's own threshold and an engine's default would make
 * it refuse. */
static void
no_threshold(struct pair *pair, struct splice_edit *e)
{
	connector_set(
		e, SK_CACHE_HIT_THRESHOLD, decode_first_mode(pair->req) ? SE_SET : SE_LOWER, "0");
}

static void
prefill_edit(struct pair *pair, struct splice_edit *e)
{
	connector_limit_prefill(pair, e);
	no_threshold(pair, e);
}

static void
decode_edit(struct pair *pair, struct splice_edit *e)
{
	if (trying(pair))
		connector_set(e, SK_CACHE_HIT_THRESHOLD, SE_SET,
			pair->req->facts.pool.shake.cache_hit_threshold);
	else
		no_threshold(pair, e);
}

static bool
is(const struct splice_seg *v, const char *text)
{
	return v->n == strlen(text) && memcmp(v->p, text, v->n) == 0;
}

/* An empty text: the start of a chat's stream, which comes before the engine has looked (vLLM). */
static bool
says_nothing(const struct splice_seg *choice)
{
	struct splice_seg v, content;

	if (splice_member_raw(choice->p, choice->n, "text", &v) == 1)
		return is(&v, "\"\"");
	return splice_member_raw(choice->p, choice->n, "delta", &v) == 1 &&
	       splice_member_raw(v.p, v.n, "content", &content) == 1 && is(&content, "\"\"");
}

/* One answer, or one event of a stream. */
static enum taken
look_at(const char *json, size_t n)
{
	struct splice_seg choices, choice, reason;
	enum taken r = TAKEN_NOTHING;
	size_t at = 0;

	if (splice_member_raw(json, n, "choices", &choices) != 1 || choices.p[0] != '[')
		return TAKEN; /* an error, or the end */
	while (splice_element(&choices, &at, &choice)) {
		bool ended = splice_member_raw(choice.p, choice.n, "finish_reason", &reason) == 1 &&
			     !is(&reason, "null");

		if (ended && is(&reason, "\"cache_threshold\""))
			return TAKEN_AGAIN;
		if (ended || !says_nothing(&choice))
			r = TAKEN;
	}
	return r;
}

static enum taken
look_at_event(const char *p, size_t n)
{
	size_t at = 0, end;

	while (at < n) {
		const size_t len = sse_line(p + at, n - at, &end);

		if (len > 5 && memcmp(p + at, "data:", 5) == 0)
			return look_at(p + at + 5, len - 5);
		at += len + end;
	}
	return TAKEN_NOTHING; /* a comment */
}

/*
 * Bytes of a stream that are looked into, again with each piece that comes: it says in its first few
 * events whether it was refused.  One that says nothing in so many is the answer.
 */
#define LOOK_MAX (64u << 10)

static enum taken
decode_first(struct pair *pair)
{
	const struct leg *d = &pair->leg[LEG_DECODE];
	enum taken r = TAKEN_NOTHING;
	size_t n;

	if (!d->sse)
		return look_at(d->answer, d->answer_len);
	for (size_t at = 0;
		r == TAKEN_NOTHING && (n = sse_next(d->answer + at, d->answer_len - at)) > 0;
		at += n)
		r = look_at_event(d->answer + at, n);
	return r == TAKEN_NOTHING && d->answer_len > LOOK_MAX ? TAKEN : r;
}

/* A decode engine that was tried first has counted honestly, and there may be no prefill answer at all. */
static bool
rewrites(struct req *req, struct answer_how *how)
{
	if (decode_first_mode(req))
		how->cached_from_prefill = false;
	return false;
}

const struct connector connector_shared_storage = {
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AFTER_PREFILL},
	.leaves = LEAVES_NOTHING,
	.edit = {[ROLE_PREFILL] = prefill_edit, [ROLE_DECODE] = decode_edit},
	.begin = begin,
	.rewrites = rewrites,
	.decode_first = decode_first,
	.samples = connector_several_whole,
	.prompts = connector_several_whole,
};
