/*
 * What the http*.c files share: the rules of http_rules.h as code, and classes of bytes.  Private
 * to them.
 */
#pragma once
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "proto/http/http_error.h"
#include "proto/http/http_rules.h"

enum rule {
#define X(name, err, parser, rfc, text) R_##name,
	HTTP_RULES(X)
#undef X
};

static const int8_t rule_error[] = {
#define X(name, err, parser, rfc, text) [R_##name] = (err),
	HTTP_RULES(X)
#undef X
};

static inline int
refuse(enum rule rule)
{
	return rule_error[rule];
}

// clang-format off
/* RFC 9110 5.6.2 */
static const bool token_byte[256] = {
	['!'] = true, ['#' ... '\''] = true, ['*'] = true, ['+'] = true, ['-'] = true, ['.'] = true,
	['0' ... '9'] = true, ['A' ... 'Z'] = true, ['^' ... 'z'] = true, ['|'] = true, ['~'] = true,
};

/* A hexadecimal digit's value + 1; 0 for other bytes. */
static const uint8_t hex_digit[256] = {
	['0'] = 1, ['1'] = 2, ['2'] = 3, ['3'] = 4, ['4'] = 5, ['5'] = 6, ['6'] = 7, ['7'] = 8, ['8'] = 9, ['9'] = 10,
	['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16,
	['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
};
// clang-format on

static inline bool
is_token(char c)
{
	return token_byte[(unsigned char)c];
}

static inline bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static inline bool
is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static inline bool
is_control(char c)
{
	unsigned char u = (unsigned char)c;

	return (u < 0x20 && u != '\t') || u == 0x7f;
}

static inline char
lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

/*
 * Control bytes among CONTROL_BLOCK bytes, HTAB too: a mask with CONTROL_BITS bits for each byte, whose
 * lowest bit that is set belongs to the first of them; 0 if there is none.
 */
#ifdef __SSE2__
#define CONTROL_BLOCK 16
#define CONTROL_BITS 1

static inline uint64_t
control_marks(const char *p)
{
	__m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
	__m128i low = _mm_cmpeq_epi8(_mm_min_epu8(b, _mm_set1_epi8(0x1f)), b);

	return (uint64_t)_mm_movemask_epi8(
		_mm_or_si128(low, _mm_cmpeq_epi8(b, _mm_set1_epi8(0x7f))));
}
#else
#define CONTROL_BLOCK 8
#define CONTROL_BITS 8

/* A subtraction may carry into the byte above, but only from a control byte. */
static inline uint64_t
control_marks(const char *p)
{
	const uint64_t ones = 0x0101010101010101u;
	uint64_t w, del;

	memcpy(&w, p, sizeof(w));
	w = le64toh(w);
	del = w ^ (ones * 0x7f);
	return (((w - ones * 0x20) & ~w) | ((del - ones) & ~del)) & (ones * 0x80);
}
#endif

/*
 * First control byte (HTAB does not count) in p..end, or end.  Nearly all bytes of a head are
 * printable, and this one pass finds line ends and forbidden bytes together.
 */
static inline const char *
find_control(const char *p, const char *end)
{
	while (end - p >= CONTROL_BLOCK) {
		uint64_t found = control_marks(p);

		if (found == 0) {
			p += CONTROL_BLOCK;
			continue;
		}
		p += (unsigned)__builtin_ctzll(found) / CONTROL_BITS;
		if (is_control(*p))
			return p;
		p++; /* HTAB */
	}
	while (p < end && !is_control(*p))
		p++;
	return p;
}
