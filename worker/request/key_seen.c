#include "worker/request/key_seen.h"

#include <openssl/sha.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"

#define SEEN_MAX 512 /* bytes; a longer key is not remembered */

struct key_seen {
	unsigned char sha256[CONF_SHA256];
	size_t n;
	char text[];
};

void
key_seen_free(struct key_seen **seen)
{
	if (*seen == NULL)
		return;
	explicit_bzero((*seen)->text, (*seen)->n);
	free(*seen);
	*seen = NULL;
}

/* Takes the same time wherever two keys of one length differ: a proxy's connection has requests of several
 * clients. */
static bool
same(const char *a, const char *b, size_t n)
{
	uint64_t x, y, differ = 0;
	size_t i = 0;

	for (; i + sizeof(x) <= n; i += sizeof(x)) {
		memcpy(&x, a + i, sizeof(x));
		memcpy(&y, b + i, sizeof(y));
		differ |= x ^ y;
	}
	for (; i < n; i++)
		differ |= (unsigned char)(a[i] ^ b[i]);
	return differ == 0;
}

void
key_seen_digest(struct key_seen **seen, struct span key, unsigned char ret[CONF_SHA256])
{
	struct key_seen *s = *seen;

	if (s != NULL && s->n == key.n && same(s->text, key.p, key.n)) {
		memcpy(ret, s->sha256, CONF_SHA256);
		return;
	}
	(void)SHA256((const unsigned char *)key.p, key.n, ret);
	key_seen_free(seen);
	if (key.n > SEEN_MAX)
		return;
	*seen = s = mem_zero(sizeof(*s) + key.n);
	memcpy(s->sha256, ret, CONF_SHA256);
	memcpy(s->text, key.p, key.n);
	s->n = key.n;
}
