/*
 * What the router's parsers make of texts, for tests/fuzz/differential.py, which asks other parsers the same.
 *
 * Reads records from stdin: one byte (Q request head, J JSON document, M message of LMCache), the length in four bytes,
 * the lowest first, and so many bytes.  Answers each with one line: "-" for a refusal, or
 *   Q: method, target, minor version, framing, length, then name and value of each header, in hexadecimal where they
 *      are texts
 *   J: "+"
 *   M: the id in hexadecimal
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/http/http.h"
#include "proto/json/splice.h"
#include "proto/wire/notif.h"

static void
put_hex(const char *p, size_t n)
{
	(void)putchar(' ');
	for (size_t i = 0; i < n; i++)
		(void)printf("%02x", (unsigned char)p[i]);
	if (n == 0)
		(void)putchar('.');
}

static void
tell_head(const char *in, size_t n)
{
	static const char *const framing[] = {[HTTP_BODY_NONE] = "none",
		[HTTP_BODY_LENGTH] = "length",
		[HTTP_BODY_CHUNKED] = "chunked",
		[HTTP_BODY_UNTIL_CLOSE] = "close"};
	static struct http_head h;
	size_t from = 0;
	const ssize_t end = http_head_end(in, n, &from);

	if (end <= 0 || http_head_parse(&h, HTTP_KIND_REQUEST, in, (size_t)end, false) != 0) {
		(void)puts("-");
		return;
	}
	(void)printf("%zd", end);
	put_hex(h.method_text.p, h.method_text.n);
	put_hex(h.target.p, h.target.n);
	(void)printf(" %d %s %llu", h.minor, framing[h.framing],
		h.framing == HTTP_BODY_LENGTH ? (unsigned long long)h.content_length : 0ull);
	for (size_t i = 0; i < h.nheaders; i++) {
		put_hex(h.headers[i].name.p, h.headers[i].name.n);
		put_hex(h.headers[i].value.p, h.headers[i].value.n);
	}
	(void)puts("");
}

static void
tell_json(const char *in, size_t n)
{
	static struct splice s;
	const char *why;
	size_t at;

	(void)puts(splice_scan(&s, in, n, &why, &at) == 0 ? "+" : "-");
}

static void
tell_message(const char *in, size_t n)
{
	struct notif notice;

	if (notif_read(in, n, &notice) != 0) {
		(void)puts("-");
		return;
	}
	put_hex(notice.req_id, strlen(notice.req_id));
	(void)puts("");
}

int
main(void)
{
	unsigned char head[5];

	while (fread(head, 1, sizeof(head), stdin) == sizeof(head)) {
		const size_t n = head[1] | (size_t)head[2] << 8 | (size_t)head[3] << 16 |
				 (size_t)head[4] << 24;
		char *in = calloc(n > 0 ? n : 1, 1);

		if (in == NULL || fread(in, 1, n, stdin) != n)
			return EXIT_FAILURE;
		if (head[0] == 'Q')
			tell_head(in, n);
		else if (head[0] == 'J')
			tell_json(in, n);
		else
			tell_message(in, n);
		free(in);
	}
	return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
