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

/* Long enough for the widest vectors, at each alignment. */
Test(skip_plain, a_byte_of_a_long_text)
{
	static const uint8_t bytes[] = {'"', '\\', 0x1f, 0, 0x80, 0xff, ' ', 0x7f};
	uint8_t text[400];

	memset(text, 'a', sizeof(text));
	for (size_t n = 2 * JSON_WIDE; n < 2 * JSON_WIDE + 64; n++) {
		for (size_t at = 0; at < n; at++) {
			for (size_t b = 0; b < sizeof(bytes); b++) {
				uint8_t *p = text + n % 64;

				p[at] = bytes[b];
				cr_assert_eq(json_skip_plain(p, p + n) - p, one_by_one(p, n),
					"byte %u at %zu of %zu", bytes[b], at, n);
				p[at] = 'a';
			}
		}
	}
	cr_assert_eq(json_skip_plain(text, text + 300) - text, 300);
}
