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
 *	answer_parts.c     the store of kept texts, numbers, id, created and model of an answer
 *
 * Kept texts are in one store, which moves as it grows, so they are referred to by offset.
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

/* A text in the store; n 0: none. */
struct kept {
	size_t at, n;
};

/* P's output for one choice. */
struct first {
	bool there;
	bool told;      /* of a stream: its role was sent; of a body: it is written */
	uint64_t chars; /* of its text */
	struct kept text, logprobs, finish, stop;
};

/* P's input logprobs for one text of a /generate. */
enum { INPUT_LISTS = 3 };

struct input_first {
	bool there;
	struct kept lists[INPUT_LISTS];
};

struct part {
	bool prefilled;             /* P's answer is known */
	bool begun;                 /* D has sent something */
	bool ended;                 /* answer_part_end() */
	struct kept usage;          /* for the client; of the whole part */
	struct kept prefill_usage;  /* as P sent it */
	struct kept cached;         /* P's cached_tokens */
	struct kept whole, choices; /* D's body, and the list of choices in it */
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
	bool known; /* id, created and model are known */
	struct kept id, created, model;
	bool usage_held;         /* usage events were held back */
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

/* Keeps a copy; false if max_bytes would be exceeded.  `text` is not in the store. */
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

#define COUNT_MAX (UINT64_C(1) << 53) /* every JSON reader holds counts up to this exactly */

/* Whether it is a count that can be computed with. */
static inline bool
seg_number(const struct splice_seg *seg, uint64_t *ret)
{
	return json_read_number(seg, COUNT_MAX, ret);
}

/* Whether a top-level member says that the text is an error: "error" not null, or "object" "error". */
bool says_error(const struct splice_seg *key, const struct splice_seg *value);

/*
 * Which of `n` names a key is; n: none.  False if *seen, the bits of the names before, has the name
 * already: an engine that repeats a member must not multiply what is written in its place.
 */
bool find_once(const struct splice_seg *key, const char *const *names, size_t n, unsigned *seen,
	size_t *ret);

/* Keeps id, created and model of the first text; long ones, which every event would repeat, are
 * refused. */
int know(struct answer *a, const char *json, size_t n);

/* The client's number of choice k of a part; false if the part has no such choice. */
bool choice_number(const struct answer *a, uint32_t part, uint64_t k, uint64_t *ret);

/* --- answer_clean.c: the answer is written anew -------------------------------------------- */

bool is_clean(const struct answer *a);
int clean_prefill(struct answer *a, uint32_t part, const char *json, size_t n, struct membuf *out);
/* Writes the rewritten event into a->json (nothing if it is held back), and events that precede
 * it into out. */
int clean_event(struct answer *a, uint32_t part, const struct splice_seg *json, struct membuf *out);
int clean_finish(struct answer *a, uint32_t part, struct membuf *out);
/* If the client requested it, or one was held back. */
void clean_usage_event(struct answer *a, struct membuf *out);
int clean_whole(struct answer *a, struct membuf *out);

/* --- answer_plain.c: members stay ---------------------------------------------------------- */

/* As clean_event(). */
int plain_event(struct answer *a, uint32_t part, const struct splice_seg *json);
void plain_usage_event(const struct answer *a, struct membuf *out);
int plain_whole(struct answer *a, struct membuf *out);

/* --- answer_usage.c ------------------------------------------------------------------------ */

/* Keeps the figures of P's answer that correct a usage. */
int usage_prefill(struct answer *a, uint32_t part, const struct splice_seg *usage);
/* Appends D's usage for the client; `usage` is an object. */
int usage_correct(
	struct answer *a, uint32_t part, const struct splice_seg *usage, struct membuf *out);
/* Keeps it as the usage of the whole part. */
int usage_keep(struct answer *a, uint32_t part, const struct splice_seg *usage);
/* Appends the parts' usages as one; false, and appends nothing, if no part has any. */
bool usage_sum(const struct answer *a, struct membuf *out);

/* --- answer_logprobs.c: of completions ----------------------------------------------------- */

/* Appends the elements of both arrays as one array. */
void put_arrays(const struct splice_seg *a, const struct splice_seg *b, struct membuf *out);
/* Appends P's and D's logprobs as one; either may be null or absent.  `chars` characters of P's
 * text precede D's text. */
int logprobs_join(
	struct answer *a, const struct splice_seg of[2], uint64_t before, struct membuf *out);
/* The same in chat's shape. */
int logprobs_chat(struct answer *a, const struct splice_seg of[2], struct membuf *out);

/* --- answer_generate.c --------------------------------------------------------------------- */

int generate_prefill(struct answer *a, uint32_t part, const char *text, size_t n);
/* Writes one event's object into a->json. */
int generate_event(struct answer *a, uint32_t part, const struct splice_seg *json);
int generate_whole(struct answer *a, struct membuf *out);
