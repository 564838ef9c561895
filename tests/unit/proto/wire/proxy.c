/* Headers of the PROXY protocol, whole, cut anywhere, and those that are none. */
#include "proto/wire/proxy.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define SIGNATURE "\r\n\r\n\0\r\nQUIT\n"
#define TCP4 SIGNATURE "\x21\x11\0\x0c\x0a\x01\x02\x03\x0a\0\0\x01\x30\x39\x1f\x40"
#define TCP6                                                                                       \
	SIGNATURE "\x21\x21\0\x24"                                                                 \
		  "\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x07"                                     \
		  "\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x08\x30\x39\x1f\x40"
#define ROW(text, used, source)                                                                    \
	{                                                                                          \
		text, sizeof(text) - 1, used, source                                               \
	}

struct row {
	const char *text;
	size_t n;
	ssize_t used; /* sizeof: all of it */
	const char *source;
};

/* Reads a copy of exactly n bytes, so that ASan sees a byte too many. */
static ssize_t
read_copy(const struct row *row, size_t n, struct proxy_from *ret)
{
	char *copy = calloc(1, n > 0 ? n : 1);
	ssize_t used;

	memcpy(copy, row->text, n);
	used = proxy_read(copy, n, ret);
	free(copy);
	return used;
}

static const char *
source_of(const struct proxy_from *from)
{
	static char text[INET6_ADDRSTRLEN];

	if (from->version == 0)
		return "";
	return inet_ntop(from->version == 4 ? AF_INET : AF_INET6, from->ip, text, sizeof(text));
}

Test(proxy, headers)
{
	static const struct row rows[] = {
		ROW("PROXY TCP4 10.1.2.3 10.0.0.1 12345 8000\r\n", 41, "10.1.2.3"),
		ROW("PROXY TCP6 2001:db8::7 2001:db8::8 1 65535\r\n", 44, "2001:db8::7"),
		ROW("PROXY UNKNOWN\r\n", 15, ""), ROW("PROXY UNKNOWN anything at all\r\n", 31, ""),
		ROW("PROXY TCP4 10.1.2.3 10.0.0.1 12345 8000\r\nGET", 41, "10.1.2.3"),
		ROW(TCP4, 28, "10.1.2.3"), ROW(TCP4 "GET / HTTP/1.1", 28, "10.1.2.3"),
		ROW(TCP6, 52, "2001:db8::7"),
		ROW(SIGNATURE "\x20\x00\0\0", 16, ""), /* LOCAL: the proxy's own check */
		ROW(SIGNATURE "\x20\x11\0\x0c\x0a\x01\x02\x03\x0a\0\0\x01\x30\x39\x1f\x40", 28, ""),
		ROW(SIGNATURE "\x21\x31\0\x02zz", 18, ""), /* a unix socket */
		ROW(SIGNATURE "\x21\x11\0\x0f\x0a\x01\x02\x03\x0a\0\0\x01\x30\x39\x1f\x40\x04\0\0",
			31, "10.1.2.3"), /* a TLV behind the addresses */
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct proxy_from from;

		cr_expect_eq(read_copy(&rows[i], rows[i].n, &from), rows[i].used, "%zu", i);
		cr_expect_str_eq(source_of(&from), rows[i].source, "%zu", i);
		for (ssize_t k = 0; k < rows[i].used; k++)
			cr_expect_eq(read_copy(&rows[i], (size_t)k, &from), 0, "%zu, %zd", i, k);
	}
}

Test(proxy, no_headers)
{
	static const struct row rows[] = {
		ROW("GET / HTTP/1.1\r\n\r\n", -1, ""),
		ROW("PROXY\tTCP4 10.1.2.3 10.0.0.1 1 2\r\n", -1, ""),
		ROW("PROXY TCP4 10.1.2.3 10.0.0.1 1 2\n", -1, ""),
		ROW("PROXY TCP5 10.1.2.3 10.0.0.1 1 2\r\n", -1, ""),
		ROW("PROXY TCP4 10.1.2 10.0.0.1 1 2\r\n", -1, ""),
		ROW("PROXY TCP4 2001:db8::7 10.0.0.1 1 2\r\n", -1, ""),
		ROW("PROXY TCP4 10.1.2.3  10.0.0.1 1 2\r\n", -1, ""),
		ROW("PROXY TCP4 10.1.2.3 10.0.0.1 1 2 3\r\n", -1, ""),
		ROW("PROXY TCP4 10.1.2.3 10.0.0.1 1\r\n", -1, ""),
		ROW("PROXY TCP4 10.1.2.3 10.0.0.1 1 123456\r\n", -1, ""),
		ROW("PROXY TCP4 10.1.2.3 10.0.0.1 -1 2\r\n", -1, ""),
		ROW("PROXY TCP4 10.1.2.3\0 10.0.0.1 1 2\r\n", -1, ""),
		ROW("PROXY \r\n", -1, ""),
		ROW("PROXY UNKNOWN aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
		    "aaaaaaaaaaaaaaaaaaaaaaaa",
			-1, ""),
		ROW(SIGNATURE "\x11\x11\0\x0c", -1, ""),   /* another version */
		ROW(SIGNATURE "\x22\x11\0\x0c", -1, ""),   /* neither LOCAL nor PROXY */
		ROW(SIGNATURE "\x21\x11\xff\xff", -1, ""), /* longer than PROXY_MAX */
		ROW(SIGNATURE "\x21\x11\0\x04\x0a\x01\x02\x03", -1, ""),
		ROW("\r\n\r\n\0\r\nQUIX", -1, ""),
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct proxy_from from;

		cr_expect_eq(read_copy(&rows[i], rows[i].n, &from), rows[i].used, "%zu", i);
	}
}
