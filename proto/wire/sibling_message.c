#include "proto/wire/sibling_message.h"

#include <string.h>

#define VERSION 1
#define NUMBERS_AT 8 /* sender, life, number, time; then the counts */
#define COUNTS_AT 40
static const unsigned char magic[8] = {'p', 'd', 'r', 'x', VERSION, 0, 0, 0};

static uint64_t
get(const unsigned char *p, unsigned bytes)
{
	uint64_t v = 0;

	for (unsigned i = 0; i < bytes; i++)
		v |= (uint64_t)p[i] << 8 * i;
	return v;
}

static void
put(unsigned char *p, unsigned bytes, uint64_t v)
{
	for (unsigned i = 0; i < bytes; i++)
		p[i] = (unsigned char)(v >> 8 * i);
}

/* --- reading ------------------------------------------------------------------------------------- */

/* Whether the notes from here on fill the rest. */
static bool
notes_fill(const unsigned char *p, const unsigned char *end, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t digests;

		if (end - p < SIBLING_MESSAGE_NOTE)
			return false;
		digests = get(p + 12, 4);
		p += SIBLING_MESSAGE_NOTE;
		if (digests == 0 || digests > SIBLING_MESSAGE_DIGESTS ||
			(uint64_t)(end - p) < 8 * digests)
			return false;
		p += 8 * digests;
	}
	return p == end;
}

bool
sibling_message_read(const void *bytes, size_t len, struct sibling_message *ret)
{
	const unsigned char *p = bytes;

	if (len < SIBLING_MESSAGE_HEAD || len > SIBLING_MESSAGE_MAX - SIBLING_MESSAGE_MAC ||
		memcmp(p, magic, sizeof(magic)) != 0)
		return false;
	*ret = (struct sibling_message){.sender = get(p + NUMBERS_AT, 8),
		.life = get(p + NUMBERS_AT + 8, 8),
		.number = get(p + NUMBERS_AT + 16, 8),
		.sent_us = get(p + NUMBERS_AT + 24, 8),
		.nloads = (uint32_t)get(p + COUNTS_AT, 4),
		.nnotes = (uint32_t)get(p + COUNTS_AT + 4, 4),
		.at = p + SIBLING_MESSAGE_HEAD,
		.end = p + len};
	ret->loads_left = ret->nloads;
	ret->notes_left = ret->nnotes;
	if ((uint64_t)(ret->end - ret->at) < (uint64_t)ret->nloads * SIBLING_MESSAGE_LOAD)
		return false;
	return notes_fill(
		ret->at + (size_t)ret->nloads * SIBLING_MESSAGE_LOAD, ret->end, ret->nnotes);
}

bool
sibling_message_load(struct sibling_message *m, struct wire_load *ret)
{
	if (m->loads_left == 0)
		return false;
	m->loads_left--;
	*ret = (struct wire_load){.engine = get(m->at, 8),
		.requests = (uint32_t)get(m->at + 8, 4),
		.tokens = (uint32_t)get(m->at + 12, 4)};
	m->at += SIBLING_MESSAGE_LOAD;
	return true;
}

bool
sibling_message_note(struct sibling_message *m, struct wire_note *ret)
{
	if (m->loads_left != 0 || m->notes_left == 0)
		return false;
	m->notes_left--;
	ret->engine = get(m->at, 8);
	ret->computes = (uint32_t)get(m->at + 8, 4);
	ret->n = (uint32_t)get(m->at + 12, 4);
	m->at += SIBLING_MESSAGE_NOTE;
	for (uint32_t i = 0; i < ret->n; i++, m->at += 8)
		ret->digest[i] = get(m->at, 8);
	return true;
}

/* --- writing ------------------------------------------------------------------------------------- */

static bool
has_room(const struct sibling_writer *w, size_t n)
{
	return w->len + n <= SIBLING_MESSAGE_MAX - SIBLING_MESSAGE_MAC;
}

void
sibling_write_begin(struct sibling_writer *w, unsigned char *to)
{
	*w = (struct sibling_writer){.to = to, .len = SIBLING_MESSAGE_HEAD};
}

bool
sibling_write_load(struct sibling_writer *w, const struct wire_load *l)
{
	unsigned char *p = w->to + w->len;

	if (!has_room(w, SIBLING_MESSAGE_LOAD))
		return false;
	put(p, 8, l->engine);
	put(p + 8, 4, l->requests);
	put(p + 12, 4, l->tokens);
	w->len += SIBLING_MESSAGE_LOAD;
	w->nloads++;
	return true;
}

bool
sibling_write_note(struct sibling_writer *w, const struct wire_note *n)
{
	unsigned char *p = w->to + w->len;

	if (!has_room(w, SIBLING_MESSAGE_NOTE + 8 * (size_t)n->n))
		return false;
	put(p, 8, n->engine);
	put(p + 8, 4, n->computes);
	put(p + 12, 4, n->n);
	p += SIBLING_MESSAGE_NOTE;
	for (uint32_t i = 0; i < n->n; i++, p += 8)
		put(p, 8, n->digest[i]);
	w->len = (size_t)(p - w->to);
	w->nnotes++;
	return true;
}

size_t
sibling_write_end(struct sibling_writer *w, const struct sibling_message *head)
{
	unsigned char *p = w->to;

	memcpy(p, magic, sizeof(magic));
	put(p + NUMBERS_AT, 8, head->sender);
	put(p + NUMBERS_AT + 8, 8, head->life);
	put(p + NUMBERS_AT + 16, 8, head->number);
	put(p + NUMBERS_AT + 24, 8, head->sent_us);
	put(p + COUNTS_AT, 4, w->nloads);
	put(p + COUNTS_AT + 4, 4, w->nnotes);
	return w->len;
}
