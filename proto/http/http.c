#include "proto/http/http.h"
#include "proto/http/http_bytes.h"

#include <string.h>

/* http-parser's header defines an enum of the same name; only its enumerators are used here. */
#define http_method hp_method
#include <http_parser.h>
#undef http_method

/*
 * How it works.  A head is read three times, each time for one purpose:
 *
 *    1. read_head() reads the raw lines and applies the table of refusals (http_rules.h).  It alone
 *       decides the framing, and it stores the fields.
 *    2. http-parser reads the start line and all fields that have a meaning to it or to the framing.  It must see
 *       the same fields at the same places: messages get smuggled where two readers disagree.  Of other
 *       fields it would check the bytes, which the first reader has done by the same rules; the fuzz target
 *       shows that it accepts them.
 *    3. The rest carries no risk: hop-by-hop marks, keep-alive, path and query.
 */

const char *
http_error_text(int err)
{
	static const char *const text[] = {
		[-HTTP_E_SYNTAX] = "malformed HTTP message",
		[-HTTP_E_VERSION] = "HTTP version not supported",
		[-HTTP_E_TOO_MANY] = "too many header fields",
		[-HTTP_E_HOST] = "missing, repeated or malformed Host header",
		[-HTTP_E_FRAMING] = "ambiguous Content-Length or Transfer-Encoding",
		[-HTTP_E_CODING] = "transfer coding not supported",
		[-HTTP_E_CHUNK] = "malformed chunked body",
		[-HTTP_E_TOO_LARGE] = "message length too large",
	};

	if (err >= 0 || err < HTTP_E_TOO_LARGE)
		return "unknown HTTP error";
	return text[-err];
}

/* ---- bytes and words ---- */

size_t
http_line(char *out, const struct http_header *f)
{
	memcpy(out, f->name.p, f->name.n);
	memcpy(out + f->name.n, ": ", 2);
	memcpy(out + f->name.n + 2, f->value.p, f->value.n);
	memcpy(out + f->name.n + 2 + f->value.n, "\r\n", 2);
	return f->name.n + f->value.n + 4;
}

/* Capital letters differ from small ones in the bit 0x20, and of the bytes of a word letters alone have the bit 0x40. */
static bool
eight_letters(const char *p, const char *word)
{
	uint64_t a, b;

	memcpy(&a, p, sizeof(a));
	memcpy(&b, word, sizeof(b));
	return ((a ^ b) & ~((b & UINT64_C(0x4040404040404040)) >> 1)) == 0;
}

bool
span_letters(const char *p, const char *word, size_t n)
{
	size_t i = 0;

	if (n >= 8) {
		for (; i + 8 < n; i += 8)
			if (!eight_letters(p + i, word + i))
				return false;
		return eight_letters(p + (n - 8), word + (n - 8));
	}
	for (; i < n; i++)
		if (lower(p[i]) != word[i])
			return false;
	return true;
}

bool
span_eq(struct span s, const char *text)
{
	return strlen(text) == s.n && memcmp(s.p, text, s.n) == 0;
}

static bool
same_name(struct span a, struct span b)
{
	if (a.n != b.n)
		return false;
	for (size_t i = 0; i < a.n; i++)
		if (lower(a.p[i]) != lower(b.p[i]))
			return false;
	return true;
}

struct span
span_trim(struct span s)
{
	while (s.n > 0 && is_blank(s.p[0])) {
		s.p++;
		s.n--;
	}
	while (s.n > 0 && is_blank(s.p[s.n - 1]))
		s.n--;
	return s;
}

bool
http_is_name(struct span s)
{
	for (size_t i = 0; i < s.n; i++)
		if (!is_token(s.p[i]))
			return false;
	return s.n > 0;
}

bool
http_list_next(struct span *list, struct span *ret)
{
	const char *comma;

	if (list->p == NULL)
		return false;
	comma = memchr(list->p, ',', list->n);
	if (comma == NULL) {
		*ret = span_trim(*list);
		*list = (struct span){NULL, 0};
		return true;
	}
	*ret = span_trim((struct span){list->p, (size_t)(comma - list->p)});
	list->n -= (size_t)(comma + 1 - list->p);
	list->p = comma + 1;
	return true;
}

bool
http_list_last(struct span *list, struct span *ret)
{
	const char *comma;

	if (list->p == NULL)
		return false;
	comma = memrchr(list->p, ',', list->n);
	if (comma == NULL) {
		*ret = span_trim(*list);
		*list = (struct span){NULL, 0};
		return true;
	}
	*ret = span_trim((struct span){comma + 1, (size_t)(list->p + list->n - comma - 1)});
	list->n = (size_t)(comma - list->p);
	return true;
}

/* ---- where a head ends ---- */

static int
refuse_control(char c)
{
	return refuse(c == '\n' ? R_BARE_LF : c == '\r' ? R_BARE_CR : R_CONTROL_BYTE);
}

ssize_t
http_head_end(const char *buf, size_t len, size_t *from)
{
	const char *end = buf + len;

	for (const char *p = buf + *from;; p += 2) {
		p = find_control(p, end);
		*from = (size_t)(p - buf); /* at a CR that is not decided yet, or at the end */
		if (p == end)
			return 0;
		if (*p != '\r')
			return refuse_control(*p);
		if (end - p < 2)
			return 0;
		if (p[1] != '\n')
			return refuse(R_BARE_CR);
		if (p == buf)
			return refuse(R_EMPTY_HEAD);
		if (end - p < 3 || (p[2] == '\r' && end - p < 4))
			return 0;
		if (p[2] != '\r')
			continue;
		return p[3] == '\n' ? p + 4 - buf : refuse(R_BARE_CR);
	}
}

size_t
http_skip_blank(const char *buf, size_t len)
{
	size_t n = 0;

	while (len - n >= 2 && buf[n] == '\r' && buf[n + 1] == '\n')
		n += 2;
	return n;
}

/* ---- the raw lines of a head ---- */

/* Connection options that are names of other fields; real peers list one or two. */
#define MAX_OPTIONS 32

struct reader {
	struct http_head *h;
	enum http_kind kind;
	const char *p, *end;            /* rest of the head */
	size_t nlines;                  /* field lines seen */
	const struct http_header *seen; /* the field that http-parser has reported last */
	bool has_host, has_length, has_coding;
	bool close, keep;
	size_t nlisted;
	struct span listed[MAX_OPTIONS]; /* names that Connection makes hop-by-hop */
};

static int
take_line(struct reader *rd, struct span *ret)
{
	const char *eol = find_control(rd->p, rd->end);

	if (rd->end - eol < 2)
		return eol == rd->end ? HTTP_E_SYNTAX : refuse_control(*eol);
	if (eol[0] != '\r' || eol[1] != '\n')
		return refuse_control(*eol);
	*ret = (struct span){rd->p, (size_t)(eol - rd->p)};
	rd->p = eol + 2;
	return 0;
}

/* "HTTP/1.1" or "HTTP/1.0"; `bad` is the rule for anything that is no version. */
static int
read_version(struct http_head *h, struct span s, enum rule bad)
{
	if (s.n != 8 || memcmp(s.p, "HTTP/", 5) != 0 || !is_digit(s.p[5]) || s.p[6] != '.' ||
		!is_digit(s.p[7]))
		return refuse(bad);
	if (s.p[5] != '1' || s.p[7] > '1')
		return refuse(R_VERSION);
	h->minor = s.p[7] - '0';
	return 0;
}

// clang-format off
/* RFC 3986 3.2.2 reg-name: unreserved, "%", sub-delims */
static const bool host_byte[256] = {
	['!'] = true, ['$'] = true, ['%'] = true, ['&' ... '.'] = true, ['0' ... '9'] = true, [';'] = true,
	['='] = true, ['A' ... 'Z'] = true, ['_'] = true, ['a' ... 'z'] = true, ['~'] = true,
};
// clang-format on

static bool
is_ipv6_byte(char c)
{
	return hex_digit[(unsigned char)c] != 0 || c == ':' || c == '.';
}

/* uri-host [ ":" port ], RFC 9110 4.2.1; the caller decides what an empty one means. */
static bool
is_authority(struct span s)
{
	size_t i = 0;

	if (s.n > 0 && s.p[0] == '[') {
		for (i = 1; i < s.n && is_ipv6_byte(s.p[i]); i++)
			;
		if (i == 1 || i == s.n || s.p[i++] != ']')
			return false;
	} else {
		while (i < s.n && host_byte[(unsigned char)s.p[i]])
			i++;
	}
	if (i == s.n)
		return true;
	if (s.p[i++] != ':')
		return false;
	while (i < s.n && is_digit(s.p[i]))
		i++;
	return i == s.n;
}

/* Length of "http://" or "https://" at the start of s, or 0. */
static size_t
scheme_length(struct span s)
{
	static const char *const schemes[] = {"http://", "https://"};

	for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
		size_t n = strlen(schemes[i]);

		if (s.n >= n && span_letters(s.p, schemes[i], n))
			return n;
	}
	return 0;
}

static void
split_path(struct http_head *h, struct span s)
{
	const char *q = memchr(s.p, '?', s.n);

	h->path = s;
	h->query = (struct span){s.p + s.n, 0};
	if (q != NULL) {
		h->path.n = (size_t)(q - s.p);
		h->query = (struct span){q + 1, s.n - h->path.n - 1};
	}
	if (h->path.n == 0) /* http://host?query: the path is "/", RFC 9110 4.2.3 */
		h->path = (struct span){"/", 1};
}

static int
read_absolute(struct http_head *h, struct span target)
{
	size_t n = scheme_length(target);
	struct span host = {target.p + n, 0};

	if (n == 0)
		return refuse(R_TARGET_FORM);
	while (n + host.n < target.n && host.p[host.n] != '/' && host.p[host.n] != '?')
		host.n++;
	if (host.n == 0 || host.p[0] == ':' || !is_authority(host))
		return refuse(R_TARGET_AUTHORITY);
	split_path(h, (struct span){host.p + host.n, target.n - n - host.n});
	return 0;
}

static int
read_target(struct http_head *h, struct span target)
{
	for (size_t i = 0; i < target.n; i++) {
		/* char may be signed or not: obs-text is below the blank or above the tilde */
		if (target.p[i] <= ' ' || target.p[i] > '~')
			return refuse(R_TARGET_BYTE);
		if (target.p[i] == '#')
			return refuse(R_TARGET_FRAGMENT);
	}
	if (span_eq(h->method_text, "CONNECT"))
		return refuse(R_TARGET_FORM);
	if (target.p[0] != '/' && !(span_eq(target, "*") && span_eq(h->method_text, "OPTIONS")))
		return read_absolute(h, target);
	split_path(h, target);
	return 0;
}

static int
read_request_line(struct http_head *h, struct span line)
{
	struct span target;
	const char *sp;
	size_t n = 0;
	int r;

	while (n < line.n && is_token(line.p[n]))
		n++;
	if (n == 0 || n == line.n || line.p[n] != ' ')
		return refuse(R_REQUEST_LINE);
	h->method_text = (struct span){line.p, n};
	target.p = line.p + n + 1;
	sp = memchr(target.p, ' ', line.n - n - 1);
	if (sp == NULL || sp == target.p)
		return refuse(R_REQUEST_LINE);
	target.n = (size_t)(sp - target.p);
	r = read_version(
		h, (struct span){sp + 1, (size_t)(line.p + line.n - sp - 1)}, R_REQUEST_LINE);
	return r < 0 ? r : read_target(h, target);
}

static int
read_status_line(struct http_head *h, struct span line)
{
	const char *s;
	int r;

	if (line.n < 12)
		return refuse(R_STATUS_LINE);
	r = read_version(h, (struct span){line.p, 8}, R_STATUS_LINE);
	if (r < 0)
		return r;
	s = line.p + 8;
	if (s[0] != ' ' || s[1] < '1' || s[1] > '9' || !is_digit(s[2]) || !is_digit(s[3]))
		return refuse(R_STATUS_LINE);
	if (line.n > 12 && s[4] != ' ')
		return refuse(R_STATUS_LINE);
	return 0;
}

static int
see_host(struct reader *rd, struct span value)
{
	if (rd->has_host)
		return refuse(R_HOST_TWICE);
	rd->has_host = true;
	return is_authority(value) ? 0 : refuse(R_HOST_VALUE);
}

static int
see_length(struct reader *rd, struct span value)
{
	uint64_t n = 0;

	if (rd->has_length)
		return refuse(R_LENGTH_TWICE);
	rd->has_length = true;
	if (value.n == 0)
		return refuse(R_LENGTH_VALUE);
	for (size_t i = 0; i < value.n; i++) {
		if (!is_digit(value.p[i]))
			return refuse(R_LENGTH_VALUE);
		if (n > INT64_MAX / 10 || n * 10 > (uint64_t)(INT64_MAX - (value.p[i] - '0')))
			return refuse(R_LENGTH_OVERFLOW);
		n = n * 10 + (uint64_t)(value.p[i] - '0');
	}
	rd->h->content_length = n;
	return 0;
}

static int
see_coding(struct reader *rd, struct span value)
{
	struct span member;

	if (rd->has_coding)
		return refuse(R_CODING_TWICE);
	rd->has_coding = true;
	if (span_is(value, "chunked"))
		return 0;
	while (http_list_next(&value, &member))
		if (member.n > 0 && !span_is(member, "chunked"))
			return refuse(R_CODING_OTHER);
	return refuse(R_CHUNKED_TWICE);
}

static int
see_connection(struct reader *rd, struct span value)
{
	struct span member;

	while (http_list_next(&value, &member)) {
		if (member.n == 0)
			continue;
		if (span_is(member, "close"))
			rd->close = true;
		else if (span_is(member, "keep-alive"))
			rd->keep = true;
		else if (rd->nlisted == MAX_OPTIONS)
			return refuse(R_MANY_OPTIONS);
		else
			rd->listed[rd->nlisted++] = member;
	}
	return 0;
}

static int
see_expect(struct reader *rd, struct span value)
{
	/* a server must ignore it from a 1.0 client, RFC 9110 10.1.1 */
	if (rd->h->minor > 0 && span_is(value, "100-continue"))
		rd->h->expect_continue = true;
	return 0;
}

typedef int field_handler(struct reader *, struct span value);

enum { IN_REQUESTS = 1 << HTTP_KIND_REQUEST, IN_BOTH = IN_REQUESTS | 1 << HTTP_KIND_RESPONSE };

// clang-format off
/* Lower-case name, hop, in which kinds of head the handler is called, handler. */
#define FIELDS(X) \
	X("host",              false, IN_REQUESTS, see_host) \
	X("content-length",    false, IN_BOTH,     see_length) \
	X("expect",            false, IN_REQUESTS, see_expect) \
	X("connection",        true,  IN_BOTH,     see_connection) \
	X("transfer-encoding", true,  IN_BOTH,     see_coding) \
	X("keep-alive",        true,  0,           NULL) \
	X("te",                true,  0,           NULL) \
	X("trailer",           true,  0,           NULL) \
	X("upgrade",           true,  0,           NULL)

#define FIELD_ROW(name, hop, kinds, see) {name, sizeof(name) - 1, hop, kinds, see},
#define FIELD_LENGTH(name, hop, kinds, see) | 1u << (sizeof(name) - 1)
// clang-format on

static const struct field {
	const char *name;
	size_t n;
	bool hop;
	int kinds;
	field_handler *see;
} fields[] = {FIELDS(FIELD_ROW)};

/* Bit n: a field of the table has a name of n bytes. */
static const uint32_t field_lengths = 0 FIELDS(FIELD_LENGTH);

/* NULL: nothing is known of it. */
static const struct field *
field_of(struct span name)
{
	if (name.n >= 32 || (field_lengths >> name.n & 1) == 0)
		return NULL;
	for (const struct field *f = fields; f < fields + sizeof(fields) / sizeof(fields[0]); f++)
		if (f->n == name.n && span_letters(name.p, f->name, name.n))
			return f;
	return NULL;
}

static bool
is_hop(struct span name, const struct field *f)
{
	/* proxy-connection, proxy-authenticate, proxy-authorization and what a vendor may add */
	return f != NULL ? f->hop : name.n > 6 && span_letters(name.p, "proxy-", 6);
}

bool
http_is_hop(struct span name)
{
	return is_hop(name, field_of(name));
}

bool
http_is_ours(struct span name)
{
	return (name.n >= 11 && span_letters(name.p, "x-override-", 11)) || span_is(name, "host") ||
	       span_is(name, "content-length") || span_is(name, "x-request-id") ||
	       span_is(name, "expect") || span_is(name, "accept-encoding") ||
	       span_is(name, "x-data-parallel-rank") || span_is(name, "x-pd-route") ||
	       span_is(name, "x-request-timeout-ms") || span_is(name, "traceparent");
}

/* http-parser 2.9.4 takes a name that only begins like this for a Transfer-Encoding. */
static bool
begins_like_coding(struct span name)
{
	static const char coding[] = "transfer-encoding";
	const size_t n = sizeof(coding) - 1;

	return name.n > n && span_letters(name.p, coding, n);
}

static int
see_field(struct reader *rd, struct http_header *h)
{
	const struct field *f = field_of(h->name);

	h->hop = is_hop(h->name, f);
	h->free = f == NULL && !h->hop && !begins_like_coding(h->name);
	return f != NULL && (f->kinds & 1 << rd->kind) != 0 ? f->see(rd, h->value) : 0;
}

static int
read_field(struct reader *rd, struct span line)
{
	struct http_header *f;
	size_t n = 0;

	if (is_blank(line.p[0]))
		return refuse(R_FOLDED);
	while (n < line.n && is_token(line.p[n]))
		n++;
	if (n == line.n)
		return refuse(R_NO_COLON);
	if (line.p[n] != ':')
		return refuse(is_blank(line.p[n]) ? R_NAME_BLANK : R_NAME_BYTE);
	if (n == 0)
		return refuse(R_EMPTY_NAME);
	if (rd->nlines == HTTP_MAX_HEADERS)
		return refuse(R_MANY_FIELDS);
	f = &rd->h->headers[rd->nlines++];
	f->name = (struct span){line.p, n};
	f->value = span_trim((struct span){line.p + n + 1, line.n - n - 1});
	return see_field(rd, f);
}

/* What no single line shows. */
static int
check_together(const struct reader *rd)
{
	if (rd->kind == HTTP_KIND_REQUEST && rd->h->minor > 0 && !rd->has_host)
		return refuse(R_HOST_MISSING);
	if (rd->has_length && rd->has_coding)
		return refuse(R_LENGTH_AND_CODING);
	if (rd->has_coding && rd->h->minor == 0)
		return refuse(R_CODING_ON_1_0);
	return 0;
}

static int
read_head(struct reader *rd)
{
	struct span line;
	int r;

	r = take_line(rd, &line);
	if (r == 0 && line.n == 0)
		return refuse(R_EMPTY_HEAD);
	if (r == 0)
		r = rd->kind == HTTP_KIND_REQUEST ? read_request_line(rd->h, line)
						  : read_status_line(rd->h, line);
	while (r == 0) {
		r = take_line(rd, &line);
		if (r == 0 && line.n == 0)
			break;
		if (r == 0)
			r = read_field(rd, line);
	}
	if (r == 0 && rd->p != rd->end)
		return HTTP_E_SYNTAX; /* more than one head: http_head_end() did not measure this */
	return r < 0 ? r : check_together(rd);
}

/* ---- http-parser ---- */

static int
on_url(http_parser *hp, const char *p, size_t n)
{
	struct reader *rd = hp->data;

	rd->h->target = (struct span){p, n};
	return 0;
}

/* The field that it must report next, or the end of the fields. */
static const struct http_header *
next_fed(const struct reader *rd)
{
	const struct http_header *f = rd->seen == NULL ? rd->h->headers : rd->seen + 1;

	while (f < rd->h->headers + rd->nlines && f->free)
		f++;
	return f;
}

static int
on_field(http_parser *hp, const char *p, size_t n)
{
	struct reader *rd = hp->data;
	const struct http_header *f = next_fed(rd);

	if (f == rd->h->headers + rd->nlines || f->name.p != p || f->name.n != n)
		return -1;
	rd->seen = f;
	return 0;
}

/* An empty value is reported with the field behind it. */
static int
on_value(http_parser *hp, const char *p, size_t n)
{
	const struct reader *rd = hp->data;

	if (rd->seen == NULL)
		return -1;
	/* it keeps the blanks behind a value */
	return rd->seen->value.n == 0 || (rd->seen->value.p == p && rd->seen->value.n <= n) ? 0
											    : -1;
}

static bool
feed(http_parser *hp, const char *p, const char *end)
{
	static const http_parser_settings settings = {
		.on_url = on_url, .on_header_field = on_field, .on_header_value = on_value};

	return http_parser_execute(hp, &settings, p, (size_t)(end - p)) == (size_t)(end - p) &&
	       HTTP_PARSER_ERRNO(hp) == HPE_OK;
}

/* All lines but those of free fields. */
static bool
feed_head(struct reader *rd, http_parser *hp, const char *buf)
{
	const struct http_header *f = rd->h->headers, *end = f + rd->nlines;
	const char *from = buf;

	for (; f < end; f++) {
		if (!f->free)
			continue;
		if (from < f->name.p && !feed(hp, from, f->name.p))
			return false;
		from = f + 1 < end ? f[1].name.p : rd->end - 2;
	}
	return feed(hp, from, rd->end) && next_fed(rd) == end;
}

static int
run_parser(struct reader *rd, const char *buf)
{
	static const enum http_method methods[] = {
		[HTTP_GET] = HTTP_M_GET,
		[HTTP_HEAD] = HTTP_M_HEAD,
		[HTTP_POST] = HTTP_M_POST,
		[HTTP_PUT] = HTTP_M_PUT,
		[HTTP_DELETE] = HTTP_M_DELETE,
		[HTTP_OPTIONS] = HTTP_M_OPTIONS,
	};
	http_parser hp;

	if (rd->end - buf > HTTP_MAX_HEADER_SIZE)
		return HTTP_E_TOO_MANY;
	http_parser_init(&hp, rd->kind == HTTP_KIND_REQUEST ? HTTP_REQUEST : HTTP_RESPONSE);
	hp.data = rd;
	if (!feed_head(rd, &hp, buf) || hp.http_minor != rd->h->minor)
		return HTTP_E_SYNTAX;
	rd->h->nheaders = rd->nlines;
	if (rd->kind == HTTP_KIND_RESPONSE)
		rd->h->status = hp.status_code;
	else if (hp.method < sizeof(methods) / sizeof(methods[0]))
		rd->h->method = methods[hp.method];
	return 0;
}

/* ---- what the head means ---- */

static enum http_framing
decide_framing(const struct reader *rd, bool head_request)
{
	const struct http_head *h = rd->h;
	bool response = rd->kind == HTTP_KIND_RESPONSE;

	/* the order is that of RFC 9112 6.3 */
	if (response && (head_request || h->status < 200 || h->status == 204 || h->status == 304))
		return HTTP_BODY_NONE;
	if (rd->has_coding)
		return HTTP_BODY_CHUNKED;
	if (rd->has_length)
		return HTTP_BODY_LENGTH;
	return response ? HTTP_BODY_UNTIL_CLOSE : HTTP_BODY_NONE;
}

static bool
decide_keep_alive(const struct reader *rd)
{
	if (rd->close || rd->h->framing == HTTP_BODY_UNTIL_CLOSE || rd->h->status == 101)
		return false;
	return rd->h->minor > 0 || rd->keep;
}

static void
mark_listed(const struct reader *rd)
{
	for (size_t i = 0; i < rd->nlisted; i++)
		for (size_t k = 0; k < rd->h->nheaders; k++)
			if (same_name(rd->h->headers[k].name, rd->listed[i]))
				rd->h->headers[k].hop = true;
}

int
http_head_parse(
	struct http_head *h, enum http_kind kind, const char *buf, size_t len, bool head_request)
{
	struct reader rd;
	int r;

	/* two large arrays are filled as far as they are used, never cleared */
	memset(h, 0, offsetof(struct http_head, headers));
	memset(&rd, 0, offsetof(struct reader, listed));
	rd.h = h;
	rd.kind = kind;
	rd.p = buf;
	rd.end = buf + len;
	r = read_head(&rd);
	if (r == 0)
		r = run_parser(&rd, buf);
	if (r < 0)
		return r;
	mark_listed(&rd);
	h->framing = decide_framing(&rd, head_request);
	h->keep_alive = decide_keep_alive(&rd);
	return 0;
}

const struct http_header *
http_header(const struct http_head *h, const char *name)
{
	const size_t n = strlen(name);

	for (size_t i = 0; i < h->nheaders; i++)
		if (h->headers[i].name.n == n && span_letters(h->headers[i].name.p, name, n))
			return &h->headers[i];
	return NULL;
}
