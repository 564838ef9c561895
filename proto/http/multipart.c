#include "proto/http/multipart.h"

#include <string.h>
#include <strings.h>

#define BOUNDARY_MAX 70    /* RFC 2046 5.1.1 */
#define PART_HEAD_MAX 4096 /* of one part's header lines; browsers and SDKs need some 200 bytes */

static bool
starts(struct span s, const char *word)
{
	const size_t n = strlen(word);

	return s.n >= n && strncasecmp(s.p, word, n) == 0;
}

static struct span
behind(struct span s, size_t n)
{
	return (struct span){s.p + n, s.n - n};
}

static struct span
skip_blanks(struct span s)
{
	while (s.n > 0 && (*s.p == ' ' || *s.p == '\t'))
		s = behind(s, 1);
	return s;
}

/* A word without quotes, up to a byte of `ends`.  Parsers differ over the other bytes that end it here. */
static struct span
take_word(struct span *s, const char *ends)
{
	const struct span whole = *s;

	while (s->n > 0 && *s->p > ' ' && *s->p < 0x7f && strchr(ends, *s->p) == NULL)
		*s = behind(*s, 1);
	return (struct span){whole.p, whole.n - s->n};
}

/* One value behind `=`: a word, or a quoted text.  A backslash does not end one in a quote: parsers differ. */
static bool
take_value(struct span *s, struct span *ret)
{
	const char *end;

	if (s->n == 0 || *s->p != '"') {
		*ret = take_word(s, ";\"<");
		return true;
	}
	*s = behind(*s, 1);
	end = memchr(s->p, '"', s->n);
	if (end == NULL || (end > s->p && end[-1] == '\\'))
		return false;
	*ret = (struct span){s->p, (size_t)(end - s->p)};
	*s = behind(*s, ret->n + 1);
	return true;
}

/* The next of a header's parameters, `; name=value`.  False at the end; before what is none, *s is not empty. */
static bool
take_parameter(struct span *s, struct span *ret_name, struct span *ret_value)
{
	struct span at = skip_blanks(*s);

	if (at.n == 0)
		*s = at;
	if (at.n == 0 || *at.p != ';')
		return false;
	at = skip_blanks(behind(at, 1));
	*ret_name = take_word(&at, "=;\"<");
	if (ret_name->n == 0 || at.n == 0 || *at.p != '=')
		return false;
	at = skip_blanks(behind(at, 1));
	if (!take_value(&at, ret_value))
		return false;
	*s = at;
	return true;
}

/* Engines read names in the charset of the form's Content-Type: one that is not UTF-8 would hide them. */
static bool
boundary_of(struct span type, struct span *ret)
{
	struct span name, value;

	if (!span_is(take_word(&type, ";\"<"), "multipart/form-data"))
		return false;
	*ret = (struct span){NULL, 0};
	while (take_parameter(&type, &name, &value)) {
		if (memchr(name.p, '*', name.n) != NULL ||
			(span_is(name, "charset") && !span_is(value, "utf-8")))
			return false;
		if (span_is(name, "boundary") && ret->p != NULL)
			return false;
		if (span_is(name, "boundary"))
			*ret = value;
	}
	return type.n == 0 && ret->n > 0 && ret->n <= BOUNDARY_MAX;
}

/* What a Content-Disposition says, behind its colon.  `name*` would be another spelling of `name` (RFC 2231). */
static enum multipart_found
look_at_line(struct span line, const char *wanted)
{
	struct span name, value, field = {NULL, 0};
	bool file = false;

	line = skip_blanks(line);
	(void)take_word(&line, ";\"<");
	while (take_parameter(&line, &name, &value)) {
		if (starts(name, "filename"))
			file = true;
		else if (memchr(name.p, '*', name.n) != NULL ||
			 (span_is(name, "name") && field.p != NULL))
			return MULTIPART_UNCLEAR;
		else if (span_is(name, "name"))
			field = value;
	}
	if (line.n > 0)
		return MULTIPART_UNCLEAR;
	return !file && span_eq(field, wanted) ? MULTIPART_FOUND : MULTIPART_NONE;
}

/* Whether a part's header lines are those of the field. */
static enum multipart_found
look_at_head(struct span head, const char *name)
{
	static const char wanted[] = "content-disposition:";
	enum multipart_found found = MULTIPART_NONE;
	unsigned lines = 0;

	while (head.n > 0) {
		const char *end = memmem(head.p, head.n, "\r\n", 2);
		const struct span line = {head.p, end == NULL ? head.n : (size_t)(end - head.p)};

		if (starts(line, wanted)) {
			found = look_at_line(behind(line, sizeof(wanted) - 1), name);
			lines++;
		}
		head = behind(head, line.n + (end == NULL ? 0 : 2));
	}
	return lines > 1 ? MULTIPART_UNCLEAR : found;
}

/* Where the next delimiter line begins, its CRLF included; the end of the body if there is none. */
static size_t
next_delimiter(struct span s, struct span delimiter)
{
	const char *p = memmem(s.p, s.n, delimiter.p, delimiter.n);

	return p == NULL ? s.n : (size_t)(p - s.p);
}

/* The parts from the first one's line end on. */
static enum multipart_found
look_at_parts(struct span body, struct span delimiter, const char *name, struct span *ret)
{
	enum multipart_found found = MULTIPART_NONE, part;

	while (starts(body, "\r\n")) {
		struct span head = {body.p, body.n < PART_HEAD_MAX ? body.n : PART_HEAD_MAX};
		const char *blank = memmem(head.p, head.n, "\r\n\r\n", 4);
		size_t n;

		if (blank == NULL)
			return MULTIPART_NONE;
		head = (struct span){body.p + 2, (size_t)(blank - body.p)};
		/* the blank line's CRLF may be the delimiter's: an empty value */
		body = behind(body, (size_t)(blank - body.p) + 2);
		n = next_delimiter(body, delimiter);
		if (n == body.n)
			return MULTIPART_NONE; /* cut off */
		part = look_at_head(head, name);
		if (part == MULTIPART_UNCLEAR || (part == MULTIPART_FOUND && part == found))
			return MULTIPART_UNCLEAR;
		if (part == MULTIPART_FOUND) {
			*ret = n < 2 ? (struct span){body.p, 0} : (struct span){body.p + 2, n - 2};
			found = part;
		}
		body = behind(body, n + delimiter.n);
	}
	if (body.n < 2)
		return MULTIPART_NONE; /* cut off */
	return starts(body, "--") ? found : MULTIPART_UNCLEAR;
}

enum multipart_found
multipart_field(struct span type, struct span body, const char *name, struct span *ret)
{
	char text[4 + BOUNDARY_MAX] = "\r\n--";
	struct span boundary, delimiter;

	if (!boundary_of(type, &boundary))
		return MULTIPART_NONE;
	memcpy(text + 4, boundary.p, boundary.n);
	delimiter = (struct span){text, boundary.n + 4};
	/* the first has no line before it */
	if (body.n < delimiter.n - 2 || memcmp(body.p, text + 2, delimiter.n - 2) != 0)
		return MULTIPART_NONE;
	return look_at_parts(behind(body, delimiter.n - 2), delimiter, name, ret);
}
