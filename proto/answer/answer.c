/* The life of parts, and the lines of events: each goes to the file that knows its kind of answer. */
#include "proto/answer/answer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/answer/answer_in.h"
#include "proto/answer/event.h"

/* --- life --------------------------------------------------------------------------------- */

static void
default_to_one(uint32_t *n)
{
	if (*n == 0)
		*n = 1;
}

struct answer *
answer_new(const struct answer_how *how, size_t max_bytes)
{
	struct answer *a;

	assert(how->parts >= 1 && how->parts <= ANSWER_PARTS_MAX);
	assert(!how->first_token || !how->chat || how->from_completions);
	assert(how->shape == ANSWER_OPENAI || (!how->first_token && !how->from_completions));
	a = mem_zero(sizeof(*a) + how->parts * sizeof(a->part[0]));
	a->how = *how;
	a->max_bytes = max_bytes;
	default_to_one(&a->how.samples);
	default_to_one(&a->how.choices);
	if (how->first_token || how->from_completions) {
		a->nfirsts =
			a->how.choices < ANSWER_CHOICES_MAX ? a->how.choices : ANSWER_CHOICES_MAX;
		a->firsts = mem_array((size_t)a->how.parts * a->nfirsts, sizeof(*a->firsts));
	}
	if (how->id != NULL) {
		a->id = (struct kept){0, strlen(how->id)};
		membuf_add(&a->store, how->id, a->id.n);
		a->max_bytes += a->id.n; /* it is not an engine's */
	}
	return a;
}

void
answer_free(struct answer **a)
{
	struct answer *gone = *a;

	if (gone == NULL)
		return;
	for (uint32_t i = 0; i < gone->how.parts; i++)
		free(gone->part[i].inputs);
	membuf_free(&gone->store);
	membuf_free(&gone->joined);
	membuf_free(&gone->json);
	membuf_free(&gone->choices);
	membuf_free(&gone->usage);
	membuf_free(&gone->scratch);
	free(gone->firsts);
	free(gone);
	*a = NULL;
}

/* --- P ------------------------------------------------------------------------------------ */

/* The member's value if the text is an object that has it and it begins so; else of no bytes. */
static struct splice_seg
member(const char *json, size_t n, const char *name, char begins)
{
	struct splice_seg value = {"", 0};

	if (splice_member_raw(json, n, name, &value) == 1 && value.p[0] != begins)
		value.n = 0;
	return value;
}

static int
take_prefill(struct answer *a, uint32_t part, const char *json, size_t n, struct membuf *out)
{
	struct splice_seg usage;
	int r = ANSWER_OK;

	if (a->how.shape == ANSWER_GENERATE)
		return generate_prefill(a, part, json, n);
	usage = member(json, n, "usage", '{');
	if (usage.n > 0)
		r = usage_prefill(a, part, &usage);
	if (r == ANSWER_OK && a->how.first_token)
		r = clean_prefill(a, part, json, n, out);
	return r;
}

/* A JSON document with line breaks, which would end the lines of an event. */
static bool
breaks_lines(const char *text, size_t n)
{
	struct json_read r;

	json_read_init(&r, text, n);
	return (json_read_peek(&r) == '{' || json_read_peek(&r) == '[') &&
	       (memchr(text, '\n', n) != NULL || memchr(text, '\r', n) != NULL);
}

/* JSON has line breaks between its tokens alone: blanks take their places. */
static void
put_on_one_line(const char *json, size_t n, struct membuf *out)
{
	membuf_add(out, json, n);
	for (size_t i = 0; i < out->n; i++)
		if (out->p[i] == '\n' || out->p[i] == '\r')
			out->p[i] = ' ';
}

int
answer_prefill(struct answer *a, uint32_t part, const char *json, size_t n, struct membuf *out)
{
	struct membuf line = {0};
	int r;

	assert(part < a->how.parts && !a->part[part].prefilled);
	a->part[part].prefilled = true;
	if (!a->how.stream || !breaks_lines(json, n))
		return take_prefill(a, part, json, n, out);
	put_on_one_line(json, n, &line);
	r = take_prefill(a, part, line.p, line.n, out);
	membuf_free(&line);
	return r;
}

void
answer_part_again(struct answer *a, uint32_t part)
{
	struct part *p = &a->part[part];

	assert(part < a->how.parts && !p->ended);
	a->extra -= p->ninputs * sizeof(*p->inputs);
	free(p->inputs);
	memset(p, 0, sizeof(*p));
	if (a->firsts != NULL)
		memset(&a->firsts[part * a->nfirsts], 0, a->nfirsts * sizeof(*a->firsts));
}

bool
answer_prefill_ended(const char *json, size_t n)
{
	struct splice_seg choices = member(json, n, "choices", '['), choice, finish;
	bool any = false;
	size_t at = 0;

	if (choices.n == 0)
		return false;
	while (splice_element(&choices, &at, &choice)) {
		finish = member(choice.p, choice.n, "finish_reason", '"');
		if (finish.n == 0 || json_read_is(&finish, "\"length\""))
			return false;
		any = true;
	}
	return any;
}

/* --- events ------------------------------------------------------------------------------- */

static int
rewrite_event(struct answer *a, uint32_t part, const struct splice_seg *json, struct membuf *out)
{
	a->json.n = 0;
	if (a->how.shape == ANSWER_GENERATE)
		return generate_event(a, part, json);
	return is_clean(a) ? clean_event(a, part, json, out) : plain_event(a, part, json);
}

#define WORK_KEPT (64u << 10) /* bytes of each buffer that a stream keeps for its next event */

static void
drop_large(struct answer *a)
{
	struct membuf *const work[] = {&a->joined, &a->json, &a->choices, &a->usage, &a->scratch};

	for (size_t i = 0; i < sizeof(work) / sizeof(work[0]); i++)
		if (work[i]->cap > WORK_KEPT)
			membuf_free(work[i]);
}

int
answer_event(struct answer *a, uint32_t part, const char *event, size_t n, struct membuf *out)
{
	size_t mark = out->n;
	struct splice_seg data;
	bool other;
	int r;

	assert(part < a->how.parts && a->how.stream && !a->part[part].ended);
	if (event_data(event, n, &a->joined, &data, &other) == 0) {
		if (other)
			membuf_add(out, event, n);
		return ANSWER_OK;
	}
	a->part[part].begun = true;
	if (json_read_is(&data, "[DONE]"))
		return ANSWER_OK;
	r = rewrite_event(a, part, &data, out);
	if (r != ANSWER_OK)
		out->n = mark;
	if (r == ANSWER_ERROR)
		membuf_add(out, event, n);
	else if (r == ANSWER_OK && a->json.n > 0)
		event_put(event, n, &a->json, out);
	drop_large(a);
	return r;
}

/* --- whole bodies ------------------------------------------------------------------------- */

int
answer_whole(struct answer *a, uint32_t part, const char *json, size_t n)
{
	struct part *p = &a->part[part];
	struct splice_seg text = {json, n}, choices, usage;
	int r = ANSWER_OK;

	assert(part < a->how.parts && !a->how.stream && p->whole.n == 0);
	p->begun = true;
	if (!keep(a, &text, &p->whole))
		return ANSWER_LARGE;
	if (a->how.shape == ANSWER_GENERATE)
		return splice_value(json, n) > 0 ? ANSWER_OK : ANSWER_BAD;
	choices = member(json, n, "choices", '[');
	usage = member(json, n, "usage", '{');
	if (choices.n == 0)
		return ANSWER_BAD;
	p->choices = (struct kept){p->whole.at + (size_t)(choices.p - json), choices.n};
	if (part == 0)
		r = know(a, json, n);
	return r == ANSWER_OK && usage.n > 0 ? usage_keep(a, part, &usage) : r;
}

int
answer_part_end(struct answer *a, uint32_t part, struct membuf *out)
{
	struct part *p = &a->part[part];

	assert(part < a->how.parts && !p->ended);
	p->ended = true;
	return a->how.first_token && p->prefilled && !p->begun ? clean_finish(a, part, out)
							       : ANSWER_OK;
}

static int
put_whole(struct answer *a, struct membuf *out)
{
	if (a->how.shape == ANSWER_GENERATE)
		return generate_whole(a, out);
	return is_clean(a) ? clean_whole(a, out) : plain_whole(a, out);
}

int
answer_end(struct answer *a, struct membuf *out)
{
	for (uint32_t i = 0; i < a->how.parts; i++) {
		const struct part *p = &a->part[i];

		if (!p->ended || (!p->begun && !(a->how.first_token && p->prefilled)))
			return ANSWER_BAD;
	}
	if (!a->how.stream)
		return put_whole(a, out);
	if (is_clean(a))
		clean_usage_event(a, out);
	else
		plain_usage_event(a, out);
	PUT(out, "data: [DONE]\n\n");
	return ANSWER_OK;
}
