/*
 * The scan is a loop over items (one member or element each) with one byte of state per nesting
 * level, so depth costs no stack.  Strings are where the bytes are (prompts, base64 images): they
 * are passed many bytes at a time.
 *
 * What a value *means* is its role: the table `roles` says how a role leads from the body down to
 * the strings that count as prompt.
 */
#include "proto/json/splice.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json/json_integers.h"
#include "proto/json/json_string.h"
#include "proto/json/utf8.h"
#include "shm/base/mem.h"

/* clang-format off */
#define KEYS(X)                                                  \
	X(SK_MODEL,                  "model")                    \
	X(SK_STREAM,                 "stream")                   \
	X(SK_MESSAGES,               "messages")                 \
	X(SK_PROMPT,                 "prompt")                   \
	X(SK_N,                      "n")                        \
	X(SK_PRIORITY,               "priority")                 \
	X(SK_TEXT,                   "text")                     \
	X(SK_INPUT_IDS,              "input_ids")                \
	X(SK_INPUT,                  "input")                    \
	X(SK_INSTRUCTIONS,           "instructions")             \
	X(SK_SYSTEM,                 "system")                   \
	X(SK_SAMPLING_PARAMS,        "sampling_params")          \
	X(SK_PREVIOUS_RESPONSE_ID,   "previous_response_id")     \
	X(SK_BACKGROUND,             "background")               \
	X(SK_CACHE_SALT,             "cache_salt")               \
	X(SK_LORA_PATH,              "lora_path")                \
	X(SK_MAX_TOKENS,             "max_tokens")               \
	X(SK_MAX_COMPLETION_TOKENS,  "max_completion_tokens")    \
	X(SK_MAX_OUTPUT_TOKENS,      "max_output_tokens")        \
	X(SK_MIN_TOKENS,             "min_tokens")               \
	X(SK_STREAM_OPTIONS,         "stream_options")           \
	X(SK_STOP,                   "stop")                     \
	X(SK_STOP_TOKEN_IDS,         "stop_token_ids")           \
	X(SK_IGNORE_EOS,             "ignore_eos")               \
	X(SK_STOP_SEQUENCES,         "stop_sequences")           \
	X(SK_THINKING,               "thinking")                 \
	X(SK_STORE,                  "store")                    \
	X(SK_TOOLS,                  "tools")                    \
	X(SK_TOOL_CHOICE,            "tool_choice")              \
	X(SK_LOGPROBS,               "logprobs")                 \
	X(SK_TOP_LOGPROBS,           "top_logprobs")             \
	X(SK_PROMPT_LOGPROBS,        "prompt_logprobs")          \
	X(SK_ECHO,                   "echo")                     \
	X(SK_SEED,                   "seed")                     \
	X(SK_BEST_OF,                "best_of")                  \
	X(SK_RETURN_LOGPROB,         "return_logprob")           \
	X(SK_CACHE_HIT_THRESHOLD,    "cache_hit_threshold")      \
	X(SK_CONTINUE_FINAL_MESSAGE, "continue_final_message")   \
	X(SK_ADD_GENERATION_PROMPT,  "add_generation_prompt")    \
	X(SK_KV_TRANSFER_PARAMS,     "kv_transfer_params")       \
	X(SK_EC_TRANSFER_PARAMS,     "ec_transfer_params")       \
	X(SK_VLLM_XARGS,             "vllm_xargs")               \
	X(SK_DISAGG_PREFILL_RESP,    "disagg_prefill_resp")      \
	X(SK_DISAGG_SPEC,            "disagg_spec")              \
	X(SK_BOOTSTRAP_HOST,         "bootstrap_host")           \
	X(SK_BOOTSTRAP_PORT,         "bootstrap_port")           \
	X(SK_BOOTSTRAP_ROOM,         "bootstrap_room")           \
	X(SK_ROUTED_DP_RANK,         "routed_dp_rank")           \
	X(SK_DISAGG_PREFILL_DP_RANK, "disagg_prefill_dp_rank")   \
	X(SK_DISAGG_PARAMS,          "disaggregated_params")     \
	X(SK_DATA_PARALLEL_RANK,     "data_parallel_rank")       \
	X(SK_REQUEST_ID,             "request_id")               \
	X(SK_RID,                    "rid")

#define KEY_ROW(k, text) [k] = { text, ",\"" text "\":", sizeof(text) - 1 },
#define KEY_LENGTH(k, text) | 1u << (sizeof(text) - 1)

static const struct {
	const char *name;
	const char *glue; /* the text before the value of an added member */
	size_t len;	  /* of the name */
} keys[SK_N_KEYS] = { KEYS(KEY_ROW) };

/* Bit n: an owned key of n bytes exists.  Most keys fail here, before any comparison. */
static const uint32_t key_lengths = 0 KEYS(KEY_LENGTH);

#define KEY_BUF 64 /* a key that is longer when unescaped is not a known one */

enum role {
	R_NONE,
	R_SEARCHED,		/* the outer object, of which splice_member_raw() wants one member */
	R_BODY,			/* the outer object */
	R_PROMPT, R_PROMPT_ITEM,
	R_MESSAGES, R_MESSAGE, R_CONTENT, R_PART, R_TEXT, R_TYPE,
	R_FRONT,		/* `system` or `instructions` */
	R_INPUT, R_ITEM, R_ITEM_CONTENT, R_PIECE, R_PIECE_TEXT,
	R_N
};

/* A message counts when its object ends, a part when it has turned out to be a text: of doubled
 * members an engine uses only the last, and `type` may come after `text`. */
enum tally {
	T_NONE, T_PROMPT, T_MESSAGES, T_MESSAGE, T_PART, T_IS_TEXT,
	T_FRONT, T_INPUT, T_ITEM, T_PIECE,
	T_N
};

#define ROLE_KEYS 2

static const struct {
	enum role element;  /* role of an array's elements */
	struct {
		const char *key;
		enum role role;
	} members[ROLE_KEYS]; /* an object's members that matter */
	enum tally string;  /* where a string of this role is counted */
	enum tally number;
} roles[R_N] = {
	[R_PROMPT]      = { .element = R_PROMPT_ITEM, .string = T_PROMPT },
	[R_PROMPT_ITEM] = { .element = R_PROMPT_ITEM, .string = T_PROMPT, .number = T_PROMPT },
	[R_MESSAGES]    = { .element = R_MESSAGE },
	[R_MESSAGE]     = { .members = {{ "content", R_CONTENT }} },
	[R_CONTENT]     = { .element = R_PART, .string = T_MESSAGE },
	[R_PART]        = { .members = {{ "text", R_TEXT }, { "type", R_TYPE }}, .string = T_MESSAGE },
	[R_TEXT]        = { .string = T_PART },
	[R_TYPE]        = { .string = T_IS_TEXT },
	[R_FRONT]       = { .element = R_PIECE, .string = T_FRONT },
	[R_INPUT]       = { .element = R_ITEM, .string = T_INPUT },
	[R_ITEM]        = { .members = {{ "content", R_ITEM_CONTENT }}, .string = T_INPUT },
	[R_ITEM_CONTENT] = { .element = R_PIECE, .string = T_ITEM },
	[R_PIECE]       = { .members = {{ "text", R_PIECE_TEXT }} },
	[R_PIECE_TEXT]  = { .string = T_PIECE },
};
/* clang-format on */

/* One byte per nesting level: the container's role and two flags. */
enum { LEVEL_ROLE = 0x3f, LEVEL_OBJECT = 0x40, LEVEL_FILLED = 0x80 };

/* A string whose end has not been found yet. */
struct open_string {
	const uint8_t *start;
	size_t inner; /* bytes that belong to a code point begun before them */
	bool escaped;
	enum role role; /* of a value */
};

struct splice_scan {
	const uint8_t *text, *p, *end;
	/* the step's end: a value that is a string or a list of integers goes on in the next one */
	const uint8_t *until;
	struct open_string string; /* the value that goes on; start = NULL: none */
	struct splice *s;          /* NULL while looking for `name` */
	const char *name;          /* the one member splice_member_raw() wants */
	size_t name_len;
	struct splice_member wanted; /* end = 0: not met */
	struct splice_member *open;  /* member whose value is being read, if recorded */
	struct splice_member *last;  /* member before, if recorded: learns its `next` */
	uint64_t chars[T_N], numbers[T_N], elements; /* of a list prompt */
	size_t nmembers, open_at, close_at;
	const char *why;
	size_t depth;
	uint8_t level[SPLICE_MAX_DEPTH];
};

/* A string as in the text, without its quotes. */
struct str {
	const char *p;
	size_t n;
	uint64_t chars; /* code points, as Python's len() counts */
	bool escaped;
};

static bool
fail(struct splice_scan *c, const char *why)
{
	if (c->why == NULL) /* pass_blanks() knows better */
		c->why = why;
	return false;
}

static bool
fail_early(struct splice_scan *c)
{
	c->p = c->end;
	return fail(c, "the text ends too early");
}

static size_t
offset(const struct splice_scan *c)
{
	return (size_t)(c->p - c->text);
}

/* Inlined, what few values need would cost all of them registers that are saved and restored. */
#define SELDOM __attribute__((noinline))

/* Where a name, a number or blanks must have ended: they are read in one piece, and a step must not take long. */
static inline const uint8_t *
piece_end(const struct splice_scan *c)
{
	return c->end - c->p > SPLICE_MAX_PIECE ? c->p + SPLICE_MAX_PIECE : c->end;
}

static inline bool
is_blank(uint8_t b)
{
	return b == ' ' || b == '\n' || b == '\r' || b == '\t';
}

/* Where there are too many, the next byte is not what any caller expects. */
SELDOM static void
pass_blanks(struct splice_scan *c)
{
	const uint8_t *end = piece_end(c);

	while (c->p < end && is_blank(*c->p))
		c->p++;
	if (c->p == end && end != c->end && is_blank(*c->p))
		c->why = "more than 64 KiB of blanks";
}

static inline void
skip_blanks(struct splice_scan *c)
{
	if (c->p < c->end && *c->p <= ' ')
		pass_blanks(c);
}

/* --- strings --- */

/* Length of the sequence at p that is one code point but not one plain byte; 0 with c->why set. */
static size_t
read_peculiar(struct splice_scan *c, const uint8_t *p)
{
	uint32_t code;
	size_t n;

	if (*p == '\\') {
		n = json_escape(p, c->end, &code);
		if (n == 0)
			c->why = "bad escape in a string";
	} else if (*p >= 0x80) {
		n = utf8_seq(p, (size_t)(c->end - p));
		if (n == 0)
			c->why = "bad UTF-8 in a string";
	} else {
		n = 0;
		c->why = "control character in a string";
	}
	return n;
}

/* Reads on at c->p up to the string's closing quote, or up to `until`. */
SELDOM static bool
pass_string(struct splice_scan *c, struct open_string *o, const uint8_t *until)
{
	const uint8_t *p = json_skip_plain(c->p, until);

	for (; p < until && *p != '"'; p = json_skip_plain(p, until)) {
		do {
			size_t n = read_peculiar(c, p);

			if (n == 0) {
				c->p = p;
				return false;
			}
			o->escaped |= *p == '\\';
			o->inner += n - 1;
			p += n;
		} while (p < until && *p >= 0x80);
	}
	c->p = p;
	return p != c->end || fail_early(c);
}

/* Steps over the closing quote. */
static struct str
close_string(struct splice_scan *c, const struct open_string *o)
{
	const size_t n = (size_t)(c->p++ - o->start);

	return (struct str){(const char *)o->start, n, n - o->inner, o->escaped};
}

/* Reads a name on from its first byte that is not plain. */
SELDOM static bool
read_peculiar_string(struct splice_scan *c, const uint8_t *p, const uint8_t *end, struct str *ret)
{
	struct open_string o = {.start = c->p + 1};

	c->p = p;
	if (!pass_string(c, &o, end))
		return false;
	if (c->p >= end)
		return fail(c, "a name of more than 64 KiB");
	*ret = close_string(c, &o);
	return true;
}

/* Reads a member's name.  Most are plain to their end: they cost no call. */
static bool
read_string(struct splice_scan *c, struct str *ret)
{
	const uint8_t *start = c->p + 1, *end = piece_end(c), *p = json_skip_plain(start, end);
	const size_t n = (size_t)(p - start);

	if (p == end || *p != '"')
		return read_peculiar_string(c, p, end, ret);
	c->p = p + 1;
	*ret = (struct str){.p = (const char *)start, .n = n, .chars = n};
	return true;
}

/* --- members --- */

static bool
key_is(const struct str *key, const char *name, size_t len)
{
	return key->n == len && memcmp(key->p, name, len) == 0;
}

static enum splice_key
find_owned(const struct str *key)
{
	if (key->n >= 32 || (key_lengths >> key->n & 1) == 0)
		return SK_N_KEYS;
	for (unsigned k = 0; k < SK_N_KEYS; k++)
		if (key_is(key, keys[k].name, keys[k].len))
			return (enum splice_key)k;
	return SK_N_KEYS;
}

/* The unescaped string, in buf; a string that does not fit is no known one. */
static void
undo_escapes(struct str *str, char buf[KEY_BUF])
{
	long n = str->escaped ? json_unescape(str->p, str->n, buf, KEY_BUF) : -1;

	if (n >= 0) {
		str->p = buf;
		str->n = (size_t)n;
	}
}

/* The record for a member of the outer object called `key`; *ret_member NULL if the member is
 * not needed. */
static bool
claim_member(struct splice_scan *c, const struct str *key, struct splice_member **ret_member)
{
	enum splice_key k;

	static_assert(SK_N_KEYS <= 64, "met has a bit for every key");
	*ret_member = NULL;
	if (c->s == NULL) {
		if (key_is(key, c->name, c->name_len))
			*ret_member = &c->wanted;
		return true;
	}
	k = find_owned(key);
	if (k == SK_N_KEYS)
		return true;
	if (c->s->nowned == SPLICE_MAX_OWNED)
		return fail(c, "too many members of names the router owns");
	c->s->met |= UINT64_C(1) << k;
	*ret_member = &c->s->owned[c->s->nowned++];
	(*ret_member)->key = k;
	return true;
}

/* Engines take the last of duplicates, so only the last one's size counts. */
static enum role
restart_tally(struct splice_scan *c, enum tally tally, enum role role)
{
	c->chars[tally] = 0;
	c->numbers[tally] = 0;
	if (tally == T_PROMPT)
		c->elements = 0;
	return role;
}

/* The role of the value of an owned member. */
static enum role
role_of(struct splice_scan *c, enum splice_key key)
{
	if (key == SK_PROMPT)
		return restart_tally(c, T_PROMPT, R_PROMPT);
	if (key == SK_MESSAGES)
		return restart_tally(c, T_MESSAGES, R_MESSAGES);
	if (key == SK_INPUT)
		return restart_tally(c, T_INPUT, R_INPUT);
	if (key == SK_INSTRUCTIONS || key == SK_SYSTEM)
		return restart_tally(c, T_FRONT, R_FRONT);
	return R_NONE;
}

/* Records one member of the outer object; `start` and `comma` are the offsets of its key and its
 * comma. */
static bool
member_start(struct splice_scan *c, const struct str *key, size_t start, size_t comma,
	enum role *ret_role)
{
	struct splice_member *m;

	if (!claim_member(c, key, &m))
		return false;
	if (c->last != NULL)
		c->last->next = start;
	c->open = c->last = m;
	if (m != NULL) {
		m->index = (uint32_t)c->nmembers;
		m->start = start;
		m->comma = comma;
		m->next = 0;
		if (c->s != NULL)
			*ret_role = role_of(c, m->key);
	}
	c->nmembers++;
	return true;
}

static void
value_end(struct splice_scan *c)
{
	if (c->depth != 1 || c->open == NULL)
		return;
	c->open->end = offset(c);
	c->open = NULL;
}

/* The role of a message's or a part's member; a doubled one takes back what the former counted. */
static enum role
member_role(struct splice_scan *c, enum role in, const struct str *key)
{
	for (size_t i = 0; i < ROLE_KEYS && roles[in].members[i].key != NULL; i++) {
		enum role role = roles[in].members[i].role;

		if (!key_is(key, roles[in].members[i].key, strlen(roles[in].members[i].key)))
			continue;
		c->chars[roles[role].string] = 0;
		return role;
	}
	return R_NONE;
}

/* Reads the name of a member whose value may have a role: a member of the outer object, or of a message. */
SELDOM static bool
read_name(struct splice_scan *c, enum role in, size_t comma, enum role *ret_role)
{
	size_t start = offset(c);
	char buf[KEY_BUF];
	struct str key;

	if (!read_string(c, &key))
		return false;
	undo_escapes(&key, buf);
	if (in <= R_BODY && !member_start(c, &key, start, comma, ret_role))
		return false;
	if (roles[in].members[0].key != NULL)
		*ret_role = member_role(c, in, &key);
	return true;
}

/* Passes the name of a member whose value has no role. */
static inline bool
pass_name(struct splice_scan *c)
{
	const uint8_t *end = piece_end(c), *p = json_skip_plain(c->p + 1, end);
	struct str key;

	if (p == end || *p != '"')
		return read_peculiar_string(c, p, end, &key);
	c->p = p + 1;
	return true;
}

/* Reads `"key" :` of a member and says which role its value has. */
static bool
read_key(struct splice_scan *c, size_t comma, enum role *ret_role)
{
	enum role in = c->level[c->depth - 1] & LEVEL_ROLE;

	if (c->p == c->end)
		return fail_early(c);
	if (*c->p != '"')
		return fail(c, "expected a member's name in quotes");
	if (in == R_NONE ? !pass_name(c) : !read_name(c, in, comma, ret_role))
		return false;
	skip_blanks(c);
	if (c->p == c->end)
		return fail_early(c);
	if (*c->p != ':')
		return fail(c, "expected ':' after a member's name");
	c->p++;
	skip_blanks(c);
	return true;
}

/* --- values --- */

static bool
enter(struct splice_scan *c, enum role role, unsigned kind)
{
	if (c->depth == SPLICE_MAX_DEPTH)
		return fail(c, "nested too deeply");
	c->level[c->depth++] = (uint8_t)((unsigned)role | kind);
	c->p++;
	return true;
}

static void
move_tally(struct splice_scan *c, enum tally from, enum tally to)
{
	c->chars[to] += c->chars[from];
	c->chars[from] = 0;
}

/* A message or a part of one has been read: adds its count. */
static void
settle(struct splice_scan *c, enum role role)
{
	if (role == R_NONE)
		return;
	if (role == R_PART) {
		c->chars[T_MESSAGE] += c->chars[T_IS_TEXT] ? c->chars[T_PART] : 0;
		c->chars[T_PART] = c->chars[T_IS_TEXT] = 0;
	} else if (role == R_MESSAGE) {
		move_tally(c, T_MESSAGE, T_MESSAGES);
	} else if (role == R_PIECE) {
		move_tally(c, T_PIECE, T_ITEM);
	} else if (role == R_ITEM) {
		move_tally(c, T_ITEM, T_INPUT);
	} else if (role == R_FRONT) {
		move_tally(c, T_ITEM, T_FRONT);
	}
}

static bool
leave(struct splice_scan *c)
{
	c->p++;
	c->depth--;
	settle(c, c->level[c->depth] & LEVEL_ROLE);
	value_end(c);
	return true;
}

static bool
read_word(struct splice_scan *c, const char *word)
{
	size_t n = strlen(word);

	if ((size_t)(c->end - c->p) < n || memcmp(c->p, word, n) != 0)
		return fail(c, "expected a value");
	c->p += n;
	return true;
}

static bool
read_digits(struct splice_scan *c)
{
	const uint8_t *start = c->p, *end = piece_end(c);

	while (c->p < end && *c->p >= '0' && *c->p <= '9')
		c->p++;
	if (c->p == start)
		return c->p == c->end ? fail_early(c) : fail(c, "bad number");
	if (c->p == end && end != c->end)
		return fail(c, "a number of more than 64 KiB");
	return true;
}

static bool
at_byte(const struct splice_scan *c, char a, char b)
{
	return c->p < c->end && (*c->p == (uint8_t)a || *c->p == (uint8_t)b);
}

static bool
read_number(struct splice_scan *c)
{
	if (at_byte(c, '-', '-'))
		c->p++;
	if (at_byte(c, '0', '0'))
		c->p++; /* a digit after it fails, because a comma or a brace must follow */
	else if (!read_digits(c))
		return false;
	if (at_byte(c, '.', '.')) {
		c->p++;
		if (!read_digits(c))
			return false;
	}
	if (at_byte(c, 'e', 'E')) {
		c->p++;
		if (at_byte(c, '+', '-'))
			c->p++;
		return read_digits(c);
	}
	return true;
}

static enum splice_type
type_of(uint8_t first)
{
	switch (first) {
	case '"':
		return ST_STRING;
	case '{':
		return ST_OBJECT;
	case '[':
		return ST_ARRAY;
	case 't':
		return ST_TRUE;
	case 'f':
		return ST_FALSE;
	case 'n':
		return ST_NULL;
	default:
		return ST_NUMBER;
	}
}

/* A part's `type`: whether the part is a text. */
SELDOM static uint64_t
is_text(const struct str *str)
{
	char buf[KEY_BUF];
	struct str plain = *str;

	undo_escapes(&plain, buf);
	return key_is(&plain, "text", 4);
}

static void
count_string(struct splice_scan *c, enum role role, const struct str *str)
{
	c->chars[roles[role].string] += role == R_TYPE ? is_text(str) : str->chars;
}

/* Reads on the value that is a string, to its end or to that of the step. */
SELDOM static bool
read_on(struct splice_scan *c)
{
	struct str str;

	if (!pass_string(c, &c->string, c->until))
		return false;
	if (c->p >= c->until)
		return true;
	str = close_string(c, &c->string);
	count_string(c, c->string.role, &str);
	c->string.start = NULL;
	return true;
}

/* Reads a value that is a string. */
static bool
read_text(struct splice_scan *c, enum role role)
{
	const uint8_t *start = c->p + 1, *p = json_skip_plain(start, c->until);
	const size_t n = (size_t)(p - start);
	struct str str = {.p = (const char *)start, .n = n, .chars = n};

	if (p >= c->until || *p != '"') {
		c->string = (struct open_string){.start = start, .role = role};
		c->p = p;
		return read_on(c);
	}
	c->p = p + 1;
	count_string(c, role, &str);
	return true;
}

static bool
read_scalar(struct splice_scan *c, enum splice_type type, enum role role)
{
	switch (type) {
	case ST_STRING:
		return read_text(c, role);
	case ST_TRUE:
		return read_word(c, "true");
	case ST_FALSE:
		return read_word(c, "false");
	case ST_NULL:
		return read_word(c, "null");
	case ST_NUMBER:
	case ST_ARRAY:
	case ST_OBJECT:
		break;
	}
	if (*c->p != '-' && (*c->p < '0' || *c->p > '9'))
		return fail(c, "expected a value");
	c->numbers[roles[role].number]++;
	return read_number(c);
}

static bool
read_value(struct splice_scan *c, enum role role)
{
	enum splice_type type;

	if (c->p == c->end)
		return fail_early(c);
	type = type_of(*c->p);
	if (c->depth == 1 && c->open != NULL) {
		c->open->val = offset(c);
		c->open->type = type;
	}
	if (type == ST_OBJECT)
		return enter(c, role, LEVEL_OBJECT);
	if (type == ST_ARRAY)
		return enter(c, role, 0);
	if (!read_scalar(c, type, role))
		return false;
	if (c->string.start != NULL)
		return true;
	if (type == ST_NUMBER && c->depth > 0 && (c->level[c->depth - 1] & LEVEL_OBJECT) == 0) {
		uint64_t more = json_skip_integers(&c->p, c->until);

		c->numbers[roles[role].number] += more;
		if ((c->level[c->depth - 1] & LEVEL_ROLE) == R_PROMPT)
			c->elements += more;
	}
	value_end(c);
	return true;
}

/* An element of an array of the role `in` begins.  Returns the element's role. */
static enum role
count_element(struct splice_scan *c, enum role in)
{
	c->elements += in == R_PROMPT;
	return roles[in].element;
}

/* Reads one member or element of the innermost container up to its value's end or opening bracket,
 * or the container's end. */
static bool
read_item(struct splice_scan *c)
{
	uint8_t *level = &c->level[c->depth - 1];
	bool object = (*level & LEVEL_OBJECT) != 0;
	enum role role = R_NONE;
	size_t comma = 0;

	skip_blanks(c);
	if (c->p == c->end)
		return fail_early(c);
	if (*c->p == (object ? '}' : ']'))
		return leave(c);
	if (*level & LEVEL_FILLED) {
		if (*c->p != ',')
			return fail(c, object ? "expected ',' or '}'" : "expected ',' or ']'");
		comma = offset(c);
		c->p++;
		skip_blanks(c);
	}
	*level |= LEVEL_FILLED;
	if (!object)
		role = count_element(c, *level & LEVEL_ROLE);
	else if (!read_key(c, comma, &role))
		return false;
	return read_value(c, role);
}

/* Bytes that a comma, a blank and a word take, or what follows a name. */
#define PLAIN_ITEM 8

/* Passes a value that is a plain string, digits without a leading zero, or a word.  NULL: it is none of these, or
 * too near to the end. */
static inline const uint8_t *
pass_scalar(const uint8_t *p, const uint8_t *end)
{
	const uint8_t *q = p;

	switch (*p) {
	case '"':
		q = json_skip_plain(p + 1, end);
		return q < end && *q == '"' ? q + 1 : NULL;
	case 't':
		return memcmp(p, "true", 4) == 0 ? p + 4 : NULL;
	case 'n':
		return memcmp(p, "null", 4) == 0 ? p + 4 : NULL;
	case 'f':
		return memcmp(p, "false", 5) == 0 ? p + 5 : NULL;
	case '1' ... '9':
		while (q < end && *q >= '0' && *q <= '9')
			q++;
		return q < end && (*q == ',' || *q == '}' || *q == ']') && q - p <= SPLICE_MAX_PIECE
			       ? q
			       : NULL;
	default:
		return NULL;
	}
}

/* The end of a member's name, before a colon; NULL as pass_scalar(). */
static inline const uint8_t *
plain_name_end(const uint8_t *p, const uint8_t *end)
{
	const uint8_t *q = *p == '"' ? json_skip_plain(p + 1, end) : end;

	if (end - q < PLAIN_ITEM || q[0] != '"' || q[1] != ':' || q - p > SPLICE_MAX_PIECE)
		return NULL;
	return q;
}

static inline bool
is_wanted(const struct splice_scan *c, const uint8_t *name, const uint8_t *end)
{
	return (size_t)(end - name) == c->name_len && memcmp(name, c->name, c->name_len) == 0;
}

/*
 * Passes items that need not be looked at, which are most items of an engine's answer: as long as they are written as
 * nearly all are, and certainly valid.  Returns false if the first one is not; read_item() reads it.
 */
static bool
pass_plain_items(struct splice_scan *c)
{
	const uint8_t *const start = c->p, *const end = c->until, *p = start, *q;

	for (; c->depth > 0 && end - p >= PLAIN_ITEM; p = q) {
		uint8_t *level = &c->level[c->depth - 1];
		const enum role role = *level & LEVEL_ROLE;
		const bool object = (*level & LEVEL_OBJECT) != 0;

		if (role > R_SEARCHED)
			break;
		q = p;
		if (*q == (object ? '}' : ']')) {
			c->p = ++q;
			c->depth--;
			value_end(c);
			continue;
		}
		if ((*level & LEVEL_FILLED) != 0) {
			if (*q != ',')
				break;
			q += 1 + (q[1] == ' ');
		}
		if (object) {
			const uint8_t *quote = plain_name_end(q, end);

			if (quote == NULL || (role == R_SEARCHED && is_wanted(c, q + 1, quote)))
				break;
			q = quote + 2 + (quote[2] == ' ');
		}
		if (*q == '{' || *q == '[') {
			if (c->depth == SPLICE_MAX_DEPTH)
				break;
			c->level[c->depth++] = *q++ == '{' ? LEVEL_OBJECT : 0;
		} else if ((q = pass_scalar(q, end)) == NULL) {
			break;
		} else if (!object && q[-1] >= '0' && q[-1] <= '9') {
			(void)json_skip_integers(&q, end);
		}
		*level |= LEVEL_FILLED;
	}
	c->p = p;
	return p != start;
}

/* Reads up to the object's first member. */
static bool
read_open(struct splice_scan *c)
{
	if (c->end - c->p > (ptrdiff_t)(UINT32_MAX - 1))
		return fail(c, "longer than 4 GiB");
	skip_blanks(c);
	if (c->p == c->end || *c->p != '{')
		return fail(c, "not a JSON object");
	c->open_at = offset(c);
	return enter(c, c->s != NULL ? R_BODY : R_SEARCHED, LEVEL_OBJECT);
}

/* Reads on, to the end of the object or a little beyond that of the step. */
static bool
read_items(struct splice_scan *c)
{
	while (c->depth > 0 && (c->p < c->until || c->until == c->end)) {
		if (c->string.start == NULL) {
			if (!pass_plain_items(c) && !read_item(c))
				return false;
			continue;
		}
		if (!read_on(c))
			return false;
		if (c->string.start == NULL)
			value_end(c);
	}
	return true;
}

/* What follows the object. */
static bool
read_close(struct splice_scan *c)
{
	c->close_at = offset(c) - 1;
	skip_blanks(c);
	return c->p == c->end || fail(c, "text after the object");
}

static bool
read_body(struct splice_scan *c)
{
	return read_open(c) && read_items(c) && read_close(c);
}

static struct splice_scan
scan_of(const char *text, size_t len)
{
	const uint8_t *bytes = (const uint8_t *)text;

	return (struct splice_scan){
		.text = bytes, .p = bytes, .end = bytes + len, .until = bytes + len};
}

static void
begin_members(struct splice_scan *c, struct splice *s, size_t len)
{
	c->s = s;
	s->text = (const char *)c->text;
	s->len = len;
	s->nowned = 0;
	s->met = 0;
}

static int
give_result(const struct splice_scan *c, bool ok, const char **ret_why, size_t *ret_at)
{
	struct splice *s = c->s;

	if (!ok) {
		*ret_why = c->why;
		*ret_at = offset(c);
		return -1;
	}
	s->open = c->open_at;
	s->close = c->close_at;
	s->nmembers = c->nmembers;
	s->prompt_chars = c->chars[T_PROMPT];
	s->prompt_items = c->numbers[T_PROMPT];
	s->prompt_elements = c->elements;
	s->message_chars = c->chars[T_MESSAGES];
	s->other_chars = c->chars[T_FRONT] + c->chars[T_INPUT];
	return 0;
}

int
splice_scan(struct splice *s, const char *text, size_t len, const char **ret_why, size_t *ret_at)
{
	struct splice_scan c = scan_of(text, len);

	begin_members(&c, s, len);
	return give_result(&c, read_body(&c), ret_why, ret_at);
}

struct splice_scan *
splice_scan_new(struct splice *s, const char *text, size_t len)
{
	struct splice_scan *c = MEM_NEW(struct splice_scan);

	*c = scan_of(text, len);
	begin_members(c, s, len);
	return c;
}

int
splice_scan_step(struct splice_scan *c, size_t bytes, const char **ret_why, size_t *ret_at)
{
	const size_t left = (size_t)(c->end - c->p);

	c->until = c->p + (bytes < left ? bytes : left);
	if (c->depth == 0 && !read_open(c))
		return give_result(c, false, ret_why, ret_at);
	if (!read_items(c))
		return give_result(c, false, ret_why, ret_at);
	return c->depth > 0 ? 1 : give_result(c, read_close(c), ret_why, ret_at);
}

void
splice_scan_free(struct splice_scan **c)
{
	free(*c);
	*c = NULL;
}

int
splice_member_raw(const char *text, size_t len, const char *name, struct splice_seg *ret_value)
{
	struct splice_scan c = scan_of(text, len);

	c.name = name;
	c.name_len = strlen(name);
	if (!read_body(&c))
		return -1;
	if (c.wanted.end == 0)
		return 0;
	*ret_value = (struct splice_seg){text + c.wanted.val, c.wanted.end - c.wanted.val};
	return 1;
}

size_t
splice_value(const char *text, size_t len)
{
	struct splice_scan c = scan_of(text, len);

	if (!read_value(&c, R_NONE) || !read_items(&c))
		return 0;
	return offset(&c);
}

bool
splice_element(const struct splice_seg *list, size_t *at, struct splice_seg *ret_element)
{
	const uint8_t *bytes = (const uint8_t *)list->p;
	struct splice_scan c = {.text = bytes, .p = bytes + *at, .end = bytes + list->n};
	size_t n;

	assert(list->n >= 2 && bytes[0] == '[');
	skip_blanks(&c);
	if (c.p == c.end || *c.p == ']')
		return false;
	c.p++; /* the bracket or a comma */
	skip_blanks(&c);
	n = splice_value((const char *)c.p, (size_t)(c.end - c.p));
	if (n == 0)
		return false;
	*ret_element = (struct splice_seg){(const char *)c.p, n};
	*at = offset(&c) + n;
	return true;
}

const char *
splice_key_name(enum splice_key k)
{
	assert((unsigned)k < SK_N_KEYS);
	return keys[k].name;
}

const struct splice_member *
splice_find(const struct splice *s, enum splice_key k)
{
	if ((s->met >> k & 1) == 0)
		return NULL;
	for (size_t i = s->nowned; i-- > 0;)
		if (s->owned[i].key == k)
			return &s->owned[i];
	return NULL;
}

long
splice_string(const struct splice *s, const struct splice_member *m, char *buf, size_t size)
{
	long n;

	if (m->type != ST_STRING || size == 0)
		return -1;
	n = json_unescape(s->text + m->val + 1, m->end - m->val - 2, buf, size - 1);
	if (n < 0 || memchr(buf, '\0', (size_t)n) != NULL)
		return -1;
	buf[n] = '\0';
	return n;
}

/* --- laying out --- */

struct layout {
	struct splice_seg *segs;
	size_t n, total;
};

static void
put(struct layout *l, const char *p, size_t n)
{
	if (n == 0)
		return;
	assert(l->n < SPLICE_MAX_SEGMENTS);
	l->segs[l->n++] = (struct splice_seg){p, n};
	l->total += n;
}

/*
 * Why any set of cuts leaves valid JSON: a cut member takes the comma before it along; only a
 * member that has no survivor before it (its index is the number of members cut so far) takes the
 * comma behind it instead, up to the next key.
 */
size_t
splice_layout(const struct splice *s, const struct splice_edit *e, struct splice_seg *segs,
	size_t *ret_total)
{
	struct layout l = {.segs = segs};
	size_t at = 0, ncut = 0;
	uint64_t met = 0; /* as s->met, of the members before this one */
	bool first;       /* no member has been written yet */

	static_assert(
		2 * SPLICE_MAX_OWNED + 2 * SK_N_KEYS + 2 <= SPLICE_MAX_SEGMENTS, "worst case fits");
	for (const struct splice_member *m = s->owned; m < s->owned + s->nowned; m++) {
		const enum splice_op op = splice_op_of(e, m->key);
		bool again = (met >> m->key & 1) != 0;
		bool leads = m->index == ncut;

		met |= UINT64_C(1) << m->key;
		if (op == SE_KEEP)
			continue;
		if (op != SE_CUT && !again) {
			put(&l, s->text + at, m->val - at);
			put(&l, e->on[m->key].value, e->on[m->key].len);
			at = m->end;
			continue;
		}
		put(&l, s->text + at, (leads ? m->start : m->comma) - at);
		at = leads && m->next != 0 ? m->next : m->end;
		ncut++;
	}
	put(&l, s->text + at, s->close - at);
	first = ncut == s->nmembers;
	for (uint64_t left = e->given & ~met; left != 0; left &= left - 1) {
		const unsigned k = (unsigned)__builtin_ctzll(left);

		if (e->on[k].op != SE_SET)
			continue;
		put(&l, keys[k].glue + first,
			keys[k].len + 4 - first); /* the first goes without comma */
		put(&l, e->on[k].value, e->on[k].len);
		first = false;
	}
	put(&l, s->text + s->close, s->len - s->close);
	*ret_total = l.total;
	return l.n;
}
