/*
 * Answers that are written anew from engines that answer with text_completion.  Of each event or
 * body these members are kept: id, object, created, model, the choices' index, text, logprobs,
 * finish_reason and stop_reason, and usage.  The other members describe D's prompt, which is not
 * the client's.
 *
 * P's answer holds the first token.  In a stream it becomes the head: for chat an event with the
 * role, then one with the text.  P's finish_reason is sent only if nothing is decoded after it.
 */
#include <string.h>

#include "proto/answer/answer_in.h"
#include "proto/json/json_string.h"

static const struct splice_seg none = {"", 0};

/* A choice as it will be written; texts and logprobs of P, then of D. */
struct choice {
	uint64_t index;
	struct splice_seg text[2], logprobs[2], finish, stop;
	uint64_t before; /* characters of P's text, where D's follows it */
};

/* An event or a body as received, without its choices. */
struct reply {
	bool error;
	struct splice_seg usage;
};

bool
is_clean(const struct answer *a)
{
	return a->firsts != NULL;
}

static struct first *
first_of(const struct answer *a, uint32_t part, uint32_t k)
{
	return &a->firsts[part * a->nfirsts + k];
}

/* --- writing ------------------------------------------------------------------------------ */

static void
put_or(struct membuf *out, const struct splice_seg *seg, const char *otherwise)
{
	if (seg->n > 0)
		put_seg(out, seg);
	else
		membuf_add(out, otherwise, strlen(otherwise));
}

/* {..,"choices":[ */
static void
put_head(const struct answer *a, struct membuf *out)
{
	static const char *const objects[2][2] = {
		{"text_completion", "text_completion"},
		{"chat.completion", "chat.completion.chunk"},
	};
	const char *object = objects[a->how.chat][a->how.stream];
	struct splice_seg id = kept_get(a, &a->id), created = kept_get(a, &a->created),
			  model = kept_get(a, &a->model);

	PUT(out, "{\"id\":");
	put_or(out, &id, "\"\"");
	PUT(out, ",\"object\":\"");
	membuf_add(out, object, strlen(object));
	PUT(out, "\",\"created\":");
	put_or(out, &created, "0");
	PUT(out, ",\"model\":");
	put_or(out, &model, "\"\"");
	PUT(out, ",\"choices\":[");
}

/* ] and the usage: completions have null if there is none, chat has no member. */
static void
put_tail(const struct answer *a, const struct membuf *usage, struct membuf *out)
{
	PUT(out, "]");
	if (usage != NULL && usage->n > 0) {
		PUT(out, ",\"usage\":");
		membuf_add(out, usage->p, usage->n);
	} else if (!a->how.chat) {
		PUT(out, ",\"usage\":null");
	}
	PUT(out, "}");
}

/* Both texts as one JSON string. */
static void
put_text(const struct splice_seg text[2], struct membuf *out)
{
	PUT(out, "\"");
	for (unsigned i = 0; i < 2; i++)
		if (text[i].n > 0)
			membuf_add(out, text[i].p + 1, text[i].n - 2);
	PUT(out, "\"");
}

/* The contents of the choice, in the client's shape. */
static void
put_said(const struct answer *a, const struct choice *c, struct membuf *out)
{
	bool silent = c->text[0].n + c->text[1].n <= 2; /* none, or "" */

	if (a->how.chat && a->how.stream && silent && !seg_is_null(&c->finish)) {
		PUT(out, ",\"delta\":{}");
		return;
	}
	if (!a->how.chat)
		PUT(out, ",\"text\":");
	else if (a->how.stream)
		PUT(out, ",\"delta\":{\"content\":");
	else
		PUT(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
	put_text(c->text, out);
	if (a->how.chat)
		PUT(out, "}");
}

/* Appends the choice, after a comma if it is not the first. */
static int
put_choice(struct answer *a, const struct choice *c, struct membuf *out)
{
	int r;

	if (out->n > 0)
		PUT(out, ",");
	PUT(out, "{\"index\":");
	put_number(out, c->index);
	put_said(a, c, out);
	PUT(out, ",\"logprobs\":");
	r = a->how.chat ? logprobs_chat(a, c->logprobs, out)
			: logprobs_join(a, c->logprobs, c->before, out);
	PUT(out, ",\"finish_reason\":");
	put_or(out, &c->finish, "null");
	/* vLLM's chat has this member only at the end */
	if (!a->how.chat || (!seg_is_null(&c->finish) && c->stop.n > 0)) {
		PUT(out, ",\"stop_reason\":");
		put_or(out, &c->stop, "null");
	}
	PUT(out, "}");
	return r;
}

/* One whole event of `choices`, as put_choice() wrote them. */
static void
put_event(const struct answer *a, const struct membuf *choices, const struct membuf *usage,
	struct membuf *out)
{
	PUT(out, "data: ");
	put_head(a, out);
	membuf_add(out, choices->p, choices->n);
	put_tail(a, usage, out);
	PUT(out, "\n\n");
}

/* {"prompt_tokens":9,"total_tokens":9,"completion_tokens":0}: vLLM sends this with the role. */
static void
role_usage(const struct answer *a, uint32_t part, struct membuf *out)
{
	struct splice_seg usage = kept_get(a, &a->part[part].prefill_usage), prompt;

	if (!a->how.continuous_usage || usage.n == 0 ||
		splice_member_raw(usage.p, usage.n, "prompt_tokens", &prompt) != 1)
		return;
	PUT(out, "{\"prompt_tokens\":");
	put_seg(out, &prompt);
	PUT(out, ",\"total_tokens\":");
	put_seg(out, &prompt);
	PUT(out, ",\"completion_tokens\":0}");
}

/* A chat's choice begins with its role, once. */
static void
tell_role(struct answer *a, uint32_t part, uint32_t k, uint64_t index, struct membuf *out)
{
	struct first *f = first_of(a, part, k);

	if (!a->how.chat || f->told)
		return;
	f->told = true;
	a->scratch.n = 0;
	PUT(&a->scratch, "{\"index\":");
	put_number(&a->scratch, index);
	PUT(&a->scratch, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
			 "\"finish_reason\":null}");
	a->usage.n = 0;
	role_usage(a, part, &a->usage);
	put_event(a, &a->scratch, &a->usage, out);
}

/* --- reading ------------------------------------------------------------------------------ */

/* A string, or nothing for null; anything else is an error. */
static struct splice_seg
read_text(struct json_read *r)
{
	struct splice_seg text = json_read_value(r);

	if (text.n > 0 && text.p[0] == '"')
		return text;
	r->bad |= !seg_is_null(&text);
	return none;
}

static struct splice_seg
read_object(struct json_read *r)
{
	struct splice_seg object = json_read_value(r);

	if (object.n > 0 && object.p[0] == '{')
		return object;
	r->bad |= !seg_is_null(&object);
	return none;
}

/* Reads one choice, text and logprobs as those of `leg` (0: P, 1: D); *ret_k is its own number. */
static bool
read_choice(struct json_read *r, unsigned leg, struct choice *c, uint64_t *ret_k)
{
	struct splice_seg key, value;

	*c = (struct choice){.finish = none, .stop = none};
	c->text[0] = c->text[1] = c->logprobs[0] = c->logprobs[1] = none;
	*ret_k = 0;
	(void)json_read_enter(r, '{');
	while (json_read_member(r, &key)) {
		if (json_read_is(&key, "text")) {
			c->text[leg] = read_text(r);
		} else if (json_read_is(&key, "logprobs")) {
			c->logprobs[leg] = read_object(r);
		} else if (json_read_is(&key, "finish_reason")) {
			c->finish = read_text(r);
		} else if (json_read_is(&key, "stop_reason")) {
			c->stop = json_read_value(r);
		} else {
			value = json_read_value(r);
			if (json_read_is(&key, "index"))
				r->bad |= !seg_number(&value, ret_k);
		}
	}
	return !r->bad;
}

/* Takes one choice that was read, and may complete it; `arg` is its own. */
typedef int choice_fn(struct answer *a, uint32_t part, uint32_t k, struct choice *c, void *arg);

static int
read_choices(struct answer *a, uint32_t part, struct json_read *r, unsigned leg, choice_fn *fn,
	void *arg)
{
	struct choice c;
	uint64_t k;

	(void)json_read_enter(r, '[');
	while (json_read_element(r)) {
		int ret;

		if (!read_choice(r, leg, &c, &k) || k >= a->nfirsts ||
			!choice_number(a, part, k, &c.index))
			return ANSWER_BAD;
		ret = fn(a, part, (uint32_t)k, &c, arg);
		if (ret != ANSWER_OK)
			return ret;
	}
	return ANSWER_OK;
}

static int
read_reply(struct answer *a, uint32_t part, const struct splice_seg *json, unsigned leg,
	struct reply *ret, choice_fn *fn, void *arg)
{
	struct splice_seg key, value;
	struct json_read r;
	int got = ANSWER_OK;

	*ret = (struct reply){.usage = none};
	json_read_init(&r, json->p, json->n);
	(void)json_read_enter(&r, '{');
	while (got == ANSWER_OK && json_read_member(&r, &key)) {
		if (json_read_is(&key, "choices")) {
			got = read_choices(a, part, &r, leg, fn, arg);
		} else if (json_read_is(&key, "usage")) {
			ret->usage = read_object(&r);
		} else {
			value = json_read_value(&r);
			ret->error |= says_error(&key, &value);
		}
	}
	if (got == ANSWER_OK && !json_read_done(&r))
		got = ANSWER_BAD;
	return got;
}

/* --- P ------------------------------------------------------------------------------------ */

static int
keep_first(struct answer *a, uint32_t part, uint32_t k, struct choice *c, void *arg)
{
	struct first *f = first_of(a, part, k);

	(void)arg;
	f->there = true;
	if (c->text[0].n > 2)
		f->chars = json_characters(c->text[0].p + 1, c->text[0].n - 2);
	return keep(a, &c->text[0], &f->text) && keep(a, &c->logprobs[0], &f->logprobs) &&
			       keep(a, &c->finish, &f->finish) && keep(a, &c->stop, &f->stop)
		       ? ANSWER_OK
		       : ANSWER_LARGE;
}

/* The choice with only the prefill engine's output. */
static struct choice
first_choice(const struct answer *a, uint32_t part, uint32_t k)
{
	const struct first *f = first_of(a, part, k);
	struct choice c = {
		.text = {kept_get(a, &f->text), none},
		.logprobs = {kept_get(a, &f->logprobs), none},
		.finish = kept_get(a, &f->finish),
		.stop = kept_get(a, &f->stop),
	};

	(void)choice_number(a, part, k, &c.index);
	return c;
}

static void
continuous_usage(const struct answer *a, const struct kept *usage, struct membuf *out)
{
	struct splice_seg seg = kept_get(a, usage);

	out->n = 0;
	if (a->how.continuous_usage)
		put_seg(out, &seg);
}

/* An event for each of P's choices: its `text`, or its end. */
static int
tell_first(struct answer *a, uint32_t part, bool text, struct membuf *out)
{
	for (uint32_t k = 0; k < a->nfirsts; k++) {
		struct choice c = first_choice(a, part, k);
		int r;

		if (!first_of(a, part, k)->there)
			continue;
		if (text)
			c.finish = c.stop = none;
		else
			c.text[0] = c.logprobs[0] = none;
		tell_role(a, part, k, c.index, out);
		a->choices.n = 0;
		r = put_choice(a, &c, &a->choices);
		if (r != ANSWER_OK)
			return r;
		continuous_usage(a, &a->part[part].prefill_usage, &a->usage);
		put_event(a, &a->choices, &a->usage, out);
	}
	return ANSWER_OK;
}

int
clean_prefill(struct answer *a, uint32_t part, const char *json, size_t n, struct membuf *out)
{
	const struct splice_seg text = {json, n};
	struct reply reply;
	int r = read_reply(a, part, &text, 0, &reply, keep_first, NULL);

	if (r == ANSWER_OK && (reply.error || !first_of(a, part, 0)->there))
		r = ANSWER_BAD;
	if (r == ANSWER_OK)
		r = know(a, json, n);
	if (r == ANSWER_OK && a->how.stream)
		r = tell_first(a, part, true, out);
	return r;
}

int
clean_finish(struct answer *a, uint32_t part, struct membuf *out)
{
	a->part[part].usage = a->part[part].prefill_usage;
	return a->how.stream ? tell_first(a, part, false, out) : ANSWER_OK;
}

/* --- D ------------------------------------------------------------------------------------ */

static int
event_choice(struct answer *a, uint32_t part, uint32_t k, struct choice *c, void *arg)
{
	c->before = first_of(a, part, k)->chars;
	tell_role(a, part, k, c->index, arg);
	return put_choice(a, c, &a->choices);
}

int
clean_event(struct answer *a, uint32_t part, const struct splice_seg *json, struct membuf *out)
{
	struct reply reply;
	int r = know(a, json->p, json->n);

	a->choices.n = 0;
	if (r == ANSWER_OK)
		r = read_reply(a, part, json, 1, &reply, event_choice, out);
	if (r != ANSWER_OK)
		return r;
	if (reply.error)
		return ANSWER_ERROR;
	if (a->choices.n == 0 && reply.usage.n > 0) {
		a->usage_held = true;
		return usage_keep(a, part, &reply.usage);
	}
	a->usage.n = 0;
	if (reply.usage.n > 0)
		r = usage_correct(a, part, &reply.usage, &a->usage);
	put_head(a, &a->json);
	membuf_add(&a->json, a->choices.p, a->choices.n);
	put_tail(a, &a->usage, &a->json);
	return r;
}

void
clean_usage_event(struct answer *a, struct membuf *out)
{
	a->choices.n = a->usage.n = 0;
	if ((a->how.usage || a->usage_held) && usage_sum(a, &a->usage))
		put_event(a, &a->choices, &a->usage, out);
}

/* --- whole bodies ------------------------------------------------------------------------- */

static int
whole_choice(struct answer *a, uint32_t part, uint32_t k, struct choice *c, void *arg)
{
	struct first *f = first_of(a, part, k);

	if (f->told) /* otherwise P's text would be repeated each time that D sends the choice */
		return ANSWER_BAD;
	f->told = true;
	c->text[0] = kept_get(a, &f->text);
	c->logprobs[0] = kept_get(a, &f->logprobs);
	c->before = f->chars;
	return put_choice(a, c, arg);
}

static int
put_part(struct answer *a, uint32_t part, struct membuf *out)
{
	struct splice_seg whole = kept_get(a, &a->part[part].whole);
	struct reply reply;
	int r = ANSWER_OK;

	if (whole.n > 0)
		return read_reply(a, part, &whole, 1, &reply, whole_choice, out);
	for (uint32_t k = 0; r == ANSWER_OK && k < a->nfirsts; k++) {
		struct choice c = first_choice(a, part, k);

		if (first_of(a, part, k)->there)
			r = put_choice(a, &c, out);
	}
	return r;
}

int
clean_whole(struct answer *a, struct membuf *out)
{
	int r = ANSWER_OK;

	a->choices.n = a->usage.n = 0;
	for (uint32_t i = 0; r == ANSWER_OK && i < a->how.parts; i++)
		r = put_part(a, i, &a->choices);
	(void)usage_sum(a, &a->usage);
	put_head(a, out);
	membuf_add(out, a->choices.p, a->choices.n);
	put_tail(a, &a->usage, out);
	return r;
}
