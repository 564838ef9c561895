#include "shm/base/prefix_hash.h"

#ifdef __x86_64__
#pragma GCC target("avx2") /* before the header, which chooses its registers by it */
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t
prefix_hash_wide(const void *p, size_t n, const void *secret, size_t nsecret)
{
	return XXH3_64bits_withSecret(p, n, secret, nsecret);
}
