#include "shm/core/arena.h"

#include <string.h>

void
arena_begin(struct arena *a, void *base, size_t size)
{
	*a = (struct arena){.base = base, .size = size / ARENA_ALIGN * ARENA_ALIGN};
}

void *
arena_take(struct arena *a, size_t n)
{
	void *p = a->base + a->used;

	if (a->full || n > a->size - a->used || arena_round_up(n) > a->size - a->used) {
		a->full = true;
		return NULL;
	}
	memset(p, 0, arena_round_up(n));
	a->used += arena_round_up(n);
	return p;
}

const char *
arena_str(struct arena *a, const char *s)
{
	const size_t bytes = strlen(s) + 1;
	char *p = arena_take(a, bytes);

	if (p != NULL)
		memcpy(p, s, bytes);
	return p;
}

const char *const *
arena_strv(struct arena *a, const char *const *v, size_t n)
{
	const char **p = arena_take(a, n * sizeof(*p));

	if (p == NULL)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		p[i] = arena_str(a, v[i]);
		if (p[i] == NULL)
			return NULL;
	}
	return p;
}

/* Meant to notice reuse and stray stores, not an adversary: FNV-1a over 64-bit words, with a shift
 * so that high bits reach low ones. */
uint64_t
arena_checksum(const void *base, size_t used, size_t own)
{
	const unsigned char *bytes = base;
	uint64_t sum = 0xcbf29ce484222325u;

	for (size_t at = 0; at < used; at += ARENA_ALIGN) {
		uint64_t word;

		memcpy(&word, bytes + at, sizeof(word));
		if (at == own)
			word = 0;
		sum = (sum ^ word) * 0x100000001b3u;
		sum ^= sum >> 32;
	}
	return sum;
}

bool
arena_intact(const void *base, uint64_t used, size_t least, size_t arena_bytes, size_t own)
{
	uint64_t sum;

	if (used < least || used > arena_bytes || used % ARENA_ALIGN != 0)
		return false;
	memcpy(&sum, (const unsigned char *)base + own, sizeof(sum));
	return sum == arena_checksum(base, used, own);
}
