/*
 * Walks a JSON text from outside to inside without a tree, once: the caller enters the containers that it
 * knows and reads all other values as a whole, unchanged.  The grammar of everything passed is checked
 * (RFC 8259, by splice.h), nothing is unescaped, nothing is allocated.
 *
 *	json_read_init(&r, text, len);
 *	json_read_enter(&r, '{');
 *	while (json_read_member(&r, &key))
 *		if (json_read_is(&key, "id"))
 *			id = json_read_value(&r);
 *		else
 *			(void)json_read_value(&r);
 *	if (!json_read_done(&r))
 *		the text was invalid; discard what was read
 *
 * After an error every later call returns false, so loops end and one check at the end is enough.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/json/splice.h"

struct json_read {
	const char *p, *end; /* the unread rest */
	bool first;          /* nothing of the innermost container has been read */
	bool bad;
};

void json_read_init(struct json_read *r, const char *text, size_t len);

/* The first byte of the next value, which determines its type; '\0' if there is none. */
char json_read_peek(struct json_read *r);

/* Enters the object ('{') or array ('[') that comes next; anything else is a fault. */
bool json_read_enter(struct json_read *r, char bracket);

/*
 * Goes to the next member of the object that was entered last, or the next element of the array;
 * its value must then be read or entered.  False, and the container is left, when there is none.  A
 * key is returned without its quotes and with its escapes.
 */
bool json_read_member(struct json_read *r, struct splice_seg *ret_key);
bool json_read_element(struct json_read *r);

/* Passes the value that comes next and returns its span; of no bytes if it is none. */
struct splice_seg json_read_value(struct json_read *r);

/* Whether a text was read to its end without a fault; blanks may follow. */
bool json_read_done(struct json_read *r);

/* Whether a span holds just these characters: for keys, and for words and strings with their quotes. */
static inline bool
json_read_is(const struct splice_seg *span, const char *text)
{
	const size_t n = strlen(text); /* of a literal: no call */

	return span->n == n && memcmp(span->p, text, n) == 0;
}

/* A number of nothing but digits, up to max; false, and *ret stays, for anything else. */
bool json_read_number(const struct splice_seg *span, uint64_t max, uint64_t *ret);
