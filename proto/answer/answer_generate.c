/*
 * SGLang's /generate: {"text":..,"meta_info":{"input_token_logprobs":[[-0.5,1598,"He"],..],..}}, a
 * list of these for a list of texts or samples; in a stream each event holds one, and its "index"
 * if there are several.  D did not see the prompt, so the logprobs of the input are P's: they are
 * put in front of D's, in a stream in front of each event's, as sglang-router 0.3.2 does.
 */
#include <assert.h>
#include <string.h>

#include "proto/answer/answer_in.h"
#include "proto/answer/event.h"
#include "proto/answer/sse.h"

static const char *const list_keys[INPUT_LISTS] = {
	"input_token_logprobs",
	"input_top_logprobs",
	"input_token_ids_logprobs",
};

/* --- P ------------------------------------------------------------------------------------ */

/* The lists of the next object; *ret_k is its index, if it has one. */
static void
read_inputs(struct json_read *r, struct splice_seg lists[INPUT_LISTS], uint64_t *ret_k)
{
	struct splice_seg key, value;
	unsigned seen = 0;
	size_t i;

	for (i = 0; i < INPUT_LISTS; i++)
		lists[i] = (struct splice_seg){"", 0};
	(void)json_read_enter(r, '{');
	while (json_read_member(r, &key)) {
		if (json_read_is(&key, "meta_info") && json_read_peek(r) == '{') {
			(void)json_read_enter(r, '{');
			while (json_read_member(r, &key)) {
				value = json_read_value(r);
				r->bad |= !find_once(&key, list_keys, INPUT_LISTS, &seen, &i);
				if (i < INPUT_LISTS && value.n > 0 && value.p[0] == '[')
					lists[i] = value;
			}
			continue;
		}
		value = json_read_value(r);
		if (json_read_is(&key, "index"))
			(void)seg_number(&value, ret_k);
	}
}

/* Keeps P's first output for text k. */
static int
keep_inputs(struct answer *a, uint32_t part, uint64_t k, struct splice_seg lists[INPUT_LISTS])
{
	struct part *p = &a->part[part];
	struct input_first *input;
	bool any = false;

	for (size_t i = 0; i < INPUT_LISTS; i++)
		any |= lists[i].n > 0;
	if (!any)
		return ANSWER_OK; /* an event with the room precedes it */
	if (k >= p->ninputs) {
		size_t more = 0;

		if (k >= a->max_bytes / sizeof(*input))
			return ANSWER_LARGE;
		more = k + 1 - p->ninputs;
		if (!keep_room(a, more * sizeof(*input)))
			return ANSWER_LARGE;
		a->extra += more * sizeof(*input);
		p->inputs = mem_resize(p->inputs, k + 1, sizeof(*input));
		memset(p->inputs + p->ninputs, 0, more * sizeof(*input));
		p->ninputs = k + 1;
	}
	input = &p->inputs[k];
	if (input->there)
		return ANSWER_OK;
	input->there = true;
	for (size_t i = 0; i < INPUT_LISTS; i++)
		if (lists[i].n > 0 && !keep(a, &lists[i], &input->lists[i]))
			return ANSWER_LARGE;
	return ANSWER_OK;
}

static int
prefill_body(struct answer *a, uint32_t part, const char *text, size_t n)
{
	struct splice_seg lists[INPUT_LISTS];
	struct json_read r;
	int ret = ANSWER_OK;
	uint64_t k = 0;

	json_read_init(&r, text, n);
	if (json_read_peek(&r) == '{') {
		read_inputs(&r, lists, &k);
		return json_read_done(&r) ? keep_inputs(a, part, k, lists) : ANSWER_BAD;
	}
	(void)json_read_enter(&r, '[');
	for (uint64_t i = 0; ret == ANSWER_OK && json_read_element(&r); i++) {
		read_inputs(&r, lists, &k);
		ret = r.bad ? ANSWER_BAD : keep_inputs(a, part, i, lists);
	}
	return ret != ANSWER_OK || json_read_done(&r) ? ret : ANSWER_BAD;
}

/* If P sends the room in a stream, its answer is a stream, whatever the client requested. */
int
generate_prefill(struct answer *a, uint32_t part, const char *text, size_t n)
{
	struct splice_seg data;
	struct json_read r;
	size_t len, at = 0;
	bool other;

	json_read_init(&r, text, n);
	if (json_read_peek(&r) == '{' || json_read_peek(&r) == '[')
		return prefill_body(a, part, text, n);
	for (; (len = sse_next(text + at, n - at)) > 0; at += len) {
		int ret;

		if (event_data(text + at, len, &a->joined, &data, &other) == 0 ||
			json_read_is(&data, "[DONE]"))
			continue;
		ret = prefill_body(a, part, data.p, data.n);
		if (ret != ANSWER_OK)
			return ret;
	}
	return at > 0 ? ANSWER_OK : ANSWER_BAD;
}

/* --- D ------------------------------------------------------------------------------------ */

/* The lists of *seen have been. */
static bool
copy_meta(const struct answer *a, const struct input_first *input, unsigned *seen, struct copy *c)
{
	struct splice_seg key, value, before;
	size_t i;

	(void)json_read_enter(&c->r, '{');
	while (json_read_member(&c->r, &key)) {
		value = json_read_value(&c->r);
		if (!find_once(&key, list_keys, INPUT_LISTS, seen, &i))
			return false;
		if (i == INPUT_LISTS || input->lists[i].n == 0 || value.n == 0 || value.p[0] != '[')
			continue;
		before = kept_get(a, &input->lists[i]);
		copy_past(c, &value);
		put_arrays(&before, &value, c->out);
	}
	return true;
}

/* One object, for text k of the part; `number` is its index for the client, NULL: unchanged. */
static int
copy_object(struct answer *a, uint32_t part, uint64_t k, const uint64_t *number, struct copy *c)
{
	const struct part *p = &a->part[part];
	const struct input_first *input = k < p->ninputs ? &p->inputs[k] : NULL;
	bool numbered = number == NULL, error = false, any = false;
	struct splice_seg key, value;
	unsigned seen = 0;

	(void)json_read_enter(&c->r, '{');
	for (; json_read_member(&c->r, &key); any = true) {
		if (input != NULL && json_read_is(&key, "meta_info") &&
			json_read_peek(&c->r) == '{') {
			if (!copy_meta(a, input, &seen, c))
				return ANSWER_BAD;
			continue;
		}
		value = json_read_value(&c->r);
		error |= says_error(&key, &value);
		if (number == NULL || !json_read_is(&key, "index"))
			continue;
		copy_past(c, &value);
		put_number(c->out, *number);
		numbered = true;
	}
	if (c->r.bad)
		return ANSWER_BAD;
	if (!numbered) {
		copy_up_to(c, c->r.p - 1);
		if (any)
			PUT(c->out, ",");
		PUT(c->out, "\"index\":");
		put_number(c->out, *number);
	}
	copy_up_to(c, c->r.p);
	return error ? ANSWER_ERROR : ANSWER_OK;
}

int
generate_event(struct answer *a, uint32_t part, const struct splice_seg *json)
{
	struct splice_seg index;
	uint64_t k = 0, number = 0;
	struct copy c;
	int r;

	if (splice_member_raw(json->p, json->n, "index", &index) == 1 && !seg_number(&index, &k))
		return ANSWER_BAD;
	if (is_merged(a) && !choice_number(a, part, k, &number))
		return ANSWER_BAD;
	copy_start(&c, json, &a->json);
	r = copy_object(a, part, k, is_merged(a) ? &number : NULL, &c);
	return r != ANSWER_OK || json_read_done(&c.r) ? r : ANSWER_BAD;
}

/* A part's body without the brackets of its list; *ret_list: whether it was a list. */
static int
put_body(struct answer *a, uint32_t part, struct membuf *out, bool *ret_list)
{
	struct splice_seg whole = kept_get(a, &a->part[part].whole);
	int r = ANSWER_OK;
	struct copy c;

	copy_start(&c, &whole, out);
	*ret_list = json_read_peek(&c.r) == '[';
	c.at = c.r.p; /* the blanks before it */
	if (!*ret_list) {
		r = copy_object(a, part, 0, NULL, &c);
	} else {
		(void)json_read_enter(&c.r, '[');
		c.at = c.r.p;
		for (uint64_t k = 0; r == ANSWER_OK && json_read_element(&c.r); k++)
			r = copy_object(a, part, k, NULL, &c);
	}
	return r == ANSWER_OK && json_read_done(&c.r) ? ANSWER_OK : ANSWER_BAD;
}

int
generate_whole(struct answer *a, struct membuf *out)
{
	bool list = false, brackets = is_merged(a);
	int r = ANSWER_OK;

	a->json.n = 0;
	for (uint32_t i = 0; r == ANSWER_OK && i < a->how.parts; i++) {
		size_t before = a->json.n;

		if (before > 0)
			PUT(&a->json, ",");
		r = put_body(a, i, &a->json, &list);
		if (before > 0 && a->json.n == before + 1)
			a->json.n = before; /* an empty list */
		brackets |= list;
	}
	if (brackets)
		PUT(out, "[");
	membuf_add(out, a->json.p, a->json.n);
	if (brackets)
		PUT(out, "]");
	return r;
}
