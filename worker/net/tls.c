#include "worker/net/tls.h"

#include <assert.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/tls/client.h"
#include "proto/tls/context.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/metrics.h"
#include "worker/base/core.h"
#include "worker/net/tls_ticket.h"

#define TEXTS_MAX 64 /* different reasons of failures that are kept for the log */

/* How handshakes end, as counters. */
struct results {
	enum metric_counter full, resumed, failed, unfinished;
};

struct tls_side {
	struct worker *w;
	const struct results *results;
	uint32_t shaking;
	char record[TLS_RECORD]; /* where pieces are joined: valid within one call */
};

struct tls_server {
	struct tls_side side; /* the first: a session knows its side alone */
	struct tls_context *context;
	uint32_t max_shaking;
};

struct tls_engines {
	struct tls_side side;
	size_t ntexts;
	char *texts[TEXTS_MAX];
};

static const struct results of_clients = {M_TLS_FULL, M_TLS_RESUMED, M_TLS_FAILED,
				    M_TLS_UNFINISHED},
			    of_engines = {M_ENGINE_TLS_FULL, M_ENGINE_TLS_RESUMED,
				    M_ENGINE_TLS_FAILED, M_ENGINE_TLS_UNFINISHED};

/* --- what sessions share ----------------------------------------------------------------------- */

struct tls_engines *
tls_engines_new(struct worker *w)
{
	struct tls_engines *e = MEM_NEW(struct tls_engines);

	e->side.w = w;
	e->side.results = &of_engines;
	return e;
}

void
tls_engines_free(struct tls_engines **pe)
{
	struct tls_engines *e = *pe;

	if (e == NULL)
		return;
	assert(e->side.shaking == 0);
	while (e->ntexts > 0)
		free(e->texts[--e->ntexts]);
	free(e);
	*pe = NULL;
}

/* OpenSSL's reasons are few, and what logs them lives longer than the connection. */
static const char *
kept_text(struct tls_engines *e, const char *text)
{
	for (size_t i = 0; i < e->ntexts; i++)
		if (strcmp(e->texts[i], text) == 0)
			return e->texts[i];
	if (e->ntexts == TEXTS_MAX)
		return "tls: failed";
	e->texts[e->ntexts] = mem_strdup(text);
	return e->texts[e->ntexts++];
}

struct tls_server *
tls_server_new(struct worker *w, const struct conf_tls *conf)
{
	struct tls_server *s = MEM_NEW(struct tls_server);
	struct tls_fault fault;

	s->side.w = w;
	s->side.results = &of_clients;
	s->max_shaking = conf->max_handshakes;
	if (tls_context_new(conf, &s->context, &fault) != 0) {
		log_error("no TLS", LOG_S("error", fault.text));
		free(s);
		return NULL;
	}
	tls_ticket_use(tls_context_first(s->context));
	return s;
}

void
tls_server_free(struct tls_server **ps)
{
	struct tls_server *s = *ps;

	if (s == NULL)
		return;
	assert(s->side.shaking == 0);
	tls_context_free(&s->context);
	free(s);
	*ps = NULL;
}

/* --- the handshake ----------------------------------------------------------------------------- */

/* Each handshake is counted once, when it ends. */
static void
shaken(struct tls *t, enum tls_state next, enum metric_counter result)
{
	assert(t->state == TLS_SHAKING);
	t->state = next;
	t->side->shaking--;
	metric_add(t->side->w->slab, result, 1);
}

static struct tls *
begin(struct tls_side *side, SSL *ssl)
{
	struct tls *t = MEM_NEW(struct tls);

	side->shaking++;
	t->side = side;
	t->ssl = ssl;
	tls_meter_watch(&t->meter, ssl);
	return t;
}

struct tls *
tls_accept(struct tls_server *server, int fd)
{
	SSL *ssl = NULL;

	if (server->side.shaking < server->max_shaking)
		ssl = SSL_new(tls_context_first(server->context));
	if (ssl == NULL || SSL_set_fd(ssl, fd) != 1) {
		SSL_free(ssl);
		metric_add(server->side.w->slab, M_TLS_REFUSED, 1);
		return NULL;
	}
	tls_ticket_keys(ssl, server->side.w->seg);
	SSL_set_accept_state(ssl);
	return begin(&server->side, ssl);
}

struct tls *
tls_connect(struct tls_engines *engines, const struct tls_client *client, int fd, const char *host,
	struct tls_memory *memory)
{
	SSL *ssl = tls_client_session(client, fd, host, memory);

	return ssl != NULL ? begin(&engines->side, ssl) : NULL;
}

/* A client that takes this port for another one learns it: such a mistake is common. */
static void
answer_plain(const struct tls *t)
{
	static const char answer[] = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n"
				     "Content-Length: 38\r\nConnection: close\r\n\r\n"
				     "this port speaks TLS: write https://\r\n";

	(void)send(SSL_get_fd(t->ssl), answer, sizeof(answer) - 1, MSG_NOSIGNAL);
}

static bool
is_server(const struct tls *t)
{
	return t->side->results == &of_clients;
}

/* The reason of a failure, from OpenSSL's queue of errors, which stays as it is. */
static void
note_why(struct tls *t, int error, int err)
{
	char text[TLS_WHY];

	if (is_server(t))
		return;
	tls_client_why(t->ssl, error, err, text);
	t->why = kept_text((struct tls_engines *)t->side, text);
}

static int
shake_failed(struct tls *t, int error, int err)
{
	const struct results *results = t->side->results;
	const int reason = ERR_GET_REASON(ERR_peek_error());

	note_why(t, error, err);
	if (error == SSL_ERROR_SYSCALL || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
		shaken(t, TLS_FAILED, results->unfinished);
	} else if (is_server(t) && reason == SSL_R_HTTP_REQUEST) {
		answer_plain(t);
		shaken(t, TLS_FAILED, M_TLS_PLAIN);
	} else {
		const char *why = ERR_reason_error_string(ERR_peek_error());

		if (is_server(t))
			log_debug("TLS handshake failed", LOG_S("reason", why != NULL ? why : ""));
		shaken(t, TLS_FAILED, results->failed);
	}
	ERR_clear_error();
	t->error = err != 0 ? -err : -EPROTO;
	return t->error;
}

int
tls_shake(struct tls *t)
{
	int r, error, err;

	assert(t->state == TLS_SHAKING);
	ERR_clear_error();
	tls_meter_allow(&t->meter, SIZE_MAX); /* OpenSSL bounds what precedes the first byte */
	errno = 0;
	r = SSL_do_handshake(t->ssl);
	err = errno;
	t->wants = TLS_WANTS_NOTHING;
	t->ahead = SSL_has_pending(t->ssl);
	if (r == 1) {
		shaken(t, TLS_OPEN,
			SSL_session_reused(t->ssl) ? t->side->results->resumed
						   : t->side->results->full);
		return 0;
	}
	error = SSL_get_error(t->ssl, r);
	if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
		return shake_failed(t, error, error == SSL_ERROR_SYSCALL ? err : 0);
	if (error == SSL_ERROR_WANT_WRITE)
		t->wants = TLS_WANTS_ROOM;
	return -EAGAIN;
}

/* --- bytes ------------------------------------------------------------------------------------- */

/* What a call that took or gave nothing means, as -errno; 0: the peer's close_notify.  `waiting`: what the session waits
 * for if it lacks bytes of the peer. */
static int
meaning(struct tls *t, int r, int err, enum tls_wants waiting)
{
	int error = SSL_get_error(t->ssl, r);
	bool cut;

	t->wants = TLS_WANTS_NOTHING;
	if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
		t->wants = error == SSL_ERROR_WANT_WRITE ? TLS_WANTS_ROOM : waiting;
		return -EAGAIN;
	}
	if (error == SSL_ERROR_ZERO_RETURN)
		return 0;
	cut = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
	if (error == SSL_ERROR_SSL && !cut)
		note_why(t, error, err);
	ERR_clear_error();
	t->state = TLS_FAILED;
	t->error = cut ? -ECONNRESET : error == SSL_ERROR_SYSCALL && err != 0 ? -err : -EPROTO;
	return t->error;
}

ssize_t
tls_read(struct tls *t, void *buf, size_t n)
{
	size_t done = 0;
	int r, err;

	t->ahead = false;
	if (t->state == TLS_FAILED)
		return t->error;
	ERR_clear_error();
	tls_meter_allow(&t->meter, n);
	do {
		errno = 0;
		r = SSL_read(t->ssl, (char *)buf + done, (int)(n - done));
		err = errno;
		done += r > 0 ? (size_t)r : 0;
	} while (r > 0 && done < n && SSL_has_pending(t->ssl));
	if (r > 0) {
		t->ahead = SSL_has_pending(t->ssl);
		t->wants = TLS_WANTS_NOTHING;
		return (ssize_t)done;
	}
	r = meaning(t, r, err, TLS_WANTS_NOTHING);
	t->ahead = r == -EAGAIN && t->meter.refused;
	if (done == 0)
		return r;
	t->ahead = t->ahead || r != -EAGAIN; /* the next call meets this end again */
	return (ssize_t)done;
}

/* Returns the bytes of one record that were taken, or -errno. */
static ssize_t
write_record(struct tls *t, const void *p, size_t n)
{
	int r, err;
	bool cut;

	ERR_clear_error();
	errno = 0;
	r = SSL_write(t->ssl, p, (int)n);
	err = errno;
	t->wants = TLS_WANTS_NOTHING;
	if (r > 0)
		return r;
	cut = SSL_get_error(t->ssl, r) == SSL_ERROR_SYSCALL;
	r = meaning(t, r, err, TLS_WANTS_BYTES);
	if (r != -EAGAIN) /* the reader of the socket must see the end */
		(void)shutdown(SSL_get_fd(t->ssl), SHUT_RDWR);
	if (r != -EAGAIN && cut && !is_server(t))
		t->state = TLS_ENDED; /* an engine that refuses has answered before it closed */
	return r == 0 ? -EPIPE : r;
}

/* The next bytes of the pieces, from `at` of the first: joined in `to`, where they are not one piece. */
static size_t
next_record(const struct iovec *iov, int n, size_t at, char to[TLS_RECORD], const void **ret)
{
	size_t have = 0;

	if (n == 1 || iov[0].iov_len - at >= TLS_RECORD) {
		*ret = (const char *)iov[0].iov_base + at;
		have = iov[0].iov_len - at;
		return have < TLS_RECORD ? have : TLS_RECORD;
	}
	*ret = to;
	for (int i = 0; i < n && have < TLS_RECORD; i++, at = 0) {
		size_t len = iov[i].iov_len - at;

		if (len > TLS_RECORD - have)
			len = TLS_RECORD - have;
		if (len > 0) /* a piece may be empty and nowhere */
			memcpy(to + have, (const char *)iov[i].iov_base + at, len);
		have += len;
	}
	return have;
}

ssize_t
tls_writev(struct tls *t, const struct iovec *iov, int n)
{
	size_t done = 0, at = 0;
	const void *p;

	if (t->state != TLS_OPEN)
		return t->state == TLS_SHAKING ? -EAGAIN : -EPIPE;
	for (;;) {
		size_t len;
		ssize_t r;

		while (n > 0 && at == iov->iov_len) {
			iov++;
			n--;
			at = 0;
		}
		if (n == 0)
			return (ssize_t)done;
		len = next_record(iov, n, at, t->side->record, &p);
		r = write_record(t, p, len);
		if (r < 0)
			return done > 0 && r == -EAGAIN ? (ssize_t)done : r;
		done += (size_t)r;
		for (at += (size_t)r; n > 0 && at > iov->iov_len; n--)
			at -= (iov++)->iov_len;
	}
}

/* --- the end ----------------------------------------------------------------------------------- */

void
tls_end_writing(struct tls *t)
{
	if (t->state != TLS_OPEN)
		return;
	ERR_clear_error();
	if (!t->cut)
		(void)SSL_shutdown(t->ssl);
	ERR_clear_error();
	t->state = TLS_ENDED;
}

void
tls_free(struct tls **pt)
{
	struct tls *t = *pt;

	if (t == NULL)
		return;
	if (t->state == TLS_SHAKING)
		shaken(t, TLS_FAILED, t->side->results->unfinished);
	SSL_free(t->ssl);
	free(t);
	*pt = NULL;
}
