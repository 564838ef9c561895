/*
 * Escapes and UTF-8 of JSON strings.  An unescaped string never grows: \uXXXX is six bytes and at
 * most three of UTF-8, a pair twelve and four.
 */
#include "proto/json/json_string.h"

#include <assert.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "proto/json/utf8.h"

#ifdef __x86_64__
__attribute__((target("avx2"))) static const uint8_t *
skip_avx2(const uint8_t *p, const uint8_t *end)
{
	const __m256i blank = _mm256_set1_epi8(' '), quote = _mm256_set1_epi8('"'),
		      backslash = _mm256_set1_epi8('\\');

	for (; end - p >= 64; p += 64) {
		const __m256i a = _mm256_loadu_si256((const __m256i *)p),
			      b = _mm256_loadu_si256((const __m256i *)(p + 32));
		/* signed, as in json_peculiar() */
		const __m256i low =
			_mm256_or_si256(_mm256_cmpgt_epi8(blank, a), _mm256_cmpgt_epi8(blank, b));
		const __m256i quotes =
			_mm256_or_si256(_mm256_cmpeq_epi8(a, quote), _mm256_cmpeq_epi8(b, quote));
		const __m256i backslashes = _mm256_or_si256(
			_mm256_cmpeq_epi8(a, backslash), _mm256_cmpeq_epi8(b, backslash));
		const __m256i bad = _mm256_or_si256(low, _mm256_or_si256(quotes, backslashes));

		if (!_mm256_testz_si256(bad, bad))
			break;
	}
	return p;
}

const uint8_t *
json_skip_wide(const uint8_t *p, const uint8_t *end)
{
	return __builtin_cpu_supports("avx2") ? skip_avx2(p, end) : p;
}
#else
const uint8_t *
json_skip_wide(const uint8_t *p, const uint8_t *end)
{
	(void)end;
	return p;
}
#endif

static int
hex_digit(uint8_t b)
{
	if (b >= '0' && b <= '9')
		return b - '0';
	b |= 0x20;
	return b >= 'a' && b <= 'f' ? b - 'a' + 10 : -1;
}

/* The code unit of a \uXXXX at p, or -1. */
static long
code_unit(const uint8_t *p, const uint8_t *end)
{
	long unit = 0;

	if (end - p < 6 || p[0] != '\\' || p[1] != 'u')
		return -1;
	for (int i = 2; i < 6; i++) {
		int digit = hex_digit(p[i]);

		if (digit < 0)
			return -1;
		unit = unit << 4 | digit;
	}
	return unit;
}

size_t
json_escape(const uint8_t *p, const uint8_t *end, uint32_t *ret_code)
{
	static const char names[] = "\"\\/bfnrt", codes[] = "\"\\/\b\f\n\r\t";
	const char *name;
	long unit, low;

	if (end - p < 2)
		return 0;
	if (p[1] != 'u') {
		name = memchr(names, p[1], sizeof(names) - 1);
		if (name == NULL)
			return 0;
		*ret_code = (uint8_t)codes[name - names];
		return 2;
	}
	unit = code_unit(p, end);
	if (unit < 0)
		return 0;
	*ret_code = (uint32_t)unit;
	if (unit < 0xd800 || unit > 0xdbff)
		return 6;
	low = code_unit(p + 6, end);
	if (low < 0xdc00 || low > 0xdfff)
		return 6;
	*ret_code = 0x10000 + ((uint32_t)(unit - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
	return 12;
}

static size_t
utf8_put(char *buf, uint32_t code)
{
	uint8_t *b = (uint8_t *)buf;

	if (code < 0x80) {
		b[0] = (uint8_t)code;
		return 1;
	}
	if (code < 0x800) {
		b[0] = (uint8_t)(0xc0 | code >> 6);
		b[1] = (uint8_t)(0x80 | (code & 0x3f));
		return 2;
	}
	if (code < 0x10000) {
		b[0] = (uint8_t)(0xe0 | code >> 12);
		b[1] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
		b[2] = (uint8_t)(0x80 | (code & 0x3f));
		return 3;
	}
	b[0] = (uint8_t)(0xf0 | code >> 18);
	b[1] = (uint8_t)(0x80 | (code >> 12 & 0x3f));
	b[2] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
	b[3] = (uint8_t)(0x80 | (code & 0x3f));
	return 4;
}

long
json_unescape(const char *text, size_t len, char *buf, size_t size)
{
	const uint8_t *p = (const uint8_t *)text, *end = p + len;
	size_t n = 0;

	while (p < end) {
		uint32_t code = 0;
		char utf8[4];
		size_t nutf8 = 1;

		if (*p != '\\') {
			utf8[0] = (char)*p++;
		} else {
			p += json_escape(p, end, &code);
			if (code >= 0xd800 && code <= 0xdfff)
				code = 0xfffd; /* half a pair has no UTF-8 */
			nutf8 = utf8_put(utf8, code);
		}
		if (size - n < nutf8)
			return -1;
		memcpy(buf + n, utf8, nutf8);
		n += nutf8;
	}
	return (long)n;
}

/* The escape for a byte that needs one or is not UTF-8; NULL if the byte needs none. */
static size_t
quoted_form(const uint8_t *p, size_t n, size_t seq, char form[8])
{
	static const char names[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
	static const char hex[] = "0123456789abcdef";
	const char *name;

	if (seq == 0) {
		memcpy(form, UTF8_REPLACEMENT, 3);
		return 3;
	}
	name = memchr(names, p[0], sizeof(names) - 1);
	if (name != NULL) {
		form[0] = '\\';
		form[1] = letters[name - names];
		return 2;
	}
	if (p[0] < ' ') {
		memcpy(form, "\\u00", 4);
		form[4] = hex[p[0] >> 4];
		form[5] = hex[p[0] & 15];
		return 6;
	}
	assert(seq <= n);
	memcpy(form, p, seq);
	return seq;
}

long
json_quote(char *buf, size_t size, const char *text, size_t len, size_t max)
{
	const uint8_t *p = (const uint8_t *)text, *end = p + len;
	const uint8_t *stop = p + (len < max ? len : max);
	size_t n = 0;

	if (size == 0)
		return -1;
	buf[0] = '\0';
	if (size < 3)
		return -1;
	buf[n++] = '"';
	while (p < stop) {
		size_t left = (size_t)(end - p), seq = utf8_seq(p, left), nform;
		char form[8];

		if (seq > (size_t)(stop - p))
			break; /* clipping would cut it */
		nform = quoted_form(p, left, seq, form);
		if (size - n < nform + 2) {
			buf[n] = '\0';
			return -1;
		}
		memcpy(buf + n, form, nform);
		n += nform;
		p += seq > 0 ? seq : 1;
	}
	buf[n++] = '"';
	buf[n] = '\0';
	return (long)n;
}

uint64_t
json_characters(const char *text, size_t len)
{
	const uint8_t *p = (const uint8_t *)text, *end = p + len;
	uint64_t n = 0;
	uint32_t code;

	while (p < end) {
		const size_t k = *p == '\\' ? json_escape(p, end, &code) : 1;

		n += (*p & 0xc0) != 0x80; /* of UTF-8, what begins a character */
		p += k > 0 ? k : 1;
	}
	return n;
}
