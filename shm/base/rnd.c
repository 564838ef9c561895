#include "shm/base/rnd.h"

#include <stdlib.h>

uint64_t
rnd_u64(void)
{
	uint64_t v;

	arc4random_buf(&v, sizeof(v));
	return v;
}

void
rnd_hex16(char *out, uint64_t v)
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 15; i >= 0; i--, v >>= 4)
		out[i] = hex[v & 15];
}

void
rnd_uuid(char out[37])
{
	/* RFC 9562, 5.4: version 4 in the high half, variant 10 at the top of the low half */
	uint64_t half[2];
	char hex[32];
	size_t o = 0;

	arc4random_buf(half, sizeof(half));
	rnd_hex16(hex, (half[0] & ~UINT64_C(0xf000)) | UINT64_C(0x4000));
	rnd_hex16(hex + 16, (half[1] & ~(UINT64_C(3) << 62)) | UINT64_C(2) << 62);
	for (size_t i = 0; i < sizeof(hex); i++) {
		if (i == 8 || i == 12 || i == 16 || i == 20)
			out[o++] = '-';
		out[o++] = hex[i];
	}
	out[o] = '\0';
}
