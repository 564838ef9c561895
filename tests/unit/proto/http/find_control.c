/* find_control() beside the one that looks at one byte after the other. */
#include "proto/http/http_bytes.h"

#include <criterion/criterion.h>
#include <string.h>

#define LONGEST 40

static size_t
one_by_one(const char *p, size_t n)
{
	size_t i = 0;

	while (i < n && !is_control(p[i]))
		i++;
	return i;
}

/* Every byte value at every place of a text of every length, between two others. */
static void
every_byte_at_every_place(char before, char behind)
{
	char text[LONGEST];

	for (size_t n = 1; n <= LONGEST; n++) {
		for (size_t at = 0; at < n; at++) {
			for (unsigned b = 0; b < 256; b++) {
				memset(text, 'a', n);
				if (at > 0)
					text[at - 1] = before;
				if (at + 1 < n)
					text[at + 1] = behind;
				text[at] = (char)b;
				cr_assert_eq(find_control(text, text + n) - text,
					one_by_one(text, n), "byte %u at %zu of %zu", b, at, n);
			}
		}
	}
}

Test(find_control, a_byte_alone)
{
	every_byte_at_every_place('a', 'a');
}

/* A tab is none; a subtraction carries from a byte into the one above it. */
Test(find_control, a_byte_between_others)
{
	every_byte_at_every_place('\t', ' ');
	every_byte_at_every_place('\t', '\r');
	every_byte_at_every_place(' ', '\x7f');
	every_byte_at_every_place('\x80', '\x80');
	every_byte_at_every_place('\x7e', '\xff');
}
