/* json_skip_integers() beside the one that looks at one byte after the other. */
#include "proto/json/json_integers.h"

#include <criterion/criterion.h>
#include <string.h>

#define LONGEST 200

/* What the list "[1" + text has: integers with a comma or the bracket behind each. */
static uint64_t
one_by_one(const uint8_t *p, const uint8_t *end, const uint8_t **ret_at)
{
	uint64_t n = 0;

	*ret_at = p;
	for (;;) {
		const uint8_t *first;

		if (p == end || *p++ != ',')
			return n;
		if (p < end && *p == ' ')
			p++;
		for (first = p; p < end && *p >= '0' && *p <= '9';)
			p++;
		if (p == first || p == end || (*p != ',' && *p != ']'))
			return n;
		if (*first == '0' && p - first > 1)
			return n;
		*ret_at = p;
		n++;
	}
}

static void
both_agree(const uint8_t *text, size_t n)
{
	const uint8_t *at = text + 2, *want_at;
	const uint64_t want = one_by_one(at, text + n, &want_at);

	cr_assert_eq(json_skip_integers(&at, text + n), want, "%.*s", (int)n, (const char *)text);
	cr_assert_eq(at, want_at, "%.*s: at %zd, not %zd", (int)n, (const char *)text, at - text,
		want_at - text);
}

static const char *const lists[] = {
	"[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24]",
	"[1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 12, 13, 14, 15, 160, 170, 180, 190, 200]",
	"[0,123456789012345678901234567890123456789,0,0,0,0,100000000000000000000,7]",
	"[9,10203,40506,70809, 12345,67890, 30303,20202, 90909,80808]",
};

/* Two bytes at every two neighbouring places, and the text cut there. */
static void
every_pair_at_every_place(const char *list)
{
	static const char bytes[] = "019,- ]:/}.e\n\t\x80\xff";
	uint8_t text[LONGEST];
	const size_t n = strlen(list);

	memcpy(text, list, n);
	for (size_t at = 2; at < n; at++) {
		both_agree(text, at);
		for (size_t i = 0; i < sizeof(bytes); i++) {
			for (size_t k = 0; k < sizeof(bytes); k++) {
				memcpy(text, list, n);
				text[at] = (uint8_t)bytes[i];
				if (at + 1 < n)
					text[at + 1] = (uint8_t)bytes[k];
				both_agree(text, n);
			}
		}
		memcpy(text, list, n);
	}
	both_agree(text, n);
}

Test(skip_integers, bytes_at_every_place)
{
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		every_pair_at_every_place(lists[i]);
}

/* Every byte value at every place of a list. */
Test(skip_integers, every_byte)
{
	uint8_t text[LONGEST];
	const size_t n = strlen(lists[3]);

	for (size_t at = 2; at < n; at++) {
		memcpy(text, lists[3], n);
		for (unsigned b = 0; b < 256; b++) {
			text[at] = (uint8_t)b;
			both_agree(text, n);
		}
	}
}
