/*
 * The contents of a JSON string (RFC 8259, section 7): plain bytes, escapes, UTF-8; and
 * json_quote(), which writes one.
 */
#pragma once
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * Reads the escape at p: its code point (a lone surrogate as itself) and its length, 2, 6, or 12
 * for a surrogate pair; 0 if it is none.
 */
size_t json_escape(const uint8_t *p, const uint8_t *end, uint32_t *ret_code);

/*
 * Undoes the escapes of a string that has been checked; a lone surrogate, which has no UTF-8,
 * becomes U+FFFD.  Returns the length, or -1 if it does not fit.  No NUL is added.
 */
long json_unescape(const char *text, size_t len, char *buf, size_t size);

/* How many characters a string that has been checked has, as Python's len() counts them. */
uint64_t json_characters(const char *text, size_t len);

/* Writes a JSON string, quotes included, escaping what must be; clips at `max` input bytes without
 * cutting a UTF-8 sequence; bad UTF-8 becomes U+FFFD.  Returns bytes written (excl. NUL), buf is
 * always terminated; -1 if `size` is too small. */
long json_quote(char *buf, size_t size, const char *text, size_t len, size_t max);

#define JSON_EACH_BYTE(b) (UINT64_C(0x0101010101010101) * (b))

/*
 * Not plain are: a quote, a backslash, a control character, what is beyond ASCII.  Of JSON_BLOCK bytes:
 * a mask with JSON_BITS bits for each byte, whose lowest bit that is set belongs to the first byte
 * that is not plain; 0 if all are plain.
 */
#ifdef __SSE2__
#define JSON_BLOCK 16
#define JSON_BITS 1

static inline uint64_t
json_peculiar(const uint8_t *p)
{
	__m128i b = _mm_loadu_si128((const __m128i *)p);
	__m128i low = _mm_cmplt_epi8(b, _mm_set1_epi8(' ')); /* signed: beyond ASCII, too */
	__m128i mark = _mm_or_si128(
		_mm_cmpeq_epi8(b, _mm_set1_epi8('"')), _mm_cmpeq_epi8(b, _mm_set1_epi8('\\')));

	return (uint64_t)_mm_movemask_epi8(_mm_or_si128(low, mark));
}
#else
#define JSON_BLOCK 8
#define JSON_BITS 8

/* A byte's subtraction may carry into the byte above it, but only if it is not plain itself. */
static inline uint64_t
json_peculiar(const uint8_t *p)
{
	uint64_t w;

	memcpy(&w, p, sizeof(w));
	w = le64toh(w);
	return ((w - JSON_EACH_BYTE(' ')) | ((w ^ JSON_EACH_BYTE('"')) - JSON_EACH_BYTE(1)) |
		       ((w ^ JSON_EACH_BYTE('\\')) - JSON_EACH_BYTE(1)) | w) &
	       JSON_EACH_BYTE(0x80);
}
#endif

static inline bool
json_is_plain(uint8_t b)
{
	return b >= ' ' && b < 0x80 && b != '"' && b != '\\';
}

/* Passes plain bytes, 64 at a time, if the processor can; else none. */
const uint8_t *json_skip_wide(const uint8_t *p, const uint8_t *end);
#define JSON_WIDE 128 /* plain bytes that may follow: fewer are not worth the call */

#define JSON_NEAR 5 /* blocks in which most other strings end: names, ids */

/* As json_skip_plain(), where a whole block is plain, or there is none.  Inlined, it would make that a function, too. */
static __attribute__((noinline)) const uint8_t *
json_skip_blocks(const uint8_t *p, const uint8_t *end)
{
	uint64_t found = 0;

	for (int i = 0; i < JSON_NEAR && end - p >= JSON_BLOCK; i++, p += JSON_BLOCK)
		if ((found = json_peculiar(p)) != 0)
			return p + (unsigned)__builtin_ctzll(found) / JSON_BITS;
	if (end - p >= JSON_WIDE)
		p = json_skip_wide(p, end);
	while (end - p >= 2 * JSON_BLOCK && (json_peculiar(p) | json_peculiar(p + JSON_BLOCK)) == 0)
		p += 2 * JSON_BLOCK;
	while (end - p >= JSON_BLOCK && (found = json_peculiar(p)) == 0)
		p += JSON_BLOCK;
	if (found != 0)
		return p + (unsigned)__builtin_ctzll(found) / JSON_BITS;
	while (p < end && json_is_plain(*p))
		p++;
	return p;
}

/* The first byte from p on that is not plain, or end.  Here since it is most of the scan's time.  Most strings
 * end in their first block, and cost no call. */
static inline const uint8_t *
json_skip_plain(const uint8_t *p, const uint8_t *end)
{
	uint64_t found;

	if (end - p < JSON_BLOCK)
		return json_skip_blocks(p, end);
	found = json_peculiar(p);
	return found != 0 ? p + (unsigned)__builtin_ctzll(found) / JSON_BITS
			  : json_skip_blocks(p + JSON_BLOCK, end);
}
