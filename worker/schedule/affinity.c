#include "worker/schedule/affinity.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/json/prompt.h"
#include "proto/json/splice.h"
#include "shm/table.h"
#include "worker/base/text.h"

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

/* The member that has the prompt. */
static enum splice_key
prompt_of(const struct splice *doc, enum route route)
{
	if (route == ROUTE_COMPLETIONS)
		return SK_PROMPT;
	if (route == ROUTE_GENERATE)
		return splice_find(doc, SK_TEXT) != NULL ? SK_TEXT : SK_INPUT_IDS;
	return route == ROUTE_RESPONSES ? SK_INPUT : SK_MESSAGES;
}

bool
affinity_prefix(const struct text *text, enum route route, const char *model,
	const struct table_pool *tp, uint64_t *ret_key)
{
	const struct splice_member *m =
		text->doc != NULL ? splice_find(text->doc, prompt_of(text->doc, route)) : NULL;
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
	const char *model, uint32_t block, struct prefix_key *ret)
{
	return text->doc != NULL &&
	       prompt_cut(secret, text->doc, prompt_of(text->doc, route), model, block, ret);
}

uint32_t
affinity_estimate(const struct splice *doc, enum route route)
{
	const struct splice_member *prompt;
	uint64_t n = doc->message_chars / PROMPT_CHARS_PER_TOKEN;

	if (route == ROUTE_COMPLETIONS) {
		prompt = splice_find(doc, SK_PROMPT);
		n = prompt != NULL && prompt->type == ST_ARRAY
			    ? doc->prompt_elements
			    : doc->prompt_chars / PROMPT_CHARS_PER_TOKEN;
	}
	if (route_is_agent(route))
		n = (doc->message_chars + doc->other_chars) / PROMPT_CHARS_PER_TOKEN;
	return (uint32_t)n; /* a body is shorter than 4 GiB */
}
