/*
 * Lists of integers, such as block ids and token ids: most of the bytes of a prefill engine's answer, and of a
 * body whose prompt is token ids.  Private to proto/.
 */
#pragma once
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <stddef.h>
#include <stdint.h>

#ifdef __SSE2__
#define INTEGERS_BLOCK 16

/*
 * Whether each byte of a block continues a list: a comma after a digit, a blank after a comma, or a digit after
 * any of these, except one that follows the zero that its number begins with.  The two bytes before the block
 * are read, too.  *ret_commas: 0xff for each comma.
 */
static inline int
integers_go_on(const uint8_t *p, __m128i *ret_commas)
{
	const __m128i b = _mm_loadu_si128((const __m128i *)p);
	const __m128i before = _mm_loadu_si128((const __m128i *)(p - 1));
	const __m128i before_it = _mm_loadu_si128((const __m128i *)(p - 2));
	const __m128i zero = _mm_set1_epi8('0'), comma = _mm_set1_epi8(',');
	/* signed: bytes beyond ASCII are below all others, and those above '9' are looked at alone */
	const __m128i below = _mm_cmplt_epi8(b, zero),
		      above = _mm_cmpgt_epi8(b, _mm_set1_epi8('9'));
	const __m128i commas = _mm_cmpeq_epi8(b, comma);
	const __m128i good_comma = _mm_andnot_si128(_mm_cmplt_epi8(before, zero), commas);
	const __m128i good_blank =
		_mm_and_si128(_mm_cmpeq_epi8(b, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(before, comma));
	const __m128i after_zero =
		_mm_and_si128(_mm_cmpeq_epi8(before, zero), _mm_cmplt_epi8(before_it, zero));
	const __m128i bad = _mm_or_si128(_mm_xor_si128(below, _mm_or_si128(good_comma, good_blank)),
		_mm_or_si128(above, _mm_andnot_si128(below, after_zero)));

	*ret_commas = commas;
	return _mm_movemask_epi8(bad) == 0;
}

/* Passes whole blocks: `p` is at the comma after a number, and the array's bracket is before that.  Returns the
 * last comma that was met, and adds the integers between the two to *n. */
static inline const uint8_t *
integers_skip_blocks(const uint8_t *p, const uint8_t *end, uint64_t *n)
{
	const __m128i one = _mm_set1_epi8(1);
	const uint8_t *start = p;
	__m128i commas, sum = _mm_setzero_si128();

	for (; end - p >= INTEGERS_BLOCK && integers_go_on(p, &commas); p += INTEGERS_BLOCK)
		sum = _mm_add_epi64(
			sum, _mm_sad_epu8(_mm_and_si128(commas, one), _mm_setzero_si128()));
	if (p == start)
		return p;
	*n += (uint64_t)_mm_cvtsi128_si64(sum) +
	      (uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(sum, sum)) - 1;
	while (*--p != ',')
		;
	return p;
}
#else
static inline const uint8_t *
integers_skip_blocks(const uint8_t *p, const uint8_t *end, uint64_t *n)
{
	(void)end;
	(void)n;
	return p;
}
#endif

/*
 * Passes the integers that follow a number in its array and returns how many they were; the array's bracket is
 * in the text, too.  *at stays after the last integer that is certainly valid: the caller reads what
 * follows.
 */
static inline uint64_t
json_skip_integers(const uint8_t **at, const uint8_t *end)
{
	const uint8_t *p = *at, *first;
	uint64_t n = 0;

	if (p < end && *p == ',')
		*at = p = integers_skip_blocks(p, end, &n);
	while (end - p >= 3 && *p == ',') {
		p += p[1] == ' ' ? 2 : 1;
		first = p;
		while (p < end && (uint8_t)(*p - '0') <= 9)
			p++;
		if (p == first || p == end || (*p != ',' && *p != ']') ||
			(*first == '0' && p - first > 1))
			break;
		*at = p;
		n++;
	}
	return n;
}
