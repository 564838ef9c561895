/*
 * What the files of proto/answer share; private to them.
 *
 * Calls go downward, from the top of this list to its end:
 *
 *	answer.c           the parts' life, events' lines
 *	answer_plain.c     answers whose members stay as they are: fan-out, ids, cached tokens
 *	answer_clean.c     answers that are written anew: the first token from P, completions as chat
 *	answer_usage.c     corrected and summed usages
 *	answer_logprobs.c  logprobs of completions, joined or as chat has them
 *	answer_generate.c  SGLang's /generate
 *	answer_parts.c     the store of kept texts, numbers, what is known of an answer
 *
 * Texts that are kept lie in one store, which moves as it grows: they are told by their offsets.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/answer/answer_how.h"
#include "proto/json/json_copy.h"
#include "proto/json/json_read.h"
#include "proto/json/splice.h"
#include "shm/base/mem.h"

/* A text in the store; n is 0: none. */
struct kept {
	size_t at, n;
};

/* What P said of one choice. */
struct first {
	bool there;
	bool told;      /* a stream's: its role is out; a body's: it is written */
	uint64_t chars; /* of its text */
	struct kept text, logprobs, finish, stop;
};

/* Input logprobs that P gave for one text of a /generate. */
enum { INPUT_LISTS = 3 };

struct input_first {
	bool there;
	struct kept lists[INPUT_LISTS];
};

struct part {
	bool prefilled;             /* P's answer is known */
	bool begun;                 /* D said something */
	bool ended;                 /* answer_part_end() */
	struct kept usage;          /* as the client is to see it; of the whole part */
	struct kept prefill_usage;  /* as P said it */
	struct kept cached;         /* P's cached_tokens */
	struct kept whole, choices; /* D's body, and in it its list */
	struct input_first *inputs;
	size_t ninputs;
};

struct answer {
	struct answer_how how;
	size_t max_bytes, extra; /* extra: of inputs */
	struct membuf store;
	struct membuf joined;               /* data lines of one event */
	struct membuf json, choices, usage; /* being written */
	struct membuf scratch;
	bool known; /* id, created and model are */
	struct kept id, created, model;
	bool usage_held;         /* usage events were */
	struct kept usage_event; /* the first one, if the others stay as they are; its usage is: */
	size_t usage_at, usage_n;
	uint32_t nfirsts;     /* choices of a part that can be written anew */
	struct first *firsts; /* of every such choice of every part; NULL if all is to stay */
	struct part part[];
};

#define PUT(out, text) membuf_add(out, text, sizeof(text) - 1)

static inline void
put_seg(struct membuf *out, const struct splice_seg *seg)
{
	membuf_add(out, seg->p, seg->n);
}

/* --- answer_parts.c: what all files use ----------------------------------------------------- */

void put_number(struct membuf *out, uint64_t n);

static inline struct splice_seg
kept_get(const struct answer *a, const struct kept *k)
{
	return (struct splice_seg){k->n > 0 ? a->store.p + k->at : "", k->n};
}

/* Keeps a copy; false if max_bytes forbid.  `text` does not lie in the store. */
bool keep(struct answer *a, const struct splice_seg *text, struct kept *ret);
bool keep_room(struct answer *a, size_t n);

static inline bool
is_merged(const struct answer *a)
{
	return a->how.parts > 1;
}

static inline bool
seg_is_null(const struct splice_seg *seg)
{
	return seg->n == 0 || seg->p[0] == 'n';
}

#define COUNT_MAX (UINT64_C(1) << 53) /* what any JSON reader holds exactly */

/* Whether it is a count that can be reckoned with. */
static inline bool
seg_number(const struct splice_seg *seg, uint64_t *ret)
{
	return json_read_number(seg, COUNT_MAX, ret);
}

/* Whether a top-level member says that the text is an error: "error" not null, or "object" "error". */
bool says_error(const struct splice_seg *key, const struct splice_seg *value);

/*
 * Which of `n` names a key is; n: none.  False if it is one that *seen, the bits of those before,
 * has already: what is written in place of a member must not be multiplied by an engine that says it
 * again and again.
 */
bool find_once(const struct splice_seg *key, const char *const *names, size_t n, unsigned *seen,
	size_t *ret);

/* Keeps id, created and model of the first text that is seen; long ones, which all events would have, are bad. */
int know(struct answer *a, const char *json, size_t n);

/* The client's number of choice k of a part; false if a part has no such. */
bool choice_number(const struct answer *a, uint32_t part, uint64_t k, uint64_t *ret);

/* --- answer_clean.c: the answer is written anew -------------------------------------------- */

bool is_clean(const struct answer *a);
int clean_prefill(struct answer *a, uint32_t part, const char *json, size_t n, struct membuf *out);
/* The rewritten event into a->json (nothing: it is held back), those before it into out. */
int clean_event(struct answer *a, uint32_t part, const struct splice_seg *json, struct membuf *out);
int clean_finish(struct answer *a, uint32_t part, struct membuf *out);
/* If it was asked for, or one was held back. */
void clean_usage_event(struct answer *a, struct membuf *out);
int clean_whole(struct answer *a, struct membuf *out);

/* --- answer_plain.c: members stay ---------------------------------------------------------- */

/* As clean_event(). */
int plain_event(struct answer *a, uint32_t part, const struct splice_seg *json);
void plain_usage_event(const struct answer *a, struct membuf *out);
int plain_whole(struct answer *a, struct membuf *out);

/* --- answer_usage.c ------------------------------------------------------------------------ */

/* Notes of P's answer what a usage is corrected by. */
int usage_prefill(struct answer *a, uint32_t part, const struct splice_seg *usage);
/* Appends D's usage as the client is to see it; `usage` is an object. */
int usage_correct(
	struct answer *a, uint32_t part, const struct splice_seg *usage, struct membuf *out);
/* Keeps that as the whole part's. */
int usage_keep(struct answer *a, uint32_t part, const struct splice_seg *usage);
/* Appends the parts' usages as one; false, and nothing, if no part has any. */
bool usage_sum(const struct answer *a, struct membuf *out);

/* --- answer_logprobs.c: of completions ----------------------------------------------------- */

/* Appends the elements of both arrays as one array. */
void put_arrays(const struct splice_seg *a, const struct splice_seg *b, struct membuf *out);
/* Appends P's and D's as one; either may be null or none.  So many characters of P's stand before D's text. */
int logprobs_join(
	struct answer *a, const struct splice_seg of[2], uint64_t before, struct membuf *out);
/* The same in chat's shape. */
int logprobs_chat(struct answer *a, const struct splice_seg of[2], struct membuf *out);

/* --- answer_generate.c --------------------------------------------------------------------- */

int generate_prefill(struct answer *a, uint32_t part, const char *text, size_t n);
/* One event's object into a->json. */
int generate_event(struct answer *a, uint32_t part, const struct splice_seg *json);
int generate_whole(struct answer *a, struct membuf *out);
