/*
 * Answers whose members stay as they are, known or not: the text is copied up to each value that is
 * to change.  With several parts, id, created and model become those of the first, the choices'
 * index counts through all, and usages are summed; with one, the id may be the caller's and cached
 * tokens P's.
 */
#include "proto/answer/answer_in.h"

/* One choice; its index counts through all parts. */
static int
copy_choice(const struct answer *a, uint32_t part, struct copy *c)
{
	struct splice_seg key, value;
	bool numbered = false;
	uint64_t k, index;

	(void)json_read_enter(&c->r, '{');
	while (json_read_member(&c->r, &key)) {
		value = json_read_value(&c->r);
		if (!json_read_is(&key, "index"))
			continue;
		if (!seg_number(&value, &k) || !choice_number(a, part, k, &index))
			return ANSWER_BAD;
		copy_past(c, &value);
		put_number(c->out, index);
		numbered = true;
	}
	return c->r.bad || !numbered ? ANSWER_BAD : ANSWER_OK;
}

/* The elements of a list of choices that was entered; *ret_n is how many they were. */
static int
copy_choices(const struct answer *a, uint32_t part, struct copy *c, size_t *ret_n)
{
	int r = ANSWER_OK;

	while (r == ANSWER_OK && json_read_element(&c->r)) {
		(*ret_n)++;
		r = copy_choice(a, part, c);
	}
	return r;
}

/* The choices of the other parts' bodies, behind those of the first. */
static int
put_other_choices(const struct answer *a, size_t n, struct membuf *out)
{
	int r = ANSWER_OK;

	for (uint32_t i = 1; r == ANSWER_OK && i < a->how.parts; i++) {
		struct splice_seg list = kept_get(a, &a->part[i].choices);
		struct copy c;

		copy_start(&c, &list, out);
		(void)json_read_enter(&c.r, '[');
		c.at = c.r.p;
		if (json_read_peek(&c.r) == ']')
			continue;
		if (n > 0)
			PUT(out, ",");
		r = copy_choices(a, i, &c, &n);
		copy_up_to(&c, c.r.p - 1);
	}
	return r;
}

/* What an event turned out to be. */
struct seen {
	bool error;
	unsigned once;            /* those of replaced[] that have been */
	size_t nchoices;          /* of a merged answer */
	struct splice_seg usage;  /* an object, or of no bytes */
	size_t usage_at, usage_n; /* in what was written */
};

/* "choices" of an event, or of the first part's body in place of all. */
static int
copy_list(const struct answer *a, uint32_t part, struct copy *c, struct seen *seen)
{
	int r;

	if (!is_merged(a)) {
		(void)json_read_value(&c->r);
		return ANSWER_OK;
	}
	(void)json_read_enter(&c->r, '[');
	r = copy_choices(a, part, c, &seen->nchoices);
	if (r != ANSWER_OK || c->r.bad || a->how.stream)
		return r;
	copy_up_to(c, c->r.p - 1);
	return put_other_choices(a, seen->nchoices, c->out);
}

/* A usage: of the event alone, or, in a whole body, of all parts. */
static int
copy_usage(struct answer *a, uint32_t part, struct copy *c, struct seen *seen)
{
	struct splice_seg value = json_read_value(&c->r);
	int r = ANSWER_OK;

	if (value.n == 0 || value.p[0] != '{')
		return ANSWER_OK;
	seen->usage = value;
	copy_past(c, &value);
	seen->usage_at = c->out->n;
	if (a->how.stream)
		r = usage_correct(a, part, &value, c->out);
	else
		(void)usage_sum(a, c->out); /* this one is part of it */
	seen->usage_n = c->out->n - seen->usage_at;
	return r;
}

enum { CHOICES, USAGE, ID, CREATED, MODEL, REPLACED };

static const char *const replaced[REPLACED] = {
	[CHOICES] = "choices",
	[USAGE] = "usage",
	[ID] = "id",
	[CREATED] = "created",
	[MODEL] = "model",
};

static int
copy_member(struct answer *a, uint32_t part, struct copy *c, const struct splice_seg *key,
	struct seen *seen)
{
	struct splice_seg value, instead;
	size_t i;

	if (!find_once(key, replaced, REPLACED, &seen->once, &i))
		return ANSWER_BAD;
	if (i == CHOICES)
		return copy_list(a, part, c, seen);
	if (i == USAGE)
		return copy_usage(a, part, c, seen);
	value = json_read_value(&c->r);
	if (i == ID && (is_merged(a) || a->how.id != NULL))
		instead = kept_get(a, &a->id);
	else if (i == CREATED && is_merged(a))
		instead = kept_get(a, &a->created);
	else if (i == MODEL && is_merged(a))
		instead = kept_get(a, &a->model);
	else
		instead = (struct splice_seg){"", 0};
	if (instead.n > 0) {
		copy_past(c, &value);
		put_seg(c->out, &instead);
	}
	seen->error |= says_error(key, &value);
	return ANSWER_OK;
}

/* Writes an event's object, or a whole body's, into `out`. */
static int
rewrite(struct answer *a, uint32_t part, const struct splice_seg *json, struct seen *seen,
	struct membuf *out)
{
	struct splice_seg key;
	struct copy c;
	int r = is_merged(a) ? know(a, json->p, json->n) : ANSWER_OK;

	*seen = (struct seen){.usage = {"", 0}};
	copy_start(&c, json, out);
	(void)json_read_enter(&c.r, '{');
	while (r == ANSWER_OK && json_read_member(&c.r, &key))
		r = copy_member(a, part, &c, &key, seen);
	if (r != ANSWER_OK || !json_read_done(&c.r))
		return r != ANSWER_OK ? r : ANSWER_BAD;
	copy_up_to(&c, json->p + json->n);
	return ANSWER_OK;
}

/* A part's usage is held back until all parts have one; the first part's event will carry the
 * sum. */
static int
hold_usage(struct answer *a, uint32_t part, const struct seen *seen)
{
	struct splice_seg event = {a->json.p, a->json.n};
	int r = usage_keep(a, part, &seen->usage);

	if (r == ANSWER_OK && a->usage_event.n == 0) {
		r = keep(a, &event, &a->usage_event) ? ANSWER_OK : ANSWER_LARGE;
		a->usage_at = seen->usage_at;
		a->usage_n = seen->usage_n;
	}
	a->json.n = 0;
	return r;
}

int
plain_event(struct answer *a, uint32_t part, const struct splice_seg *json)
{
	struct seen seen;
	int r = rewrite(a, part, json, &seen, &a->json);

	if (r != ANSWER_OK)
		return r;
	if (seen.error)
		return ANSWER_ERROR;
	if (is_merged(a) && seen.nchoices == 0 && seen.usage.n > 0)
		return hold_usage(a, part, &seen);
	return ANSWER_OK;
}

void
plain_usage_event(const struct answer *a, struct membuf *out)
{
	struct splice_seg event = kept_get(a, &a->usage_event);
	size_t behind = a->usage_at + a->usage_n;

	if (event.n == 0)
		return;
	PUT(out, "data: ");
	membuf_add(out, event.p, a->usage_at);
	(void)usage_sum(a, out);
	membuf_add(out, event.p + behind, event.n - behind);
	PUT(out, "\n\n");
}

int
plain_whole(struct answer *a, struct membuf *out)
{
	struct splice_seg first = kept_get(a, &a->part[0].whole);
	struct seen seen;

	return rewrite(a, 0, &first, &seen, out);
}
