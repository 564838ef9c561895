/* SipHash-2-4 (Aumasson, Bernstein 2012): a hash that cannot be predicted or inverted without
 * its key. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct sip {
	uint64_t v[4];
	uint64_t tail; /* the last n % 8 bytes */
	size_t n;
};

void sip_begin(struct sip *s, const uint64_t key[2]);
void sip_add(struct sip *s, const void *p, size_t n);
uint64_t sip_end(struct sip *s);
