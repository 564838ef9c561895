#include "worker/base/text.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/http/http.h"
#include "shm/base/mem.h"
#include "worker/base/buffered.h"

struct text *
text_new(struct worker *w)
{
	struct text *text = MEM_NEW(struct text);

	text->w = w;
	text->refs = 1;
	return text;
}

struct text *
text_ref(struct text *text)
{
	text->refs++;
	return text;
}

void
text_unref(struct text **textp)
{
	struct text *text = *textp;

	*textp = NULL;
	if (text == NULL || --text->refs > 0)
		return;
	buffered_add(text->w, -(int64_t)(text->body_cap + text->headers_len));
	block_give(&text->w->blocks, text->body, text->body_cap);
	text_drop_doc(text);
	block_give(&text->w->blocks, text->headers, text->headers_room);
	free(text->query);
	free(text);
}

struct text *
text_with_body(const struct text *of, char *body, size_t len)
{
	struct text *text = text_new(of->w);

	text->body = block_of(&of->w->blocks, body, len);
	text->body_len = text->body_cap = len;
	text_make_headers(text, of->headers_len);
	memcpy(text->headers, of->headers, of->headers_len);
	text->headers_len = of->headers_len;
	text->key_lines_len = of->key_lines_len;
	buffered_add(text->w, (int64_t)(text->body_cap + text->headers_len));
	if (of->query != NULL)
		text->query = mem_strndup(of->query, strlen(of->query));
	return text;
}

void
text_make_headers(struct text *text, size_t n)
{
	text->headers = block_grow(&text->w->blocks, NULL, 0, n);
	text->headers_room = n;
}

const char *
text_scan(struct text *text)
{
	struct splice doc; /* splice_scan() fills it only as far as needed */
	const char *why;
	size_t at;

	if (splice_scan(&doc, text->body == NULL ? "" : text->body, text->body_len, &why, &at) != 0)
		return why;
	text_copy_doc(text, &doc);
	return NULL;
}

void
text_copy_doc(struct text *text, const struct splice *doc)
{
	/* of 3.6 KiB a few hundred bytes: many requests that begin at once hold theirs together */
	text->doc = (struct splice *)(void *)block_copy(&text->w->blocks, doc, splice_size(doc));
}

void
text_drop_doc(struct text *text)
{
	if (text->doc != NULL)
		block_give(&text->w->blocks, (char *)text->doc, splice_size(text->doc));
	text->doc = NULL;
}

struct span
text_header(const struct text *text, const char *name)
{
	const size_t n = strlen(name);
	const char *line = text->headers;

	for (size_t left = line == NULL ? 0 : text->headers_len, len; left > 0; left -= len) {
		const char *lf = memchr(line, '\n', left);

		len = lf != NULL ? (size_t)(lf - line) + 1 : left;
		if (len >= n + 4 && line[n] == ':' && strncasecmp(line, name, n) == 0)
			return (struct span){line + n + 2, len - n - 4};
		line += len;
	}
	return (struct span){NULL, 0};
}

struct span
text_lines(const struct text *text, bool with_key)
{
	return (struct span){
		text->headers, text->headers_len - (with_key ? 0 : text->key_lines_len)};
}

char *
text_copy_key(const struct text *text)
{
	const struct span key = text_header(text, "authorization");

	if (key.n == 0)
		return mem_strndup("", 0);
	return mem_printf("Authorization: %.*s\r\n", (int)key.n, key.p);
}
