#include "proto/json/prompt.h"

#include <string.h>

#define ID_DIGITS 9         /* more than any vocabulary has */
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

/* The part of a member's value that cuts depend on. */
static struct splice_seg
root_part(const struct splice *doc, enum splice_key key)
{
	struct splice_seg part = value_of(doc, key);

	part.n = part.n < ROOT_MAX ? part.n : ROOT_MAX;
	return part;
}

/* The value behind *p, which is moved behind the comma or the bracket after it; that is in *ret_after.  False: it is no
 * token id.  The text is known to be JSON, and `end` to be behind its bracket. */
static bool
next_id(const char **p, const char *end, uint32_t *ret, char *ret_after)
{
	const char *at = *p, *digits;
	uint64_t id = 0;

	while (at < end && *at <= ' ')
		at++;
	for (digits = at; at < end && *at >= '0' && *at <= '9'; at++)
		id = id * 10 + (uint64_t)(*at - '0');
	if (at == digits || at - digits > ID_DIGITS)
		return false;
	while (at < end && *at <= ' ')
		at++;
	if (at == end || (*at != ',' && *at != ']'))
		return false;
	*ret = (uint32_t)id;
	*ret_after = *at++;
	*p = at;
	return true;
}

/* False: it is not one list of ids. */
static bool
cut_ids(const struct prefix_secret *secret, uint64_t digest, const struct splice_seg *prompt,
	uint32_t block, struct prefix_key *ret)
{
	const uint32_t unit = prefix_unit_blocks(block);
	const char *p = prompt->p + 1, *end = prompt->p + prompt->n;
	uint32_t ids[PREFIX_BLOCK_MAX], n = 0, blocks = 0, cut = unit, size = 0;
	char after = prompt->p[0] == '[' ? ',' : ']';

	ret->n = 0;
	while (after == ',' && ret->n < PREFIX_CUTS) {
		if (!next_id(&p, end, &ids[n], &after))
			return false;
		size++;
		if (++n < block)
			continue;
		digest = prefix_block(secret, digest, ids, block);
		n = 0;
		if (++blocks < cut)
			continue;
		ret->end[ret->n] = size;
		ret->at[ret->n] = (uint32_t)(p - prompt->p);
		ret->digest[ret->n++] = digest;
		cut += unit * prefix_unit_step(blocks / unit);
	}
	ret->block = block;
	ret->size = size;
	ret->part[0] = ret->part[1] = prompt->p;
	ret->first = (uint32_t)prompt->n;
	return size > 0;
}

bool
prompt_cut(const struct prefix_secret *secret, const struct splice *doc, enum splice_key where,
	const char *model, uint32_t block, struct prefix_key *ret)
{
	static const enum splice_key roots[] = {SK_LORA_PATH, SK_CACHE_SALT, SK_TOOLS};
	const struct splice_seg prompt = value_of(doc, where), first = before(doc, where);
	uint64_t root;

	if (prompt.n == 0)
		return false;
	if (block != 0 && block <= PREFIX_BLOCK_MAX && prompt.p[0] == '[') {
		const struct splice_seg path = root_part(doc, SK_LORA_PATH),
					salt = root_part(doc, SK_CACHE_SALT);

		root = prefix_ids_root(secret, prefix_ids_model(secret, model, strlen(model)),
			path.p, path.n, salt.p, salt.n);
		if (cut_ids(secret, root, &prompt, block, ret)) {
			if (ret->size <
				doc->prompt_items) /* what is behind the last cut was not read */
				ret->size = (uint32_t)doc->prompt_items;
			return true;
		}
	}
	root = prefix_root(secret, where, model, strlen(model));
	for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
		const struct splice_seg part = root_part(doc, roots[i]);

		root = prefix_root(secret, root, part.p, part.n);
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
