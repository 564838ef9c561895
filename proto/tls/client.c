#include "proto/tls/client.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/conf.h"
#include "shm/base/mem.h"

struct tls_client {
	unsigned int refs;
	SSL_CTX *ctx;      /* NULL: wiped */
	char *server_name; /* or NULL */
};

/* --- the context ------------------------------------------------------------------------------ */

/* OpenSSL has a session that can be resumed: of TLS 1.3 each ticket is one. */
static int
on_session(SSL *ssl, SSL_SESSION *session)
{
	struct tls_memory *m = SSL_get_app_data(ssl);
	SSL_CTX *ctx = SSL_get_SSL_CTX(ssl);

	if (m == NULL || SSL_CTX_up_ref(ctx) != 1)
		return 0;
	tls_memory_clear(m);
	m->session = session;
	m->of = ctx;
	return 1; /* the reference is ours now */
}

/* Is called only where no certificate is configured. */
static int
on_cert_wanted(SSL *ssl, X509 **cert, EVP_PKEY **key)
{
	struct tls_memory *m = SSL_get_app_data(ssl);

	(void)cert;
	(void)key;
	m->wants_cert = true;
	return 0; /* none: the engine may do without */
}

static void
set_client_modes(SSL_CTX *ctx)
{
	static const unsigned char protocols[] = "\x08http/1.1";

	(void)SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
	tls_set_modes(ctx);
	(void)SSL_CTX_set_alpn_protos(ctx, protocols, sizeof(protocols) - 1);
	(void)SSL_CTX_set_session_cache_mode(
		ctx, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
	SSL_CTX_sess_set_new_cb(ctx, on_session);
	SSL_CTX_set_client_cert_cb(ctx, on_cert_wanted);
}

static int
fill(SSL_CTX *ctx, const struct conf_engine_tls *conf, struct tls_fault *fault)
{
	set_client_modes(ctx);
	if (conf->cert_pem != NULL && (tls_use_cert(ctx, conf->cert_pem, 0, fault) != 0 ||
					      tls_use_key(ctx, conf->key_pem, 0, fault) != 0))
		return -1;
	if (conf->verify == 0)
		return 0;
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
	/* an authority need not be one that has signed itself */
	(void)X509_STORE_set_flags(SSL_CTX_get_cert_store(ctx), X509_V_FLAG_PARTIAL_CHAIN);
	return tls_use_authorities(ctx, conf->ca_pem, TLS_UNNAMED, fault);
}

int
tls_client_new(const struct conf_engine_tls *conf, struct tls_client **ret, struct tls_fault *fault)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	struct tls_client *c;

	if (ctx == NULL)
		return tls_fail_why(fault, TLS_PART_CA, 0, "cannot be used");
	if (fill(ctx, conf, fault) != 0) {
		SSL_CTX_free(ctx);
		return -1;
	}
	c = MEM_NEW(struct tls_client);
	c->refs = 1;
	c->ctx = ctx;
	c->server_name = mem_strdup(conf->server_name);
	*ret = c;
	return 0;
}

struct tls_client *
tls_client_like(const struct tls_client *like, const struct conf_engine_tls *conf)
{
	struct tls_client *c = MEM_NEW(struct tls_client);

	(void)SSL_CTX_up_ref(like->ctx);
	c->refs = 1;
	c->ctx = like->ctx;
	c->server_name = mem_strdup(conf->server_name);
	return c;
}

struct tls_client *
tls_client_ref(struct tls_client *c)
{
	c->refs++;
	return c;
}

void
tls_client_wipe(struct tls_client *c)
{
	SSL_CTX_free(c->ctx);
	c->ctx = NULL;
}

void
tls_client_free(struct tls_client **pc)
{
	struct tls_client *c = *pc;

	*pc = NULL;
	if (c == NULL || --c->refs > 0)
		return;
	tls_client_wipe(c);
	free(c->server_name);
	free(c);
}

struct tls_validity
tls_client_validity(const struct tls_client *c)
{
	return tls_validity_of(SSL_CTX_get0_certificate(c->ctx));
}

int64_t
tls_client_ca_until(const struct tls_client *c, int64_t now)
{
	STACK_OF(X509_OBJECT) *all = X509_STORE_get0_objects(SSL_CTX_get_cert_store(c->ctx));
	int64_t first = 0;

	for (int i = 0; i < sk_X509_OBJECT_num(all); i++) {
		const X509 *ca = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(all, i));
		const int64_t until = ca != NULL ? tls_validity_of(ca).until : 0;

		if (until > now && (first == 0 || until < first))
			first = until;
	}
	return first;
}

/* --- sessions --------------------------------------------------------------------------------- */

void
tls_memory_clear(struct tls_memory *m)
{
	SSL_SESSION_free(m->session);
	SSL_CTX_free(m->of);
	m->session = NULL;
	m->of = NULL;
}

static bool
is_address(const char *host)
{
	unsigned char ip[16];

	return inet_pton(AF_INET, host, ip) == 1 || inet_pton(AF_INET6, host, ip) == 1;
}

/* An address stands in the certificate as such, and is not sent as a name (RFC 6066, 3). */
static bool
set_peer(SSL *ssl, const char *host)
{
	if (is_address(host))
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
	SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
	return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

SSL *
tls_client_session(const struct tls_client *c, int fd, const char *host, struct tls_memory *memory)
{
	SSL *ssl = SSL_new(c->ctx);

	if (ssl == NULL || SSL_set_fd(ssl, fd) != 1 || SSL_set_app_data(ssl, memory) != 1 ||
		!set_peer(ssl, c->server_name != NULL ? c->server_name : host)) {
		SSL_free(ssl);
		return NULL;
	}
	SSL_set_connect_state(ssl);
	memory->wants_cert = false;
	if (memory->session != NULL && memory->of == c->ctx)
		(void)SSL_set_session(ssl, memory->session);
	return ssl;
}

bool
tls_client_is_of(const struct tls_client *c, const SSL *ssl)
{
	return SSL_get_SSL_CTX(ssl) == c->ctx;
}

/* OpenSSL's own words, or those of the kernel. */
static const char *
reason(const SSL *ssl, int error, int err)
{
	const unsigned long e = ERR_peek_error();
	const char *why = ERR_reason_error_string(e);

	if (ERR_GET_REASON(e) == SSL_R_UNEXPECTED_EOF_WHILE_READING ||
		(error == SSL_ERROR_SYSCALL && err == 0))
		return SSL_in_init(ssl) ? "closed in the handshake"
					: "closed without a close_notify";
	if (why == NULL)
		return err != 0 ? strerror(err) : "failed";
	return why;
}

void
tls_client_why(const SSL *ssl, int error, int err, char buf[TLS_WHY])
{
	const struct tls_memory *m = SSL_get_app_data(ssl);
	const long verified = SSL_get_verify_result(ssl);

	if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_CERTIFICATE_VERIFY_FAILED &&
		verified != X509_V_OK)
		(void)snprintf(buf, TLS_WHY, "tls: certificate verify failed: %s",
			X509_verify_cert_error_string(verified));
	else
		(void)snprintf(buf, TLS_WHY, "tls: %s%s", reason(ssl, error, err),
			m->wants_cert ? ", and the engine wants a certificate: set tls.cert" : "");
	ERR_clear_error();
}
