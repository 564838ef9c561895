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

/* One value behind `=`: a word, or a quoted text without quotes inside.  *s moves behind it. */
static struct span
take_value(struct span *s)
{
	struct span v = skip_blanks(*s);
	const char *end;

	if (v.n > 0 && *v.p == '"') {
		v = behind(v, 1);
		end = memchr(v.p, '"', v.n);
	} else {
		end = memchr(v.p, ';', v.n);
	}
	if (end == NULL)
		end = v.p + v.n;
	*s = (struct span){end, (size_t)(v.p + v.n - end)};
	return (struct span){v.p, (size_t)(end - v.p)};
}

/* A parameter of a header's value: `; name=value`. */
static bool
parameter(struct span s, const char *name, struct span *ret)
{
	const char *semicolon;

	while ((semicolon = memchr(s.p, ';', s.n)) != NULL) {
		struct span key = skip_blanks(behind(s, (size_t)(semicolon - s.p) + 1)), value;
		const char *equals = memchr(key.p, '=', key.n);

		if (equals == NULL)
			return false;
		s = behind(key, (size_t)(equals - key.p) + 1);
		value = take_value(&s);
		if ((size_t)(equals - key.p) == strlen(name) && starts(key, name)) {
			*ret = value;
			return true;
		}
	}
	return false;
}

/* Whether a part's header lines are those of the field. */
static bool
is_field(struct span head, const char *name)
{
	static const char wanted[] = "content-disposition:";

	while (head.n > 0) {
		const char *end = memmem(head.p, head.n, "\r\n", 2);
		struct span line = {head.p, end == NULL ? head.n : (size_t)(end - head.p)}, v, file;

		if (starts(line, wanted))
			return parameter(line, "name", &v) && v.n == strlen(name) &&
			       memcmp(v.p, name, v.n) == 0 && !parameter(line, "filename", &file);
		head = behind(head, line.n + (end == NULL ? 0 : 2));
	}
	return false;
}

/* Where the next delimiter line begins, its CRLF included; the end of the body if there is none. */
static size_t
next_delimiter(struct span s, struct span delimiter)
{
	const char *p = memmem(s.p, s.n, delimiter.p, delimiter.n);

	return p == NULL ? s.n : (size_t)(p - s.p);
}

bool
multipart_field(struct span type, struct span body, const char *name, struct span *ret)
{
	char text[4 + BOUNDARY_MAX] = "\r\n--";
	struct span boundary, delimiter;

	if (!starts(type, "multipart/form-data") || !parameter(type, "boundary", &boundary) ||
		boundary.n == 0 || boundary.n > BOUNDARY_MAX)
		return false;
	memcpy(text + 4, boundary.p, boundary.n);
	delimiter = (struct span){text, boundary.n + 4};
	/* the first has no line before it */
	if (body.n < delimiter.n - 2 || memcmp(body.p, text + 2, delimiter.n - 2) != 0)
		return false;
	body = behind(body, delimiter.n - 2);
	while (starts(body, "\r\n")) {
		struct span head = {body.p, body.n < PART_HEAD_MAX ? body.n : PART_HEAD_MAX};
		const char *blank = memmem(head.p, head.n, "\r\n\r\n", 4);
		size_t n;

		if (blank == NULL)
			return false;
		head = (struct span){body.p + 2, (size_t)(blank - body.p)};
		/* the blank line's CRLF may be the delimiter's: an empty value */
		body = behind(body, (size_t)(blank - body.p) + 2);
		n = next_delimiter(body, delimiter);
		if (n == body.n)
			return false; /* cut off */
		if (is_field(head, name)) {
			*ret = n < 2 ? (struct span){body.p, 0} : (struct span){body.p + 2, n - 2};
			return true;
		}
		body = behind(body, n + delimiter.n);
	}
	return false;
}
