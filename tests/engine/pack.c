#include "tests/engine/pack.h"

#include <string.h>

void
pack_byte(struct buf *b, unsigned char c)
{
	buf_add(b, &c, 1);
}

static void
put_be(struct buf *b, uint64_t v, unsigned bytes)
{
	while (bytes-- > 0)
		pack_byte(b, (unsigned char)(v >> 8 * bytes));
}

void
pack_str(struct buf *b, const char *s)
{
	size_t n = strlen(s);

	if (n < 32) {
		pack_byte(b, (unsigned char)(0xa0 | n));
	} else if (n < 256) {
		pack_byte(b, 0xd9);
		put_be(b, n, 1);
	} else {
		pack_byte(b, 0xda);
		put_be(b, n & 0xffff, 2);
	}
	buf_add(b, s, n & 0xffff);
}

void
pack_bin(struct buf *b, const void *p, size_t n)
{
	pack_byte(b, 0xc4);
	put_be(b, n, 1);
	buf_add(b, p, n);
}

/* The shortest form, as msgspec. */
void
pack_uint(struct buf *b, uint64_t v)
{
	if (v < 0x80) {
		pack_byte(b, (unsigned char)v);
	} else if (v <= UINT8_MAX) {
		pack_byte(b, 0xcc);
		put_be(b, v, 1);
	} else if (v <= UINT16_MAX) {
		pack_byte(b, 0xcd);
		put_be(b, v, 2);
	} else if (v <= UINT32_MAX) {
		pack_byte(b, 0xce);
		put_be(b, v, 4);
	} else {
		pack_byte(b, 0xcf);
		put_be(b, v, 8);
	}
}

void
pack_double(struct buf *b, double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof(bits));
	pack_byte(b, 0xcb);
	put_be(b, bits, 8);
}

void
pack_nil(struct buf *b)
{
	pack_byte(b, 0xc0);
}

void
pack_array(struct buf *b, size_t n)
{
	if (n < 16) {
		pack_byte(b, (unsigned char)(0x90 | n));
	} else if (n <= UINT16_MAX) {
		pack_byte(b, 0xdc);
		put_be(b, n, 2);
	} else {
		pack_byte(b, 0xdd);
		put_be(b, n, 4);
	}
}

void
pack_map(struct buf *b, size_t n)
{
	pack_byte(b, (unsigned char)(0x80 | n));
}
