/* Clients' certificates: who signed them, until when they are valid, and that a list of revoked ones counts. */
#include "proto/tls/context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "shm/base/conf.h"
#include "tests/unit/pem.h"

static struct pem own, ca, other;
static struct conf_certificate certificate;
static char authorities[8192];

static void
setup(void)
{
	own = pem_make("own.test", 9, NULL);
	ca = pem_make("ca.test", 9, NULL);
	other = pem_make("other.test", 9, NULL);
	certificate = (struct conf_certificate){.cert_pem = own.cert, .key_pem = own.key};
}

static void
teardown(void)
{
	pem_free(&own);
	pem_free(&ca);
	pem_free(&other);
}

TestSuite(tls_context, .init = setup, .fini = teardown);

/* The authorities, and a list with what they have revoked; `revoked`: NULL: an empty one. */
static void
write_authorities(const struct pem *revoked)
{
	X509_CRL *crl = X509_CRL_new();
	X509_REVOKED *r = X509_REVOKED_new();
	ASN1_TIME *t = ASN1_TIME_new();
	BIO *bio = BIO_new(BIO_s_mem());
	size_t n;

	X509_CRL_set_version(crl, 1);
	X509_CRL_set_issuer_name(crl, X509_get_subject_name(ca.x509));
	X509_CRL_set1_lastUpdate(crl, X509_gmtime_adj(t, -60));
	X509_CRL_set1_nextUpdate(crl, X509_gmtime_adj(t, 3600));
	if (revoked != NULL) {
		X509_REVOKED_set_serialNumber(r, X509_get_serialNumber(revoked->x509));
		X509_REVOKED_set_revocationDate(r, X509_gmtime_adj(t, -30));
		X509_CRL_add0_revoked(crl, X509_REVOKED_dup(r));
	}
	cr_assert(X509_CRL_sign(crl, ca.pkey, EVP_sha256()) > 0);
	PEM_write_bio_X509_CRL(bio, crl);
	n = (size_t)snprintf(authorities, sizeof(authorities), "%s", ca.cert);
	pem_text(bio, authorities + n, sizeof(authorities) - n);
	ASN1_TIME_free(t);
	X509_REVOKED_free(r);
	X509_CRL_free(crl);
}

/* Whether a client with this certificate (NULL: none) is let in. */
static bool
is_let_in(const struct pem *who, const char *client_ca)
{
	const struct conf_tls conf = {.certificates = &certificate,
		.ncertificates = 1,
		.ciphers = (char *)(uintptr_t) "ECDHE-ECDSA-AES128-GCM-SHA256",
		.client_ca_pem = (char *)(uintptr_t)client_ca};
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	struct tls_context *c;
	struct tls_fault fault;
	SSL *server, *client;
	BIO *ends[2];
	bool in;

	cr_assert_eq(tls_context_new(&conf, &c, &fault), 0, "%s", fault.text);
	server = SSL_new(tls_context_first(c));
	client = SSL_new(ctx);
	cr_assert_eq(BIO_new_bio_pair(&ends[0], 1 << 16, &ends[1], 1 << 16), 1);
	SSL_set_bio(server, ends[0], ends[0]);
	SSL_set_bio(client, ends[1], ends[1]);
	SSL_set_accept_state(server);
	SSL_set_connect_state(client);
	if (who != NULL) {
		cr_assert_eq(SSL_use_certificate(client, who->x509), 1);
		cr_assert_eq(SSL_use_PrivateKey(client, who->pkey), 1);
	}
	for (int i = 0; i < 6; i++) {
		(void)SSL_do_handshake(client);
		(void)SSL_do_handshake(server);
	}
	in = SSL_is_init_finished(server) == 1;
	ERR_clear_error();
	SSL_free(server);
	SSL_free(client);
	SSL_CTX_free(ctx);
	tls_context_free(&c);
	return in;
}

Test(tls_context, who_signed_a_clients_certificate)
{
	struct pem good = pem_make("good.test", 9, &ca), bad = pem_make("bad.test", 9, &other),
		   old = pem_make("old.test", -1, &ca);

	cr_expect(is_let_in(NULL, NULL), "nobody asks");
	cr_expect(is_let_in(&good, ca.cert));
	cr_expect_not(is_let_in(NULL, ca.cert));
	cr_expect_not(is_let_in(&bad, ca.cert));
	cr_expect_not(is_let_in(&old, ca.cert));
	pem_free(&good);
	pem_free(&bad);
	pem_free(&old);
}

Test(tls_context, a_revoked_certificate_is_refused)
{
	struct pem good = pem_make("good.test", 9, &ca), gone = pem_make("gone.test", 9, &ca);

	write_authorities(NULL);
	cr_expect(is_let_in(&good, authorities));
	cr_expect(is_let_in(&gone, authorities));
	write_authorities(&gone);
	cr_expect(is_let_in(&good, authorities));
	cr_expect_not(is_let_in(&gone, authorities));
	pem_free(&good);
	pem_free(&gone);
}
