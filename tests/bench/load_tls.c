#include "tests/bench/load_tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>

static SSL_CTX *ctx;
static SSL_SESSION *kept;

static void
begin(void)
{
	ctx = SSL_CTX_new(TLS_client_method());
	SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
	SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256");
	SSL_CTX_set1_groups_list(ctx, "X25519");
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE);
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
}

SSL *
load_tls_connect(int fd)
{
	SSL *ssl;

	if (ctx == NULL)
		begin();
	ssl = SSL_new(ctx);
	SSL_set_fd(ssl, fd);
	if (kept != NULL)
		SSL_set_session(ssl, kept);
	if (SSL_connect(ssl) == 1)
		return ssl;
	ERR_print_errors_fp(stderr);
	SSL_free(ssl);
	return NULL;
}

/* What a call meant that took or gave nothing. */
static ssize_t
none(SSL *ssl, int r, int err)
{
	const int error = SSL_get_error(ssl, r);

	if (error == SSL_ERROR_ZERO_RETURN)
		return 0;
	errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN
		: error == SSL_ERROR_SYSCALL && err != 0                      ? err
									      : EPROTO;
	ERR_clear_error();
	return -1;
}

ssize_t
load_tls_send(SSL *ssl, const void *p, size_t n)
{
	int r;

	errno = 0;
	r = SSL_write(ssl, p, (int)n);
	return r > 0 ? r : none(ssl, r, errno);
}

ssize_t
load_tls_recv(SSL *ssl, void *p, size_t n)
{
	int r;

	errno = 0;
	r = SSL_read(ssl, p, (int)n);
	return r > 0 ? r : none(ssl, r, errno);
}

bool
load_tls_end(SSL *ssl, bool keep)
{
	const bool resumed = SSL_session_reused(ssl) == 1;
	char buf[64];

	(void)SSL_shutdown(ssl);
	while (SSL_read(ssl, buf, sizeof(buf)) > 0)
		;
	ERR_clear_error();
	if (keep) {
		SSL_SESSION_free(kept);
		kept = SSL_get1_session(ssl);
	}
	load_tls_free(ssl);
	return resumed;
}

void
load_tls_free(SSL *ssl)
{
	SSL_free(ssl);
}
