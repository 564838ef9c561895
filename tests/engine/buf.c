#include "tests/engine/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char b64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void
buf_reserve(struct buf *b, size_t more)
{
	size_t cap = b->cap ? b->cap : 256;

	if (b->len + more <= b->cap)
		return;
	while (cap < b->len + more)
		cap *= 2;
	b->p = realloc(b->p, cap);
	if (b->p == NULL)
		abort();
	b->cap = cap;
}

void
buf_add(struct buf *b, const void *p, size_t n)
{
	if (n == 0)
		return;
	buf_reserve(b, n);
	memcpy(b->p + b->len, p, n);
	b->len += n;
}

void
buf_str(struct buf *b, const char *s)
{
	buf_add(b, s, strlen(s));
}

void
buf_fill(struct buf *b, char c, size_t n)
{
	if (n == 0)
		return;
	buf_reserve(b, n);
	memset(b->p + b->len, c, n);
	b->len += n;
}

void
buf_u64(struct buf *b, uint64_t v)
{
	char t[20];
	size_t i = sizeof(t);

	do
		t[--i] = (char)('0' + v % 10);
	while ((v /= 10) != 0);
	buf_add(b, t + i, sizeof(t) - i);
}

void
buf_fmt(struct buf *b, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0)
		abort();
	buf_reserve(b, (size_t)n + 1);
	va_start(ap, fmt);
	(void)vsnprintf(b->p + b->len, (size_t)n + 1, fmt, ap);
	va_end(ap);
	b->len += (size_t)n;
}

void
buf_json_in(struct buf *b, const char *p, size_t n)
{
	size_t i, from = 0;

	for (i = 0; i < n; i++) {
		unsigned char c = (unsigned char)p[i];

		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		buf_add(b, p + from, i - from);
		from = i + 1;
		if (c == '"' || c == '\\')
			buf_fmt(b, "\\%c", c);
		else if (c == '\n')
			BUF_LIT(b, "\\n");
		else if (c == '\t')
			BUF_LIT(b, "\\t");
		else
			buf_fmt(b, "\\u%04x", c);
	}
	buf_add(b, p + from, n - from);
}

void
buf_json(struct buf *b, const char *p, size_t n)
{
	BUF_LIT(b, "\"");
	buf_json_in(b, p, n);
	BUF_LIT(b, "\"");
}

void
buf_base64(struct buf *b, const void *src, size_t n)
{
	const unsigned char *p = src;
	size_t i;

	buf_reserve(b, n / 3 * 4 + 4);
	for (i = 0; i < n; i += 3) {
		uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
			     (i + 2 < n ? p[i + 2] : 0);
		char *o = b->p + b->len;

		o[0] = b64[v >> 18];
		o[1] = b64[v >> 12 & 63];
		o[2] = i + 1 < n ? b64[v >> 6 & 63] : '=';
		o[3] = i + 2 < n ? b64[v & 63] : '=';
		b->len += 4;
	}
}

void
buf_unbase64(struct buf *b, const char *p, size_t n)
{
	uint32_t v = 0;
	unsigned bits = 0;
	size_t i;

	for (i = 0; i < n; i++) {
		const char *at = p[i] ? strchr(b64, p[i]) : NULL;
		char c;

		if (at == NULL)
			return;
		v = v << 6 | (uint32_t)(at - b64);
		bits += 6;
		if (bits < 8)
			continue;
		bits -= 8;
		c = (char)(v >> bits & 255);
		buf_add(b, &c, 1);
	}
}

void
buf_cut(struct buf *b, size_t n)
{
	if (n < b->len)
		memmove(b->p, b->p + n, b->len - n);
	b->len -= n;
}

void
buf_trim(struct buf *b, size_t cap)
{
	b->len = 0;
	if (b->cap > cap)
		buf_free(b);
}

const char *
buf_cstr(struct buf *b)
{
	buf_reserve(b, 1);
	b->p[b->len] = '\0';
	return b->p;
}

void
buf_free(struct buf *b)
{
	free(b->p);
	memset(b, 0, sizeof(*b));
}
