/* SipHash-2-4 against the vectors of its authors (vectors_sip64 of their reference code). */
#include "shm/base/sip.h"

#include <criterion/criterion.h>

static const uint64_t key[2] = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};

static uint64_t
hash_of(const unsigned char *p, size_t n, size_t cut)
{
	struct sip s;

	sip_begin(&s, key);
	sip_add(&s, p, cut);
	sip_add(&s, p + cut, n - cut);
	return sip_end(&s);
}

Test(base_sip, the_authors_vectors)
{
	static const struct {
		size_t n;
		uint64_t hash;
	} known[] = {
		{0, UINT64_C(0x726fdb47dd0e0e31)},
		{1, UINT64_C(0x74f839c593dc67fd)},
		{7, UINT64_C(0xab0200f58b01d137)},
		{8, UINT64_C(0x93f5f5799a932462)},
		{15, UINT64_C(0xa129ca6149be45e5)},
	};
	unsigned char text[16];

	for (unsigned i = 0; i < sizeof(text); i++)
		text[i] = (unsigned char)i;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		for (size_t cut = 0; cut <= known[i].n; cut++)
			cr_assert_eq(hash_of(text, known[i].n, cut), known[i].hash,
				"%zu bytes, cut at %zu", known[i].n, cut);
}
