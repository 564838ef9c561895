#include "shm/base/sip.h"

#include <endian.h>
#include <string.h>

static uint64_t
rotated(uint64_t x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static void
rounds(uint64_t v[4], int n)
{
	while (n-- > 0) {
		v[0] += v[1];
		v[1] = rotated(v[1], 13) ^ v[0];
		v[0] = rotated(v[0], 32);
		v[2] += v[3];
		v[3] = rotated(v[3], 16) ^ v[2];
		v[0] += v[3];
		v[3] = rotated(v[3], 21) ^ v[0];
		v[2] += v[1];
		v[1] = rotated(v[1], 17) ^ v[2];
		v[2] = rotated(v[2], 32);
	}
}

static void
word(struct sip *s, uint64_t m)
{
	s->v[3] ^= m;
	rounds(s->v, 2);
	s->v[0] ^= m;
}

void
sip_begin(struct sip *s, const uint64_t key[2])
{
	*s = (struct sip){.v = {
				  key[0] ^ UINT64_C(0x736f6d6570736575),
				  key[1] ^ UINT64_C(0x646f72616e646f6d),
				  key[0] ^ UINT64_C(0x6c7967656e657261),
				  key[1] ^ UINT64_C(0x7465646279746573),
			  }};
}

void
sip_add(struct sip *s, const void *p, size_t n)
{
	const unsigned char *b = p;

	for (size_t i = 0; i < n;) {
		uint64_t m;

		if (s->n % 8 == 0 && n - i >= 8) {
			memcpy(&m, b + i, sizeof(m));
			word(s, le64toh(m));
			s->n += 8;
			i += 8;
			continue;
		}
		s->tail |= (uint64_t)b[i++] << 8 * (s->n++ % 8);
		if (s->n % 8 == 0) {
			word(s, s->tail);
			s->tail = 0;
		}
	}
}

uint64_t
sip_end(struct sip *s)
{
	word(s, s->tail | (uint64_t)s->n << 56);
	s->v[2] ^= 0xff;
	rounds(s->v, 4);
	return s->v[0] ^ s->v[1] ^ s->v[2] ^ s->v[3];
}
