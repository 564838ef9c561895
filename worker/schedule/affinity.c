#include "worker/schedule/affinity.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/json/splice.h"
#include "shm/table.h"
#include "worker/base/text.h"

#define CHARS_PER_TOKEN 4
#define ROOT_MAX (1u << 20) /* bytes of a member that cuts depend on: a read section stays short */

/* The value of a member of the body: a string without its quotes, a number or a bool as they stand. */
static struct span
member_value(const struct splice *doc, const char *name)
{
	struct splice_seg v;

	if (doc == NULL) /* a form */
		return (struct span){NULL, 0};
	if (splice_member_raw(doc->text, doc->len, name, &v) != 1 || strchr("{[n", v.p[0]) != NULL)
		return (struct span){NULL, 0};
	return v.p[0] == '"' ? (struct span){v.p + 1, v.n - 2} : (struct span){v.p, v.n};
}

bool
affinity_session(const struct text *text, const struct table_pool *tp, uint64_t *ret_key)
{
	struct span v = {NULL, 0};

	if (tp->session_header[0] != '\0')
		v = text_header(text, tp->session_header);
	if (v.n == 0 && tp->session_member[0] != '\0')
		v = member_value(text->doc, tp->session_member);
	if (v.n == 0)
		return false;
	*ret_key = XXH3_64bits(v.p, v.n);
	return true;
}

/* The value that has the prompt. */
static const struct splice_member *
prompt_of(const struct splice *doc, enum route route)
{
	return splice_find(doc, route == ROUTE_COMPLETIONS ? SK_PROMPT
				: route == ROUTE_GENERATE  ? SK_TEXT
							   : SK_MESSAGES);
}

bool
affinity_prefix(const struct text *text, enum route route, const char *model,
	const struct table_pool *tp, uint64_t *ret_key)
{
	const struct splice_member *m = text->doc != NULL ? prompt_of(text->doc, route) : NULL;
	size_t n;

	if (m == NULL)
		return false;
	n = m->end - m->val;
	/* an engine keeps one prefix cache per model: adapters change every block */
	*ret_key = XXH3_64bits_withSeed(text->doc->text + m->val,
		n < tp->prefix_bytes ? n : tp->prefix_bytes, XXH3_64bits(model, strlen(model)));
	return true;
}

bool
affinity_cut(const struct prefix_secret *secret, const struct text *text, enum route route,
	const char *model, struct prefix_key *ret)
{
	static const enum splice_key roots[] = {SK_LORA_PATH, SK_CACHE_SALT, SK_TOOLS};
	const struct splice *doc = text->doc;
	const struct splice_member *m = doc != NULL ? prompt_of(doc, route) : NULL;
	uint64_t root = prefix_root(secret, route, model, strlen(model));

	if (m == NULL && doc != NULL && route == ROUTE_GENERATE)
		m = splice_find(doc, SK_INPUT_IDS);
	if (m == NULL)
		return false;
	for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
		const struct splice_member *a = splice_find(doc, roots[i]);
		const size_t n = a != NULL ? a->end - a->val : 0;

		root = prefix_root(secret, root, a != NULL ? doc->text + a->val : NULL,
			n < ROOT_MAX ? n : ROOT_MAX);
	}
	prefix_cut(secret, root, doc->text + m->val, m->end - m->val, ret);
	return true;
}

uint32_t
affinity_tokens(const struct splice *doc)
{
	const uint64_t n =
		(doc->prompt_chars + doc->message_chars) / CHARS_PER_TOKEN + doc->prompt_items;

	if (n < 1)
		return 1;
	return n < AFFINITY_TOKENS_MAX ? (uint32_t)n : AFFINITY_TOKENS_MAX;
}

uint32_t
affinity_estimate(const struct splice *doc, enum route route)
{
	const struct splice_member *prompt;
	uint64_t n = doc->message_chars / CHARS_PER_TOKEN;

	if (route == ROUTE_COMPLETIONS) {
		prompt = splice_find(doc, SK_PROMPT);
		n = prompt != NULL && prompt->type == ST_ARRAY
			    ? doc->prompt_elements
			    : doc->prompt_chars / CHARS_PER_TOKEN;
	}
	return (uint32_t)n; /* a body is shorter than 4 GiB */
}
