#include "proto/tls/meter.h"

#include <openssl/bio.h>
#include <openssl/ssl.h>

/* What OpenSSL reads ahead at once: a shorter limit would cut each record in two calls. */
#define READ_AHEAD (SSL3_RT_MAX_PACKET_SIZE + 1024)

static long
on_bio(BIO *bio, int oper, const char *data, size_t len, int argi, long argl, int ret,
	size_t *processed)
{
	struct tls_meter *m = (struct tls_meter *)(void *)BIO_get_callback_arg(bio);

	(void)data;
	(void)len;
	(void)argi;
	(void)argl;
	if (oper == BIO_CB_READ && m->left == 0) {
		m->refused = true;
		BIO_set_retry_read(bio);
		return -1;
	}
	if (oper == (BIO_CB_READ | BIO_CB_RETURN) && ret > 0)
		m->left -= *processed < m->left ? *processed : m->left;
	return ret;
}

void
tls_meter_watch(struct tls_meter *m, SSL *ssl)
{
	BIO *bio = SSL_get_rbio(ssl);

	BIO_set_callback_arg(bio, (char *)m);
	BIO_set_callback_ex(bio, on_bio);
}

void
tls_meter_allow(struct tls_meter *m, size_t n)
{
	m->left = n > READ_AHEAD ? n : READ_AHEAD;
	m->refused = false;
}
