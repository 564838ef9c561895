#include "proto/answer/follow.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/answer/event.h"
#include "proto/answer/form.h"
#include "proto/json/json_copy.h"
#include "proto/json/json_string.h"

/* --- what a request may ask for ------------------------------------------------------------ */

#define TOKENS_MAX (UINT64_C(1) << 53) /* every JSON reader holds counts up to this exactly */
#define COMPLETIONS_MAX_TOKENS 16      /* of a completion without max_tokens */

static const char structured[] = "structured_output", several[] = "several_choices",
		  limit[] = "limit", template[] = "template", other_prompt[] = "prompt";

/* clang-format off */
static const struct {
	const char *key, *why;
	const char *harmless; /* a value without effect, besides null and false */
} refused[] = {
	{ "n",                      several,           "1" },
	{ "best_of",                several,           "1" },
	{ "use_beam_search",        "beam_search",     NULL },
	{ "echo",                   "echo",            NULL },
	{ "response_format",        structured,        NULL },
	{ "structured_outputs",     structured,        NULL },
	{ "guided_json",            structured,        NULL },
	{ "guided_regex",           structured,        NULL },
	{ "guided_choice",          structured,        NULL },
	{ "guided_grammar",         structured,        NULL },
	{ "regex",                  structured,        NULL }, /* SGLang's, like the next three */
	{ "ebnf",                   structured,        NULL },
	{ "json_schema",            structured,        NULL },
	{ "structural_tag",         structured,        NULL },
	{ "tool_choice",            "tool_choice",     "\"auto\"" },
	{ "function_call",          "tool_choice",     "\"auto\"" },
	{ "prompt_logprobs",        "prompt_logprobs", NULL },
	{ "return_token_ids",       "token_ids",       NULL },
	{ "return_hidden_states",   "hidden_states",   NULL },
	{ "truncate_prompt_tokens", "truncation",      NULL }, /* would truncate at another place */
	{ "prompt_embeds",          other_prompt,      NULL },
	{ "suffix",                 other_prompt,      "\"\"" },
	{ "session_params",         "session",         NULL },
};
/* clang-format on */

static bool
asks_for_nothing(const struct splice_seg *v, const char *harmless)
{
	struct splice_seg type;

	if (v->n > 0 && v->p[0] == '{' && splice_member_raw(v->p, v->n, "type", &type) == 1)
		return json_read_is(&type, "\"text\"");
	return json_read_is(v, "null") || json_read_is(v, "false") || json_read_is(v, "\"none\"") ||
	       (harmless != NULL && json_read_is(v, harmless));
}

static const char *
refuse_members(const struct splice *doc)
{
	struct splice_seg key, v;
	const char *why = NULL;
	struct json_read r;

	json_read_init(&r, doc->text, doc->len);
	(void)json_read_enter(&r, '{');
	while (why == NULL && json_read_member(&r, &key)) {
		v = json_read_value(&r);
		if (memchr(key.p, '\\', key.n) != NULL)
			/* could be any of these names; clients do not escape names */
			why = "escaped_name";
		for (size_t i = 0; why == NULL && i < sizeof(refused) / sizeof(refused[0]); i++)
			if (json_read_is(&key, refused[i].key) &&
				!asks_for_nothing(&v, refused[i].harmless))
				why = refused[i].why;
	}
	return why;
}

static struct splice_seg
value_of(const struct splice *doc, enum splice_key k)
{
	const struct splice_member *m = splice_find(doc, k);

	return m == NULL || m->type == ST_NULL
		       ? (struct splice_seg){"", 0}
		       : (struct splice_seg){doc->text + m->val, m->end - m->val};
}

/* A count, or none; false if the member is anything else, which the engine will refuse. */
static bool
count_of(const struct splice *doc, enum splice_key k, uint64_t *ret)
{
	const struct splice_seg v = value_of(doc, k);

	return v.n == 0 || json_read_number(&v, TOKENS_MAX, ret);
}

/* The limit of tokens; 0: the request has none.  False: the limit cannot be computed with. */
static bool
limit_of(const struct splice *doc, bool chat, uint64_t *ret)
{
	const struct splice_member *m = splice_find(doc, SK_MAX_TOKENS);
	uint64_t most = 0, chat_most = 0, least = 0;

	if (!count_of(doc, SK_MAX_TOKENS, &most) || !count_of(doc, SK_MIN_TOKENS, &least) ||
		(chat && !count_of(doc, SK_MAX_COMPLETION_TOKENS, &chat_most)))
		return false;
	if (!chat && m == NULL)
		most = COMPLETIONS_MAX_TOKENS;
	else if (!chat && (m->type == ST_NULL || most == 0))
		/* null: vLLM from 0.29 takes 16, earlier versions the rest of the context; 0: no token is to be made */
		return false;
	*ret = chat_most > 0 ? chat_most : most;
	return true;
}

static bool
is_flag(const struct splice_seg *v)
{
	return v->n == 0 || json_read_is(v, "true") || json_read_is(v, "false") ||
	       json_read_is(v, "null");
}

static struct splice_seg
option(const struct splice *doc, const char *name)
{
	const struct splice_seg options = value_of(doc, SK_STREAM_OPTIONS);
	struct splice_seg v = {"", 0};

	if (options.n > 0)
		(void)splice_member_raw(options.p, options.n, name, &v);
	return v;
}

static bool
options_known(const struct splice *doc)
{
	const struct splice_seg options = value_of(doc, SK_STREAM_OPTIONS),
				usage = option(doc, "include_usage"),
				each = option(doc, "continuous_usage_stats");

	return (options.n == 0 || options.p[0] == '{') && is_flag(&usage) && is_flag(&each);
}

static struct splice_seg
last_message(const struct splice *doc)
{
	const struct splice_seg list = value_of(doc, SK_MESSAGES);
	struct splice_seg one = {"", 0};
	size_t at = 0;

	if (list.n > 0 && list.p[0] == '[')
		while (splice_element(&list, &at, &one))
			;
	return one;
}

/* The content of the last message, which the client itself wants to be continued. */
static struct splice_seg
open_content(const struct splice *doc)
{
	const struct splice_seg last = last_message(doc);
	struct splice_seg role, content;

	if (splice_member_raw(last.p, last.n, "role", &role) == 1 &&
		json_read_is(&role, "\"assistant\"") &&
		splice_member_raw(last.p, last.n, "content", &content) == 1 && content.p[0] == '"')
		return content;
	return (struct splice_seg){"", 0};
}

static bool
goes_on(const struct splice *doc)
{
	const struct splice_seg v = value_of(doc, SK_CONTINUE_FINAL_MESSAGE);

	return json_read_is(&v, "true");
}

static const char *
refuse_messages(const struct splice *doc)
{
	const struct splice_seg go_on = value_of(doc, SK_CONTINUE_FINAL_MESSAGE),
				begin = value_of(doc, SK_ADD_GENERATION_PROMPT),
				last = last_message(doc);

	if (last.n == 0)
		return other_prompt;
	if (!is_flag(&go_on) || !is_flag(&begin))
		return template;
	if (goes_on(doc))
		return open_content(doc).n == 0 ? template : NULL;
	/* a message without this beginning cannot be continued */
	return json_read_is(&begin, "false") ? template : NULL;
}

/* The only prompt if it is a text, also in a list; no bytes: there is none. */
static struct splice_seg
prompt_text(const struct splice *doc)
{
	struct splice_seg v = value_of(doc, SK_PROMPT), one, more;
	size_t at = 0;

	if (v.n > 0 && v.p[0] == '[')
		v = splice_element(&v, &at, &one) && !splice_element(&v, &at, &more)
			    ? one
			    : (struct splice_seg){"", 0};
	return v.n > 0 && v.p[0] == '"' ? v : (struct splice_seg){"", 0};
}

const char *
follow_refuses(const struct splice *doc, bool chat)
{
	const char *why = refuse_members(doc);
	uint64_t most;

	if (why != NULL)
		return why;
	if (!options_known(doc))
		return "stream_options";
	if (!limit_of(doc, chat, &most))
		return limit;
	if (chat)
		return refuse_messages(doc);
	return prompt_text(doc).n == 0 ? other_prompt : NULL;
}

/* --- life ---------------------------------------------------------------------------------- */

enum { ID, CREATED, MODEL, KNOWN };

static const char *const known_keys[KNOWN] = {
	[ID] = "id", [CREATED] = "created", [MODEL] = "model"};

#define KNOWN_MAX 1024 /* bytes of an id or a model's name; real ones have some 50 */

struct follow {
	bool chat;
	bool usage, each; /* the client requested a usage at the end, and with each event */
	size_t max_bytes;
	uint64_t most; /* limit of tokens; 0: the request has none */
	const char *why;

	/* what the client has been sent */
	struct membuf text; /* as in a JSON string, without its quotes */
	struct membuf known[KNOWN];
	bool role, finished, usage_told, done;
	bool prompt_told;
	uint64_t prompt;  /* tokens, of the client's own */
	uint64_t before;  /* tokens of former legs */
	uint64_t chars;   /* of their text */
	uint64_t leg;     /* tokens of this leg, up to the last text */
	uint64_t leg_all; /* the same, up to the last event with a usage */
	bool later;       /* it is not the first leg */

	struct membuf joined, made; /* of one event */
	struct form form;           /* of the first leg's events */
};

struct follow *
follow_new(const struct splice *doc, bool chat, size_t max_bytes)
{
	const struct splice_seg usage = option(doc, "include_usage"),
				each = option(doc, "continuous_usage_stats");
	struct follow *f = MEM_NEW(struct follow);

	f->chat = chat;
	f->usage = json_read_is(&usage, "true");
	f->each = f->usage && json_read_is(&each, "true");
	f->max_bytes = max_bytes;
	(void)limit_of(doc, chat, &f->most);
	return f;
}

void
follow_free(struct follow **fp)
{
	struct follow *f = *fp;

	if (f == NULL)
		return;
	membuf_free(&f->text);
	for (size_t i = 0; i < KNOWN; i++)
		membuf_free(&f->known[i]);
	membuf_free(&f->joined);
	membuf_free(&f->made);
	form_free(&f->form);
	free(f);
	*fp = NULL;
}

const char *
follow_why_not(const struct follow *f)
{
	return f->why;
}

uint64_t
follow_tokens(const struct follow *f)
{
	return f->before + f->leg;
}

static void
never(struct follow *f, const char *why)
{
	if (f->why == NULL)
		f->why = why;
	membuf_free(&f->text);
}

void
follow_give_up(struct follow *f, const char *why)
{
	never(f, why);
}

size_t
follow_kept(const struct follow *f)
{
	return f->text.cap;
}

static void
put(struct membuf *out, const char *text)
{
	membuf_add(out, text, strlen(text));
}

static void
put_seg(struct membuf *out, const struct splice_seg *seg)
{
	membuf_add(out, seg->p, seg->n);
}

static void
put_number(struct membuf *out, uint64_t n)
{
	char digits[20], *p = digits + sizeof(digits);

	do
		*--p = (char)('0' + n % 10);
	while ((n /= 10) > 0);
	membuf_add(out, p, (size_t)(digits + sizeof(digits) - p));
}

void
follow_options(const struct splice *doc, struct membuf *out)
{
	const struct splice_seg options = value_of(doc, SK_STREAM_OPTIONS);
	struct splice_seg key, value;
	struct json_read r;

	put(out, "{");
	json_read_init(&r, options.p, options.n);
	if (options.n > 0 && json_read_enter(&r, '{'))
		while (json_read_member(&r, &key)) {
			value = json_read_value(&r);
			if (json_read_is(&key, "include_usage") ||
				json_read_is(&key, "continuous_usage_stats"))
				continue;
			put(out, "\"");
			put_seg(out, &key);
			put(out, "\":");
			put_seg(out, &value);
			put(out, ",");
		}
	put(out, "\"include_usage\":true,\"continuous_usage_stats\":true}");
}

/* --- reading an event ---------------------------------------------------------------------- */

/* The contents of an event, as spans of it; no bytes: absent. */
struct said {
	struct splice_seg known[KNOWN], usage, role, text, finish, offsets;
	size_t nchoices;
	bool error;
	const char *why; /* the stream cannot be resumed after this, and why */
	bool counts;     /* the usage has: */
	uint64_t prompt, tokens;
};

/* null, "" or []: counts as absent. */
static bool
empty(const struct splice_seg *v)
{
	return v->n == 0 || json_read_is(v, "null") || json_read_is(v, "\"\"") ||
	       json_read_is(v, "[]");
}

static void
odd(struct said *s, const char *why)
{
	if (s->why == NULL)
		s->why = why;
}

/* clang-format off */
static const struct {
	const char *key, *why;
} deltas[] = {
	{ "tool_calls", "tool_call" },
	{ "function_call", "tool_call" },
	{ "reasoning_content", "reasoning" },
	{ "reasoning", "reasoning" },
	{ "refusal", "refusal" },
};
/* clang-format on */

static void
read_text(struct said *s, const struct splice_seg *v)
{
	if (v->n > 0 && v->p[0] == '"')
		s->text = *v;
	else if (!empty(v))
		odd(s, "other_content");
}

static void
read_delta(struct json_read *r, struct said *s)
{
	struct splice_seg key, v;

	(void)json_read_enter(r, '{');
	while (json_read_member(r, &key)) {
		const char *why = "other_content";

		v = json_read_value(r);
		if (json_read_is(&key, "role")) {
			s->role = v;
		} else if (json_read_is(&key, "content")) {
			read_text(s, &v);
		} else if (!empty(&v)) {
			for (size_t i = 0; i < sizeof(deltas) / sizeof(deltas[0]); i++)
				if (json_read_is(&key, deltas[i].key))
					why = deltas[i].why;
			odd(s, why);
		}
	}
}

static void
read_choice(struct json_read *r, bool chat, struct said *s)
{
	struct splice_seg key, v;

	(void)json_read_enter(r, '{');
	while (json_read_member(r, &key)) {
		if (chat && json_read_is(&key, "delta") && json_read_peek(r) == '{') {
			read_delta(r, s);
			continue;
		}
		v = json_read_value(r);
		if (!chat && json_read_is(&key, "text"))
			read_text(s, &v);
		else if (json_read_is(&key, "finish_reason") && !empty(&v))
			s->finish = v;
		else if (json_read_is(&key, "index") && !json_read_is(&v, "0"))
			odd(s, several);
		else if (!chat && json_read_is(&key, "logprobs") && v.n > 0 && v.p[0] == '{')
			(void)splice_member_raw(v.p, v.n, "text_offset", &s->offsets);
	}
}

/* Whether the client is at fault: another engine would refuse such a request as well. */
static bool
clients_fault(const struct splice_seg *json)
{
	struct splice_seg error = *json, code;
	uint64_t n = 0;

	if (splice_member_raw(json->p, json->n, "error", &error) != 1 || error.p[0] != '{')
		error = *json;
	return splice_member_raw(error.p, error.n, "code", &code) == 1 &&
	       json_read_number(&code, 999, &n) && n >= 400 && n < 500 && n != 408 && n != 429;
}

/* Reads the object that comes next. */
static void
read_usage(struct json_read *r, struct said *s)
{
	const char *begin = r->p;
	bool in = false, out = false;
	struct splice_seg key, v;

	(void)json_read_enter(r, '{');
	while (json_read_member(r, &key)) {
		v = json_read_value(r);
		if (json_read_is(&key, "prompt_tokens"))
			in = json_read_number(&v, TOKENS_MAX, &s->prompt);
		else if (json_read_is(&key, "completion_tokens"))
			out = json_read_number(&v, TOKENS_MAX, &s->tokens);
	}
	s->counts = in && out;
	s->usage = (struct splice_seg){begin, (size_t)(r->p - begin)};
}

static void
read_member(struct json_read *r, bool chat, const struct splice_seg *key, struct said *s)
{
	struct splice_seg v;

	if (json_read_is(key, "choices") && json_read_peek(r) == '[') {
		(void)json_read_enter(r, '[');
		while (json_read_element(r)) {
			if (s->nchoices++ > 0)
				odd(s, several);
			read_choice(r, chat, s);
		}
		return;
	}
	if (json_read_is(key, "usage") && json_read_peek(r) == '{') {
		read_usage(r, s);
		return;
	}
	v = json_read_value(r);
	if (json_read_is(key, "id"))
		s->known[ID] = v;
	else if (json_read_is(key, "created"))
		s->known[CREATED] = v;
	else if (json_read_is(key, "model"))
		s->known[MODEL] = v;
	s->error |= (json_read_is(key, "error") && !empty(&v)) ||
		    (json_read_is(key, "object") && json_read_is(&v, "\"error\""));
}

static bool
read_event(const struct splice_seg *json, bool chat, struct said *s)
{
	struct splice_seg key;
	struct json_read r;

	memset(s, 0, sizeof(*s));
	json_read_init(&r, json->p, json->n);
	(void)json_read_enter(&r, '{');
	while (json_read_member(&r, &key))
		read_member(&r, chat, &key, s);
	return json_read_done(&r);
}

/* --- writing it ---------------------------------------------------------------------------- */

#define CHANGES_MAX 6

/* The replacements for spans of an event, in the order of the spans. */
struct changes {
	size_t n;
	struct change {
		struct splice_seg old;
		struct splice_seg put; /* valid until the event is written */
	} at[CHANGES_MAX];
};

static void
change(struct changes *c, const struct splice_seg *old, const char *text, size_t n)
{
	size_t i = c->n++;

	assert(i < CHANGES_MAX);
	for (; i > 0 && c->at[i - 1].old.p > old->p; i--)
		c->at[i] = c->at[i - 1];
	c->at[i] = (struct change){*old, {text, n}};
}

static void
write_changed(const struct splice_seg *json, const struct changes *c, struct membuf *out)
{
	const char *at = json->p;

	for (size_t i = 0; i < c->n; i++) {
		const struct change *ch = &c->at[i];

		membuf_add(out, at, (size_t)(ch->old.p - at));
		put_seg(out, &ch->put);
		at = ch->old.p + ch->old.n;
	}
	membuf_add(out, at, (size_t)(json->p + json->n - at));
}

/* Offsets count from the start of all the text. */
static void
put_shifted(const struct splice_seg *list, uint64_t by, struct membuf *out)
{
	struct splice_seg v;
	struct copy c;
	uint64_t n;

	copy_start(&c, list, out);
	if (json_read_peek(&c.r) == '[' && json_read_enter(&c.r, '['))
		while (json_read_element(&c.r)) {
			v = json_read_value(&c.r);
			if (!json_read_number(&v, TOKENS_MAX, &n))
				continue;
			copy_past(&c, &v);
			put_number(out, n + by);
		}
	copy_up_to(&c, list->p + list->n);
}

static uint64_t
prompt_of(const struct follow *f, const struct said *s)
{
	if (f->prompt_told)
		return f->prompt;
	return s->prompt > f->before ? s->prompt - f->before : s->prompt;
}

/*
 * A later leg's usage: the prompt of the client's own request, and all generated tokens.  Details
 * of the later leg's prompt are left out, because they do not describe the client's prompt.
 */
static void
put_usage(const struct follow *f, const struct said *s, struct membuf *out)
{
	const uint64_t in = prompt_of(f, s), made = f->before + s->tokens;
	struct splice_seg key, v;
	struct copy c;

	copy_start(&c, &s->usage, out);
	(void)json_read_enter(&c.r, '{');
	while (json_read_member(&c.r, &key)) {
		v = json_read_value(&c.r);
		if (json_read_is(&key, "prompt_tokens")) {
			copy_past(&c, &v);
			put_number(out, in);
		} else if (json_read_is(&key, "completion_tokens")) {
			copy_past(&c, &v);
			put_number(out, made);
		} else if (json_read_is(&key, "total_tokens")) {
			copy_past(&c, &v);
			put_number(out, in + made);
		} else if (json_read_is(&key, "prompt_tokens_details")) {
			copy_past(&c, &v);
			put(out, "null");
		}
	}
	copy_up_to(&c, s->usage.p + s->usage.n);
}

/* Writes the event for the client; false: the client does not get it. */
static bool
write_event(
	struct follow *f, const struct splice_seg *json, const struct said *s, struct membuf *out)
{
	struct membuf usage = {NULL, 0, 0}, offsets = {NULL, 0, 0};
	struct changes c = {.n = 0};

	if (s->usage.n > 0 && s->nchoices == 0 && !f->usage)
		return false;
	if (f->later && f->role && s->role.n > 0 && empty(&s->text) && s->finish.n == 0 &&
		s->why == NULL)
		return false;
	if (s->usage.n > 0 && s->nchoices > 0 && !f->each) {
		change(&c, &s->usage, "null", 4);
	} else if (s->usage.n > 0 && f->later && s->counts) {
		put_usage(f, s, &usage);
		change(&c, &s->usage, usage.p, usage.n);
	}
	for (size_t i = 0; f->later && i < KNOWN; i++)
		if (s->known[i].n > 0 && f->known[i].n > 0)
			change(&c, &s->known[i], f->known[i].p, f->known[i].n);
	if (f->later && f->role && s->role.n > 0)
		change(&c, &s->role, "null", 4);
	if (f->chars > 0 && s->offsets.n > 0) {
		put_shifted(&s->offsets, f->chars, &offsets);
		change(&c, &s->offsets, offsets.p, offsets.n);
	}
	write_changed(json, &c, out);
	membuf_free(&usage);
	membuf_free(&offsets);
	return true;
}

/* --- following it -------------------------------------------------------------------------- */

static void
learn(struct follow *f, const struct said *s)
{
	for (size_t i = 0; i < KNOWN; i++) {
		if (s->known[i].n == 0 || f->known[i].n > 0)
			continue;
		if (s->known[i].n > KNOWN_MAX)
			never(f, "long_id");
		else
			put_seg(&f->known[i], &s->known[i]);
	}
	if (s->counts && !f->later && !f->prompt_told) {
		f->prompt_told = true;
		f->prompt = s->prompt;
	}
	if (s->counts && s->tokens > f->leg_all)
		f->leg_all = s->tokens;
}

/* Adds the event to what the client has been sent. */
static void
note(struct follow *f, const struct said *s)
{
	f->role |= s->role.n > 0 && !empty(&s->role);
	f->finished |= s->finish.n > 0;
	f->usage_told |= s->nchoices == 0 && s->usage.n > 0;
	if (s->why != NULL)
		never(f, s->why);
	if (empty(&s->text))
		return;
	if (s->counts)
		f->leg = s->tokens;
	else
		f->leg++;
	if (f->leg_all < f->leg)
		f->leg_all = f->leg;
	if (f->why != NULL)
		return;
	if (s->text.n - 2 > f->max_bytes - f->text.n)
		never(f, "long_answer");
	else
		membuf_add(&f->text, s->text.p + 1, s->text.n - 2);
}

/* A finish_reason of an engine that has not finished (SGLang; vLLM when its engine is paused, or
 * KV is lost). */
static bool
gave_up(const struct said *s)
{
	return json_read_is(&s->finish, "\"abort\"") || json_read_is(&s->finish, "\"error\"");
}

#define PREFIX 6 /* bytes of "data: " */

/* Whether later events are likely to have the form of this one, and are text and usage alone then. */
static bool
is_usual(const struct follow *f, const struct said *s)
{
	return !f->later && s->nchoices == 1 && s->text.n > 0 && s->finish.n == 0 &&
	       s->offsets.n == 0 && s->why == NULL && !s->error &&
	       (s->usage.n == 0 || s->usage.p > s->text.p);
}

static int
follow_json(struct follow *f, const char *event, size_t n, const struct splice_seg *json,
	struct membuf *out)
{
	struct said s;

	if (!read_event(json, f->chat, &s)) {
		if (f->why == NULL)
			return FOLLOW_BAD;
		membuf_add(out, event, n);
		return FOLLOW_OK;
	}
	if (s.error && clients_fault(json))
		never(f, "client_error");
	if (f->why == NULL && (s.error || gave_up(&s)))
		return FOLLOW_DIED;
	learn(f, &s);
	f->made.n = 0;
	if (s.error)
		membuf_add(out, event, n);
	else if (write_event(f, json, &s, &f->made))
		event_put(event, n, &f->made, out);
	note(f, &s);
	if (event + PREFIX == json->p && is_usual(f, &s))
		form_learn(&f->form, event, n, &s.text, &s.usage);
	return FOLLOW_OK;
}

/* An event of the form of the first leg's: the rest of it says nothing new.  False, and nothing is done, if it has another
 * form. */
static bool
follow_usual(struct follow *f, const char *event, size_t n, struct membuf *out)
{
	struct said s = {.nchoices = 1};
	struct splice_seg usage;
	struct json_read r;

	if (f->later || !form_match(&f->form, event, n, &s.text, &usage))
		return false;
	if (usage.n > 0) {
		if (memchr(usage.p, '\n', usage.n) != NULL ||
			memchr(usage.p, '\r', usage.n) != NULL)
			return false; /* a line of the event ends there */
		json_read_init(&r, usage.p, usage.n);
		read_usage(&r, &s);
		if (!json_read_done(&r))
			return false;
	}
	learn(f, &s);
	if (usage.n > 0 && !f->each) {
		membuf_add(out, event, (size_t)(usage.p - event));
		put(out, "null");
		membuf_add(out, usage.p + usage.n, (size_t)(event + n - usage.p) - usage.n);
	} else {
		membuf_add(out, event, n);
	}
	note(f, &s);
	return true;
}

#define WORK_KEPT (64u << 10) /* bytes of each buffer that a stream keeps for its next event */

int
follow_event(struct follow *f, const char *event, size_t n, struct membuf *out)
{
	struct splice_seg data;
	int r = FOLLOW_OK;
	bool other;

	if (follow_usual(f, event, n, out))
		return FOLLOW_OK;
	if (event_data(event, n, &f->joined, &data, &other) == 0) {
		if (other)
			membuf_add(out, event, n);
		return FOLLOW_OK;
	}
	if (json_read_is(&data, "[DONE]")) {
		f->done = true;
		membuf_add(out, event, n);
	} else {
		r = follow_json(f, event, n, &data, out);
	}
	if (f->joined.cap > WORK_KEPT)
		membuf_free(&f->joined);
	if (f->made.cap > WORK_KEPT)
		membuf_free(&f->made);
	return r;
}

/* --- the end ------------------------------------------------------------------------------- */

bool
follow_complete(const struct follow *f)
{
	return f->done || f->finished || (f->most > 0 && follow_tokens(f) >= f->most);
}

/* data: {"id":..,"object":..,"created":..,"model":..,"choices":[ */
static void
put_head(const struct follow *f, struct membuf *out)
{
	static const char *const otherwise[KNOWN] = {
		[ID] = "\"\"", [CREATED] = "0", [MODEL] = "\"\""};

	put(out, "data: {\"object\":");
	put(out, f->chat ? "\"chat.completion.chunk\"" : "\"text_completion\"");
	for (size_t i = 0; i < KNOWN; i++) {
		put(out, ",\"");
		put(out, known_keys[i]);
		put(out, "\":");
		if (f->known[i].n > 0)
			membuf_add(out, f->known[i].p, f->known[i].n);
		else
			put(out, otherwise[i]);
	}
	put(out, ",\"choices\":[");
}

static void
put_total(const struct follow *f, struct membuf *out)
{
	const uint64_t made = f->before + f->leg_all;

	put(out, "],\"usage\":{\"prompt_tokens\":");
	put_number(out, f->prompt);
	put(out, ",\"total_tokens\":");
	put_number(out, f->prompt + made);
	put(out, ",\"completion_tokens\":");
	put_number(out, made);
	put(out, "}}\n\n");
}

void
follow_finish(struct follow *f, struct membuf *out)
{
	if (f->done)
		return;
	if (!f->finished) {
		put_head(f, out);
		put(out, f->chat ? "{\"index\":0,\"delta\":{}" : "{\"index\":0,\"text\":\"\"");
		put(out, ",\"logprobs\":null,\"finish_reason\":\"length\"}");
		if (f->each && f->prompt_told)
			put_total(f, out);
		else
			put(out, "],\"usage\":null}\n\n");
	}
	if (f->usage && !f->usage_told && f->prompt_told) {
		put_head(f, out);
		put_total(f, out);
	}
	put(out, "data: [DONE]\n\n");
	f->finished = f->usage_told = f->done = true;
}

/* --- going on ------------------------------------------------------------------------------ */

static void
set(struct splice_edit *e, enum splice_key k, const struct membuf *value)
{
	splice_edit(e, k, SE_SET, value->p, value->n);
}

/* Appends the text to the contents of a string. */
static void
put_longer(const struct splice_seg *string, const struct membuf *text, struct membuf *out)
{
	membuf_add(out, string->p, string->n - 1);
	membuf_add(out, text->p, text->n);
	put(out, "\"");
}

static void
put_messages(const struct follow *f, const struct splice *doc, struct membuf *out)
{
	const struct splice_seg list = value_of(doc, SK_MESSAGES), open = open_content(doc);
	const char *end = list.p + list.n;

	if (goes_on(doc)) {
		membuf_add(out, list.p, (size_t)(open.p - list.p));
		put_longer(&open, &f->text, out);
		membuf_add(out, open.p + open.n, (size_t)(end - open.p) - open.n);
		return;
	}
	membuf_add(out, list.p, list.n - 1);
	put(out, ",{\"role\":\"assistant\",\"content\":\"");
	membuf_add(out, f->text.p, f->text.n);
	put(out, "\"}]");
}

/* The rest of a count; at least `least`. */
static void
put_rest(uint64_t of, uint64_t used, uint64_t least, struct membuf *out)
{
	put_number(out, of > used + least ? of - used : least);
}

#define EDITS 4

static void
edit(const struct follow *f, const struct splice *doc, struct splice_edit *e,
	struct membuf made[EDITS])
{
	static const struct {
		enum splice_key key;
		uint64_t least;
	} counts[] = {{SK_MAX_TOKENS, 1}, {SK_MAX_COMPLETION_TOKENS, 1}, {SK_MIN_TOKENS, 0}};
	static const char yes[] = "true", no[] = "false";
	const struct splice_seg prompt = prompt_text(doc);

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		uint64_t n = 0;

		if (!f->chat && counts[i].key == SK_MAX_TOKENS)
			n = f->most; /* the default is a limit too */
		else if (!count_of(doc, counts[i].key, &n) || n == 0)
			continue;
		put_rest(n, f->before, counts[i].least, &made[i]);
		set(e, counts[i].key, &made[i]);
	}
	if (f->chat) {
		put_messages(f, doc, &made[3]);
		set(e, SK_MESSAGES, &made[3]);
		splice_edit(e, SK_CONTINUE_FINAL_MESSAGE, SE_SET, yes, sizeof(yes) - 1);
		splice_edit(e, SK_ADD_GENERATION_PROMPT, SE_SET, no, sizeof(no) - 1);
	} else {
		put_longer(&prompt, &f->text, &made[3]);
		set(e, SK_PROMPT, &made[3]);
	}
}

void
follow_next(struct follow *f, const struct splice *doc, struct membuf *out)
{
	struct splice_seg segs[SPLICE_MAX_SEGMENTS];
	struct membuf made[EDITS] = {{NULL, 0, 0}};
	struct splice_edit e;
	size_t n, total;

	assert(f->why == NULL && !follow_complete(f));
	f->before += f->leg;
	f->leg = f->leg_all = 0;
	f->later = true;
	e.given = 0;
	if (f->text.n > 0) { /* else the client's own request */
		edit(f, doc, &e, made);
		f->chars = json_characters(f->text.p, f->text.n);
	}
	n = splice_layout(doc, &e, segs, &total);
	for (size_t i = 0; i < n; i++)
		membuf_add(out, segs[i].p, segs[i].n);
	for (size_t i = 0; i < EDITS; i++)
		membuf_free(&made[i]);
}
