#include "proto/json/prompt.h"

#include <string.h>

#define ROOT_MAX (1u << 20) /* bytes of a member that cuts depend on: a read section stays short */

/* The value of a member as it stands in the body; none: no bytes. */
static struct splice_seg
value_of(const struct splice *doc, enum splice_key key)
{
	const struct splice_member *m = splice_find(doc, key);

	return m != NULL ? (struct splice_seg){doc->text + m->val, m->end - m->val}
			 : (struct splice_seg){"", 0};
}

static struct splice_seg
before(const struct splice *doc, enum splice_key where)
{
	if (where == SK_MESSAGES)
		return value_of(doc, SK_SYSTEM);
	if (where == SK_INPUT)
		return value_of(doc, SK_INSTRUCTIONS);
	return (struct splice_seg){"", 0};
}

bool
prompt_cut(const struct prefix_secret *secret, const struct splice *doc, enum splice_key where,
	const char *model, struct prefix_key *ret)
{
	static const enum splice_key roots[] = {SK_LORA_PATH, SK_CACHE_SALT, SK_TOOLS};
	const struct splice_seg prompt = value_of(doc, where), first = before(doc, where);
	uint64_t root = prefix_root(secret, where, model, strlen(model));

	if (prompt.n == 0)
		return false;
	for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
		const struct splice_seg part = value_of(doc, roots[i]);

		root = prefix_root(secret, root, part.p, part.n < ROOT_MAX ? part.n : ROOT_MAX);
	}
	prefix_cut_two(secret, root, first.p, first.n, prompt.p, prompt.n, ret);
	return true;
}

enum splice_key
prompt_member(const struct splice *doc)
{
	/* `text` may also be the form of the answer to `input` */
	static const enum splice_key keys[] = {
		SK_MESSAGES, SK_PROMPT, SK_INPUT, SK_TEXT, SK_INPUT_IDS};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (splice_find(doc, keys[i]) != NULL)
			return keys[i];
	return SK_N_KEYS;
}

uint32_t
prompt_tokens(const struct splice *doc)
{
	const uint64_t chars = doc->prompt_chars + doc->message_chars + doc->other_chars,
		       n = chars / PROMPT_CHARS_PER_TOKEN + doc->prompt_items;

	if (n < 1)
		return 1;
	return n < PROMPT_TOKENS_MAX ? (uint32_t)n : PROMPT_TOKENS_MAX;
}
