#include "proto/tls/pem.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

/* The groups of Mozilla's intermediate profile; conf_keys.h has its ciphers. */
#define GROUPS "X25519:P-256:P-384"

void
tls_set_modes(SSL_CTX *ctx)
{
	(void)SSL_CTX_set_options(
		ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_ENABLE_KTLS);
	(void)SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
					    SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
					    SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_read_ahead(ctx, 1); /* a record is one read(2), not one for its head too */
	(void)SSL_CTX_set1_groups_list(ctx, GROUPS);
}

/* --- faults ----------------------------------------------------------------------------------- */

int
tls_fail(struct tls_fault *fault, enum tls_part part, size_t at, const char *text)
{
	fault->part = part;
	fault->at = at;
	(void)snprintf(fault->text, sizeof(fault->text), "%s", text);
	ERR_clear_error();
	return -1;
}

/* With OpenSSL's own reason; it quotes no bytes of a file. */
int
tls_fail_why(struct tls_fault *fault, enum tls_part part, size_t at, const char *text)
{
	const char *why = ERR_reason_error_string(ERR_peek_last_error());

	(void)tls_fail(fault, part, at, text);
	if (why != NULL)
		(void)snprintf(fault->text, sizeof(fault->text), "%s: %s", text, why);
	return -1;
}

/* --- one certificate -------------------------------------------------------------------------- */

/* An encrypted key has no pass phrase here: OpenSSL would ask the terminal for it. */
static int
no_pass_phrase(char *buf, int size, int writing, void *arg)
{
	(void)buf;
	(void)size;
	(void)writing;
	(void)arg;
	return 0;
}

static BIO *
bio_of(const char *pem)
{
	return BIO_new_mem_buf(pem, -1);
}

/* The end of the text and no broken block. */
static bool
is_end(void)
{
	const unsigned long err = ERR_peek_last_error();

	return ERR_GET_LIB(err) == ERR_LIB_PEM && ERR_GET_REASON(err) == PEM_R_NO_START_LINE;
}

int
tls_use_cert(SSL_CTX *ctx, const char *pem, size_t at, struct tls_fault *fault)
{
	BIO *bio = bio_of(pem);
	X509 *cert = PEM_read_bio_X509(bio, NULL, no_pass_phrase, NULL);
	int rc = 0;

	if (cert == NULL)
		rc = tls_fail(fault, TLS_PART_CERT, at,
			is_end() ? "holds no certificate in PEM form" : "is not valid PEM");
	else if (SSL_CTX_use_certificate(ctx, cert) != 1)
		rc = tls_fail_why(fault, TLS_PART_CERT, at, "cannot be used");
	X509_free(cert);
	/* the certificates between this one and one that clients know */
	while (rc == 0 && (cert = PEM_read_bio_X509(bio, NULL, no_pass_phrase, NULL)) != NULL)
		if (SSL_CTX_add0_chain_cert(ctx, cert) != 1) {
			X509_free(cert);
			rc = tls_fail_why(
				fault, TLS_PART_CERT, at, "has a chain that cannot be used");
		}
	if (rc == 0 && !is_end())
		rc = tls_fail(fault, TLS_PART_CERT, at, "has a chain that is not valid PEM");
	BIO_free(bio);
	ERR_clear_error();
	return rc;
}

int
tls_use_key(SSL_CTX *ctx, const char *pem, size_t at, struct tls_fault *fault)
{
	BIO *bio = bio_of(pem);
	EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, no_pass_phrase, NULL);
	int rc = 0;

	if (key == NULL)
		rc = tls_fail(fault, TLS_PART_KEY, at,
			"holds no private key in PEM form without a pass phrase");
	else if (X509_check_private_key(SSL_CTX_get0_certificate(ctx), key) != 1)
		rc = tls_fail(fault, TLS_PART_KEY, at, "does not belong to the certificate");
	else if (SSL_CTX_use_PrivateKey(ctx, key) != 1)
		rc = tls_fail_why(fault, TLS_PART_KEY, at, "cannot be used");
	EVP_PKEY_free(key);
	BIO_free(bio);
	ERR_clear_error();
	return rc;
}

/* --- authorities ------------------------------------------------------------------------------- */

static int
add_authorities(SSL_CTX *ctx, BIO *bio, enum tls_named named, struct tls_fault *fault)
{
	X509 *ca;
	size_t n = 0;
	bool ok = true;

	for (; ok && (ca = PEM_read_bio_X509(bio, NULL, no_pass_phrase, NULL)) != NULL; n++) {
		ok = X509_STORE_add_cert(SSL_CTX_get_cert_store(ctx), ca) == 1 &&
		     (named == TLS_UNNAMED || SSL_CTX_add_client_CA(ctx, ca) == 1);
		X509_free(ca);
	}
	if (!ok)
		return tls_fail_why(fault, TLS_PART_CA, 0, "cannot be used");
	if (!is_end() || n == 0)
		return tls_fail(fault, TLS_PART_CA, 0,
			is_end() ? "holds no certificate in PEM form" : "is not valid PEM");
	ERR_clear_error();
	return 0;
}

/* Lists of revoked certificates may stand in the same file; with one, each issuer needs one. */
static int
add_revoked(SSL_CTX *ctx, BIO *bio, struct tls_fault *fault)
{
	X509_STORE *store = SSL_CTX_get_cert_store(ctx);
	X509_CRL *crl;
	size_t n = 0;
	bool ok = true;

	for (; ok && (crl = PEM_read_bio_X509_CRL(bio, NULL, no_pass_phrase, NULL)) != NULL; n++) {
		ok = X509_STORE_add_crl(store, crl) == 1;
		X509_CRL_free(crl);
	}
	if (!ok || !is_end())
		return tls_fail(fault, TLS_PART_CA, 0,
			"has a list of revoked certificates that cannot be used");
	if (n > 0)
		(void)X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
	ERR_clear_error();
	return 0;
}

int
tls_use_authorities(SSL_CTX *ctx, const char *pem, enum tls_named named, struct tls_fault *fault)
{
	BIO *bio = bio_of(pem);
	int rc = add_authorities(ctx, bio, named, fault);

	BIO_free(bio);
	bio = bio_of(pem);
	if (rc == 0)
		rc = add_revoked(ctx, bio, fault);
	BIO_free(bio);
	return rc;
}

/* --- dates ------------------------------------------------------------------------------------ */

static int64_t
unix_time(const ASN1_TIME *t)
{
	struct tm tm;

	return ASN1_TIME_to_tm(t, &tm) == 1 ? (int64_t)timegm(&tm) : 0;
}

struct tls_validity
tls_validity_of(const X509 *cert)
{
	return (struct tls_validity){
		unix_time(X509_get0_notBefore(cert)), unix_time(X509_get0_notAfter(cert))};
}
