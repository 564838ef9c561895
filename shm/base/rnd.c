#include "shm/base/rnd.h"

#include <stdlib.h>
#include <string.h>

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

	arc4random_buf(half, sizeof(half));
	rnd_hex16(hex, (half[0] & ~UINT64_C(0xf000)) | UINT64_C(0x4000));
	rnd_hex16(hex + 16, (half[1] & ~(UINT64_C(3) << 62)) | UINT64_C(2) << 62);
	memcpy(out, hex, 8);
	memcpy(out + 9, hex + 8, 4);
	memcpy(out + 14, hex + 12, 4);
	memcpy(out + 19, hex + 16, 4);
	memcpy(out + 24, hex + 20, 12);
	out[8] = out[13] = out[18] = out[23] = '-';
	out[36] = '\0';
}
