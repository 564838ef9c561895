/* Decimal numbers of other programs: digits alone, up to a bound. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#include "shm/base/decimal.h"

static bool
reads(const char *text, uint64_t max, uint64_t want, const char *rest)
{
	const char *at = text;
	uint64_t n;

	return decimal_read(&at, text + strlen(text), max, &n) && n == want &&
	       strcmp(at, rest) == 0;
}

Test(shm_decimal, digits_up_to_something_else)
{
	cr_expect_eq(reads("0", 9, 0, ""), true);
	cr_expect_eq(reads("0042 7", 42, 42, " 7"), true);
	cr_expect_eq(reads("4294967295:1", UINT32_MAX, UINT32_MAX, ":1"), true);
	cr_expect_eq(reads("18446744073709551615", UINT64_MAX, UINT64_MAX, ""), true);
}

Test(shm_decimal, nothing_else_is_a_number)
{
	static const char *const wrong[] = {
		"", " 1", "-1", "+1", "x", "8", "11", "18446744073709551616"};
	uint64_t n;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		const char *at = wrong[i];

		cr_expect_eq(decimal_read(&at, at + strlen(at), 7, &n), false, "%s", wrong[i]);
	}
}
