/*
 * UTF-8, strictly: overlong forms, surrogates and code points above U+10FFFF are refused, as
 * Python's decoder (and so every engine) does.  Source: Unicode Standard, table 3-7.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

static inline bool
utf8_continues(uint8_t b)
{
	return (b & 0xc0) == 0x80;
}

/* A well-formed sequence that a terminal may obey: C0, DEL, or C1 (U+0080 to U+009F). */
static inline bool
utf8_is_control(const uint8_t *p)
{
	return p[0] < 0x20 || p[0] == 0x7f || (p[0] == 0xc2 && p[1] < 0xa0);
}

/* Bytes of the well-formed sequence at p (n > 0 bytes left): 1..4, or 0 if there is none. */
static inline size_t
utf8_seq(const uint8_t *p, size_t n)
{
	if (p[0] < 0x80)
		return 1;
	if (p[0] < 0xc2 || p[0] > 0xf4 || n < 2 || !utf8_continues(p[1]))
		return 0;
	if (p[0] < 0xe0)
		return 2;
	if (n < 3 || !utf8_continues(p[2]))
		return 0;
	if (p[0] < 0xf0)
		return (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ? 0 : 3;
	if (n < 4 || !utf8_continues(p[3]))
		return 0;
	return (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f) ? 0 : 4;
}
