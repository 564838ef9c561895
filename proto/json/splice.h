/*
 * Editing JSON in place: one pass over a request body finds the members the router owns, checks the
 * grammar of everything, and the legs' bodies are then the client's bytes with members cut out,
 * replaced or added.  Nothing is re-serialised: big integers, 1e400, escapes, key order and the
 * client's own duplicate keys reach the engine as they were sent.
 *
 * Ownership: a scan points into the caller's text.  Nothing is allocated but a scan in steps.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPLICE_MAX_OWNED 64 /* occurrences of owned members in one body; more is refused */
/* nesting; deeper is refused (json-c's own limit is 32, simdjson's 1024) */
#define SPLICE_MAX_DEPTH 128
#define SPLICE_MAX_PIECE                                                                           \
	(64 << 10) /* bytes of a name, of a number's digits, or of blanks in a row */
#define SPLICE_MAX_SEGMENTS (4 * SPLICE_MAX_OWNED)

/*
 * Members that the router reads, replaces or removes.  Keys are compared after unescaping, since
 * "max\u005ftokens" names the same member to an engine.
 */
enum splice_key {
	/* read */
	SK_MODEL,
	SK_STREAM,
	SK_MESSAGES,
	SK_PROMPT,
	SK_N,
	SK_PRIORITY,
	SK_TEXT,         /* SGLang's /generate */
	SK_INPUT_IDS,    /* the same */
	SK_INPUT,        /* /v1/responses */
	SK_INSTRUCTIONS, /* the same: what stands before `input` */
	SK_SYSTEM,       /* /v1/messages: what stands before `messages` */
	SK_SAMPLING_PARAMS,
	SK_PREVIOUS_RESPONSE_ID, /* /v1/responses */
	SK_BACKGROUND,           /* the same: the answer is generated after the reply */
	SK_CACHE_SALT,           /* prompts of different salts share no cache */
	SK_LORA_PATH,            /* SGLang's: an adapter, whatever `model` says */
	/* limits of the prefill leg (protocols.md 1.6) */
	SK_MAX_TOKENS,
	SK_MAX_COMPLETION_TOKENS,
	SK_MAX_OUTPUT_TOKENS, /* /v1/responses */
	SK_MIN_TOKENS,
	SK_STREAM_OPTIONS,
	SK_STOP,
	SK_STOP_TOKEN_IDS,
	SK_IGNORE_EOS,
	SK_STOP_SEQUENCES, /* /v1/messages */
	SK_THINKING,       /* the same: has a budget, which max_tokens must exceed */
	SK_STORE,          /* /v1/responses */
	/* what a conversion from chat to completions or a fan-out changes (4.6) */
	SK_TOOLS,
	SK_TOOL_CHOICE,
	SK_LOGPROBS,
	SK_TOP_LOGPROBS,
	SK_PROMPT_LOGPROBS,
	SK_ECHO,
	SK_SEED,
	SK_BEST_OF,
	SK_RETURN_LOGPROB,
	SK_CACHE_HIT_THRESHOLD,
	/* members of the request for the rest of a stream (follow.h) */
	SK_CONTINUE_FINAL_MESSAGE,
	SK_ADD_GENERATION_PROMPT,
	/* choose a peer or a request: never pass from a client (protocols.md 10.1) */
	SK_KV_TRANSFER_PARAMS,
	SK_EC_TRANSFER_PARAMS, /* vLLM's cache of an encoder */
	SK_VLLM_XARGS,         /* may have these two inside: edit_refuses() */
	SK_DISAGG_PREFILL_RESP,
	SK_DISAGG_SPEC,
	SK_BOOTSTRAP_HOST,
	SK_BOOTSTRAP_PORT,
	SK_BOOTSTRAP_ROOM,
	SK_ROUTED_DP_RANK,
	SK_DISAGG_PREFILL_DP_RANK,
	SK_DISAGG_PARAMS,
	SK_DATA_PARALLEL_RANK,
	SK_REQUEST_ID,
	SK_RID,
	SK_N_KEYS
};

/* The member's name as on the wire. */
const char *splice_key_name(enum splice_key k);

enum splice_type { ST_NULL, ST_FALSE, ST_TRUE, ST_NUMBER, ST_STRING, ST_ARRAY, ST_OBJECT };

struct splice_member {
	enum splice_key key;
	enum splice_type type;
	/* number among all top-level members: says which owned members are neighbours */
	uint32_t index;
	size_t start;    /* offset of the key's opening quote */
	size_t val, end; /* value is text[val..end) */
	size_t comma;    /* offset of the comma that precedes this member, or 0 for the first */
	size_t next;     /* offset of the next member's opening quote, or 0 for the last */
};

struct splice {
	const char *text;
	size_t len;
	size_t nmembers;    /* all top-level members, owned or not */
	size_t open, close; /* offsets of the outer braces */
	uint64_t met;       /* bit k: key k is among the owned members */
	size_t nowned;
	/* how long the prompt is; characters are code points, as Python's len() counts them */
	uint64_t prompt_chars;    /* of a string `prompt`, and of the strings in a list of them */
	uint64_t prompt_items;    /* numbers in a token-id prompt, or in a list of those */
	uint64_t prompt_elements; /* of a list `prompt`, whatever they are */
	/* of every string `content` of `messages`, the parts of type "text" of every list, and
	 * the bare strings in a list, which vLLM takes for text parts */
	uint64_t message_chars;
	/* the same of `input`, and of `system` or `instructions`, whatever types the parts are of */
	uint64_t other_chars;
	struct splice_member owned[SPLICE_MAX_OWNED]; /* the last member: splice_size() */
};

/* Bytes of a scanned object that are in use: what is behind them may be given back. */
static inline size_t
splice_size(const struct splice *s)
{
	return offsetof(struct splice, owned) + s->nowned * sizeof(s->owned[0]);
}

/*
 * Scans one JSON object (RFC 8259 grammar, blanks around it allowed; UTF-8 is checked; a lone
 * escaped surrogate passes, as in Python's json).  Bodies up to 2^32-2 bytes.  Returns 0, or -1
 * with *ret_why one English phrase (static) and *ret_at the byte offset.
 */
int splice_scan(
	struct splice *s, const char *text, size_t len, const char **ret_why, size_t *ret_at);

/*
 * The same in steps, for a text that would hold up others.  The text stays where it is meanwhile.  A step reads some
 * `bytes`, and up to SPLICE_MAX_PIECE more.  It returns 1 if the text goes on, or what splice_scan() returns; then no
 * further step follows.
 */
struct splice_scan;
struct splice_scan *splice_scan_new(struct splice *s, const char *text, size_t len);
int splice_scan_step(struct splice_scan *c, size_t bytes, const char **ret_why, size_t *ret_at);
void splice_scan_free(struct splice_scan **c);

/* Last occurrence of an owned member (engines take the last of duplicates), or NULL. */
const struct splice_member *splice_find(const struct splice *s, enum splice_key k);

/*
 * Undoes the escapes of a string member into buf (NUL-terminated).  Returns its length, or -1 if it
 * is no string, does not fit, or holds a NUL.
 */
long splice_string(const struct splice *s, const struct splice_member *m, char *buf, size_t size);

/*
 * What a leg's body does with owned members.
 * SE_SET with an absent member adds it at the end; with duplicates it replaces the first and cuts the
 * others.  SE_LOWER replaces it only if the client sent it.  SE_CUT removes every occurrence.
 */
enum splice_op { SE_KEEP, SE_CUT, SE_SET, SE_LOWER };

struct splice_edit {
	uint64_t
		given; /* bit k: on[k] holds what splice_edit() was given; others are kept, and on[k] is not read */
	struct {
		enum splice_op op;
		const char *value; /* raw JSON, must outlive the segments */
		size_t len;
	} on[SK_N_KEYS];
};

static inline void
splice_edit(
	struct splice_edit *e, enum splice_key k, enum splice_op op, const char *value, size_t len)
{
	e->given |= UINT64_C(1) << k;
	e->on[k].op = op;
	e->on[k].value = value;
	e->on[k].len = len;
}

static inline enum splice_op
splice_op_of(const struct splice_edit *e, enum splice_key k)
{
	return (e->given >> k & 1) != 0 ? e->on[k].op : SE_KEEP;
}

struct splice_seg {
	const char *p;
	size_t n;
};

/*
 * Lays the edited body out as segments of the original text, of the edit's values, and of static
 * bytes.  Returns the number of segments (at most SPLICE_MAX_SEGMENTS), total bytes in *ret_total.
 */
size_t splice_layout(const struct splice *s, const struct splice_edit *e, struct splice_seg *segs,
	size_t *ret_total);

/*
 * Raw span of one top-level member of any JSON object, by its literal name: for answers, where
 * kv_transfer_params is passed on untyped.  Checks the grammar of the whole text.
 * Returns 1 and *ret_value, 0 if absent, -1 if the text is not a JSON object.
 */
int splice_member_raw(const char *text, size_t len, const char *name, struct splice_seg *ret_value);

/*
 * Length of the JSON value that text[0..len) begins with, its grammar checked; 0 if there is none.
 * The value itself has no blank before it.
 */
size_t splice_value(const char *text, size_t len);

/*
 * The next element of the array `list`, a span that splice_member_raw() gave; *at is 0 before the
 * first call.  False behind the last one.
 */
bool splice_element(const struct splice_seg *list, size_t *at, struct splice_seg *ret_element);
