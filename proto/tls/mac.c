#include "proto/tls/mac.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"

struct mac {
	EVP_MAC *hmac;
	EVP_MAC_CTX *ctx; /* has the key */
};

static struct mac *
make(const void *key, size_t n)
{
	char sha256[] = "SHA256";
	const OSSL_PARAM params[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, sha256, 0),
		OSSL_PARAM_construct_end()};
	struct mac *m = MEM_NEW(struct mac);

	m->hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
	m->ctx = m->hmac != NULL ? EVP_MAC_CTX_new(m->hmac) : NULL;
	if (m->ctx == NULL || EVP_MAC_init(m->ctx, key, n, params) != 1)
		mac_free(&m);
	return m;
}

bool
mac_derive(const void *secret, size_t n, const char *purpose, unsigned char ret[MAC_BYTES])
{
	struct mac *m = make(secret, n);
	const bool ok = m != NULL && mac_make(m, purpose, strlen(purpose), ret);

	mac_free(&m);
	return ok;
}

struct mac *
mac_new(const unsigned char key[MAC_BYTES])
{
	unsigned char first[MAC_BYTES];
	struct mac *m = make(key, MAC_BYTES);

	if (m != NULL && !mac_make(m, "", 0, first)) /* whatever is made at the first use */
		mac_free(&m);
	return m;
}

void
mac_free(struct mac **pm)
{
	if (*pm == NULL)
		return;
	EVP_MAC_CTX_free((*pm)->ctx);
	EVP_MAC_free((*pm)->hmac);
	free(*pm);
	*pm = NULL;
}

bool
mac_make(struct mac *m, const void *bytes, size_t n, unsigned char ret[MAC_BYTES])
{
	size_t made = 0;

	return EVP_MAC_init(m->ctx, NULL, 0, NULL) == 1 && /* the key stays */
	       EVP_MAC_update(m->ctx, bytes, n) == 1 &&
	       EVP_MAC_final(m->ctx, ret, &made, MAC_BYTES) == 1 && made == MAC_BYTES;
}

bool
mac_is(struct mac *m, const void *bytes, size_t n, const unsigned char mac[MAC_BYTES])
{
	unsigned char want[MAC_BYTES];

	return mac_make(m, bytes, n, want) && CRYPTO_memcmp(want, mac, MAC_BYTES) == 0;
}
