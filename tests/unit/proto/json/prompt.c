/* Prompts of token ids are cut between the blocks of the engines, by the ids and not by the bytes. */
#include "proto/json/prompt.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 16
#define IDS 300
#define MODEL "m"

static struct prefix_secret secret;
static char prompt[16 * IDS];

static void
setup(void)
{
	const uint64_t seed[2] = {1, 2};

	prefix_secret_make(&secret, seed);
}

TestSuite(prompt, .init = setup);

/* A list of n ids; `change`: the one that is another, `between`: what stands between two. */
static const char *
list(uint32_t n, uint32_t change, const char *between)
{
	int at = 0;

	for (uint32_t i = 0; i < n; i++)
		at += sprintf(prompt + at, "%s%u", i == 0 ? "[" : between,
			i * 7919 % 128000 + (i == change));
	(void)sprintf(prompt + at, "]");
	return prompt;
}

static struct prefix_key
cut(const char *member, const char *value, const char *more, uint32_t block)
{
	static char body[32 * IDS];
	struct prefix_key key;
	struct splice doc;
	const char *why;
	size_t at;
	int n = sprintf(body, "{\"%s\": %s%s}", member, value, more);

	cr_assert_eq(splice_scan(&doc, body, (size_t)n, &why, &at), 0, "%s", body);
	cr_assert(prompt_cut(&secret, &doc, prompt_member(&doc), MODEL, block, &key));
	return key;
}

static uint32_t
common(const struct prefix_key *a, const struct prefix_key *b)
{
	uint32_t n = 0;

	while (n < a->n && n < b->n && a->digest[n] == b->digest[n])
		n++;
	return n;
}

Test(prompt, ids_are_cut_behind_units_of_blocks)
{
	const struct prefix_key a = cut("prompt", list(IDS, IDS, ","), "", BLOCK);

	cr_expect_eq(a.block, BLOCK);
	cr_expect_eq(a.size, IDS);
	cr_expect_eq(a.n, IDS / 64);
	for (uint32_t i = 0; i < a.n; i++)
		cr_expect_eq(a.end[i], 64 * (i + 1));
	cr_expect_eq(cut("prompt", list(IDS, IDS, ","), "", 100).n, 3, "a larger block is a unit");
	cr_expect_eq(cut("prompt", list(IDS, IDS, ","), "", 48).end[0], 96, "blocks are whole");
	cr_expect_eq(cut("prompt", list(63, IDS, ","), "", 1).n, 0);
}

Test(prompt, the_bytes_between_ids_do_not_matter)
{
	const struct prefix_key a = cut("prompt", list(IDS, IDS, ","), "", BLOCK),
				b = cut("prompt", list(IDS, IDS, " ,\n\t"), "", BLOCK),
				c = cut("input_ids", list(IDS, IDS, ", "), "", BLOCK),
				d = cut("prompt", list(IDS, 200, ","), "", BLOCK);

	cr_expect_eq(common(&a, &b), a.n);
	cr_expect_eq(common(&a, &c), a.n, "SGLang's name for it");
	cr_expect_eq(common(&a, &d), 3);
}

Test(prompt, what_the_digests_of_ids_depend_on)
{
	const struct prefix_key a = cut("prompt", list(IDS, IDS, ","), "", BLOCK);
	const char *const others[] = {",\"cache_salt\": \"s\"", ",\"lora_path\": \"p\""};
	struct prefix_key b;

	for (size_t i = 0; i < 2; i++) {
		b = cut("prompt", list(IDS, IDS, ","), others[i], BLOCK);
		cr_expect_eq(common(&a, &b), 0, "%s", others[i]);
	}
	b = cut("prompt", list(IDS, IDS, ","), ",\"tools\": [1]", BLOCK);
	cr_expect_eq(common(&a, &b), a.n, "a prompt of ids has no tools");
}

/* A text, several prompts, what is no id, and no block size: by bytes, as ever. */
Test(prompt, what_is_not_one_list_of_ids_is_cut_by_bytes)
{
	static char texts[][1200] = {"", "", "", "", "", ""};
	const struct prefix_key a = cut("prompt", list(IDS, IDS, ","), "", 0);

	cr_expect_eq(a.block, 0);
	cr_expect_eq(a.end[0], PREFIX_STEP);
	(void)sprintf(texts[0], "\"%0600d\"", 0);
	(void)sprintf(texts[1], "[[1,2],[3],\"%0600d\"]", 0);
	(void)sprintf(texts[2], "[1,2.5,\"%0600d\"]", 0);
	(void)sprintf(texts[3], "[1,-2,\"%0600d\"]", 0);
	(void)sprintf(texts[4], "[1,1e3,\"%0600d\"]", 0);
	(void)sprintf(texts[5], "[1,1000000000,\"%0600d\"]", 0);
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		const struct prefix_key b = cut("prompt", texts[i], "", BLOCK);

		cr_expect_eq(b.block, 0, "%s", texts[i]);
		cr_expect_eq(b.n, 2, "%s", texts[i]);
	}
	cr_expect_eq(cut("prompt", list(IDS, IDS, ","), "", PREFIX_BLOCK_MAX + 1).block, 0);
	cr_expect_eq(cut("prompt", "[]", "", BLOCK).n, 0);
	cr_expect_eq(cut("prompt", "[ ]", "", BLOCK).block, 0);
}

/* Routers with other secrets agree on what is between two cuts. */
Test(prompt, ids_between_two_cuts_have_a_hash_of_their_own)
{
	struct prefix_key a = cut("prompt", list(IDS, 70, ","), "", BLOCK);
	const uint64_t first = prefix_between(&a, 0), second = prefix_between(&a, 1);

	cr_expect_neq(first, second);
	a = cut("prompt", list(IDS, IDS, ","), "", BLOCK);
	cr_expect_eq(prefix_between(&a, 0), first);
	cr_expect_neq(prefix_between(&a, 1), second);
	cr_expect_eq(cut("prompt", list(IDS, IDS, ","), "", BLOCK).at[0], a.at[0]);
}
