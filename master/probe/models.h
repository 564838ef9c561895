/*
 * The models a GET /v1/models answers with, bounded: an engine cannot make the master grow.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODELS_MAX 256 /* names of one endpoint beside the configured ones; LoRA adapters count */
#define MODELS_NAME_MAX 256 /* bytes of one name */

#define MODELS_VALUE_MAX 256 /* bytes of a value of a card; a longer one is left out */

/* What an engine tells of one of its models. */
struct model_card {
	/* the members owned_by, root and parent as the engine wrote them, without braces; "": it has
	 * written none */
	char *members;
	uint32_t max_model_len; /* tokens; 0: not told */
};

struct model_set { /* sorted, no name twice */
	char **names;
	struct model_card *cards; /* [n] of names */
	size_t n;
	/* tokens: the largest max_model_len of the entries; 0: no entry has one */
	uint32_t max_context;
};

/*
 * Reads the answer into *ret (freed first).  Names that are empty, longer than MODELS_NAME_MAX, not
 * UTF-8 or with control characters are left out.  Of all entries beyond the first MODELS_MAX only the
 * wanted names are taken.  Returns the number of names, -1 if the text is no model list (then *ret
 * stays); *ret_left_out: the number of entries that were left out.
 */
int models_read(const char *text, size_t len, const char *const *wanted, size_t nwanted,
	struct model_set *ret, size_t *ret_left_out);
/*
 * A number of what models_read() makes of the answer: two well-formed answers with the same digest and
 * the same wanted names give the same set.  The opposite need not hold.  What vLLM draws anew for each
 * answer is left out: the time, and the permissions.
 */
uint64_t models_digest(const char *text, size_t len, const char *const *wanted, size_t nwanted);
bool models_has(const struct model_set *m, const char *name);
/* The card of a model; NULL: the set does not have it. */
const struct model_card *models_card(const struct model_set *m, const char *name);
/* The same names. */
bool models_equal(const struct model_set *a, const struct model_set *b);
/* Both tell the same of a model, or nothing. */
bool models_tell_same(const struct model_set *a, const struct model_set *b, const char *name);
void models_clear(struct model_set *m);

/* The names of several sets, sorted, each once, at most `max`.  The array is the caller's to free,
 * the strings stay where they were. */
const char **models_union(
	const struct model_set *const *sets, size_t nsets, size_t max, size_t *ret_n);
