#include "master/probe/wire.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

bool
wire_begin_tls(struct wire *w, const struct tls_client *client, const char *host,
	struct tls_memory *memory)
{
	w->why[0] = '\0';
	w->ssl = tls_client_session(client, w->fd, host, memory);
	if (w->ssl != NULL)
		tls_meter_watch(&w->meter, w->ssl);
	return w->ssl != NULL;
}

/* What a call of OpenSSL that took or gave nothing means: 0 after close_notify, or -errno. */
static int
meaning(struct wire *w, int r, int err)
{
	const int error = SSL_get_error(w->ssl, r);

	if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
		w->wants = error == SSL_ERROR_WANT_WRITE ? WIRE_WANTS_ROOM : WIRE_WANTS_BYTES;
		return -EAGAIN;
	}
	if (error == SSL_ERROR_ZERO_RETURN)
		return 0;
	tls_client_why(w->ssl, error, err, w->why);
	return error == SSL_ERROR_SYSCALL && err != 0 ? -err : -EPROTO;
}

int
wire_shake(struct wire *w)
{
	int r, err;

	ERR_clear_error();
	tls_meter_allow(&w->meter, SIZE_MAX); /* OpenSSL bounds what precedes the first byte */
	errno = 0;
	r = SSL_do_handshake(w->ssl);
	err = errno;
	if (r == 1)
		return 0;
	r = meaning(w, r, err);
	return r == 0 ? -EPROTO : r;
}

ssize_t
wire_send(struct wire *w, const void *p, size_t n)
{
	ssize_t r;
	int err;

	if (w->ssl == NULL) {
		r = send(w->fd, p, n, MSG_NOSIGNAL);
		w->wants = WIRE_WANTS_ROOM;
		return r == -1 ? -errno : r;
	}
	ERR_clear_error();
	errno = 0;
	r = SSL_write(w->ssl, p, (int)n);
	err = errno;
	if (r > 0)
		return r;
	r = meaning(w, (int)r, err);
	return r == 0 ? -EPIPE : r;
}

ssize_t
wire_read(struct wire *w, void *buf, size_t n)
{
	ssize_t r;
	int err;

	if (w->ssl == NULL) {
		r = read(w->fd, buf, n);
		return r == -1 ? -errno : r;
	}
	ERR_clear_error();
	tls_meter_allow(&w->meter, n);
	errno = 0;
	r = SSL_read(w->ssl, buf, (int)n);
	err = errno;
	w->ahead = r > 0 ? SSL_has_pending(w->ssl) == 1 : w->meter.refused;
	return r > 0 ? r : meaning(w, (int)r, err);
}

bool
wire_is_ahead(const struct wire *w)
{
	return w->ssl != NULL && w->ahead;
}

bool
wire_is_quiet(struct wire *w)
{
	char c;

	if (w->ssl != NULL)
		return wire_read(w, &c, 1) == -EAGAIN && !w->ahead;
	return recv(w->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == -1 && errno == EAGAIN;
}

bool
wire_is_of(const struct wire *w, const struct tls_client *client)
{
	if (w->ssl == NULL || client == NULL)
		return w->ssl == NULL && client == NULL;
	return tls_client_is_of(client, w->ssl);
}

int
wire_release(struct wire *w)
{
	const int fd = w->fd;

	if (w->ssl != NULL) {
		ERR_clear_error();
		(void)SSL_shutdown(w->ssl);
		ERR_clear_error();
		SSL_free(w->ssl);
	}
	w->ssl = NULL;
	w->fd = -1;
	return fd;
}
