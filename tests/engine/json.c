#include "tests/engine/json.h"

#include <stdlib.h>
#include <string.h>

#include "tests/engine/buf.h"

#define DEPTH 512 /* nesting refused beyond it; Python's own reader gives up near 1000 */

static const char *
skip_ws(const char *p, const char *end)
{
	while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
		p++;
	return p;
}

/* The first byte from p that is not plain string content: a quote, a backslash, a control or
 * non-ASCII byte.  Eight at a time, since nearly all bytes of a request are such content. */
static const char *
skip_plain(const char *p, const char *end)
{
	const uint64_t ones = 0x0101010101010101ULL, highs = 0x8080808080808080ULL;

	while (end - p >= 8) {
		uint64_t w, quote, slash, odd;

		memcpy(&w, p, 8);
		quote = w ^ ones * '"';
		slash = w ^ ones * '\\';
		odd = ((w - ones * 0x20) & ~w) | ((quote - ones) & ~quote) |
		      ((slash - ones) & ~slash) | w;
		if (odd & highs)
			break;
		p += 8;
	}
	while (p < end && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x80 && *p != '"' &&
		*p != '\\')
		p++;
	return p;
}

static const char *
skip_utf8(const char *s, const char *end)
{
	const unsigned char *p = (const unsigned char *)s;
	size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2, i;

	if (p[0] < 0xc2 || p[0] > 0xf4 || (size_t)(end - s) < n)
		return NULL;
	for (i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return NULL;
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
		(p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
		return NULL;
	return s + n;
}

static int
hex(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
				      : -1;
}

static const char *
skip_escape(const char *p, const char *end)
{
	int i;

	if (end - p < 2)
		return NULL;
	if (p[1] != 'u')
		return p[1] && strchr("\"\\/bfnrt", p[1]) ? p + 2 : NULL;
	if (end - p < 6)
		return NULL;
	for (i = 2; i < 6; i++)
		if (hex(p[i]) < 0)
			return NULL;
	return p + 6;
}

static const char *
skip_string(const char *p, const char *end)
{
	if (p == end || *p != '"')
		return NULL;
	p++;
	while (p != NULL) {
		p = skip_plain(p, end);
		if (p == end || (unsigned char)*p < 0x20)
			return NULL;
		if (*p == '"')
			return p + 1;
		p = *p == '\\' ? skip_escape(p, end) : skip_utf8(p, end);
	}
	return NULL;
}

/* The same for text that was checked before: only the end matters. */
static const char *
skip_checked_string(const char *p, const char *end)
{
	const char *q = p, *b;

	do {
		q = memchr(q + 1, '"', (size_t)(end - q - 1));
		for (b = q; b[-1] == '\\'; b--)
			;
	} while ((q - b) & 1); /* the quote itself is escaped */
	return q + 1;
}

static const char *
skip_digits(const char *p, const char *end)
{
	const char *from = p;

	while (p < end && *p >= '0' && *p <= '9')
		p++;
	return p == from ? NULL : p;
}

static const char *
skip_number(const char *p, const char *end)
{
	if (p < end && *p == '-')
		p++;
	if (p < end && *p == '0')
		p++;
	else
		p = skip_digits(p, end);
	if (p != NULL && p < end && *p == '.')
		p = skip_digits(p + 1, end);
	if (p != NULL && p < end && (*p == 'e' || *p == 'E')) {
		p++;
		if (p < end && (*p == '+' || *p == '-'))
			p++;
		p = skip_digits(p, end);
	}
	return p;
}

static const char *
skip_word(const char *p, const char *end, const char *word)
{
	size_t n = strlen(word);

	return (size_t)(end - p) >= n && memcmp(p, word, n) == 0 ? p + n : NULL;
}

static const char *
skip_scalar(const char *p, const char *end)
{
	switch (*p) {
	case '"':
		return skip_string(p, end);
	case 't':
		return skip_word(p, end, "true");
	case 'f':
		return skip_word(p, end, "false");
	case 'n':
		return skip_word(p, end, "null");
	default:
		return skip_number(p, end);
	}
}

static const char *
skip_key(const char *p, const char *end)
{
	p = skip_string(skip_ws(p, end), end);
	if (p == NULL)
		return NULL;
	p = skip_ws(p, end);
	return p < end && *p == ':' ? p + 1 : NULL;
}

/* What ends or continues the containers around a finished value; NULL if neither. */
static const char *
skip_after(const char *p, const char *end, const char *closers, int *depth)
{
	while (*depth > 0) {
		p = skip_ws(p, end);
		if (p == end)
			return NULL;
		if (*p == ',')
			return closers[*depth - 1] == '}' ? skip_key(p + 1, end) : p + 1;
		if (*p != closers[*depth - 1])
			return NULL;
		p++;
		--*depth;
	}
	return p;
}

static const char *
skip_checked_value(const char *p, const char *end)
{
	int depth = 0;

	do {
		if (*p == '"') {
			p = skip_checked_string(p, end);
			continue;
		}
		if (*p == '{' || *p == '[')
			depth++;
		else if (*p == '}' || *p == ']')
			depth--;
		p++;
		while (depth == 0 && p < end && !strchr(" \t\r\n,]}", *p))
			p++; /* the rest of a number or word */
	} while (depth > 0);
	return p;
}

static const char *
skip_value(const char *p, const char *end)
{
	char closers[DEPTH];
	int depth = 0;

	for (;;) {
		p = skip_ws(p, end);
		if (p == end)
			return NULL;
		if (*p == '{' || *p == '[') {
			char close = *p == '{' ? '}' : ']';

			if (depth == DEPTH)
				return NULL;
			p = skip_ws(p + 1, end);
			if (p < end && *p == close) {
				p++;
			} else {
				closers[depth++] = close;
				if (close == '}')
					p = skip_key(p, end);
				if (p == NULL)
					return NULL;
				continue;
			}
		} else {
			p = skip_scalar(p, end);
		}
		if (p == NULL)
			return NULL;
		if (depth == 0)
			return p;
		p = skip_after(p, end, closers, &depth);
		if (p == NULL || depth == 0)
			return p;
	}
}

struct jv
json_doc(const char *p, size_t n)
{
	const char *end = p + n, *from = skip_ws(p, end), *to = n ? skip_value(from, end) : NULL;

	if (to == NULL || skip_ws(to, end) != end)
		return (struct jv){NULL, 0};
	return (struct jv){from, (size_t)(to - from)};
}

bool
json_iter_check(struct jiter *it, struct jv v)
{
	bool r = json_iter(it, v);

	it->check = true;
	return r;
}

bool
json_iter(struct jiter *it, struct jv v)
{
	memset(it, 0, sizeof(*it));
	if (v.p == NULL)
		return false;
	it->end = v.p + v.len;
	it->p = skip_ws(v.p, it->end);
	if (it->p == it->end || (*it->p != '{' && *it->p != '['))
		return false;
	it->close = *it->p == '{' ? '}' : ']';
	it->p++;
	it->first = true;
	return true;
}

static bool
iter_bad(struct jiter *it)
{
	it->bad = true;
	return false;
}

bool
json_next(struct jiter *it, struct jv *key, struct jv *val)
{
	const char *p = skip_ws(it->p, it->end), *to;

	*key = (struct jv){NULL, 0};
	if (p == it->end)
		return iter_bad(it);
	if (*p == it->close) {
		it->p = p + 1;
		return false;
	}
	if (!it->first) {
		if (*p != ',')
			return iter_bad(it);
		p = skip_ws(p + 1, it->end);
	}
	it->first = false;
	if (it->close == '}') {
		to = it->check ? skip_string(p, it->end) : skip_checked_string(p, it->end);
		if (to == NULL)
			return iter_bad(it);
		*key = (struct jv){p, (size_t)(to - p)};
		p = skip_ws(to, it->end);
		if (p == it->end || *p != ':')
			return iter_bad(it);
		p = skip_ws(p + 1, it->end);
	}
	to = it->check ? skip_value(p, it->end) : skip_checked_value(p, it->end);
	if (to == NULL)
		return iter_bad(it);
	*val = (struct jv){p, (size_t)(to - p)};
	it->p = to;
	return true;
}

bool
json_iter_ended(const struct jiter *it)
{
	return !it->bad && skip_ws(it->p, it->end) == it->end;
}

char
json_kind(struct jv v)
{
	if (v.p == NULL)
		return 0;
	return strchr("{[\"tfn", *v.p) ? *v.p : '0';
}

struct compare {
	const char *rest;
	size_t left;
	bool same;
};

static void
compare_sink(void *arg, const char *p, size_t n)
{
	struct compare *c = arg;

	c->same = c->same && n <= c->left && memcmp(c->rest, p, n) == 0;
	if (!c->same)
		return;
	c->rest += n;
	c->left -= n;
}

bool
json_is(struct jv v, const char *text)
{
	size_t n = strlen(text);
	struct compare c = {text, n, true};

	if (json_kind(v) != '"')
		return false;
	if (memchr(v.p, '\\', v.len) == NULL)
		return v.len - 2 == n && memcmp(v.p + 1, text, n) == 0;
	json_text(v, compare_sink, &c);
	return c.same && c.left == 0;
}

struct jv
json_get(struct jv obj, const char *name)
{
	struct jv key, val, found = {NULL, 0};
	struct jiter it;

	if (json_kind(obj) != '{' || !json_iter(&it, obj))
		return found;
	while (json_next(&it, &key, &val))
		if (json_is(key, name))
			found = val;
	return found;
}

bool
json_true(struct jv v)
{
	return json_kind(v) == 't';
}

bool
json_null(struct jv v)
{
	return v.p == NULL || *v.p == 'n';
}

double
json_num(struct jv v, double dflt)
{
	char t[64];

	if (json_kind(v) != '0' || v.len >= sizeof(t))
		return dflt;
	memcpy(t, v.p, v.len);
	t[v.len] = '\0';
	return strtod(t, NULL);
}

bool
json_int(struct jv v, int64_t *ret)
{
	double d = json_num(v, 0.5);

	if (!(d > -9e15 && d < 9e15) || d != (double)(int64_t)d)
		return false;
	*ret = (int64_t)d;
	return true;
}

static size_t
put_utf8(char *o, uint32_t c)
{
	if (c < 0x80) {
		o[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		o[0] = (char)(0xc0 | c >> 6);
		o[1] = (char)(0x80 | (c & 63));
		return 2;
	}
	if (c < 0x10000) {
		o[0] = (char)(0xe0 | c >> 12);
		o[1] = (char)(0x80 | (c >> 6 & 63));
		o[2] = (char)(0x80 | (c & 63));
		return 3;
	}
	o[0] = (char)(0xf0 | c >> 18);
	o[1] = (char)(0x80 | (c >> 12 & 63));
	o[2] = (char)(0x80 | (c >> 6 & 63));
	o[3] = (char)(0x80 | (c & 63));
	return 4;
}

static uint32_t
hex4(const char *p)
{
	uint32_t v = 0;
	int i;

	for (i = 0; i < 4; i++)
		v = v << 4 | (uint32_t)hex(p[i]);
	return v;
}

/* One escape of a checked string.  A lone surrogate is kept as its three bytes. */
static const char *
decode_escape(const char *p, const char *end, char *out, size_t *ret_n)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	uint32_t c;

	if (p[1] != 'u') {
		out[0] = to[strchr(from, p[1]) - from];
		*ret_n = 1;
		return p + 2;
	}
	c = hex4(p + 2);
	p += 6;
	if (c >= 0xd800 && c < 0xdc00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u') {
		uint32_t low = hex4(p + 2);

		if (low >= 0xdc00 && low < 0xe000) {
			c = 0x10000 + ((c - 0xd800) << 10 | (low - 0xdc00));
			p += 6;
		}
	}
	*ret_n = put_utf8(out, c);
	return p;
}

void
json_text(struct jv v, json_sink *sink, void *arg)
{
	const char *p, *end, *slash;
	char out[4];
	size_t n;

	if (json_kind(v) != '"')
		return;
	p = v.p + 1;
	end = v.p + v.len - 1;
	while (p < end) {
		slash = memchr(p, '\\', (size_t)(end - p));
		if (slash == NULL)
			slash = end;
		if (slash > p)
			sink(arg, p, (size_t)(slash - p));
		p = slash;
		if (p < end) {
			p = decode_escape(p, end, out, &n);
			sink(arg, out, n);
		}
	}
}

static void
buf_sink(void *arg, const char *p, size_t n)
{
	buf_add(arg, p, n);
}

void
json_text_buf(struct jv v, struct buf *out)
{
	json_text(v, buf_sink, out);
}

void
json_canon(struct jv v, json_sink *sink, void *arg)
{
	const char *p = v.p, *end = v.p + v.len, *to;

	while (p != NULL && p < end) {
		to = p;
		if (*p == '"') {
			to = skip_checked_string(p, end);
			sink(arg, "\"", 1);
			json_text((struct jv){p, (size_t)(to - p)}, sink, arg);
			sink(arg, "\"", 1);
		} else {
			while (to < end && *to != '"' && skip_ws(to, to + 1) == to)
				to++;
			if (to > p)
				sink(arg, p, (size_t)(to - p));
			else
				to++; /* white space */
		}
		p = to;
	}
}
