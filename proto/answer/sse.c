/*
 * Source of the grammar: the HTML Standard, section "Server-sent events", 9.2.5 and 9.2.6.  A line
 * ends with LF, CR or CR LF, each line on its own, so mixtures end events too; a blank line ends
 * the event. A CR ends its line at once, without waiting for a LF that may never come; the LF, if
 * it does come (even in the next piece), belongs to that line's end.
 */
#include "proto/answer/sse.h"

#include <string.h>

enum state {
	LINE_START, /* nothing of the line has been seen */
	LINE_NAME,  /* `matched` bytes of "data:" have been */
	LINE_VALUE, /* "data:" has been; one blank behind it is not data */
	LINE_DATA,
	LINE_OTHER, /* a comment or another field */
};

enum flag {
	F_BLOCK = 1, /* the event or comment block has a line already */
	F_DATA = 2,  /* ... a data line */
	F_CR = 4,    /* the last byte was a CR: a LF that follows ends nothing */
};

static const char data_name[] = "data:";
static const char done_text[] = "[DONE]";

enum { NAME_LEN = sizeof(data_name) - 1, DONE_LEN = sizeof(done_text) - 1 };

void
sse_init(struct sse *s)
{
	*s = (struct sse){.state = LINE_START};
}

bool
sse_at_boundary(const struct sse *s)
{
	return s->state == LINE_START && (s->flags & F_BLOCK) == 0;
}

/* Keeps the first bytes of the event's data; one more than fits is remembered as "longer". */
static void
probe_add(struct sse *s, const char *p, size_t n)
{
	size_t room = sizeof(s->probe) -
		      (s->probe_len < sizeof(s->probe) ? s->probe_len : sizeof(s->probe));
	size_t take = n < room ? n : room;

	if (s->probe_len == 0 && n > sizeof(s->probe)) { /* as nearly always: the size is known */
		memcpy(s->probe, p, sizeof(s->probe));
		s->probe_len = sizeof(s->probe) + 1;
		return;
	}
	memcpy(s->probe + sizeof(s->probe) - room, p, take);
	s->probe_len = (uint8_t)(n > room ? sizeof(s->probe) + 1 : s->probe_len + take);
}

static void
data_line_start(struct sse *s)
{
	if (s->flags & F_DATA)
		probe_add(s, "\n", 1); /* how a client joins the data lines of one event */
	s->flags |= F_DATA;
	s->state = LINE_VALUE;
}

static size_t
probe_kept(const struct sse *s)
{
	return s->probe_len < sizeof(s->probe) ? s->probe_len : sizeof(s->probe);
}

/* The byte behind JSON's blanks at *at, which are passed; NUL at the end of what was kept. */
static char
probe_next(const struct sse *s, size_t *at)
{
	size_t len = probe_kept(s), i = *at;

	while (i < len && (s->probe[i] == ' ' || s->probe[i] == '\t' || s->probe[i] == '\n' ||
				  s->probe[i] == '\r'))
		i++;
	*at = i;
	return i < len ? s->probe[i] : '\0';
}

static bool
probe_has(const struct sse *s, size_t *at, const char *word, size_t n)
{
	if (probe_kept(s) - *at < n || memcmp(s->probe + *at, word, n) != 0)
		return false;
	*at += n;
	return true;
}

/*
 * {"error": (vLLM from 0.11), {"object":"error" (before, and SGLang) or {"type":"error" (/v1/messages and
 * /v1/responses): protocols of the engines.
 * Runs once per event, and most fail at the first byte of the first key.
 */
static bool
probe_is_error(const struct sse *s)
{
	static const char error[] = "\"error\"", object[] = "\"object\"", type[] = "\"type\"";
	size_t at = 0;

	if (s->probe[0] == '{' && s->probe[1] == '"' && s->probe[2] != 'e' && s->probe[2] != 'o' &&
		s->probe[2] != 't')
		return false;
	if (probe_next(s, &at) != '{')
		return false;
	at++;
	if (probe_next(s, &at) != '"')
		return false;
	if (probe_has(s, &at, error, sizeof(error) - 1))
		return true;
	if (!probe_has(s, &at, object, sizeof(object) - 1) &&
		!probe_has(s, &at, type, sizeof(type) - 1))
		return false;
	if (probe_next(s, &at) != ':')
		return false;
	at++;
	return probe_next(s, &at) == '"' && probe_has(s, &at, error, sizeof(error) - 1);
}

static void
event_end(struct sse *s)
{
	if (s->flags & F_DATA) {
		s->events++;
		if (s->probe_len == DONE_LEN && memcmp(s->probe, done_text, DONE_LEN) == 0)
			s->done = true;
		else if (probe_is_error(s))
			s->error = true;
	}
	s->flags = 0;
	s->probe_len = 0;
}

/* True if the line that ends here was blank, and so ended an event. */
static bool
line_end(struct sse *s)
{
	bool blank = s->state == LINE_START;

	if (s->state == LINE_NAME && s->matched == NAME_LEN - 1)
		data_line_start(s); /* "data" without a colon is a data line too, an empty one */
	s->state = LINE_START;
	if (blank)
		event_end(s);
	else
		s->flags |= F_BLOCK;
	return blank;
}

/* Takes a piece of one line, without its end. */
static void
line_part(struct sse *s, const char *p, size_t n)
{
	const char *end = p + n;

	if (p == end)
		return;
	if (s->state == LINE_START && n >= NAME_LEN && memcmp(p, data_name, NAME_LEN) == 0) {
		p += NAME_LEN; /* nearly every line, and nearly always in one piece */
		data_line_start(s);
	} else if (s->state == LINE_START) {
		s->state = LINE_NAME;
		s->matched = 0;
	}
	while (s->state == LINE_NAME && p < end) {
		if (*p++ != data_name[s->matched])
			s->state = LINE_OTHER;
		else if (++s->matched == NAME_LEN)
			data_line_start(s);
	}
	if (s->state == LINE_VALUE && p < end) {
		if (*p == ' ')
			p++;
		s->state = LINE_DATA;
	}
	if (s->state == LINE_DATA && p < end && s->probe_len <= sizeof(s->probe))
		probe_add(s, p, (size_t)(end - p));
}

static const char *
find(const char *p, const char *end, char c)
{
	const char *at = p < end ? memchr(p, c, (size_t)(end - p)) : NULL;

	return at != NULL ? at : end;
}

size_t
sse_feed(struct sse *s, const char *p, size_t n)
{
	const char *start = p, *end = p + n, *ended = p;
	const char *lf,
		*cr; /* the next of each, looked up again only when passed: two linear searches */

	if (n > 0 && (s->flags & F_CR)) {
		s->flags &= (uint8_t)~F_CR;
		if (*p == '\n') {
			p++;
			if (sse_at_boundary(s))
				ended = p;
		}
	}
	lf = find(p, end, '\n');
	cr = find(p, end, '\r');
	while (p < end) {
		const char *eol = lf < cr ? lf : cr;
		bool blank;

		line_part(s, p, (size_t)(eol - p));
		if (eol == end)
			break;
		blank = line_end(s);
		p = eol + 1;
		if (eol == cr) {
			if (p == end)
				s->flags |= F_CR;
			else if (p == lf)
				p++;
			cr = find(p, end, '\r');
		}
		if (lf < p) /* most lines have a blank one behind them */
			lf = p < end && *p == '\n' ? p : find(p, end, '\n');
		if (blank)
			ended = p;
	}
	return (size_t)(ended - start);
}

/* Bytes looked at for a LF before they are for a CR: lines that all end with CR must not cost a
 * search to the end each. */
#define LINE_PIECE 256

size_t
sse_line(const char *p, size_t n, size_t *ret_end)
{
	const char *end = p + n, *at = p, *stop, *lf, *eol;

	if (n > 0 && *p == '\n') { /* the blank line behind an event, every other one */
		*ret_end = 1;
		return 0;
	}
	do {
		stop = at + ((size_t)(end - at) < LINE_PIECE ? (size_t)(end - at) : LINE_PIECE);
		lf = find(at, stop, '\n');
		eol = find(at, lf, '\r');
		at = stop;
	} while (eol == stop && stop < end);
	*ret_end = eol == end ? 0 : eol < lf && eol + 1 < end && eol[1] == '\n' ? 2 : 1;
	return (size_t)(eol - p);
}

size_t
sse_next(const char *p, size_t n)
{
	size_t at = 0, end, len;

	if (n == 0) /* p may be NULL */
		return 0;
	do {
		len = sse_line(p + at, n - at, &end);
		at += len + end;
	} while (len > 0 && end > 0);
	return end > 0 ? at : 0;
}
