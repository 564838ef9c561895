#include "shm/base/rnd.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>

/* 256 bytes: the most that getrandom(2) promises to give whole, whatever signals arrive. */
#define RND_WORDS 32

static uint64_t words[RND_WORDS];
static unsigned left; /* words[0..left) are still unused */

static void
fill(void)
{
	ssize_t n = -1;

	for (int tries = 0; n != (ssize_t)sizeof(words) && tries < 1000; tries++)
		n = getrandom(
			words, sizeof(words), 0); /* short or EINTR only while the pool is young */
	if (n != (ssize_t)sizeof(words))
		abort(); /* ids that may repeat could cross two users' KV: better no router */
	left = RND_WORDS;
}

uint64_t
rnd_u64(void)
{
	uint64_t v;

	if (left == 0)
		fill();
	v = words[--left];
	words[left] = 0; /* a core dump shall not tell nonces already given out */
	return v;
}

void
rnd_after_fork(void)
{
	left = 0;
	memset(words, 0, sizeof(words));
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
	uint64_t hi = (rnd_u64() & ~UINT64_C(0xf000)) | UINT64_C(0x4000);
	uint64_t lo = (rnd_u64() & ~(UINT64_C(3) << 62)) | UINT64_C(2) << 62;
	char hex[32];
	size_t o = 0;

	rnd_hex16(hex, hi);
	rnd_hex16(hex + 16, lo);
	for (size_t i = 0; i < sizeof(hex); i++) {
		if (i == 8 || i == 12 || i == 16 || i == 20)
			out[o++] = '-';
		out[o++] = hex[i];
	}
	out[o] = '\0';
}
