#include "proto/json/json_read.h"

#include <string.h>

#include "proto/json/json_string.h"
#include "proto/json/splice.h"

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

static void
pass_blanks(struct json_read *r)
{
	while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t'))
		r->p++;
}

static inline char
next_byte(struct json_read *r)
{
	if (r->p < r->end && *r->p <= ' ') /* or beyond ASCII, if char is signed */
		pass_blanks(r);
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

/* Length of a string of plain characters only, as all keys and most texts are; 0: it must be
 * read character by character. */
static size_t
plain_string(const struct json_read *r)
{
	const uint8_t *p = (const uint8_t *)r->p, *end = (const uint8_t *)r->end;
	const uint8_t *quote = json_skip_plain(p + 1, end);

	return quote < end && *quote == '"' ? (size_t)(quote + 1 - p) : 0;
}

/* Length of a number of digits only; 0: it must be read as any other one. */
static size_t
plain_number(const char *p, size_t n)
{
	size_t i = 1;

	while (*p != '0' && i < n && p[i] >= '0' && p[i] <= '9')
		i++;
	return i < n && (p[i] == '.' || p[i] == 'e' || p[i] == 'E') ? 0 : i;
}

static size_t
plain_word(const char *p, size_t n, const char *word)
{
	const size_t len = strlen(word);

	return n >= len && memcmp(p, word, len) == 0 ? len : 0;
}

/* Length of a value that most answers have; 0: splice_value() must read it. */
static size_t
plain_value(const struct json_read *r)
{
	const size_t n = (size_t)(r->end - r->p);

	switch (*r->p) {
	case '"':
		return plain_string(r);
	case 'n':
		return plain_word(r->p, n, "null");
	case 't':
		return plain_word(r->p, n, "true");
	case 'f':
		return plain_word(r->p, n, "false");
	default:
		return *r->p >= '0' && *r->p <= '9' ? plain_number(r->p, n) : 0;
	}
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
	value.n = plain_value(r);
	if (value.n == 0)
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
json_read_number(const struct splice_seg *span, uint64_t max, uint64_t *ret)
{
	uint64_t n = 0;

	if (span->n == 0 || span->n > 19) /* no overflow below */
		return false;
	for (size_t i = 0; i < span->n; i++) {
		if (span->p[i] < '0' || span->p[i] > '9')
			return false;
		n = n * 10 + (uint64_t)(span->p[i] - '0');
	}
	if (n > max)
		return false;
	*ret = n;
	return true;
}
