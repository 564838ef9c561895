/*
 * The contents of a JSON string (RFC 8259, section 7): plain bytes, escapes, UTF-8; and
 * json_quote(), which writes one.
 */
#pragma once
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
 * Zero if none of eight bytes is a quote, a backslash, a control character or beyond ASCII.  A
 * byte's subtraction may carry into its neighbour, but only if that byte is itself one of these.
 */
static inline uint64_t
json_peculiar(const uint8_t *p)
{
	uint64_t w;

	memcpy(&w, p, sizeof(w));
	return ((w - JSON_EACH_BYTE(' ')) | ((w ^ JSON_EACH_BYTE('"')) - JSON_EACH_BYTE(1)) |
		       ((w ^ JSON_EACH_BYTE('\\')) - JSON_EACH_BYTE(1)) | w) &
	       JSON_EACH_BYTE(0x80);
}

static inline bool
json_is_plain(uint8_t b)
{
	return b >= ' ' && b < 0x80 && b != '"' && b != '\\';
}

/* The first byte from p on that is not plain, or end.  Here since it is most of the scan's time. */
static inline const uint8_t *
json_skip_plain(const uint8_t *p, const uint8_t *end)
{
	while (end - p >= 32 && (json_peculiar(p) | json_peculiar(p + 8) | json_peculiar(p + 16) |
					json_peculiar(p + 24)) == 0)
		p += 32;
	while (end - p >= 8 && json_peculiar(p) == 0)
		p += 8;
	while (p < end && json_is_plain(*p))
		p++;
	return p;
}
