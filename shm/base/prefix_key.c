#include "shm/base/prefix_key.h"

#include <stdbool.h>

#include "shm/base/prefix_hash.h"
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
#ifdef __x86_64__
	if (n >= PREFIX_HASH_WIDE && __builtin_cpu_supports("avx2"))
		return prefix_hash_wide(p, n, s->bytes, sizeof(s->bytes));
#endif
	return XXH3_64bits_withSecret(p, n, s->bytes, sizeof(s->bytes));
}

uint64_t
prefix_root(const struct prefix_secret *s, uint64_t root, const void *part, size_t n)
{
	const uint64_t link[2] = {root, hash(s, part, n)};

	return hash(s, link, sizeof(link));
}

uint64_t
prefix_ids_model(const struct prefix_secret *s, const char *model, size_t n)
{
	return prefix_root(
		s, UINT64_MAX, model, n); /* prompts of bytes begin with smaller numbers */
}

uint64_t
prefix_ids_root(const struct prefix_secret *s, uint64_t of_model, const char *lora_path,
	size_t nlora_path, const char *salt, size_t nsalt)
{
	return prefix_root(s, prefix_root(s, of_model, lora_path, nlora_path), salt, nsalt);
}

/* Cuts what stands behind the bytes of *ret, whose digest so far is `digest`. */
static uint64_t
cut_on(const struct prefix_secret *s, uint64_t digest, const char *part, size_t len, bool at_end,
	struct prefix_key *ret)
{
	const uint32_t from = ret->size, most = UINT32_MAX - from,
		       n = len < most ? (uint32_t)len : most;
	uint32_t at = 0;

	while (ret->n < PREFIX_CUTS && at < n) {
		uint32_t step = prefix_step(from + at);

		if (n - at < step) {
			if (!at_end)
				break;
			step = n - at;
		}
		digest = prefix_root(s, digest, part + at, step);
		at += step;
		ret->end[ret->n] = from + at;
		ret->digest[ret->n++] = digest;
	}
	ret->size = from + n;
	return digest;
}

void
prefix_cut_two(const struct prefix_secret *s, uint64_t root, const char *first, size_t nfirst,
	const char *prompt, size_t n, struct prefix_key *ret)
{
	ret->n = 0;
	ret->block = 0;
	ret->size = 0;
	root = cut_on(s, root, first, nfirst, true, ret);
	ret->part[0] = first;
	ret->part[1] = prompt;
	ret->first = ret->size;
	(void)cut_on(s, root, prompt, n, false, ret);
}

void
prefix_cut(const struct prefix_secret *s, uint64_t root, const char *prompt, size_t n,
	struct prefix_key *ret)
{
	prefix_cut_two(s, root, "", 0, prompt, n, ret);
}

uint64_t
prefix_block(const struct prefix_secret *s, uint64_t digest, const uint32_t *ids, uint32_t block)
{
	return prefix_root(s, digest, ids, block * sizeof(*ids));
}

uint64_t
prefix_between(const struct prefix_key *key, uint32_t i)
{
	const uint32_t *const at = key->block != 0 ? key->at : key->end;
	const uint32_t from = i > 0 ? at[i - 1] : 0;
	const char *p =
		from < key->first ? key->part[0] + from : key->part[1] + (from - key->first);

	return XXH3_64bits(p, at[i] - from);
}
