/*
 * HTTP/1.1 heads and body framing, for both sides of the router.
 *
 * A head is parsed only when it is complete, from one contiguous piece of memory.  The raw bytes
 * are checked first (bare LF, folded lines, blanks before the colon, ...: http-parser 2.9.4 accepts
 * these, and they let a peer smuggle a second message), then http-parser reads them.  http_rules.h
 * has the table of refusals.  Body framing is decoded here by hand: the check of chunk-size lines
 * and trailers has to follow the framing anyway, so it is the decoder.
 *
 * Ownership: nothing is allocated; spans point into the caller's buffer and live as long as it
 * does.  Source of the rules: RFC 9110, RFC 9112.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "proto/http/http_error.h"

#define HTTP_MAX_HEADERS 100 /* field lines a head may have; more is HTTP_E_TOO_MANY (431) */

enum http_kind { HTTP_KIND_REQUEST, HTTP_KIND_RESPONSE };

/* One English phrase for the log and the error body; never NULL. */
const char *http_error_text(int err);

/*
 * Methods that the router distinguishes.  The others that http-parser knows (PATCH, WebDAV, ...)
 * parse and are HTTP_M_OTHER; unknown methods and CONNECT are HTTP_E_SYNTAX.
 */
enum http_method {
	HTTP_M_OTHER,
	HTTP_M_GET,
	HTTP_M_HEAD,
	HTTP_M_POST,
	HTTP_M_PUT,
	HTTP_M_DELETE,
	HTTP_M_OPTIONS
};

struct span {
	const char *p;
	size_t n;
};

struct http_header {
	struct span name;
	struct span value; /* without surrounding blanks */
	bool hop;  /* hop-by-hop: Connection and what it lists, Keep-Alive, Proxy-*, TE, Trailer,
			      Transfer-Encoding, Upgrade; never forwarded */
	bool free; /* of no meaning to HTTP; private to http.c */
};

enum http_framing { HTTP_BODY_NONE, HTTP_BODY_LENGTH, HTTP_BODY_CHUNKED, HTTP_BODY_UNTIL_CLOSE };

struct http_head {
	enum http_method method; /* requests */
	struct span method_text; /* requests */
	struct span target;      /* requests: as sent */
	/* requests: target without query; of an absolute-form target its path; never empty */
	struct span path;
	struct span query;    /* requests: after '?', or n = 0 */
	int status;           /* responses */
	int minor;            /* HTTP/1.minor: 0 or 1 */
	bool keep_alive;      /* the connection may carry another message after this one */
	bool expect_continue; /* requests: Expect: 100-continue */
	enum http_framing framing;
	uint64_t content_length; /* valid with HTTP_BODY_LENGTH */
	size_t nheaders;
	struct http_header headers[HTTP_MAX_HEADERS];
};

/*
 * Finds the end of a head in buf[0..len).  `from` is the offset where an earlier call on the same,
 * shorter buffer stopped (0 at first); the call advances it, so that a head that arrives byte by
 * byte is scanned once.  Returns the head's length including the empty line, 0 if it is not
 * complete yet, or HTTP_E_SYNTAX as soon as a bare LF or a control byte makes it invalid.  Before
 * each call with from == 0 the caller skips empty lines before a request line (http_skip_blank); a
 * head that starts with one is HTTP_E_SYNTAX.
 */
ssize_t http_head_end(const char *buf, size_t len, size_t *from);

/* Number of leading CRLF bytes (RFC 9112 2.2 asks servers to ignore them), at most `len`. */
size_t http_skip_blank(const char *buf, size_t len);

/*
 * Parses one complete head of `len` bytes (as http_head_end() measured it).  More than 80 KiB are
 * HTTP_E_TOO_MANY, which is http-parser's own limit; the caller sets a lower one.
 * `head_request`: for responses, the request was a HEAD (no body whatever the head says).
 * Returns 0 or an http_error; *h is undefined after an error.
 */
int http_head_parse(
	struct http_head *h, enum http_kind kind, const char *buf, size_t len, bool head_request);

/* First header with this (lower-case) name, or NULL. */
const struct http_header *http_header(const struct http_head *h, const char *name);

/* Writes "Name: value\r\n" as it was read; `out` has room for name, value and 4 bytes.  Returns its length. */
size_t http_line(char *out, const struct http_header *f);
/* Whether a header of that name belongs to one connection alone (RFC 9110, 7.6.1). */
bool http_is_hop(struct span name);
/*
 * Whether a client's header of that name is not sent on: the router writes its own, or it would let a
 * client steer an engine (protocols.md 10.1), or ask for an answer we could not read.
 */
bool http_is_ours(struct span name);

/* Without the blanks and tabs around it (RFC 9110, 5.6.3). */
struct span span_trim(struct span s);
/* Case-insensitive comparison of n bytes with as many of a lower-case word: of letters, digits and any of -./: */
bool span_letters(const char *p, const char *lower, size_t n);
/* The same of a span with a NUL-terminated lower-case word.  Most names differ in their length, which of a
 * literal is a constant here. */
static inline bool
span_is(struct span s, const char *lower)
{
	return s.n == strlen(lower) && span_letters(s.p, lower, s.n);
}
/* Exact comparison. */
bool span_eq(struct span s, const char *text);
/* Whether a header can have that name. */
bool http_is_name(struct span s);
/* Cuts the next member of a comma-separated list off *list, without blanks; false at its end. */
bool http_list_next(struct span *list, struct span *ret);
/* The same from the end: its last member. */
bool http_list_last(struct span *list, struct span *ret);

/*
 * Body framing as a small machine: feed it what was read, take payload pieces out.
 */
struct http_body {
	enum http_framing framing;
	uint8_t state;       /* where in the chunk grammar; private to http.c */
	bool done;           /* the message's last byte has been consumed */
	uint16_t line_bytes; /* length so far of the current chunk-size line or trailer section */
	uint64_t left;       /* payload bytes to come in this chunk or message */
};

/* `done` is set at once where there is no body. */
void http_body_init(struct http_body *b, enum http_framing framing, uint64_t content_length);

/*
 * Consumes from in[0..n) up to and including one contiguous piece of payload, which it returns as
 * *ret_data (n = 0 if only framing was consumed).  Call it again with the rest until the whole
 * input is consumed or b->done.  Returns bytes consumed (> 0 unless n == 0 or done), or an
 * http_error.  A body that ends by close is never done: the caller sees the close.
 */
ssize_t http_body_next(struct http_body *b, const char *in, size_t n, struct span *ret_data);

/*
 * A URL as configured for an endpoint: http://host[:port][/prefix], or https://.  Host names, IPv4 and bracketed
 * IPv6 literals.  Returns 0 or -EINVAL with *ret_why one English phrase (static).
 * host comes without brackets; prefix without trailing slash ("" if none); port 80 or 443 if absent.
 */
struct http_url {
	char host[256];
	uint16_t port;
	bool ipv6; /* host is an IPv6 literal */
	bool tls;  /* https:// */
	char prefix[128];
};
int http_url_parse(const char *text, struct http_url *ret, const char **ret_why);
/* Whether a URL that http_url_parse() takes begins with https://. */
bool http_url_is_tls(const char *text);

/*
 * Undoes the percent-encoding of a part of a path; an invalid code stays as it is.  False, and an
 * empty text, if the result does not fit or holds a NUL.
 */
bool http_percent_decode(struct span in, char *buf, size_t size);
