/*
 * proto/http: the first byte of the input chooses what the rest is (Q request head, R answer head,
 * H answer to HEAD, C chunked body, L body of a length, U URL; other bytes by their value), the
 * second how it is cut into reads.
 *
 * Held against it: the cuts must not matter; spans must lie inside the input; what is accepted as a
 * chunked body must be the same payload to http-parser; a head that is accepted must be accepted by
 * http-parser alone, with as many fields; it must still be accepted, and mean the same, when it is written
 * out again from its spans.
 */
#include "proto/http/http.h"

#define http_method hp_method /* http-parser's header defines an enum of the same name */
#include <http_parser.h>
#undef http_method

#include "tests/fuzz/check.h"

struct bytes {
	char *p;
	size_t n;
};

static void
append(struct bytes *b, const char *p, size_t n)
{
	memcpy(b->p + b->n, p, n);
	b->n += n;
}

static char *
allocate(size_t n)
{
	char *p = malloc(n > 0 ? n : 1);

	CHECK(p != NULL);
	return p;
}

/* ---- heads ---- */

static ssize_t
find_end(const char *in, size_t n, size_t step)
{
	size_t from = 0, have = 0;
	ssize_t r = 0;

	while (r == 0 && have < n) {
		have = n - have > step ? have + step : n;
		r = http_head_end(in, have, &from);
		CHECK(from <= have);
	}
	return r;
}

static void
check_inside(struct span s, const char *in, size_t n)
{
	CHECK(s.p >= in && s.p <= in + n && s.n <= (size_t)(in + n - s.p));
}

static bool
same(struct span a, struct span b)
{
	return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

/* Writes the head's meaning out as a new head. */
static struct bytes
rewrite(const struct http_head *h, enum http_kind kind, size_t n)
{
	/* a blank behind the colon may be new on every line, and answers get a full status line */
	struct bytes out = {allocate(n + h->nheaders + 32), 0};
	char line[32];
	size_t len;

	if (kind == HTTP_KIND_REQUEST) {
		append(&out, h->method_text.p, h->method_text.n);
		append(&out, " ", 1);
		append(&out, h->target.p, h->target.n);
		len = (size_t)snprintf(line, sizeof(line), " HTTP/1.%d\r\n", h->minor);
	} else {
		len = (size_t)snprintf(
			line, sizeof(line), "HTTP/1.%d %d x\r\n", h->minor, h->status);
	}
	append(&out, line, len);
	for (size_t i = 0; i < h->nheaders; i++) {
		append(&out, h->headers[i].name.p, h->headers[i].name.n);
		append(&out, ": ", 2);
		append(&out, h->headers[i].value.p, h->headers[i].value.n);
		append(&out, "\r\n", 2);
	}
	append(&out, "\r\n", 2);
	return out;
}

static void
check_rewritten(const struct http_head *h, enum http_kind kind, size_t n, bool head_request)
{
	static struct http_head again; /* two heads are much for a stack under ASan */
	struct bytes out = rewrite(h, kind, n);
	size_t from = 0;

	CHECK(http_head_end(out.p, out.n, &from) == (ssize_t)out.n);
	CHECK(http_head_parse(&again, kind, out.p, out.n, head_request) == 0);
	CHECK(again.method == h->method && again.status == h->status && again.minor == h->minor);
	CHECK(again.keep_alive == h->keep_alive && again.expect_continue == h->expect_continue);
	CHECK(again.framing == h->framing && again.content_length == h->content_length);
	CHECK(again.nheaders == h->nheaders);
	for (size_t i = 0; i < h->nheaders; i++) {
		CHECK(same(again.headers[i].name, h->headers[i].name));
		CHECK(same(again.headers[i].value, h->headers[i].value));
		CHECK(again.headers[i].hop == h->headers[i].hop);
	}
	free(out.p);
}

static int
count_field(http_parser *hp, const char *p, size_t n)
{
	(void)p;
	(void)n;
	++*(size_t *)hp->data;
	return 0;
}

/* The router gives it only the fields that have a meaning to HTTP. */
static void
check_against_parser_alone(const struct http_head *h, enum http_kind kind, const char *in, size_t n)
{
	static const http_parser_settings settings = {.on_header_field = count_field};
	size_t fields = 0;
	http_parser hp;

	http_parser_init(&hp, kind == HTTP_KIND_REQUEST ? HTTP_REQUEST : HTTP_RESPONSE);
	hp.data = &fields;
	CHECK(http_parser_execute(&hp, &settings, in, n) == n);
	CHECK(HTTP_PARSER_ERRNO(&hp) == HPE_OK && fields == h->nheaders);
	CHECK(hp.http_minor == h->minor);
}

static void
fuzz_head(enum http_kind kind, bool head_request, const char *in, size_t n, size_t step)
{
	static struct http_head h;
	ssize_t end = find_end(in, n, n);

	CHECK(find_end(in, n, step) == end);
	if (end <= 0) {
		(void)http_head_parse(&h, kind, in, n, head_request);
		return;
	}
	if (http_head_parse(&h, kind, in, (size_t)end, head_request) != 0)
		return;
	for (size_t i = 0; i < h.nheaders; i++) {
		check_inside(h.headers[i].name, in, (size_t)end);
		check_inside(h.headers[i].value, in, (size_t)end);
		CHECK(h.headers[i].name.n > 0);
	}
	if (kind == HTTP_KIND_REQUEST) {
		check_inside(h.method_text, in, (size_t)end);
		check_inside(h.target, in, (size_t)end);
		check_inside(h.query, in, (size_t)end);
		CHECK(h.path.n > 0 && (h.path.p[0] == '/' || span_eq(h.path, "*")));
	}
	check_against_parser_alone(&h, kind, in, (size_t)end);
	check_rewritten(&h, kind, (size_t)end, head_request);
}

/* ---- bodies ---- */

struct result {
	struct bytes payload;
	size_t consumed;
	int r;
	bool done;
};

static struct result
decode(enum http_framing framing, uint64_t length, const char *in, size_t n, size_t step)
{
	struct result res = {.payload = {allocate(n), 0}};
	struct http_body b;
	struct span data;

	http_body_init(&b, framing, length);
	while (!b.done && res.consumed < n) {
		size_t left = n - res.consumed, piece = step - res.consumed % step;
		ssize_t r =
			http_body_next(&b, in + res.consumed, piece < left ? piece : left, &data);

		if (r < 0) {
			res.r = (int)r;
			break;
		}
		CHECK(r > 0);
		check_inside(data, in + res.consumed, (size_t)r);
		append(&res.payload, data.p, data.n);
		res.consumed += (size_t)r;
	}
	res.done = b.done;
	return res;
}

static int
on_body(http_parser *hp, const char *p, size_t n)
{
	append(hp->data, p, n);
	return 0;
}

/* Payload is complete before trailers begin, where http-parser has opinions of its own. */
static void
check_against_parser(const struct result *res, const char *in)
{
	static const char head[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
	static const http_parser_settings settings = {.on_body = on_body};
	struct bytes payload = {allocate(res->consumed), 0};
	http_parser hp;

	http_parser_init(&hp, HTTP_RESPONSE);
	hp.data = &payload;
	CHECK(http_parser_execute(&hp, &settings, head, sizeof(head) - 1) == sizeof(head) - 1);
	(void)http_parser_execute(&hp, &settings, in, res->consumed);
	CHECK(payload.n == res->payload.n && memcmp(payload.p, res->payload.p, payload.n) == 0);
	free(payload.p);
}

static void
fuzz_body(enum http_framing framing, uint64_t length, const char *in, size_t n, size_t step)
{
	struct result whole = decode(framing, length, in, n, n > 0 ? n : 1),
		      cut = decode(framing, length, in, n, step);

	CHECK(whole.done == cut.done && whole.r == cut.r);
	CHECK(whole.r < 0 ||
		whole.consumed == cut.consumed); /* at an error the cut part may have gone before */
	CHECK(whole.payload.n == cut.payload.n &&
		memcmp(whole.payload.p, cut.payload.p, cut.payload.n) == 0);
	if (framing == HTTP_BODY_CHUNKED && whole.done)
		check_against_parser(&whole, in);
	free(whole.payload.p);
	free(cut.payload.p);
}

static void
fuzz_url(const char *in, size_t n)
{
	char *text = allocate(n + 1);
	const char *why = NULL;
	struct http_url u;

	memcpy(text, in, n);
	text[n] = '\0';
	if (http_url_parse(text, &u, &why) == 0)
		CHECK(strlen(u.host) > 0 && u.port > 0 && strlen(u.prefix) < sizeof(u.prefix));
	else
		CHECK(why != NULL && why[0] != '\0');
	free(text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char kinds[] = "QRHCLU";
	const char *in, *kind;
	size_t n, step;

	if (size < 2)
		return 0;
	kind = memchr(kinds, data[0], sizeof(kinds) - 1);
	if (kind == NULL)
		kind = kinds + data[0] % (sizeof(kinds) - 1);
	step = (size_t)data[1] + 1;
	in = (const char *)data + 2;
	n = size - 2;
	if (*kind == 'Q')
		fuzz_head(HTTP_KIND_REQUEST, false, in, n, step);
	else if (*kind == 'R' || *kind == 'H')
		fuzz_head(HTTP_KIND_RESPONSE, *kind == 'H', in, n, step);
	else if (*kind == 'C')
		fuzz_body(HTTP_BODY_CHUNKED, 0, in, n, step);
	else if (*kind == 'L')
		fuzz_body(HTTP_BODY_LENGTH, n / 2, in, n, step);
	else
		fuzz_url(in, n);
	return 0;
}
