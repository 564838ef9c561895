#include "proto/tls/context.h"

#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/conf.h"
#include "shm/base/mem.h"

#define TICKET_LIFE_S (12 * 3600) /* a ticket's key lives at least so long: shm/tickets.h */

struct tls_context {
	SSL_CTX **ctx; /* one for each certificate */
	size_t n;
};

/* --- clients' certificates -------------------------------------------------------------------- */

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
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	/* a session that is taken up again shows no certificate: it may have expired since */
	(void)SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET);
	(void)SSL_CTX_set_num_tickets(ctx, 0);
	return tls_use_authorities(ctx, pem, TLS_NAMED, fault);
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
set_server_modes(SSL_CTX *ctx)
{
	tls_set_modes(ctx);
	(void)SSL_CTX_set_dh_auto(ctx, 1);
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

	set_server_modes(ctx);
	(void)SSL_CTX_set_min_proto_version(
		ctx, conf->min_version == TLS_MIN_1_3 ? TLS1_3_VERSION : TLS1_2_VERSION);
	if (SSL_CTX_set_cipher_list(ctx, conf->ciphers) != 1)
		return tls_fail(
			fault, TLS_PART_CIPHERS, at, "names no cipher that this OpenSSL knows");
	if (tls_use_cert(ctx, cert->cert_pem, at, fault) != 0 ||
		tls_use_key(ctx, cert->key_pem, at, fault) != 0)
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
			rc = tls_fail_why(fault, TLS_PART_CERT, c->n, "cannot be used");
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

struct tls_validity
tls_context_validity(const struct tls_context *c, size_t at)
{
	return tls_validity_of(SSL_CTX_get0_certificate(c->ctx[at]));
}
