/*
 * LMCache's PD mode over NIXL (protocols.md 4): the prefill engine pushes the KV to the
 * address in `disagg_spec`, and reports its arrival by ZMQ.  The decode engine finds the KV
 * by the hash of the same token ids.
 *
 * - first_token: prefill.  Both legs are completions of token ids.  The prefill engine's
 * token is the first of the answer and the last of decode's prompt (skip_last_n_tokens: 1
 * there).
 *
 * - first_token: decode.  Both legs are the client's own request.  Decode makes the first
 * token again (skip_last_n_tokens: 0), for tools and reasoning parsers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json/json_read.h"
#include "proto/json/json_small.h"
#include "worker/net/connpool.h"
#include "worker/handshake/edit.h"
#include "worker/handshake/transfer.h"

#define COMPLETIONS_MAX_TOKENS 16 /* of a completion that says none (1.2) */

static bool
by_prefill(const struct req_pool *pool)
{
	return pool->shake.first_token == ROLE_PREFILL;
}

/* --- limits */

/* The client's limit of generated tokens; 0: none said. */
static uint64_t
asked_limit(const struct demand *d)
{
	const struct splice_member *m = connector_limit(d);
	uint64_t n = 0;

	if (m != NULL)
		(void)connector_count(d, m, &n);
	return n;
}

/* What is left for decode after the first token. */
static uint64_t
rest_limit(const struct transfer *t)
{
	const uint64_t limit = asked_limit(&t->of), used = t->ntokens + 1;

	if (limit > 0)
		return limit - 1;
	if (t->of.facts->route != ROUTE_CHAT)
		return COMPLETIONS_MAX_TOKENS - 1;
	return t->max_context > used ? t->max_context - used : 0;
}

/* The client's min_tokens; 0: none said. */
static uint64_t
asked_least(const struct demand *d)
{
	const struct splice_member *m = splice_find(d->text->doc, SK_MIN_TOKENS);
	uint64_t n = 0;

	if (m != NULL)
		(void)connector_count(d, m, &n);
	return n;
}

/* --- tokens */

static bool
is_token_list(const char *p, size_t n)
{
	return n >= 2 && p[0] == '[' && strspn(p + 1, "0123456789, \t\r\n") >= n - 2;
}

/* The one prompt of this attempt, be it the only one of a list; of no bytes for chat. */
static struct span
prompt_of(const struct transfer *t)
{
	const struct splice *doc = t->of.text->doc;
	const struct splice_member *m = splice_find(doc, SK_PROMPT);
	struct splice_seg list, one;
	size_t at = 0;

	if (t->prompt.n > 0 || m == NULL || t->of.facts->route != ROUTE_COMPLETIONS)
		return t->prompt;
	list = (struct splice_seg){doc->text + m->val, m->end - m->val};
	if (connector_list_of_prompts(doc, m) == 1 && splice_element(&list, &at, &one))
		return (struct span){one.p, one.n};
	return (struct span){list.p, list.n};
}

/* A prompt of token ids needs no tokenizer. */
static bool
has_tokens(struct transfer *t)
{
	const struct span p = prompt_of(t);

	if (p.n == 0 || !is_token_list(p.p, p.n))
		return false;
	t->tokens = p;
	return true;
}

/* The client's whole body, for all of it that a template may use; of prompt and messages only what its path
 * reads, since this path takes either. */
static void
tokenize_edit(struct transfer *t, struct splice_edit *e)
{
	const struct span p = prompt_of(t);

	if (t->of.facts->route == ROUTE_CHAT)
		edit_set(e, SK_PROMPT, SE_CUT, NULL);
	else
		edit_set(e, SK_MESSAGES, SE_CUT, NULL);
	if (p.n > 0)
		edit_set_span(e, SK_PROMPT, SE_SET, p);
}

static bool
lookup(struct transfer *t, struct lookup *l)
{
	if (!by_prefill(t->of.facts->pool) || t->tokens.n > 0 || has_tokens(t))
		return false;
	l->role = t->of.facts->pool->shake.tokenize;
	l->path = "/tokenize";
	l->edit = tokenize_edit;
	return true;
}

static enum handoff
looked_up(struct transfer *t)
{
	const struct engine_answer *a = &t->lookup_answer;
	struct splice_seg v;
	bool chat = t->of.facts->route == ROUTE_CHAT;

	if (splice_member_raw(a->text, a->len, "tokens", &v) != 1 || !is_token_list(v.p, v.n) ||
		!json_member_number(a->text, a->len, "count", UINT32_MAX, &t->ntokens))
		return HANDOFF_BAD;
	if (!json_member_number(a->text, a->len, "max_model_len", UINT32_MAX, &t->max_context) &&
		chat && asked_limit(&t->of) == 0)
		return HANDOFF_BAD; /* a completion without a limit would end after 16 */
	t->tokens = (struct span){v.p, v.n};
	return HANDOFF_OK;
}

/* --- bodies */

static enum req_end
begin(struct transfer *t)
{
	const struct endpoint *d = t->engine[ROLE_DECODE];
	char id[FLAG_ID_LEN];

	if (d->disagg_spec[0] == '\0') {
		t->detail = "the decode endpoint has no receiver ports";
		return END_NOT_LEARNED;
	}
	if (d->notices == 0) { /* the prefill answer starts decode */
		t->notice_id = transfer_text(t, "%s", t->id);
		return END_OK;
	}
	if (!transfer_await_notices(t, d->notices, id)) {
		t->detail = "shared_memory.flags_per_worker transfers are waiting";
		return END_NO_CAPACITY;
	}
	t->notice_id = transfer_text(t, "%s", id);
	return END_OK;
}

/* Chat's members that completions would take for something else, or that are only large. */
static void
to_completion(struct transfer *t, struct splice_edit *e)
{
	const struct splice *doc = t->of.text->doc;
	const struct splice_member *wanted = splice_find(doc, SK_LOGPROBS),
				   *top = splice_find(doc, SK_TOP_LOGPROBS);

	edit_set(e, SK_MESSAGES, SE_CUT, NULL);
	edit_set(e, SK_TOOLS, SE_CUT, NULL);
	edit_set(e, SK_TOOL_CHOICE, SE_CUT, NULL);
	edit_set(e, SK_TOP_LOGPROBS, SE_CUT, NULL);
	if (wanted == NULL || wanted->type != ST_TRUE)
		edit_set(e, SK_LOGPROBS, SE_CUT, NULL);
	else if (top != NULL && top->type == ST_NUMBER)
		edit_set_span(e, SK_LOGPROBS, SE_SET,
			(struct span){doc->text + top->val, top->end - top->val});
	else
		edit_set(e, SK_LOGPROBS, SE_SET, "0"); /* the chosen token's alone */
}

static void
token_edit(struct transfer *t, struct splice_edit *e)
{
	if (t->of.facts->route == ROUTE_CHAT)
		to_completion(t, e);
	edit_set_span(e, SK_PROMPT, SE_SET, t->tokens);
}

static void
prefill_edit(struct transfer *t, struct splice_edit *e)
{
	const bool first = by_prefill(t->of.facts->pool);

	edit_limit_prefill(t, e);
	if (first) {
		token_edit(t, e);
		edit_set(e, SK_MAX_COMPLETION_TOKENS, SE_CUT, NULL);
		/* this answer decides whether the text ends here */
		if (asked_least(&t->of) > 0)
			edit_set(e, SK_MIN_TOKENS, SE_SET, "1");
	}
	edit_set_span(e, SK_KV_TRANSFER_PARAMS, SE_SET,
		transfer_text(t, "{%s\"disagg_spec\":{\"req_id\":\"%s\",%s}}",
			first ? "\"ret_first_tok\":true," : "", t->notice_id.p,
			t->engine[ROLE_DECODE]->disagg_spec));
}

/* The prompt and one token more. */
static void
set_prompt_and(struct transfer *t, struct splice_edit *e, int64_t token)
{
	edit_set_span(e, SK_PROMPT, SE_SET,
		transfer_text(t, "%.*s%s%lld]", (int)t->tokens.n - 1, t->tokens.p,
			t->tokens.n > 2 ? "," : "", (long long)token));
}

/* The prefill engine has made the first token; the rest is for decode. */
static void
after_first_token(struct transfer *t, struct splice_edit *e)
{
	const uint64_t least = asked_least(&t->of);

	set_prompt_and(t, e, t->first_token);
	edit_set_span(e, SK_MAX_TOKENS, SE_SET,
		transfer_text(t, "%llu", (unsigned long long)rest_limit(t)));
	if (least > 0)
		edit_set_span(e, SK_MIN_TOKENS, SE_SET,
			transfer_text(t, "%llu", (unsigned long long)least - 1));
}

static void
decode_edit(struct transfer *t, struct splice_edit *e)
{
	if (!by_prefill(t->of.facts->pool))
		return;
	token_edit(t, e);
	edit_set(e, SK_MAX_COMPLETION_TOKENS, SE_CUT, NULL);
	if (t->first_token >= 0)
		after_first_token(t, e);
	else if (t->release_only) /* decode looks up all but the last one, whatever that is */
		set_prompt_and(t, e, 0);
	else if (t->of.facts->route == ROUTE_CHAT) /* no first token known: decode makes it */
		edit_set_span(e, SK_MAX_TOKENS, SE_SET,
			transfer_text(t, "%llu", (unsigned long long)rest_limit(t) + 1));
}

static const char *
path(const struct transfer *t, enum role role)
{
	(void)role;
	return by_prefill(t->of.facts->pool) ? route_path(ROUTE_COMPLETIONS) : NULL;
}

/* --- answers */

static enum handoff
prefilled(struct transfer *t)
{
	const struct engine_answer *p = &t->prefill_answer;
	struct splice_seg kv;
	uint64_t token = 0;

	if (splice_member_raw(p->text, p->len, "kv_transfer_params", &kv) == -1)
		return HANDOFF_BAD;
	if (!by_prefill(t->of.facts->pool))
		return HANDOFF_OK;
	if (splice_member_raw(p->text, p->len, "kv_transfer_params", &kv) != 1 ||
		!json_member_number(kv.p, kv.n, "first_tok", INT32_MAX, &token))
		return HANDOFF_NONE;
	t->first_token = (int64_t)token;
	return HANDOFF_OK;
}

static bool
complete(struct transfer *t)
{
	const struct engine_answer *p = &t->prefill_answer;

	return t->first_token >= 0 && (rest_limit(t) == 0 || answer_prefill_ended(p->text, p->len));
}

static enum several
samples(const struct req_pool *pool)
{
	return by_prefill(pool) ? SEVERAL_BRANCHES : SEVERAL_WHOLE;
}

/*
 * Members that only one engine can answer from the first token on: grammars begin anew with
 * decode's first token.  Decode's prompt is not the client's (echo, its logprobs and ids),
 * and decode would cut a prompt to another length.
 */
static const struct {
	const char *key, *why;
} alone[] = {
	{"response_format", "structured_output"},
	{"structured_outputs", "structured_output"},
	{"guided_json", "structured_output"},
	{"guided_regex", "structured_output"},
	{"guided_choice", "structured_output"},
	{"guided_grammar", "structured_output"},
	{"use_beam_search", "beam_search"},
	{"echo", "echo"},
	{"prompt_logprobs", "prompt_logprobs"},
	{"return_token_ids", "token_ids"},
	{"truncate_prompt_tokens", "truncation"},
};

/* Returns false for a value that equals an absent member. */
static bool
means_something(const struct splice_seg *v)
{
	struct splice_seg type;

	if (v->n > 0 && v->p[0] == '{' && splice_member_raw(v->p, v->n, "type", &type) == 1)
		return !json_read_is(&type, "\"text\"");
	return !json_read_is(v, "null") && !json_read_is(v, "false");
}

static const char *
why_alone(const struct demand *d)
{
	struct splice_seg key, v;
	const char *why = NULL;
	struct json_read r;

	json_read_init(&r, d->text->doc->text, d->text->doc->len);
	(void)json_read_enter(&r, '{');
	while (why == NULL && json_read_member(&r, &key)) {
		v = json_read_value(&r);
		for (size_t i = 0; why == NULL && i < sizeof(alone) / sizeof(alone[0]); i++)
			if (json_read_is(&key, alone[i].key) && means_something(&v))
				why = alone[i].why;
	}
	return why;
}

/* A limit that is no plain number, for the engine to refuse: half an answer would be out already. */
static bool
odd_limit(const struct demand *d)
{
	const struct splice_member *most = connector_limit(d),
				   *least = splice_find(d->text->doc, SK_MIN_TOKENS);
	uint64_t n = 1;

	if (most != NULL && (!connector_count(d, most, &n) || n == 0))
		return true;
	return least != NULL && least->type != ST_NULL && !connector_count(d, least, &n);
}

/* Completions know no tools, and token ids no pictures. */
static const char *
why_chat_alone(const struct demand *d)
{
	static const char *const media[] = {
		"\"image_url\"", "\"input_audio\"", "\"audio_url\"", "\"video_url\""};
	const struct splice_member *m = splice_find(d->text->doc, SK_MESSAGES),
				   *tools = splice_find(d->text->doc, SK_TOOLS);

	if (tools != NULL && tools->type == ST_ARRAY && tools->end - tools->val > 2)
		return "tools";
	for (size_t i = 0; m != NULL && i < sizeof(media) / sizeof(media[0]); i++)
		if (memmem(d->text->doc->text + m->val, m->end - m->val, media[i],
			    strlen(media[i])) != NULL)
			return "media";
	return NULL;
}

static const char *
unfit(const struct demand *d)
{
	const char *why = NULL;

	if (!by_prefill(d->facts->pool))
		return connector_prompt_logprobs(d);
	if (d->facts->route == ROUTE_CHAT)
		why = why_chat_alone(d);
	if (why == NULL && odd_limit(d))
		why = "limit";
	return why != NULL ? why : why_alone(d);
}

static bool
rewrites(const struct demand *d, struct answer_how *how, char id[CONNECTOR_ANSWER_ID])
{
	const struct splice_member *top = splice_find(d->text->doc, SK_TOP_LOGPROBS);

	if (!by_prefill(d->facts->pool))
		return false;
	how->first_token = true;
	how->from_completions = how->chat;
	how->id = connector_answer_id(d, id);
	if (top != NULL && top->type == ST_NUMBER)
		how->top_logprobs = (uint32_t)strtoul(d->text->doc->text + top->val, NULL, 10);
	return true;
}

const struct connector connector_lmcache = {
	.info = &connector_info[CONNECTOR_LMCACHE],
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AFTER_KV},
	.edit = {[ROLE_PREFILL] = prefill_edit, [ROLE_DECODE] = decode_edit},
	.begin = begin,
	.lookup = lookup,
	.looked_up = looked_up,
	.lookup_end = END_TOKENIZE,
	.prefilled = prefilled,
	.complete = complete,
	.samples = samples,
	.prompts = connector_several_branches,
	.path = path,
	.unfit = unfit,
	.rewrites = rewrites,
};
