/*
 * LMCache's PD mode over NIXL (protocols.md 4): the prefill engine pushes the KV to where `disagg_spec` says, and
 * tells by ZMQ when it is there; the decode engine finds it by the hash of the same token ids.
 *   first_token: prefill   both legs are completions of token ids; the prefill engine's token is the answer's first,
 *                          and the last of decode's prompt (skip_last_n_tokens: 1 there)
 *   first_token: decode    both legs are the client's own request; decode makes the first token again
 *                          (skip_last_n_tokens: 0): for tools and reasoning parsers
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json/json_read.h"
#include "proto/json/json_small.h"
#include "worker/net/connpool.h"
#include "worker/request/request.h"

#define COMPLETIONS_MAX_TOKENS 16 /* of a completion that says none (1.2) */

static bool
by_prefill(const struct req_pool *pool)
{
	return pool->shake.first_token == ROLE_PREFILL;
}

/* --- limits */

/* The member that limits how many tokens are generated; NULL: none does. */
static const struct splice_member *
limit_member(const struct req *req)
{
	static const enum splice_key keys[] = {SK_MAX_COMPLETION_TOKENS, SK_MAX_TOKENS};

	for (size_t i = req->facts.route == ROUTE_CHAT ? 0 : 1; i < 2; i++) {
		const struct splice_member *m = splice_find(req->text->doc, keys[i]);

		if (m != NULL && m->type != ST_NULL)
			return m;
	}
	return NULL;
}

/* A member's count; false if it is no plain number. */
static bool
count_of(const struct req *req, const struct splice_member *m, uint64_t *ret)
{
	const struct splice_seg v = {req->text->doc->text + m->val, m->end - m->val};

	return json_read_number(&v, UINT32_MAX, ret);
}

/* The client's limit of generated tokens; 0: none said. */
static uint64_t
asked_limit(const struct req *req)
{
	const struct splice_member *m = limit_member(req);
	uint64_t n = 0;

	if (m != NULL)
		(void)count_of(req, m, &n);
	return n;
}

/* What is left for decode after the first token. */
static uint64_t
rest_limit(const struct pair *pair)
{
	const uint64_t limit = asked_limit(pair->req), used = pair->ntokens + 1;

	if (limit > 0)
		return limit - 1;
	if (pair->req->facts.route != ROUTE_CHAT)
		return COMPLETIONS_MAX_TOKENS - 1;
	return pair->max_context > used ? pair->max_context - used : 0;
}

/* The client's min_tokens; 0: none said. */
static uint64_t
asked_least(const struct req *req)
{
	const struct splice_member *m = splice_find(req->text->doc, SK_MIN_TOKENS);
	uint64_t n = 0;

	if (m != NULL)
		(void)count_of(req, m, &n);
	return n;
}

/* --- tokens */

static bool
is_token_list(const char *p, size_t n)
{
	return n >= 2 && p[0] == '[' && strspn(p + 1, "0123456789, \t\r\n") >= n - 2;
}

/* The one prompt of this pair, be it the only one of a list; of no bytes for chat. */
static struct span
prompt_of(const struct pair *pair)
{
	const struct splice *doc = pair->req->text->doc;
	const struct splice_member *m = splice_find(doc, SK_PROMPT);
	struct splice_seg list, one;
	size_t at = 0;

	if (pair->prompt.n > 0 || m == NULL || pair->req->facts.route != ROUTE_COMPLETIONS)
		return pair->prompt;
	list = (struct splice_seg){doc->text + m->val, m->end - m->val};
	if (connector_list_of_prompts(doc, m) == 1 && splice_element(&list, &at, &one))
		return (struct span){one.p, one.n};
	return (struct span){list.p, list.n};
}

/* A prompt of token ids needs no tokenizer. */
static bool
has_tokens(struct pair *pair)
{
	const struct span p = prompt_of(pair);

	if (p.n == 0 || !is_token_list(p.p, p.n))
		return false;
	pair->tokens = p;
	return true;
}

/* The client's whole body, for all of it that a template may use; of prompt and messages only what its path
 * reads, since this path takes either. */
static void
tokenize_edit(struct pair *pair, struct splice_edit *e)
{
	const struct span p = prompt_of(pair);

	if (pair->req->facts.route == ROUTE_CHAT)
		connector_set(e, SK_PROMPT, SE_CUT, NULL);
	else
		connector_set(e, SK_MESSAGES, SE_CUT, NULL);
	if (p.n > 0)
		connector_set_span(e, SK_PROMPT, SE_SET, p);
}

static bool
ask(struct pair *pair, struct question *q)
{
	if (!by_prefill(&pair->req->facts.pool) || pair->tokens.n > 0 || has_tokens(pair))
		return false;
	q->role = pair->req->facts.pool.shake.tokenize;
	q->path = "/tokenize";
	q->edit = tokenize_edit;
	return true;
}

static enum taken
asked(struct pair *pair)
{
	const struct leg *a = &pair->leg[LEG_ASK];
	struct splice_seg v;
	bool chat = pair->req->facts.route == ROUTE_CHAT;

	if (splice_member_raw(a->answer, a->answer_len, "tokens", &v) != 1 ||
		!is_token_list(v.p, v.n) ||
		!json_member_number(a->answer, a->answer_len, "count", UINT32_MAX, &pair->ntokens))
		return TAKEN_BAD;
	if (!json_member_number(
		    a->answer, a->answer_len, "max_model_len", UINT32_MAX, &pair->max_context) &&
		chat && asked_limit(pair->req) == 0)
		return TAKEN_BAD; /* a completion without a limit would end after 16 */
	pair->tokens = (struct span){v.p, v.n};
	return TAKEN;
}

/* --- bodies */

static enum req_end
begin(struct pair *pair)
{
	const struct endpoint *d = pair->leg[LEG_DECODE].ep;
	char id[FLAG_ID_LEN];

	if (d->disagg_spec[0] == '\0') {
		pair->req->detail = "the decode endpoint has no receiver ports";
		return END_NOT_LEARNED;
	}
	if (d->notices == 0) { /* the prefill answer tells */
		pair->transfer = pair_text(pair, "%s", pair->id);
		return END_OK;
	}
	if (!pair_arm(pair, d->notices, id)) {
		pair->req->detail = "shared_memory.flags_per_worker transfers are waiting";
		return END_NO_CAPACITY;
	}
	pair->transfer = pair_text(pair, "%s", id);
	return END_OK;
}

/* Chat's members that completions would take for something else, or that are only large. */
static void
to_completion(struct pair *pair, struct splice_edit *e)
{
	const struct splice *doc = pair->req->text->doc;
	const struct splice_member *wanted = splice_find(doc, SK_LOGPROBS),
				   *top = splice_find(doc, SK_TOP_LOGPROBS);

	connector_set(e, SK_MESSAGES, SE_CUT, NULL);
	connector_set(e, SK_TOOLS, SE_CUT, NULL);
	connector_set(e, SK_TOOL_CHOICE, SE_CUT, NULL);
	connector_set(e, SK_TOP_LOGPROBS, SE_CUT, NULL);
	if (wanted == NULL || wanted->type != ST_TRUE)
		connector_set(e, SK_LOGPROBS, SE_CUT, NULL);
	else if (top != NULL && top->type == ST_NUMBER)
		connector_set_span(e, SK_LOGPROBS, SE_SET,
			(struct span){doc->text + top->val, top->end - top->val});
	else
		connector_set(e, SK_LOGPROBS, SE_SET, "0"); /* the chosen token's alone */
}

static void
token_edit(struct pair *pair, struct splice_edit *e)
{
	if (pair->req->facts.route == ROUTE_CHAT)
		to_completion(pair, e);
	connector_set_span(e, SK_PROMPT, SE_SET, pair->tokens);
}

static void
prefill_edit(struct pair *pair, struct splice_edit *e)
{
	const bool first = by_prefill(&pair->req->facts.pool);

	connector_limit_prefill(pair, e);
	if (first) {
		token_edit(pair, e);
		connector_set(e, SK_MAX_COMPLETION_TOKENS, SE_CUT, NULL);
		/* whether it has ended there is asked of this answer */
		if (asked_least(pair->req) > 0)
			connector_set(e, SK_MIN_TOKENS, SE_SET, "1");
	}
	connector_set_span(e, SK_KV_TRANSFER_PARAMS, SE_SET,
		pair_text(pair, "{%s\"disagg_spec\":{\"req_id\":\"%s\",%s}}",
			first ? "\"ret_first_tok\":true," : "", pair->transfer.p,
			pair->leg[LEG_DECODE].ep->disagg_spec));
}

/* The prompt and one token more. */
static void
set_prompt_and(struct pair *pair, struct splice_edit *e, int64_t token)
{
	connector_set_span(e, SK_PROMPT, SE_SET,
		pair_text(pair, "%.*s%s%lld]", (int)pair->tokens.n - 1, pair->tokens.p,
			pair->tokens.n > 2 ? "," : "", (long long)token));
}

/* The prefill engine has made the first token; the rest is for decode. */
static void
after_first_token(struct pair *pair, struct splice_edit *e)
{
	const uint64_t least = asked_least(pair->req);

	set_prompt_and(pair, e, pair->first_token);
	connector_set_span(e, SK_MAX_TOKENS, SE_SET,
		pair_text(pair, "%llu", (unsigned long long)rest_limit(pair)));
	if (least > 0)
		connector_set_span(e, SK_MIN_TOKENS, SE_SET,
			pair_text(pair, "%llu", (unsigned long long)least - 1));
}

static void
decode_edit(struct pair *pair, struct splice_edit *e)
{
	if (!by_prefill(&pair->req->facts.pool))
		return;
	token_edit(pair, e);
	connector_set(e, SK_MAX_COMPLETION_TOKENS, SE_CUT, NULL);
	if (pair->first_token >= 0)
		after_first_token(pair, e);
	else if (pair->released) /* decode looks up all but the last one, whatever that is */
		set_prompt_and(pair, e, 0);
	else if (pair->req->facts.route == ROUTE_CHAT) /* not told: decode makes it */
		connector_set_span(e, SK_MAX_TOKENS, SE_SET,
			pair_text(pair, "%llu", (unsigned long long)rest_limit(pair) + 1));
}

static const char *
path(const struct pair *pair, enum role role)
{
	(void)role;
	return by_prefill(&pair->req->facts.pool) ? route_path(ROUTE_COMPLETIONS) : NULL;
}

/* --- answers */

static enum taken
prefilled(struct pair *pair)
{
	const struct leg *p = &pair->leg[LEG_PREFILL];
	struct splice_seg kv;
	uint64_t token = 0;

	if (splice_member_raw(p->answer, p->answer_len, "kv_transfer_params", &kv) == -1)
		return TAKEN_BAD;
	if (!by_prefill(&pair->req->facts.pool))
		return TAKEN;
	if (splice_member_raw(p->answer, p->answer_len, "kv_transfer_params", &kv) != 1 ||
		!json_member_number(kv.p, kv.n, "first_tok", INT32_MAX, &token))
		return TAKEN_NOTHING;
	pair->first_token = (int64_t)token;
	return TAKEN;
}

static bool
complete(struct pair *pair)
{
	const struct leg *p = &pair->leg[LEG_PREFILL];

	return pair->req->how.first_token &&
	       (rest_limit(pair) == 0 || answer_prefill_ended(p->answer, p->answer_len));
}

static enum several
samples(const struct req_pool *pool)
{
	return by_prefill(pool) ? SEVERAL_PAIRS : SEVERAL_WHOLE;
}

/*
 * What only one engine can answer from the first token on: grammars begin anew with decode's first token,
 * what is told of the prompt (echo, its logprobs and ids) is not the client's prompt there, and one that is cut to
 * a length would be cut elsewhere.
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

/* False for what says the same as nothing. */
static bool
means_something(const struct splice_seg *v)
{
	struct splice_seg type;

	if (v->n > 0 && v->p[0] == '{' && splice_member_raw(v->p, v->n, "type", &type) == 1)
		return !json_read_is(&type, "\"text\"");
	return !json_read_is(v, "null") && !json_read_is(v, "false");
}

static const char *
why_alone(const struct req *req)
{
	struct splice_seg key, v;
	const char *why = NULL;
	struct json_read r;

	json_read_init(&r, req->text->doc->text, req->text->doc->len);
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
odd_limit(const struct req *req)
{
	const struct splice_member *most = limit_member(req),
				   *least = splice_find(req->text->doc, SK_MIN_TOKENS);
	uint64_t n = 1;

	if (most != NULL && (!count_of(req, most, &n) || n == 0))
		return true;
	return least != NULL && least->type != ST_NULL && !count_of(req, least, &n);
}

/* Completions know no tools, and token ids no pictures. */
static const char *
why_chat_alone(const struct req *req)
{
	static const char *const media[] = {
		"\"image_url\"", "\"input_audio\"", "\"audio_url\"", "\"video_url\""};
	const struct splice_member *m = splice_find(req->text->doc, SK_MESSAGES),
				   *tools = splice_find(req->text->doc, SK_TOOLS);

	if (tools != NULL && tools->type == ST_ARRAY && tools->end - tools->val > 2)
		return "tools";
	for (size_t i = 0; m != NULL && i < sizeof(media) / sizeof(media[0]); i++)
		if (memmem(req->text->doc->text + m->val, m->end - m->val, media[i],
			    strlen(media[i])) != NULL)
			return "media";
	return NULL;
}

static const char *
unfit(const struct req *req)
{
	const char *why = NULL;

	if (!by_prefill(&req->facts.pool))
		return NULL;
	if (req->facts.route == ROUTE_CHAT)
		why = why_chat_alone(req);
	if (why == NULL && odd_limit(req))
		why = "limit";
	return why != NULL ? why : why_alone(req);
}

static bool
rewrites(struct req *req, struct answer_how *how)
{
	const struct splice_member *top = splice_find(req->text->doc, SK_TOP_LOGPROBS);

	if (!by_prefill(&req->facts.pool))
		return false;
	how->first_token = true;
	how->from_completions = how->chat;
	how->id = connector_answer_id(req);
	if (top != NULL && top->type == ST_NUMBER)
		how->top_logprobs = (uint32_t)strtoul(req->text->doc->text + top->val, NULL, 10);
	return true;
}

const struct connector connector_lmcache = {
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AFTER_KV},
	.leaves = LEAVES_KV,
	.bound = true,
	.edit = {[ROLE_PREFILL] = prefill_edit, [ROLE_DECODE] = decode_edit},
	.begin = begin,
	.ask = ask,
	.asked = asked,
	.ask_fail = END_TOKENIZE,
	.prefilled = prefilled,
	.complete = complete,
	.samples = samples,
	.prompts = connector_several_pairs,
	.path = path,
	.unfit = unfit,
	.rewrites = rewrites,
};
