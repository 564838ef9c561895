#include "proto/json_read.h"

#include <string.h>

#include "proto/splice.h"

void
json_read_init(struct json_read *r, const char *text, size_t len)
{
	*r = (struct json_read){.p = text, .end = text + len};
}

static bool
fault(struct json_read *r)
{
	r->bad = true;
	return false;
}

static char
next_byte(struct json_read *r)
{
	while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t'))
		r->p++;
	return r->p < r->end && !r->bad ? *r->p : '\0';
}

char
json_read_peek(struct json_read *r)
{
	return next_byte(r);
}

bool
json_read_enter(struct json_read *r, char bracket)
{
	if (next_byte(r) != bracket)
		return fault(r);
	r->p++;
	r->first = true;
	return true;
}

/* Passes the comma before the next item; false at the container's end, which is passed, or a fault. */
static bool
next_item(struct json_read *r, char bracket)
{
	char c = next_byte(r);
	bool first = r->first;

	r->first = false;
	if (c == bracket) {
		r->p++;
		return false;
	}
	if (first)
		return c != '\0' || fault(r);
	if (c != ',')
		return fault(r);
	r->p++;
	return next_byte(r) != '\0' || fault(r);
}

bool
json_read_member(struct json_read *r, struct splice_seg *ret_key)
{
	struct splice_seg key;

	if (!next_item(r, '}'))
		return false;
	if (*r->p != '"')
		return fault(r);
	key = json_read_value(r);
	if (next_byte(r) != ':')
		return fault(r);
	r->p++;
	*ret_key = (struct splice_seg){key.p + 1, key.n - 2};
	return true;
}

bool
json_read_element(struct json_read *r)
{
	return next_item(r, ']');
}

struct splice_seg
json_read_value(struct json_read *r)
{
	struct splice_seg value = {r->p, 0};

	if (next_byte(r) == '\0') {
		(void)fault(r);
		return value;
	}
	value.p = r->p;
	value.n = splice_value(r->p, (size_t)(r->end - r->p));
	if (value.n == 0)
		(void)fault(r);
	r->p += value.n;
	return value;
}

bool
json_read_done(struct json_read *r)
{
	return !r->bad && next_byte(r) == '\0' && r->p == r->end;
}

bool
json_read_is(const struct splice_seg *span, const char *text)
{
	return span->n == strlen(text) && memcmp(span->p, text, span->n) == 0;
}
