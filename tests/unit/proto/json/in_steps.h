/* A scan in steps says what a scan at once says. */
#pragma once
#include <stdbool.h>
#include <string.h>

#include "proto/json/splice.h"

/* What a scan has found. */
struct scanned {
	int result;
	const char *why;
	size_t at;
	struct splice s;
};

static inline bool
same_member(const struct splice_member *a, const struct splice_member *b)
{
	return a->key == b->key && a->type == b->type && a->index == b->index &&
	       a->start == b->start && a->val == b->val && a->end == b->end &&
	       a->comma == b->comma && a->next == b->next;
}

static inline bool
same_scan(const struct scanned *a, const struct scanned *b)
{
	const struct splice *s = &a->s, *t = &b->s;

	if (a->result != b->result)
		return false;
	if (a->result != 0)
		return a->why == b->why && a->at == b->at;
	if (s->nmembers != t->nmembers || s->open != t->open || s->close != t->close ||
		s->met != t->met || s->nowned != t->nowned || s->prompt_chars != t->prompt_chars ||
		s->prompt_items != t->prompt_items || s->prompt_elements != t->prompt_elements ||
		s->message_chars != t->message_chars || s->other_chars != t->other_chars)
		return false;
	for (size_t i = 0; i < s->nowned; i++)
		if (!same_member(&s->owned[i], &t->owned[i]))
			return false;
	return true;
}

/* `step`: bytes of a step.  *ret_steps: how many there were. */
static inline bool
same_in_steps(const char *text, size_t n, size_t step, size_t *ret_steps)
{
	struct scanned once = {.why = NULL}, many = {.result = 1};
	struct splice_scan *scan = splice_scan_new(&many.s, text, n);

	once.result = splice_scan(&once.s, text, n, &once.why, &once.at);
	for (*ret_steps = 0; many.result == 1; ++*ret_steps)
		many.result = splice_scan_step(scan, step, &many.why, &many.at);
	splice_scan_free(&scan);
	return same_scan(&once, &many);
}
