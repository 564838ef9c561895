#include "shm/prefix_key.h"

#define XXH_INLINE_ALL /* no library to load, and the hash is inlined */
#include <xxhash.h>

void
prefix_secret_make(struct prefix_secret *s, const uint64_t seed[2])
{
	(void)XXH3_generateSecret(s->bytes, sizeof(s->bytes), seed, 2 * sizeof(*seed));
}

static inline uint64_t
hash(const struct prefix_secret *s, const void *p, size_t n)
{
	return XXH3_64bits_withSecret(p, n, s->bytes, sizeof(s->bytes));
}

uint64_t
prefix_root(const struct prefix_secret *s, uint64_t root, const void *part, size_t n)
{
	const uint64_t link[2] = {root, hash(s, part, n)};

	return hash(s, link, sizeof(link));
}

void
prefix_cut(const struct prefix_secret *s, uint64_t root, const char *prompt, size_t n,
	struct prefix_key *ret)
{
	uint64_t digest = root;
	uint32_t at = 0;

	ret->n = 0;
	ret->bytes = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
	while (ret->n < PREFIX_CUTS && ret->bytes - at >= prefix_step(at)) {
		const uint32_t step = prefix_step(at);

		digest = prefix_root(s, digest, prompt + at, step);
		at += step;
		ret->end[ret->n] = at;
		ret->digest[ret->n++] = digest;
	}
}
