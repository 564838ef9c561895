/* json_skip_plain() beside the one that looks at one byte after the other. */
#include "proto/json/json_string.h"

#include <criterion/criterion.h>
#include <string.h>

#define LONGEST 40

static size_t
one_by_one(const uint8_t *p, size_t n)
{
	size_t i = 0;

	while (i < n && json_is_plain(p[i]))
		i++;
	return i;
}

/* Every byte value at every place of a text of every length, and another one behind it. */
static void
every_byte_at_every_place(uint8_t behind)
{
	uint8_t text[LONGEST];

	for (size_t n = 1; n <= LONGEST; n++) {
		for (size_t at = 0; at < n; at++) {
			for (unsigned b = 0; b < 256; b++) {
				memset(text, 'a', n);
				if (at + 1 < n)
					text[at + 1] = behind;
				text[at] = (uint8_t)b;
				cr_assert_eq(json_skip_plain(text, text + n) - text,
					one_by_one(text, n), "byte %u at %zu of %zu", b, at, n);
			}
		}
	}
}

Test(skip_plain, a_byte_alone)
{
	every_byte_at_every_place('a');
}

/* A subtraction carries from a byte into the one above it. */
Test(skip_plain, a_byte_before_another_one)
{
	every_byte_at_every_place('"');
	every_byte_at_every_place('!');
	every_byte_at_every_place('\\');
	every_byte_at_every_place(0);
	every_byte_at_every_place(0xff);
}
