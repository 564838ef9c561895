#include "worker/net/tls_ticket.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <stdbool.h>
#include <string.h>

#include "shm/tickets.h"

/* What OpenSSL's callback returns (SSL_CTX_set_tlsext_ticket_key_evp_cb(3)). */
enum { TICKET_ERROR = -1, TICKET_NONE = 0, TICKET_OK = 1, TICKET_RENEW = 2 };

static int
set_mac(EVP_MAC_CTX *mac, const struct ticket_key *key)
{
	OSSL_PARAM params[] = {
		OSSL_PARAM_construct_octet_string(
			OSSL_MAC_PARAM_KEY, (void *)(uintptr_t)key->mac, sizeof(key->mac)),
		OSSL_PARAM_construct_utf8_string(
			OSSL_MAC_PARAM_DIGEST, (char *)(uintptr_t) "sha256", 0),
		OSSL_PARAM_construct_end(),
	};

	return EVP_MAC_CTX_set_params(mac, params);
}

static int
seal(const struct ticket_key *key, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher,
	EVP_MAC_CTX *mac)
{
	memcpy(name, key->name, sizeof(key->name));
	if (RAND_bytes(iv, EVP_MAX_IV_LENGTH) != 1 ||
		EVP_EncryptInit_ex(cipher, EVP_aes_256_cbc(), NULL, key->cipher, iv) != 1 ||
		set_mac(mac, key) != 1)
		return TICKET_ERROR;
	return TICKET_OK;
}

/* `once`: its client uses a ticket once, and needs another one then (TLS 1.3). */
static int
open_with(const struct ticket_key keys[TICKET_KEYS], bool once, const unsigned char *name,
	const unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac)
{
	size_t i = 0;

	while (i < TICKET_KEYS && memcmp(name, keys[i].name, sizeof(keys[i].name)) != 0)
		i++;
	if (i == TICKET_KEYS)
		return TICKET_NONE;
	if (EVP_DecryptInit_ex(cipher, EVP_aes_256_cbc(), NULL, keys[i].cipher, iv) != 1 ||
		set_mac(mac, &keys[i]) != 1)
		return TICKET_ERROR;
	return i == 0 && !once ? TICKET_OK : TICKET_RENEW;
}

static int
on_ticket(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher,
	EVP_MAC_CTX *mac, int sealing)
{
	const struct seg *seg = SSL_get_app_data(ssl);
	struct ticket_key keys[TICKET_KEYS];
	int r = TICKET_NONE;

	if (tickets_get(seg, keys))
		r = sealing ? seal(&keys[0], name, iv, cipher, mac)
			    : open_with(keys, SSL_version(ssl) >= TLS1_3_VERSION, name, iv, cipher,
				      mac);
	explicit_bzero(keys, sizeof(keys));
	return r;
}

void
tls_ticket_use(SSL_CTX *ctx)
{
	(void)SSL_CTX_set_tlsext_ticket_key_evp_cb(ctx, on_ticket);
}

void
tls_ticket_keys(SSL *ssl, const struct seg *seg)
{
	(void)SSL_set_app_data(ssl, (void *)(uintptr_t)seg);
}
