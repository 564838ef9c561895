/*
 * Body framing.  No buffer is needed: framing goes through one handler per state and byte, except where it is
 * as usual and whole; payload is handed out unseen.
 */
#include "proto/http/http.h"
#include "proto/http/http_bytes.h"

// clang-format off
/*
 *  SIZE_FIRST -> SIZE -> [EXT] -> SIZE_LF -> DATA -> DATA_CR -> DATA_LF -> SIZE_FIRST ...
 *                                    | size 0
 *                                    `-> LINE_FIRST -> NAME -> VALUE -> LINE_LF -> LINE_FIRST ...
 *                                           `-> LAST_LF, done
 *
 * DATA is the only state whose bytes are not checked.  In SIZE `left` is the number so far.
 */
// clang-format on
enum chunk_state {
	C_SIZE_FIRST,
	C_SIZE,
	C_EXT,
	C_SIZE_LF,
	C_DATA,
	C_DATA_CR,
	C_DATA_LF,
	C_LINE_FIRST,
	C_NAME,
	C_VALUE,
	C_LINE_LF,
	C_LAST_LF,
	C_BROKEN, /* refused once, refused for ever */
};

#define SIZE_LINE_MAX 1024 /* without its CRLF */
#define TRAILERS_MAX 8192
#define SIZE_DIGITS_MAX 16

static int
count_byte(struct http_body *b, unsigned max, enum rule rule)
{
	return ++b->line_bytes > max ? refuse(rule) : 0;
}

static int
size_first(struct http_body *b, char c)
{
	unsigned digit = hex_digit[(unsigned char)c];

	if (digit == 0)
		return refuse(R_CHUNK_SIZE);
	b->left = digit - 1;
	b->line_bytes = 1;
	b->state = C_SIZE;
	return 0;
}

static int
size_more(struct http_body *b, char c)
{
	unsigned digit = hex_digit[(unsigned char)c];

	if (c == '\r') {
		b->state = C_SIZE_LF;
		return 0;
	}
	if (c == ';') {
		b->state = C_EXT;
		return count_byte(b, SIZE_LINE_MAX, R_CHUNK_LINE_LONG);
	}
	if (is_blank(c))
		return refuse(R_CHUNK_SIZE_BLANK);
	if (digit == 0)
		return refuse(c == '\n' ? R_CHUNK_LINE_END : R_CHUNK_SIZE);
	if (b->left > INT64_MAX >> 4)
		return refuse(R_CHUNK_OVERFLOW);
	b->left = b->left << 4 | (digit - 1);
	return count_byte(b, SIZE_DIGITS_MAX, R_CHUNK_OVERFLOW);
}

static int
size_extension(struct http_body *b, char c)
{
	if (c == '\r') {
		b->state = C_SIZE_LF;
		return 0;
	}
	if (is_control(c) || (unsigned char)c >= 0x80)
		return refuse(R_CHUNK_EXT_BYTE);
	return count_byte(b, SIZE_LINE_MAX, R_CHUNK_LINE_LONG);
}

static int
size_lf(struct http_body *b, char c)
{
	if (c != '\n')
		return refuse(R_CHUNK_LINE_END);
	b->line_bytes = 0;
	b->state = b->left > 0 ? C_DATA : C_LINE_FIRST;
	return 0;
}

static int
data_cr(struct http_body *b, char c)
{
	b->state = C_DATA_LF;
	return c == '\r' ? 0 : refuse(R_CHUNK_DATA_END);
}

static int
data_lf(struct http_body *b, char c)
{
	b->state = C_SIZE_FIRST;
	return c == '\n' ? 0 : refuse(R_CHUNK_DATA_END);
}

static int
line_first(struct http_body *b, char c)
{
	if (c == '\r') {
		b->state = C_LAST_LF;
		return 0;
	}
	b->state = C_NAME;
	return is_token(c) ? count_byte(b, TRAILERS_MAX, R_TRAILER_LONG) : refuse(R_TRAILER_LINE);
}

static int
line_name(struct http_body *b, char c)
{
	if (c == ':')
		b->state = C_VALUE;
	else if (!is_token(c))
		return refuse(R_TRAILER_LINE);
	return count_byte(b, TRAILERS_MAX, R_TRAILER_LONG);
}

static int
line_value(struct http_body *b, char c)
{
	if (c == '\r')
		b->state = C_LINE_LF;
	else if (is_control(c))
		return refuse(R_TRAILER_LINE);
	return count_byte(b, TRAILERS_MAX, R_TRAILER_LONG);
}

static int
line_lf(struct http_body *b, char c)
{
	b->state = C_LINE_FIRST;
	return c == '\n' ? count_byte(b, TRAILERS_MAX, R_TRAILER_LONG) : refuse(R_TRAILER_LINE);
}

static int
last_lf(struct http_body *b, char c)
{
	b->done = c == '\n';
	return b->done ? 0 : refuse(R_TRAILER_LINE);
}

static int
broken(struct http_body *b, char c)
{
	(void)b;
	(void)c;
	return HTTP_E_CHUNK;
}

/* One framing byte; 0 or an http_error. */
typedef int chunk_handler(struct http_body *, char);

static chunk_handler *const chunk_states[] = {
	[C_SIZE_FIRST] = size_first,
	[C_SIZE] = size_more,
	[C_EXT] = size_extension,
	[C_SIZE_LF] = size_lf,
	[C_DATA] = NULL, /* next_chunk() takes it whole */
	[C_DATA_CR] = data_cr,
	[C_DATA_LF] = data_lf,
	[C_LINE_FIRST] = line_first,
	[C_NAME] = line_name,
	[C_VALUE] = line_value,
	[C_LINE_LF] = line_lf,
	[C_LAST_LF] = last_lf,
	[C_BROKEN] = broken,
};

/* The piece of payload at p..p+n, not beyond `left`. */
static struct span
take_payload(struct http_body *b, const char *p, size_t n)
{
	struct span piece = {p, n < b->left ? n : (size_t)b->left};

	b->left -= piece.n;
	return piece;
}

static bool
is_crlf(const char *p, size_t n)
{
	return n >= 2 && p[0] == '\r' && p[1] == '\n';
}

#define SHORT_SIZE 8 /* digits */

/*
 * Takes the usual bytes between two payloads at once: the line end behind the first, and the whole size line
 * before the second, without extension.  Returns how many these were; each byte that follows has its handler.
 */
static size_t
take_framing(struct http_body *b, const char *in, size_t n)
{
	uint64_t size = 0;
	size_t i, start = 0;

	if (b->state == C_DATA_CR && is_crlf(in, n)) {
		b->state = C_SIZE_FIRST;
		start = 2;
	}
	if (b->state != C_SIZE_FIRST)
		return start;
	for (i = start; i < n && i - start < SHORT_SIZE && hex_digit[(unsigned char)in[i]] != 0;
		i++)
		size = size << 4 | (hex_digit[(unsigned char)in[i]] - 1u);
	if (size == 0 || !is_crlf(in + i, n - i))
		return start;
	b->left = size;
	b->line_bytes = 0;
	b->state = C_DATA;
	return i + 2;
}

static ssize_t
next_chunk(struct http_body *b, const char *in, size_t n, struct span *ret_data)
{
	size_t i;
	int r;

	for (i = take_framing(b, in, n); i < n && b->state != C_DATA && !b->done; i++) {
		r = chunk_states[b->state](b, in[i]);
		if (r < 0) {
			b->state = C_BROKEN;
			return r;
		}
	}
	if (b->state == C_DATA && i < n) {
		*ret_data = take_payload(b, in + i, n - i);
		i += ret_data->n;
		if (b->left == 0)
			b->state = C_DATA_CR;
	}
	return (ssize_t)i;
}

void
http_body_init(struct http_body *b, enum http_framing framing, uint64_t content_length)
{
	*b = (struct http_body){.framing = framing, .state = C_SIZE_FIRST};
	if (framing == HTTP_BODY_LENGTH)
		b->left = content_length;
	b->done = framing == HTTP_BODY_NONE || (framing == HTTP_BODY_LENGTH && content_length == 0);
}

ssize_t
http_body_next(struct http_body *b, const char *in, size_t n, struct span *ret_data)
{
	*ret_data = (struct span){in, 0};
	if (b->done)
		return 0;
	if (b->framing == HTTP_BODY_CHUNKED)
		return next_chunk(b, in, n, ret_data);
	if (b->framing == HTTP_BODY_UNTIL_CLOSE) {
		ret_data->n = n;
		return (ssize_t)n;
	}
	*ret_data = take_payload(b, in, n);
	b->done = b->left == 0;
	return (ssize_t)ret_data->n;
}
