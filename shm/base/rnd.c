#include "shm/base/rnd.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define DRAWN 512 /* numbers at once: a request takes three */

static struct {
	uint64_t v[DRAWN];
	uint32_t left;
	uint32_t forks; /* 1: rnd_forget() is called at a fork */
} drawn;

void
rnd_forget(void)
{
	explicit_bzero(drawn.v, sizeof(drawn.v));
	drawn.left = 0;
}

/* glibc's arc4random_buf() is a system call each time, and aborts if the kernel gives nothing. */
static void
draw(void)
{
	if (drawn.forks == 0 && pthread_atfork(NULL, NULL, rnd_forget) != 0)
		abort();
	drawn.forks = 1;
	arc4random_buf(drawn.v, sizeof(drawn.v));
	drawn.left = DRAWN;
}

uint64_t
rnd_u64(void)
{
	uint64_t v;

	if (drawn.left == 0)
		draw();
	v = drawn.v[--drawn.left];
	drawn.v[drawn.left] = 0;
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
	char hex[32];

	rnd_hex16(hex, (rnd_u64() & ~UINT64_C(0xf000)) | UINT64_C(0x4000));
	rnd_hex16(hex + 16, (rnd_u64() & ~(UINT64_C(3) << 62)) | UINT64_C(2) << 62);
	memcpy(out, hex, 8);
	memcpy(out + 9, hex + 8, 4);
	memcpy(out + 14, hex + 12, 4);
	memcpy(out + 19, hex + 16, 4);
	memcpy(out + 24, hex + 20, 12);
	out[8] = out[13] = out[18] = out[23] = '-';
	out[36] = '\0';
}
