/*
 * KV through a store that both engines know by content (protocols.md 6): LMCache on a shared disk or
 * server, production-stack's disaggregated_prefill.  Nothing names the transfer, so the bodies are the client's.
 *
 * cache_hit_threshold: the decode engine is asked first; one that has less than that share of the prompt's KV
 * says so by finish_reason "cache_threshold", and only then is prefill asked (llm-d's shared-storage mode).
 */
#include <string.h>

#include "proto/answer/sse.h"
#include "worker/handshake/edit.h"
#include "worker/handshake/transfer.h"

/* Returns true if decode is sent its request first.  Not for several prompts: the engine looks
 * up each by itself, and a stream would begin with the cached ones; nor for the paths of agents, which have no
 * threshold. */
static bool
decode_first_mode(const struct demand *d)
{
	return d->facts->pool->shake.cache_hit_threshold[0] != '\0' && connector_prompts(d) == 1 &&
	       !route_is_agent(d->facts->route);
}

static bool
trying(const struct transfer *t)
{
	return t->starts[ROLE_PREFILL] == STARTS_NEVER;
}

static enum req_end
begin(struct transfer *t)
{
	if (decode_first_mode(&t->of)) {
		t->starts[ROLE_PREFILL] = STARTS_NEVER;
		t->starts[ROLE_DECODE] = STARTS_AT_ONCE;
	}
	return END_OK;
}

/* Sets the threshold to 0, so that an engine computes with any amount of cached KV: the
 * client's own threshold or an engine's default would make it refuse. */
static void
no_threshold(struct transfer *t, struct splice_edit *e)
{
	edit_set(e, SK_CACHE_HIT_THRESHOLD, decode_first_mode(&t->of) ? SE_SET : SE_LOWER, "0");
}

static void
prefill_edit(struct transfer *t, struct splice_edit *e)
{
	edit_limit_prefill(t, e);
	edit_no_budget(t, e);
	no_threshold(t, e);
}

static void
decode_edit(struct transfer *t, struct splice_edit *e)
{
	if (trying(t))
		edit_set(e, SK_CACHE_HIT_THRESHOLD, SE_SET,
			t->of.facts->pool->shake.cache_hit_threshold);
	else
		no_threshold(t, e);
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
static enum handoff
look_at(const char *json, size_t n)
{
	struct splice_seg choices, choice, reason;
	enum handoff r = HANDOFF_NONE;
	size_t at = 0;

	if (splice_member_raw(json, n, "choices", &choices) != 1 || choices.p[0] != '[')
		return HANDOFF_OK; /* an error, or the end */
	while (splice_element(&choices, &at, &choice)) {
		bool ended = splice_member_raw(choice.p, choice.n, "finish_reason", &reason) == 1 &&
			     !is(&reason, "null");

		if (ended && is(&reason, "\"cache_threshold\""))
			return HANDOFF_RETRY;
		if (ended || !says_nothing(&choice))
			r = HANDOFF_OK;
	}
	return r;
}

static enum handoff
look_at_event(const char *p, size_t n)
{
	size_t at = 0, end;

	while (at < n) {
		const size_t len = sse_line(p + at, n - at, &end);

		if (len > 5 && memcmp(p + at, "data:", 5) == 0)
			return look_at(p + at + 5, len - 5);
		at += len + end;
	}
	return HANDOFF_NONE; /* a comment */
}

/*
 * Bytes of a stream that are searched, again with each piece: its first few events show
 * whether decode refused.  A stream without content in so many bytes is the answer.
 */
#define LOOK_MAX (64u << 10)

static enum handoff
decode_first(struct transfer *t)
{
	const struct engine_answer *d = &t->decode_answer;
	enum handoff r = HANDOFF_NONE;
	size_t n;

	if (!d->sse)
		return look_at(d->text, d->len);
	for (size_t at = 0; r == HANDOFF_NONE && (n = sse_next(d->text + at, d->len - at)) > 0;
		at += n)
		r = look_at_event(d->text + at, n);
	return r == HANDOFF_NONE && d->len > LOOK_MAX ? HANDOFF_OK : r;
}

/* A decode engine that was sent its request first has counted right, and there may be no
 * prefill answer. */
static bool
rewrites(const struct demand *d, struct answer_how *how, char id[CONNECTOR_ANSWER_ID])
{
	(void)id;
	if (decode_first_mode(d))
		how->cached_from_prefill = false;
	return false;
}

const struct connector connector_shared_storage = {
	.info = &connector_info[CONNECTOR_SHARED_STORAGE],
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AFTER_PREFILL},
	.edit = {[ROLE_PREFILL] = prefill_edit, [ROLE_DECODE] = decode_edit},
	.begin = begin,
	.rewrites = rewrites,
	.decode_first = decode_first,
	.samples = connector_several_whole,
	.prompts = connector_several_whole,
};
