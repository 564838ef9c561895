#include "worker/handshake/connector.h"

#include <stdio.h>
#include <string.h>

#include "proto/json/json_read.h"
#include "worker/base/facts.h"
#include "worker/base/text.h"

#define ROW(id, word, ...) [CONNECTOR_##id] = &connector_##word,
static const struct connector *const connectors[CONNECTOR_N] = {CONNECTOR_LIST(ROW)};
#undef ROW

static const struct connector_info no_handshake = {.cleanup = CLEANUP_NONE};

static void
no_edit(struct transfer *t, struct splice_edit *e)
{
	(void)t;
	(void)e;
}

const struct connector connector_direct = {
	.info = &no_handshake,
	.engines = ENGINES_DECODE,
	.starts = {[ROLE_PREFILL] = STARTS_NEVER, [ROLE_DECODE] = STARTS_AT_ONCE},
	.edit = {[ROLE_DECODE] = no_edit},
};

/* Elements of a JSON array that the scan has found well-formed, if all begin with `first`; else 0. */
static size_t
array_length(const char *p, const char *end, char first)
{
	size_t n = 0;
	int depth = 0;

	for (; p < end; p++) {
		if (depth == 1 && strchr(" \t\r\n,]", *p) == NULL) {
			if (*p != first)
				return 0;
			n++;
		}
		if (*p == '"') {
			while (*++p != '"')
				p += *p == '\\';
		} else if (*p == '[' || *p == '{') {
			depth++;
		} else if (*p == ']' || *p == '}') {
			depth--;
		}
	}
	return n;
}

size_t
connector_list_of_prompts(const struct splice *doc, const struct splice_member *m)
{
	const char *p;

	if (m == NULL || m->type != ST_ARRAY)
		return 0;
	p = doc->text + m->val + 1;
	p += strspn(p, " \t\r\n");
	/* a list of numbers is one prompt */
	if (*p != '"' && *p != '[')
		return 0;
	return array_length(doc->text + m->val, doc->text + m->end, *p);
}

size_t
connector_prompts(const struct demand *d)
{
	size_t n = 0;

	if (d->facts->route == ROUTE_COMPLETIONS) /* no other path reads it */
		n = connector_list_of_prompts(d->text->doc, splice_find(d->text->doc, SK_PROMPT));

	return n > 1 ? n : 1;
}

const struct splice_member *
connector_limit(const struct demand *d)
{
	static const enum splice_key keys[] = {SK_MAX_COMPLETION_TOKENS, SK_MAX_TOKENS};

	for (size_t i = d->facts->route == ROUTE_CHAT ? 0 : 1; i < 2; i++) {
		const struct splice_member *m = splice_find(d->text->doc, keys[i]);

		if (m != NULL && m->type != ST_NULL)
			return m;
	}
	return NULL;
}

bool
connector_count(const struct demand *d, const struct splice_member *m, uint64_t *ret)
{
	const struct splice_seg v = {d->text->doc->text + m->val, m->end - m->val};

	return json_read_number(&v, UINT32_MAX, ret);
}

bool
connector_too_long(const struct demand *d)
{
	const uint64_t most = d->facts->pool->max_context;
	const struct splice_member *m = most == 0 ? NULL : connector_limit(d);
	const uint64_t ids = d->text->doc->prompt_items;
	uint64_t limit = 0;

	if (m == NULL || !connector_count(d, m, &limit))
		return false;
	return limit > most || (limit + ids > most && connector_prompts(d) == 1);
}

static bool
is_said(const struct splice_member *m)
{
	return m != NULL && m->type != ST_NULL;
}

/* A completion with `echo` has the prompt's logprobs as well as the answer's: to_sampling_params() in
 * vLLM's entrypoints/openai/completion/protocol.py. */
const char *
connector_prompt_logprobs(const struct demand *d)
{
	const struct splice *doc = d->text->doc;
	const struct splice_member *echo = splice_find(doc, SK_ECHO);
	const bool echoes = echo != NULL && echo->type == ST_TRUE &&
			    d->facts->route == ROUTE_COMPLETIONS &&
			    is_said(splice_find(doc, SK_LOGPROBS));

	return echoes || is_said(splice_find(doc, SK_PROMPT_LOGPROBS)) ? "prompt_logprobs" : NULL;
}

const struct connector *
connector_find(enum connector_kind kind)
{
	return connectors[kind];
}

const char *
connector_answer_id(const struct demand *d, char id[CONNECTOR_ANSWER_ID])
{
	(void)snprintf(id, CONNECTOR_ANSWER_ID, "\"%s-%s\"",
		d->facts->route == ROUTE_CHAT ? "chatcmpl" : "cmpl", d->facts->id);
	return id;
}

enum several
connector_several_whole(const struct req_pool *pool)
{
	(void)pool;
	return SEVERAL_WHOLE;
}

enum several
connector_several_branches(const struct req_pool *pool)
{
	(void)pool;
	return SEVERAL_BRANCHES;
}

enum several
connector_fanout(const struct req_pool *pool)
{
	return pool->shake.fanout != 0 ? SEVERAL_BRANCHES : SEVERAL_DIRECT;
}
