#include "proto/tls/context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shm/base/conf.h"
#include "shm/base/mem.h"

/* The groups of Mozilla's intermediate profile; conf_keys.h has its ciphers. */
#define GROUPS "X25519:P-256:P-384"
#define TICKET_LIFE_S (12 * 3600) /* a ticket's key lives at least so long: shm/tickets.h */

struct tls_context {
	SSL_CTX **ctx; /* one for each certificate */
	size_t n;
};

/* --- faults ----------------------------------------------------------------------------------- */

static int
fail(struct tls_fault *fault, enum tls_part part, size_t at, const char *text)
{
	fault->part = part;
	fault->at = at;
	(void)snprintf(fault->text, sizeof(fault->text), "%s", text);
	ERR_clear_error();
	return -1;
}

/* With OpenSSL's own reason; it quotes no bytes of a file. */
static int
fail_why(struct tls_fault *fault, enum tls_part part, size_t at, const char *text)
{
	const char *why = ERR_reason_error_string(ERR_peek_last_error());

	(void)fail(fault, part, at, text);
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

/* The end of the text and no broken block. */
static bool
is_end(void)
{
	const unsigned long err = ERR_peek_last_error();

	return ERR_GET_LIB(err) == ERR_LIB_PEM && ERR_GET_REASON(err) == PEM_R_NO_START_LINE;
}

/* Takes what it wants of a file's text.  `at`: number of the file, for messages. */
typedef int use_fn(SSL_CTX *ctx, BIO *bio, size_t at, struct tls_fault *fault);

static int
use(use_fn *fn, SSL_CTX *ctx, const char *pem, size_t at, struct tls_fault *fault)
{
	BIO *bio = BIO_new_mem_buf(pem, -1);
	const int rc = fn(ctx, bio, at, fault);

	BIO_free(bio);
	ERR_clear_error();
	return rc;
}

static int
use_cert(SSL_CTX *ctx, BIO *bio, size_t at, struct tls_fault *fault)
{
	X509 *cert = PEM_read_bio_X509(bio, NULL, no_pass_phrase, NULL);
	int rc = 0;

	if (cert == NULL)
		rc = fail(fault, TLS_PART_CERT, at,
			is_end() ? "holds no certificate in PEM form" : "is not valid PEM");
	else if (SSL_CTX_use_certificate(ctx, cert) != 1)
		rc = fail_why(fault, TLS_PART_CERT, at, "cannot be used");
	X509_free(cert);
	/* the certificates between this one and one that clients know */
	while (rc == 0 && (cert = PEM_read_bio_X509(bio, NULL, no_pass_phrase, NULL)) != NULL)
		if (SSL_CTX_add0_chain_cert(ctx, cert) != 1) {
			X509_free(cert);
			rc = fail_why(fault, TLS_PART_CERT, at, "has a chain that cannot be used");
		}
	if (rc == 0 && !is_end())
		rc = fail(fault, TLS_PART_CERT, at, "has a chain that is not valid PEM");
	return rc;
}

static int
use_key(SSL_CTX *ctx, BIO *bio, size_t at, struct tls_fault *fault)
{
	EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, no_pass_phrase, NULL);
	int rc = 0;

	if (key == NULL)
		rc = fail(fault, TLS_PART_KEY, at,
			"holds no private key in PEM form without a pass phrase");
	else if (X509_check_private_key(SSL_CTX_get0_certificate(ctx), key) != 1)
		rc = fail(fault, TLS_PART_KEY, at, "does not belong to the certificate");
	else if (SSL_CTX_use_PrivateKey(ctx, key) != 1)
		rc = fail_why(fault, TLS_PART_KEY, at, "cannot be used");
	EVP_PKEY_free(key);
	return rc;
}

/* --- clients' certificates -------------------------------------------------------------------- */

static int
use_authorities(SSL_CTX *ctx, BIO *bio, size_t at, struct tls_fault *fault)
{
	X509 *ca;
	size_t n = 0;
	bool ok = true;

	for (; ok && (ca = PEM_read_bio_X509(bio, NULL, no_pass_phrase, NULL)) != NULL; n++) {
		ok = X509_STORE_add_cert(SSL_CTX_get_cert_store(ctx), ca) == 1 &&
		     SSL_CTX_add_client_CA(ctx, ca) == 1;
		X509_free(ca);
	}
	if (!ok)
		return fail_why(fault, TLS_PART_CLIENT_CA, at, "cannot be used");
	if (!is_end() || n == 0)
		return fail(fault, TLS_PART_CLIENT_CA, at,
			n == 0 ? "holds no certificate in PEM form" : "is not valid PEM");
	return 0;
}

/* Lists of revoked certificates may stand in the same file; with one, each issuer needs one. */
static int
use_revoked(SSL_CTX *ctx, BIO *bio, size_t at, struct tls_fault *fault)
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
		return fail(fault, TLS_PART_CLIENT_CA, at,
			"has a list of revoked certificates that cannot be used");
	if (n > 0)
		(void)X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
	return 0;
}

/* A session may be resumed where it was verified by the same authorities. */
static void
set_session_id(SSL_CTX *ctx, const char *client_ca)
{
	unsigned char md[EVP_MAX_MD_SIZE];
	unsigned int n = 0;

	(void)EVP_Digest(client_ca != NULL ? client_ca : "",
		client_ca != NULL ? strlen(client_ca) : 0, md, &n, EVP_sha256(), NULL);
	(void)SSL_CTX_set_session_id_context(ctx, md, n);
}

static int
use_client_ca(SSL_CTX *ctx, const char *pem, struct tls_fault *fault)
{
	set_session_id(ctx, pem);
	if (pem == NULL)
		return 0;
	if (use(use_authorities, ctx, pem, 0, fault) != 0 ||
		use(use_revoked, ctx, pem, 0, fault) != 0)
		return -1;
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	/* a session that is taken up again shows no certificate: it may have expired since */
	(void)SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET);
	(void)SSL_CTX_set_num_tickets(ctx, 0);
	return 0;
}

/* --- what client and server agree on ---------------------------------------------------------- */

static int
choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_n, const unsigned char *in,
	unsigned int n, void *arg)
{
	static const unsigned char ours[] = "\x08http/1.1";
	unsigned char *chosen;

	(void)ssl;
	(void)arg;
	if (SSL_select_next_proto(&chosen, out_n, ours, sizeof(ours) - 1, in, n) !=
		OPENSSL_NPN_NEGOTIATED)
		return SSL_TLSEXT_ERR_ALERT_FATAL;
	*out = chosen;
	return SSL_TLSEXT_ERR_OK;
}

/* The first certificate that has the name; a client that asks for another one gets the first of all. */
static int
choose_certificate(SSL *ssl, int *alert, void *arg)
{
	const struct tls_context *c = arg;
	const char *name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);

	(void)alert;
	for (size_t i = 0; name != NULL && i < c->n; i++)
		if (X509_check_host(SSL_CTX_get0_certificate(c->ctx[i]), name, 0, 0, NULL) == 1) {
			(void)SSL_set_SSL_CTX(ssl, c->ctx[i]);
			break;
		}
	return SSL_TLSEXT_ERR_OK;
}

static void
set_modes(SSL_CTX *ctx)
{
	(void)SSL_CTX_set_options(
		ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_ENABLE_KTLS);
	(void)SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
					    SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
					    SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_read_ahead(ctx, 1); /* a record is one read(2), not one for its head too */
	(void)SSL_CTX_set_dh_auto(ctx, 1);
	(void)SSL_CTX_set1_groups_list(ctx, GROUPS);
	/* sessions are in the clients' tickets, which every worker can read */
	(void)SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
	(void)SSL_CTX_set_timeout(ctx, TICKET_LIFE_S);
	(void)SSL_CTX_set_num_tickets(ctx, 1);
	SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
}

static int
fill(SSL_CTX *ctx, const struct conf_tls *conf, size_t at, struct tls_fault *fault)
{
	const struct conf_certificate *cert = &conf->certificates[at];

	set_modes(ctx);
	(void)SSL_CTX_set_min_proto_version(
		ctx, conf->min_version == TLS_MIN_1_3 ? TLS1_3_VERSION : TLS1_2_VERSION);
	if (SSL_CTX_set_cipher_list(ctx, conf->ciphers) != 1)
		return fail(fault, TLS_PART_CIPHERS, at, "names no cipher that this OpenSSL knows");
	if (use(use_cert, ctx, cert->cert_pem, at, fault) != 0 ||
		use(use_key, ctx, cert->key_pem, at, fault) != 0)
		return -1;
	return use_client_ca(ctx, conf->client_ca_pem, fault);
}

int
tls_context_new(const struct conf_tls *conf, struct tls_context **ret, struct tls_fault *fault)
{
	struct tls_context *c = MEM_NEW(struct tls_context);
	int rc = 0;

	c->ctx = mem_array(conf->ncertificates, sizeof(struct ssl_ctx_st *));
	while (rc == 0 && c->n < conf->ncertificates) {
		SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());

		if (ctx == NULL) {
			rc = fail_why(fault, TLS_PART_CERT, c->n, "cannot be used");
			break;
		}
		c->ctx[c->n] = ctx;
		rc = fill(ctx, conf, c->n++, fault);
	}
	if (rc != 0) {
		tls_context_free(&c);
		return -1;
	}
	(void)SSL_CTX_set_tlsext_servername_callback(c->ctx[0], choose_certificate);
	(void)SSL_CTX_set_tlsext_servername_arg(c->ctx[0], c);
	*ret = c;
	return 0;
}

void
tls_context_free(struct tls_context **pc)
{
	struct tls_context *c = *pc;

	if (c == NULL)
		return;
	while (c->n > 0)
		SSL_CTX_free(c->ctx[--c->n]);
	free(c->ctx);
	free(c);
	*pc = NULL;
}

SSL_CTX *
tls_context_first(const struct tls_context *c)
{
	return c->ctx[0];
}

static int64_t
unix_time(const ASN1_TIME *t)
{
	struct tm tm;

	return ASN1_TIME_to_tm(t, &tm) == 1 ? (int64_t)timegm(&tm) : 0;
}

struct tls_validity
tls_context_validity(const struct tls_context *c, size_t at)
{
	const X509 *cert = SSL_CTX_get0_certificate(c->ctx[at]);

	return (struct tls_validity){
		unix_time(X509_get0_notBefore(cert)), unix_time(X509_get0_notAfter(cert))};
}
