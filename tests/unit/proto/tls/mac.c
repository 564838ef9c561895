/* HMAC-SHA256: test case 2 of RFC 4231, keys for several purposes, and what differs in a bit. */
#include "proto/tls/mac.h"

#include <criterion/criterion.h>
#include <string.h>

Test(mac, as_the_rfc_says)
{
	static const unsigned char want[MAC_BYTES] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75,
		0x4e, 0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d,
		0x27, 0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
	unsigned char got[MAC_BYTES];

	cr_assert(mac_derive("Jefe", 4, "what do ya want for nothing?", got));
	cr_assert_arr_eq(got, want, MAC_BYTES);
}

Test(mac, each_purpose_has_a_key_of_its_own)
{
	unsigned char a[MAC_BYTES], again[MAC_BYTES], b[MAC_BYTES];

	cr_assert(mac_derive("secret", 6, "a", a) && mac_derive("secret", 6, "a", again) &&
		  mac_derive("secret", 6, "b", b));
	cr_assert_arr_eq(a, again, MAC_BYTES);
	cr_assert_neq(memcmp(a, b, MAC_BYTES), 0);
}

Test(mac, one_bit_is_enough)
{
	unsigned char key[MAC_BYTES] = {1}, text[100] = {2}, mac[MAC_BYTES];
	struct mac *m = mac_new(key), *other;

	cr_assert_not_null(m);
	for (int turn = 0; turn < 3; turn++) { /* the key stays */
		cr_assert(mac_make(m, text, sizeof(text), mac));
		cr_assert(mac_is(m, text, sizeof(text), mac));
	}
	for (size_t i = 0; i < MAC_BYTES; i++) {
		mac[i] ^= 1;
		cr_assert_not(mac_is(m, text, sizeof(text), mac));
		mac[i] ^= 1;
	}
	text[99] ^= 1;
	cr_assert_not(mac_is(m, text, sizeof(text), mac));
	text[99] ^= 1;
	cr_assert_not(mac_is(m, text, sizeof(text) - 1, mac));
	key[31] = 1;
	other = mac_new(key);
	cr_assert_not(mac_is(other, text, sizeof(text), mac));
	mac_free(&other);
	mac_free(&m);
	mac_free(&m);
}
